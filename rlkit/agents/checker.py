"""The DocumentChecker: labels what a search brought back. `GoldChecker` works offline, from the
gold documents of the question, by simple rules that anybody can redo by hand; the live one, a
model behind a server, is in `judge.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shown  # shortened
from typing import Any, Protocol

from rlkit.config import named_object
from rlkit.errors import ConfigError, DataError
from rlkit.library.corpus import Corpus, Document
from rlkit.library.tokenize import WIDE, folded
from rlkit.rounds.state import VERDICTS, State, Verdict

MIN_TITLE = 4  # characters; shorter titles stand in texts by chance
MIN_TITLE_CJK = 2


class DocumentChecker(Protocol):
    """Labels documents for one state; None means that a document could not be judged.

    Optional: `take_metrics() -> dict[str, float | None]`, numbers since the last call for
    `metrics.jsonl`, and an attribute `remembers`; a checker that keeps its verdicts itself is
    asked each time, others once per document, question and subgoal.
    """

    def check(self, state: State, documents: Sequence[Document]) -> Mapping[str, Verdict | None]:
        """docid -> verdict. A document that is left out counts as unjudged."""
        ...


class GoldChecker:
    """Gold documents are IMPORTANT; a document whose title stands in a gold text, or that holds
    a gold title, is LOCAL; the rest is DISCARD.

    Titles are matched whole, case and width folded, at word boundaries (Chinese, Japanese and
    Korean need none), if they have at least 4 characters, or 2 of those scripts. Without gold,
    the documents that records label IMPORTANT take its place.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._gold: dict[tuple[str, ...], list[tuple[str, str]]] = {}

    def check(self, state: State, documents: Sequence[Document]) -> dict[str, Verdict | None]:
        """docid -> verdict for each document.

        Raises DataError where the question has neither gold nor known documents.
        """
        gold = state.gold_docids or tuple(sorted(state.known_important))
        if not gold:
            raise DataError(
                f"question {state.question_id} has no gold documents, so the gold checker cannot "
                "label what is found; give gold_docids, or name another checker in checker.kind."
            )
        return {document.docid: self._judge(gold, document) for document in documents}

    def _judge(self, gold: tuple[str, ...], document: Document) -> Verdict:
        if document.docid in gold:
            return "IMPORTANT"
        title, text = folded(document.title), folded(document.text)
        for gold_title, gold_text in self._gold_texts(gold):
            if stands_in(title, gold_text) or stands_in(gold_title, f"{title} {text}"):
                return "LOCAL"
        return "DISCARD"

    def _gold_texts(self, gold: tuple[str, ...]) -> list[tuple[str, str]]:
        """Folded (title, text) of the gold documents that the corpus holds."""
        if gold not in self._gold:
            found = (self.corpus.get(docid) for docid in gold)
            self._gold[gold] = [(folded(d.title), folded(d.text)) for d in found if d]
        return self._gold[gold]


class _OwnChecker:
    """A user's checker as it is, but that an answer which is no verdict is an error at once."""

    def __init__(self, checker: DocumentChecker, kind: str) -> None:
        self._checker, self._kind = checker, kind

    def check(self, state: State, documents: Sequence[Document]) -> dict[str, Verdict | None]:
        """docid -> verdict for each document, None where the checker left it out.

        Raises ConfigError where it returns anything else.
        """
        return self._verdicts(self._checker.check(state, documents), documents)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is copied, there is no checker yet
            raise AttributeError(name)
        found = getattr(self._checker, name)
        if name == "judge_anew":
            return lambda state, documents: self._verdicts(found(state, documents), documents)
        return found

    def _verdicts(self, found: Any, documents: Sequence[Document]) -> dict[str, Verdict | None]:
        allowed = f"a verdict is {', '.join(VERDICTS)}, or None where it could not be judged."
        if not isinstance(found, Mapping):
            raise ConfigError(
                f"the checker {self._kind} returned a {type(found).__name__} for "
                f"{len(documents)} documents; it must return {{docid: verdict}}, where {allowed}"
            )
        labels = {document.docid: found.get(document.docid) for document in documents}
        for docid, label in labels.items():
            if not (label is None or (isinstance(label, str) and label in VERDICTS)):
                raise ConfigError(
                    f"the checker {self._kind} labelled document {docid} {shown(label)}; {allowed}"
                )
        return labels


def build_checker(config: Any, corpus: Corpus) -> DocumentChecker:
    """The checker that `checker.kind` names: gold, llm, or `module:object`, a callable
    (config, corpus) -> DocumentChecker, whose answers are checked. With `checker.flip_share`, that
    share of its verdicts is replaced."""
    checker, kind, share = _checker(config, corpus), config.checker.kind, config.checker.flip_share
    if not share:
        return checker
    from rlkit.agents.noisy import FlippedChecker

    return FlippedChecker(checker, share, kind)


def _checker(config: Any, corpus: Corpus) -> DocumentChecker:
    kind = config.checker.kind
    built_in = {"gold": lambda config, corpus: GoldChecker(corpus), "llm": _live_checker}
    checker = named_object(kind, built_in, "checker.kind")(config, corpus)
    if not hasattr(checker, "check"):
        raise ConfigError(
            f"checker.kind {kind} made a {type(checker).__name__}, which has no "
            "check(state, documents); see the protocol rlkit.agents.checker.DocumentChecker."
        )
    return checker if kind in built_in else _OwnChecker(checker, kind)


def _live_checker(config: Any, corpus: Corpus) -> DocumentChecker:
    from rlkit.agents.judge import LLMChecker  # brings the openai client along

    return LLMChecker.from_config(config)


def stands_in(title: str, text: str) -> bool:
    """Whether a folded title stands in a folded text as words of its own."""
    if len(title) < (MIN_TITLE_CJK if WIDE.search(title) else MIN_TITLE):
        return False
    start = text.find(title)
    while start >= 0:
        if _is_edge(text, start, -1) and _is_edge(text, start + len(title), 1):
            return True
        start = text.find(title, start + 1)
    return False


def _is_edge(text: str, at: int, side: int) -> bool:
    """Whether a word may begin (side -1) or end (side 1) at `at`."""
    outside, inside = (at - 1, at) if side < 0 else (at, at - 1)
    if not 0 <= outside < len(text) or not text[outside].isalnum():
        return True
    return not text[inside].isalnum() or bool(WIDE.match(text[inside]))
