"""The four tables of a state as text, in English or Chinese, within a budget of tokens. Texts of
documents are untrusted: `one_line` keeps them from faking lines, tags or control tokens."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rlkit.library.tokenize import dominant_language
from rlkit.rounds.state import DocumentRow, EntityRow, State, TargetRow

Row = TypeVar("Row")
Cut = tuple[Any, int]  # (what is cut, or how far; its index)
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
        "left out": "(... {count} rows left out)",
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
        "left out": "（……另有{count}行未列出）",
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
    shortened, and in each table how many rows were left out. A budget too small even for that
    gives the headings with these counts.
    """
    words = WORDS[dominant_language(state.question) if language == "auto" else language]
    if count_tokens is None or budget is None:
        return _render(state, words, ()), False
    return fitted(lambda cuts: _render(state, words, cuts), _cuts(state), count_tokens, budget)


def fitted(
    render: Callable[[Sequence[Cut]], str],
    cuts: Sequence[Cut],
    count_tokens: Callable[[str], int],
    budget: int,
) -> tuple[str, bool]:
    """The text with as few of the cuts, in their order, as the budget of tokens asks for (all
    where none will do), and whether any was made."""
    whole = render(())
    if count_tokens(whole) <= budget:
        return whole, False
    counts = range(1, len(cuts) + 1)
    fits = bisect_left(counts, True, key=lambda n: count_tokens(render(cuts[:n])) <= budget)
    return render(cuts[: fits + 1]), True


def _cuts(state: State) -> list[Cut]:
    """All that can be taken away, in the order in which it is."""
    contexts, documents = _by_round(state.context_table), _by_round(state.document_table)
    by_use = sorted(range(len(documents)), key=lambda i: documents[i].verdict == "IMPORTANT")
    return [
        *((what, index) for index in range(len(contexts)) for what in ("context end", "context")),
        *((what, index) for what in ("summary", "document") for index in by_use),
        *(("entity", index) for index in range(len(state.entity_table))),
        *(("target", index) for index in range(len(state.target_table))),
    ]


def _by_round(rows: Sequence[Row]) -> list[Row]:
    """Oldest first."""
    return sorted(rows, key=lambda row: row.round)


def _render(state: State, words: dict[str, str], cuts: Sequence[Cut]) -> str:
    removed = frozenset(cuts)
    entities = [r for i, r in enumerate(state.entity_table) if ("entity", i) not in removed]
    targets = [r for i, r in enumerate(state.target_table) if ("target", i) not in removed]
    documents = _by_round(state.document_table)
    texts = _texts_left(state, removed)
    parts = [words["shortened"]] if cuts else []
    left_out = Counter(what for what, _ in removed)
    for heading, what, lines in (
        ("entities", "entity", [_entity_line(row) for row in entities]),
        ("targets", "target", [_target_line(row, words) for row in targets]),
        ("documents", "document", _document_lines(documents, dict(texts), removed)),
        ("context", "context", _context_lines(documents, texts)),
    ):
        if left_out[what]:
            lines = [words["left out"].format(count=left_out[what]), *lines]
        if lines or heading != "context":
            parts.append("\n".join([words[heading], *(lines or [words["none"]])]))
    return "\n".join(parts)


def _texts_left(state: State, removed: frozenset[Cut]) -> list[tuple[str, str | None]]:
    """(docid, what is left of its text; None where it was left out), oldest first."""
    texts: list[tuple[str, str | None]] = []
    for index, row in enumerate(_by_round(state.context_table)):
        text: str | None = one_line(row.text)
        if ("context", index) in removed:
            text = None
        elif ("context end", index) in removed and len(text) > CUT_CONTEXT:
            text = text[:CUT_CONTEXT].rstrip() + " …"
        texts.append((row.docid, text))
    return texts


def _title(row: DocumentRow) -> str:
    return one_line(row.title or row.docid)


def _context_lines(
    documents: Sequence[DocumentRow], texts: Sequence[tuple[str, str | None]]
) -> list[str]:
    """The texts read, but not those that stand whole in the line of their document."""
    titles = {row.docid: _title(row) for row in documents}
    summaries = {row.docid: one_line(row.summary) for row in documents}
    return [
        f"[{titles.get(docid) or one_line(docid)}] {text}"
        for docid, text in texts
        if text is not None and text != summaries.get(docid)
    ]


def _document_lines(
    documents: Sequence[DocumentRow], read: dict[str, str | None], removed: frozenset[Cut]
) -> list[str]:
    """Title, verdict and summary; no summary where a text below begins with it anyway."""
    lines = []
    for index, row in enumerate(documents):
        if ("document", index) in removed:
            continue
        head = f"- {_title(row)}" + (f" ({row.verdict})" if row.verdict else "")
        summary, text = one_line(row.summary), read.get(row.docid)
        start = summary.removesuffix("…").rstrip()
        told_below = text is not None and text != summary and text.startswith(start)
        hidden = told_below or not summary or ("summary", index) in removed
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
