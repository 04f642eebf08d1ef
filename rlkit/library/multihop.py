"""Data sets whose questions bring their own documents: HotpotQA and 2WikiMultihopQA (JSON),
MuSiQue (JSONL), BrowseComp-Plus (decrypted JSONL; its corpus also stands alone).

HotpotQA, 2Wiki and MuSiQue have no document ids: the title is the id. The first text met under
a title gets the plain title; another text under the same title gets `title #<6 hex digits>` of
its own text, so that it keeps its id whatever else the file holds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rlkit.errors import DataError
from rlkit.library.corpus import Document, Question
from rlkit.library.fields import MAX_ID, Row, identifier, list_field, text_field

DocumentsReader = Callable[[Iterable[Row]], Iterator[Document]]
QuestionsReader = Callable[[Iterable[Row]], Iterator[Question]]

_FRONT_TITLE = re.compile(r"\A---\s*\n(?:[^\n]*\n){0,20}?title:[ \t]*([^\n]+)\n", re.IGNORECASE)


def documents_reader(fields: dict[str, Any]) -> DocumentsReader | None:
    """The reader of documents for rows like this first one, or None for a plain corpus."""
    if _is_browsecomp_query(fields):
        return _browsecomp_query_documents
    if "docid" in fields and "url" in fields:
        return _browsecomp_documents
    paragraphs = _paragraphs_reader(fields)
    return None if paragraphs is None else lambda rows: _titled_documents(rows, paragraphs)


def questions_reader(fields: dict[str, Any]) -> QuestionsReader | None:
    """The reader of questions for rows like this first one, or None for plain questions."""
    if _is_browsecomp_query(fields):
        return _browsecomp_questions
    paragraphs = _paragraphs_reader(fields)
    return None if paragraphs is None else lambda rows: _titled_questions(rows, paragraphs)


class _TitleIds:
    """Gives every (title, text) its document id."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    longest = MAX_ID - len(" #abcdef")  # characters of a title

    def add(self, title: str, text: str) -> tuple[str, bool]:
        """The id, and whether it is met for the first time."""
        docid = title
        if self._texts.get(title, text) != text:
            digest = hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
            docid = f"{title} #{digest[:6]}"
        new = docid not in self._texts
        self._texts.setdefault(docid, text)
        return docid, new


Paragraph = tuple[str, str, int | None]  # title, text, place among the gold ones (None: not gold)


def _paragraphs_reader(fields: dict[str, Any]) -> Callable[[Row], list[Paragraph]] | None:
    if "paragraphs" in fields:
        return _musique_paragraphs
    if "context" in fields and "supporting_facts" in fields and "gold" not in fields:
        return _hotpot_paragraphs
    return None


def _titled_documents(rows: Iterable[Row], paragraphs: Callable) -> Iterator[Document]:
    ids = _TitleIds()
    for row in rows:
        for title, text, _ in paragraphs(row):
            docid, new = ids.add(title, text)
            if new:
                yield Document(docid, title, text)


def _titled_questions(rows: Iterable[Row], paragraphs: Callable) -> Iterator[Question]:
    ids = _TitleIds()
    for row in rows:
        found = [(place, ids.add(title, text)[0]) for title, text, place in paragraphs(row)]
        if row.fields.get("answerable") is False:
            continue  # MuSiQue-Full: a part of the gold was taken away on purpose
        gold = dict.fromkeys(d for place, d in sorted(f for f in found if f[0] is not None))
        parts = row.fields.get("question_decomposition")
        yield Question(
            question_id=identifier(row, "_id", "id"),
            text=text_field(row, "question"),
            answer=text_field(row, "answer", required=False) or None,
            gold_docids=tuple(gold),
            hops=(len(parts) if isinstance(parts, list) and parts else len(gold)) or None,
        )


