"""The EntityManager: after each round it updates the tables that the next round reads.
`RuleEntityManager` collects names by their spelling and keeps what the checker found useful; the
live one, a model behind a server, is in `live_entities.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydantic import JsonValue

from rlkit.agents.names import names_in
from rlkit.agents.planner import Plan
from rlkit.config import named_object
from rlkit.errors import ConfigError
from rlkit.library.corpus import Corpus, Document
from rlkit.rounds.state import (
    ContextRow,
    DocumentRow,
    EntityRow,
    RoundFile,
    TargetRow,
    Verdict,
)
from rlkit.rounds.tables import one_line

if TYPE_CHECKING:
    from rlkit.agents.llm import ChatClient

SUMMARY_CHARS = {"IMPORTANT": 240, "LOCAL": 120}  # LOCAL documents mostly distract
CONTEXT_CHARS = 4000  # of a document that is kept; longer texts would fill every later round
NAMES_PER_DOCUMENT = 8
RULE_TYPES = ("", "question", "found")  # of names, in the eyes of a rule


class Tables(NamedTuple):
    """The four tables. `by_rules`: rules made them, since a model's word could not be read."""

    entities: tuple[EntityRow, ...] = ()
    targets: tuple[TargetRow, ...] = ()
    documents: tuple[DocumentRow, ...] = ()
    contexts: tuple[ContextRow, ...] = ()
    by_rules: bool = False


class ReadDocument(NamedTuple):
    """A new document that the round read, and what the checker said of it."""

    document: Document
    verdict: Verdict | None


class EntityManager(Protocol):
    """Keeps the tables; whatever it returns is what the next round sees."""

    def begin(self, question: str) -> Tables:
        """The tables before the first round."""
        ...

    def update(self, before: RoundFile, plan: Plan, read: Sequence[ReadDocument]) -> Tables:
        """The tables after a round that began in `before` and read these documents."""
        ...


class RuleEntityManager:
    """Documents found IMPORTANT or LOCAL enter the document table with a summary, IMPORTANT ones
    the context table with their text too; names come from the question, from the titles of found
    documents, and from the texts of IMPORTANT ones."""

    def begin(self, question: str) -> Tables:
        """The names in the question, and the question as the first open target."""
        names = _Names()
        for name in names_in(question):
            names.add(name, "question")
        return Tables(names.rows(), (TargetRow(id="t1", description=one_line(question)),))

    def update(self, before: RoundFile, plan: Plan, read: Sequence[ReadDocument]) -> Tables:
        """Add the round's useful documents, their names, and what became of the subgoal."""
        number = before.round + 1
        known = {row.docid for row in before.document_table}
        kept = [
            item
            for item in read
            if item.verdict in ("IMPORTANT", "LOCAL") and item.document.docid not in known
        ]
        return Tables(
            _names_after(before, kept),
            _targets_after(before, plan, kept),
            before.document_table + tuple(_document_row(item, number) for item in kept),
            before.context_table
            + tuple(_context_row(item, number) for item in kept if item.verdict == "IMPORTANT"),
        )


def build_entities(config: Any, corpus: Corpus, client: ChatClient | None = None) -> EntityManager:
    """The entity manager that `data.entities` names: rules, llm (which asks `client`, by default
    one of its own), or `module:object`, a callable (config, corpus) -> EntityManager.

    Raises ConfigError for another name, or where the object makes no EntityManager.
    """
    name = config.data.entities
    built_in = {
        "rules": lambda config, corpus: RuleEntityManager(),
        "llm": lambda config, corpus: _live_entities(config, client),
    }
    manager = named_object(name, built_in, "data.entities")(config, corpus)
    if not (hasattr(manager, "begin") and hasattr(manager, "update")):
        raise ConfigError(
            f"data.entities {name} made a {type(manager).__name__}, which lacks begin(question) or "
            "update(before, plan, read); see the protocol rlkit.agents.entities.EntityManager."
        )
    return manager


