"""The four tables of a state as text, in English or Chinese, within a budget of tokens. Texts of
documents are untrusted: `one_line` keeps them from faking lines, tags or control tokens."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rlkit.library.tokenize import dominant_language
from rlkit.rounds.state import DocumentRow, EntityRow, State, TargetRow

Row = TypeVar("Row")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
                      r"\ud800-\udfff]")  # fmt: skip
_TAG = re.compile(r"<(?=[A-Za-z/|!])")
CUT_CONTEXT = 400  # characters that are left of a context text at the first shortening

WORDS = {
    "en": {
        "entities": "Names seen:",
        "targets": "To find out:",
        "documents": "Documents found:",
        "context": "Texts read:",
        "none": "(none yet)",
        "open": "open",
        "answered": "answered",
        "shortened": "(Older texts are shortened or left out, to fit.)",
    },
    "zh": {
        "entities": "已出现的名称：",
        "targets": "待查明：",
        "documents": "已找到的文档：",
        "context": "已读的正文：",
        "none": "（暂无）",
        "open": "未解决",
        "answered": "已解决",
        "shortened": "（为控制长度，较早的正文已缩短或省略。）",
    },
}


def one_line(text: str) -> str:
    """Untrusted text as one harmless line: blanks collapsed, control signs out, no tag opened."""
    text = _CONTROL.sub("", " ".join(text.split()))
    return _TAG.sub("‹", text)


def render_tables(
    state: State,
    language: str = "auto",
    count_tokens: Callable[[str], int] | None = None,
    budget: int | None = None,
) -> tuple[str, bool]:
    """The entity, target, document and context table as text, and whether it was shortened.

    `language` is `en`, `zh` or `auto` (the question's). Where the text has more than `budget`
    tokens, as counted by `count_tokens`, the oldest context is cut to a few hundred characters
    and then left out, then the next one; after all contexts the summaries go, those of documents
    that are not IMPORTANT first, then documents and entities. The text then says that it was
    shortened. A budget too small even for the headings gives the headings.
    """
    words = WORDS[dominant_language(state.question) if language == "auto" else language]
    whole = _Shown.all_of(state)
    if count_tokens is None or budget is None:
        return _render(whole, words, shortened=False), False
    text = _render(whole, words, shortened=False)
    if count_tokens(text) <= budget:
        return text, False
    cuts = _cuts(whole)
    steps = range(1, len(cuts) + 1)
    fits = bisect_left(
        steps,
        True,
        key=lambda n: count_tokens(_render(whole.after(cuts[:n]), words, True)) <= budget,
    )
    return _render(whole.after(cuts[: fits + 1]), words, shortened=True), True


@dataclass(slots=True)
class _Shown:
    """What of a state is shown; cuts remove from it."""

    entities: list[EntityRow]
    targets: list[TargetRow]
    documents: list[DocumentRow]
    contexts: list[tuple[int, str, str]]  # (round, docid, text), oldest first
    titles: dict[str, str]
    removed: set[tuple[str, int]] = field(default_factory=set)  # (what, its index)

    @classmethod
    def all_of(cls, state: State) -> _Shown:
        contexts = [(row.round, row.docid, one_line(row.text)) for row in state.context_table]
        return cls(
            entities=list(state.entity_table),
            targets=list(state.target_table),
            documents=sorted(state.document_table, key=lambda row: row.round),
            contexts=sorted(contexts, key=lambda row: row[0]),
            titles={row.docid: one_line(row.title or row.docid) for row in state.document_table},
        )

    def after(self, cuts: list[tuple[str, int]]) -> _Shown:
        return replace(self, removed=set(cuts))

    def left(self, what: str, rows: list[Row]) -> list[Row]:
        return [row for index, row in enumerate(rows) if (what, index) not in self.removed]

    def context(self, index: int) -> str | None:
        """The text of a context as far as it is left; None where it was left out."""
        text = self.contexts[index][2]
        if ("context", index) in self.removed:
            return None
        if ("context end", index) in self.removed and len(text) > CUT_CONTEXT:
            return text[:CUT_CONTEXT].rstrip() + " …"
        return text


def _cuts(shown: _Shown) -> list[tuple[str, int]]:
    """All that can be taken away, in the order in which it is."""
    cuts: list[tuple[str, int]] = []
    for index in range(len(shown.contexts)):
        cuts += [("context end", index), ("context", index)]
    by_use = sorted(
        range(len(shown.documents)), key=lambda i: shown.documents[i].verdict == "IMPORTANT"
    )
    cuts += [("summary", index) for index in by_use]
    cuts += [("document", index) for index in by_use]
    cuts += [("entity", index) for index in range(len(shown.entities))]
    return cuts + [("target", index) for index in range(len(shown.targets))]


def _render(shown: _Shown, words: dict[str, str], shortened: bool) -> str:
    parts = [words["shortened"]] if shortened else []
    contexts = _context_lines(shown)
    for heading, lines in (
        ("entities", [_entity_line(row) for row in shown.left("entity", shown.entities)]),
        ("targets", [_target_line(row, words) for row in shown.left("target", shown.targets)]),
        ("documents", _document_lines(shown)),
        ("context", contexts),
    ):
        if lines or heading != "context":
            parts.append("\n".join([words[heading], *(lines or [words["none"]])]))
    return "\n".join(parts)


def _context_lines(shown: _Shown) -> list[str]:
    """The texts read, but not those that stand whole in the line of their document."""
    summaries = {row.docid: one_line(row.summary) for row in shown.documents}
    return [
        f"[{shown.titles.get(docid) or one_line(docid)}] {text}"
        for index, (_, docid, _) in enumerate(shown.contexts)
        if (text := shown.context(index)) is not None and text != summaries.get(docid)
    ]


def _document_lines(shown: _Shown) -> list[str]:
    """Title, verdict and summary; no summary where a text below begins with it anyway."""
    read = {docid: shown.context(i) for i, (_, docid, _) in enumerate(shown.contexts)}
    lines = []
    for index, row in enumerate(shown.documents):
        if ("document", index) in shown.removed:
            continue
        head = f"- {shown.titles[row.docid]}" + (f" ({row.verdict})" if row.verdict else "")
        summary, text = one_line(row.summary), read.get(row.docid)
        start = summary.removesuffix("…").rstrip()
        told_below = text is not None and text != summary and text.startswith(start)
        hidden = told_below or not summary or ("summary", index) in shown.removed
        lines.append(head if hidden else f"{head}: {summary}")
    return lines


def _entity_line(row: EntityRow) -> str:
    known = "; ".join(f"{one_line(k)}: {one_line(str(v))}" for k, v in row.attributes.items())
    kind = f" ({one_line(row.type)})" if row.type else ""
    return f"- {one_line(row.name)}{kind}" + (f": {known}" if known else "")


def _target_line(row: TargetRow, words: dict[str, str]) -> str:
    status = words.get(row.status) if row.status in ("open", "answered") else one_line(row.status)
    value = f" = {one_line(row.value)}" if row.value else ""
    return f"- [{status}] {one_line(row.description)}{value}"