def _hotpot_paragraphs(row: Row) -> list[Paragraph]:
    context = [
        _pair(row, "context", n, entry) for n, entry in enumerate(list_field(row, "context"))
    ]
    facts = [
        _pair(row, "supporting_facts", n, fact)[0]
        for n, fact in enumerate(list_field(row, "supporting_facts"))
    ]
    order = {title: place for place, title in enumerate(dict.fromkeys(facts))}
    lost = set(order).difference(title for title, _ in context)
    if lost:
        raise DataError(
            f"{row.where}, field 'supporting_facts': {min(lost)[:60]!r} is no title "
            "of the context; use the distractor setting's file, which holds all gold."
        )
    paragraphs = []
    for number, (title, sentences) in enumerate(context):
        where = f"{row.where}, field 'context[{number}]'"
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise DataError(f"{where}: the second part must be the list of sentences.")
        inner = Row({"title": title, "text": " ".join(s.strip() for s in sentences)}, where)
        paragraphs.append(
            (
                _title(inner),
                text_field(inner, "text", required=False),
                order.get(title),
            )
        )
    return paragraphs


def _title(row: Row) -> str:
    """A title that may become an id."""
    title = text_field(row, "title")
    if len(title) > _TitleIds.longest:
        raise DataError(
            f"{row.where}, field 'title': {len(title)} characters, and the title is the document's "
            f"id; at most {_TitleIds.longest} are allowed, so give it a shorter one."
        )
    return title


def _pair(row: Row, key: str, number: int, value: Any) -> tuple[str, Any]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        raise DataError(
            f"{row.where}, field '{key}[{number}]': not a pair that starts with a "
            "title; HotpotQA and 2WikiMultihopQA write [title, ...]."
        )
    return value[0], value[1]


def _musique_paragraphs(row: Row) -> list[Paragraph]:
    order: dict[Any, int] = {}
    for place, part in enumerate(row.fields.get("question_decomposition") or []):
        if isinstance(part, dict) and isinstance(part.get("paragraph_support_idx"), int):
            order.setdefault(part["paragraph_support_idx"], place)
    paragraphs = []
    for number, value in enumerate(list_field(row, "paragraphs")):
        inner = row.child("paragraphs", number, value)
        supporting = inner.fields.get("is_supporting", False)
        if not isinstance(supporting, bool):
            raise DataError(f"{inner.where}, field 'is_supporting': not true or false.")
        place = order.get(inner.fields.get("idx", number), len(order)) if supporting else None
        paragraphs.append(
            (_title(inner), text_field(inner, "paragraph_text", required=False), place)
        )
    return paragraphs


def _is_browsecomp_query(fields: dict[str, Any]) -> bool:
    return "gold_docs" in fields or "evidence_docs" in fields


def _browsecomp_documents(rows: Iterable[Row]) -> Iterator[Document]:
    for row in rows:
        text = text_field(row, "text", required=False)
        front = _FRONT_TITLE.match(text)
        title = front[1].strip() if front else ""
        yield Document(identifier(row, "docid"), title, text)


def _browsecomp_query_documents(rows: Iterable[Row]) -> Iterator[Document]:
    known: set[str] = set()
    for row in rows:
        for key in ("gold_docs", "evidence_docs", "negative_docs"):
            for document in _browsecomp_documents(_children(row, key)):
                if document.docid not in known:
                    known.add(document.docid)
                    yield document


def _browsecomp_questions(rows: Iterable[Row]) -> Iterator[Question]:
    """Gold is the evidence, all that is needed to answer; `gold_docs` (those that hold the
    answer) come last, since they are where the search ends."""
    for row in rows:
        golds = [identifier(child, "docid") for child in _children(row, "gold_docs")]
        evidence = [identifier(child, "docid") for child in _children(row, "evidence_docs")]
        gold = tuple(dict.fromkeys([*(d for d in evidence if d not in golds), *golds]))
        yield Question(
            identifier(row, "query_id", "id"),
            text_field(row, "query", "question"),
            text_field(row, "answer", required=False) or None,
            gold,
            len(gold) or None,
        )


def _children(row: Row, key: str) -> Iterator[Row]:
    if row.fields.get(key) is not None:
        for number, value in enumerate(list_field(row, key)):
            yield row.child(key, number, value)