def _live_entities(config: Any, client: ChatClient | None) -> EntityManager:
    from rlkit.agents.live_entities import LLMEntityManager  # brings the openai client along
    from rlkit.agents.llm import ChatClient

    return LLMEntityManager(
        client or ChatClient.from_config(config),
        max_document_chars=config.checker.max_document_chars,
        max_prompt_tokens=config.data.agent_prompt_tokens,
        language=config.checker.language,
    )


def _names_after(before: RoundFile, kept: Sequence[ReadDocument]) -> tuple[EntityRow, ...]:
    names = _Names(before.entity_table)
    for document, _ in kept:
        names.add(one_line(document.title), "found", document.docid)
    for document, verdict in kept:
        if verdict == "IMPORTANT":
            for name in names_in(document.text)[:NAMES_PER_DOCUMENT]:
                names.add(name, "", document.docid)
    return names.rows()


def _targets_after(
    before: RoundFile, plan: Plan, kept: Sequence[ReadDocument]
) -> tuple[TargetRow, ...]:
    """The subgoal is answered, in the eyes of a rule, once it led to an IMPORTANT document; the
    question itself stays open."""
    rows = list(before.target_table)
    subgoal = one_line(plan.subgoal)
    if not subgoal or any(row.description == subgoal for row in rows):
        return tuple(rows)
    found = [item.document for item in kept if item.verdict == "IMPORTANT"]
    rows.append(
        TargetRow(
            id=f"t{len(rows) + 1}",
            description=subgoal,
            status="answered" if found else "open",
            value="; ".join(one_line(document.title) for document in found) or None,
            docids=tuple(document.docid for document in found),
        )
    )
    return tuple(rows)


def _document_row(item: ReadDocument, number: int) -> DocumentRow:
    return DocumentRow(
        docid=item.document.docid,
        title=one_line(item.document.title),
        verdict=item.verdict,
        summary=shorten(one_line(item.document.text), SUMMARY_CHARS[item.verdict]),
        round=number,
    )


def _context_row(item: ReadDocument, number: int) -> ContextRow:
    text = shorten(one_line(item.document.text), CONTEXT_CHARS)
    return ContextRow(docid=item.document.docid, text=text, round=number)


def shorten(text: str, length: int) -> str:
    """At most about `length` characters, cut at a blank where there is one, marked by `…`."""
    if len(text) <= length:
        return text
    cut = text[:length]
    blank = cut.rfind(" ")
    return (cut[:blank] if blank > length // 2 else cut).rstrip() + " …"


@dataclass(slots=True)
class _Name:
    name: str
    type: str
    docids: list[str]
    attributes: dict[str, JsonValue] = field(default_factory=dict)


class _Names:
    """An entity table under construction; the first spelling and type of a name stay, except
    that a name becomes `found` once a document of that title was found, if nobody else gave it
    a type."""

    def __init__(self, rows: Sequence[EntityRow] = ()) -> None:
        self._by_fold = {
            row.name.casefold(): _Name(row.name, row.type, list(row.docids), row.attributes)
            for row in rows
        }

    def add(self, name: str, kind: str, docid: str | None = None) -> None:
        if not name or f"the {name.casefold()}" in self._by_fold:  # its `The` began a sentence
            return
        entry = self._by_fold.setdefault(name.casefold(), _Name(name, kind, []))
        if kind == "found" and entry.type in RULE_TYPES:
            entry.type = kind
        if docid is not None and docid not in entry.docids:
            entry.docids.append(docid)

    def rows(self) -> tuple[EntityRow, ...]:
        return tuple(
            EntityRow(
                id=f"e{number}",
                name=entry.name,
                type=entry.type,
                attributes=entry.attributes,
                docids=tuple(entry.docids),
            )
            for number, entry in enumerate(self._by_fold.values(), start=1)
        )
