"""Documents and questions as the rest of the house sees them, whatever file they came from.

Documents are untrusted text: reading removes what would break a terminal, a JSON file or a
UTF-8 stream (control characters, lone surrogates), and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlkit.errors import DataError

_LINE_BREAK = re.compile("\r\n?|\x85|\u2028|\u2029")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN = 3  # ids named in an error sentence


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a library; `title` may be empty."""

    docid: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """One question; `gold_docids` in the order of its hops where the source tells it."""

    question_id: str
    text: str
    answer: str | None = None
    gold_docids: tuple[str, ...] = ()
    hops: int | None = None


class Corpus(Sequence[Document]):
    """The documents of a library in a fixed order, found by position or by id; in memory here, on
    disk in stored.py.

    Raises DataError where there is no document, or where two have the same id.
    """

    def __init__(self, documents: Iterable[Document], source: str = "the corpus") -> None:
        self._documents = tuple(documents)
        if not self._documents:
            raise DataError(f"{source} holds no documents; at least one is needed.")
        self._positions: dict[str, int] = {}
        for position, document in enumerate(self._documents):
            first = self._positions.setdefault(document.docid, position)
            if first != position:
                raise repeated_id(source, document.docid, first, position)

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index):
        return self._documents[index]

    def __iter__(self) -> Iterator[Document]:
        return iter(self._documents)

    def __contains__(self, docid: object) -> bool:
        return self._find(docid) is not None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} documents, fingerprint {self.fingerprint[:12]})"

    def position(self, docid: str) -> int:
        """The document's place, from 0. Raises KeyError for an unknown id."""
        position = self._find(docid)
        if position is None:
            raise KeyError(docid)
        return position

    def get(self, docid: str) -> Document | None:
        """The document of that id, or None."""
        position = self._find(docid)
        return None if position is None else self[position]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over every id, title and text in order: equal only for equal corpora."""
        digest = hashlib.sha256()
        for document in self:
            add_to_fingerprint(digest, encoded(document))
        return digest.hexdigest()

    def _find(self, docid: object) -> int | None:
        return self._positions.get(docid)


def encoded(document: Document) -> tuple[bytes, bytes, bytes]:
    """Id, title and text in UTF-8; lone surrogates, which a made-up document may hold, survive."""
    parts = (document.docid, document.title, document.text)
    return tuple(part.encode("utf-8", errors="surrogatepass") for part in parts)


def add_to_fingerprint(digest: Any, parts: Iterable[bytes]) -> None:
    """Count one more document, as `encoded` gives it, into a corpus's fingerprint."""
    for raw in parts:
        digest.update(b"%d:" % len(raw))
        digest.update(raw)


def repeated_id(source: str, docid: str, first: int, second: int) -> DataError:
    """What is said of two documents (their positions) with the same id."""
    return DataError(
        f"{source}: the document id {docid[:80]!r} occurs twice (documents {first + 1} and "
        f"{second + 1}); every document needs an id of its own."
    )


@dataclass(frozen=True, slots=True)
class Library:
    """A corpus and the questions that are asked of it.

    Raises DataError where a question id occurs twice or a gold id is not in the corpus.
    """

    corpus: Corpus
    questions: tuple[Question, ...]

    def __post_init__(self) -> None:
        known: set[str] = set()
        for question in self.questions:
            if question.question_id in known:
                raise DataError(
                    f"the question id {question.question_id[:80]!r} occurs twice; "
                    "every question needs an id of its own."
                )
            known.add(question.question_id)
        missing = [
            (q.question_id, d)
            for q in self.questions
            for d in q.gold_docids
            if d not in self.corpus
        ]
        if missing:
            shown = ", ".join(f"{d[:60]!r} (question {q[:60]!r})" for q, d in missing[:_SHOWN])
            raise DataError(
                f"{len(missing)} gold document ids of the questions are not among the "
                f"{len(self.corpus)} documents of the corpus, first {shown}; "
                "give the corpus that the questions were made for."
            )


def clean_text(text: str) -> str:
    """The text with unix line breaks, without control characters, marks of byte order, and
    lone surrogates (which become U+FFFD, since no UTF-8 file can hold them)."""
    text = _LINE_BREAK.sub("\n", text)
    text = _UNPRINTABLE.sub(lambda match: "" if match[0] == "\ufeff" else " ", text)
    return _SURROGATE.sub("\ufffd", text)
