"""What is recorded of a question: the two files of a run as pydantic models, and `State`, what
the Executor sees before it writes. `meta.json` is written last; `round_NNN.json` is the
state after round NNN, and `round_000.json` the state before the first round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

Verdict = Literal["IMPORTANT", "LOCAL", "DISCARD"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
SEARCH, ANSWER = "SEARCH", "ANSWER"  # strategies; others may be recorded, and are no samples
FINISHED, FAILED = "finished", "failed"  # how our own runs end

RoundNumber = Annotated[int, Field(ge=0, le=99_999)]
DocId = Annotated[str, Field(min_length=1, max_length=500)]


class _Recorded(BaseModel):
    """Base of all that is on disk: types are not converted, unknown extra keys are kept."""

    model_config = ConfigDict(
        extra="allow", strict=True, frozen=True, allow_inf_nan=False, populate_by_name=True
    )


class EntityRow(_Recorded):
    """A name that turned up, where it turned up, and what is known of it."""

    id: str
    name: str
    type: str = ""
    attributes: dict[str, JsonValue] = {}
    docids: tuple[DocId, ...] = ()


class TargetRow(_Recorded):
    """Something that must be found out; `status` is `open` or `answered` in our own records."""

    id: str
    description: str
    status: str = "open"
    value: str | None = None
    docids: tuple[DocId, ...] = ()


class DocumentRow(_Recorded):
    """A document worth keeping, with the round that found it."""

    docid: DocId
    title: str = ""
    verdict: Verdict | None = None
    summary: str = ""
    round: RoundNumber = 0


class ContextRow(_Recorded):
    """A piece of text that was read, with the round that read it."""

    docid: DocId
    text: str
    round: RoundNumber = 0


class ResultRow(_Recorded):
    """A document that the round brought back; `verdict` null means unjudged, never DISCARD."""

    docid: DocId
    clue: str = ""
    rank: Annotated[int, Field(ge=1)] | None = None
    score: float | None = None
    verdict: Verdict | None = None


class RoundFile(_Recorded):
    """`round_NNN.json`: what was done in round NNN, and the tables after it."""

    schema_: Literal[1] = Field(alias="schema")
    round: RoundNumber
    strategy: str = ""
    subgoal: str = ""
    clues: tuple[str, ...] = ()
    entity_table: tuple[EntityRow, ...] = ()
    target_table: tuple[TargetRow, ...] = ()
    document_table: tuple[DocumentRow, ...] = ()
    context_table: tuple[ContextRow, ...] = ()
    seen_docids: tuple[DocId, ...] = ()
    results: tuple[ResultRow, ...] = ()

    @model_validator(mode="after")
    def _ids_are_unique(self) -> RoundFile:
        _refuse_repeats("entity_table", [row.id for row in self.entity_table])
        _refuse_repeats("target_table", [row.id for row in self.target_table])
        _refuse_repeats("document_table", [row.docid for row in self.document_table])
        return self


class RoundRef(_Recorded):
    """One line of `meta.json`'s list of rounds; `failed` holds the reason where an agent failed."""

    round: RoundNumber
    strategy: str
    subgoal: str = ""
    clues: tuple[str, ...] = ()
    checkpoint: Annotated[str, Field(pattern=r"^round_[0-9]{3,5}\.json$")]
    failed: str | None = None


class MetaFile(_Recorded):
    """`meta.json`: which question was played, how it ended, and the list of its rounds. `answer`
    is the right one, `final_answer` the agents' own."""

    schema_: Literal[1] = Field(alias="schema")
    question_id: str
    question: Annotated[str, Field(min_length=1)]
    answer: str | None = None
    gold_docids: tuple[DocId, ...] | None = None
    hops: Annotated[int, Field(ge=1)] | None = None
    status: str
    collector: str | None = None
    rounds: tuple[RoundRef, ...]
    final_answer: str | None = None

    @model_validator(mode="after")
    def _rounds_follow_each_other(self) -> MetaFile:
        for before, after in zip(self.rounds, self.rounds[1:], strict=False):
            if after.round != before.round + 1:
                raise ValueError(
                    f"round {after.round} follows round {before.round}; rounds count up by one"
                )
        if self.rounds and self.rounds[0].round > 1:
            raise ValueError(f"the first round is {self.rounds[0].round}; it must be 1")
        return self


def failure_of(meta: MetaFile) -> str | None:
    """Why a question's last failed round failed; None where no round has a reason."""
    return next((ref.failed for ref in reversed(meta.rounds) if ref.failed), None)


class Source(Protocol):
    """Where a recorded state is, for a `State` that reads its tables when they are asked for."""

    missing: frozenset[str]
    recorded_discovery: float | None

    def load(self) -> State:
        """The state with all its fields. Raises DataError where its files are no longer so."""

    def knowing(self, known: frozenset[str]) -> State:
        """See `State.knowing`."""


class _Lazy:
    """Fields that were not set are read from `_source`, which keeps only the last few."""

    __slots__ = ("_source",)
    _source: Source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self, "_source"):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self._source.load(), name)


@dataclass(frozen=True, slots=True)
class State(_Lazy):
    """What the Executor sees before it writes, and what practice needs to score its clues.

    The prompt may show `question`, `subgoal`, the four tables and `seen_docids`; it must never
    show `gold_docids`, `known_important`, `recorded_clues` or `recorded_results` (what the
    recorded round did from here). `round` is the round to play, from 1. Of a state that the loader
    gave, what takes memory is read again from its files whenever it is asked for.
    """

    state_id: str
    question_id: str
    question: str
    round: int
    strategy: str
    subgoal: str
    entity_table: tuple[EntityRow, ...] = ()
    target_table: tuple[TargetRow, ...] = ()
    document_table: tuple[DocumentRow, ...] = ()
    context_table: tuple[ContextRow, ...] = ()
    seen_docids: tuple[str, ...] = ()
    gold_docids: tuple[str, ...] = ()
    known_important: frozenset[str] = frozenset()
    recorded_clues: tuple[str, ...] = ()
    recorded_results: tuple[ResultRow, ...] = ()
    hops: int | None = None

    def __hash__(self) -> int:
        return hash(self.state_id)

    @property
    def missing(self) -> frozenset[str]:
        """The known IMPORTANT documents that nobody has seen yet."""
        if hasattr(self, "_source"):
            return self._source.missing
        return self.known_important.difference(self.seen_docids)

    @property
    def recorded_discovery(self) -> float | None:
        """The share of the missing documents that the recorded round found; None if none is."""
        if hasattr(self, "_source"):
            return self._source.recorded_discovery
        missing = self.missing
        if not missing:
            return None
        return len(missing.intersection(row.docid for row in self.recorded_results)) / len(missing)

    def knowing(self, known: frozenset[str]) -> State:
        """The same state where these documents are known, without gold, whatever was recorded of
        its question since."""
        if hasattr(self, "_source"):
            return self._source.knowing(known)
        return replace(self, gold_docids=(), known_important=known)


def make_state(
    before: RoundFile,
    *,
    question_id: str,
    question: str,
    run: str,
    strategy: str,
    subgoal: str,
    gold_docids: Iterable[str] = (),
    known_important: Iterable[str] = (),
    recorded_clues: Sequence[str] = (),
    recorded_results: Sequence[ResultRow] = (),
    hops: int | None = None,
) -> State:
    """The state in which the round after `before` is played; its id is question/run/round."""
    return State(
        state_id=f"{question_id}/{run}/{before.round + 1}",
        question_id=question_id,
        question=question,
        round=before.round + 1,
        strategy=strategy,
        subgoal=subgoal,
        entity_table=before.entity_table,
        target_table=before.target_table,
        document_table=before.document_table,
        context_table=before.context_table,
        seen_docids=tuple(dict.fromkeys(before.seen_docids)),
        gold_docids=tuple(dict.fromkeys(gold_docids)),
        known_important=frozenset(known_important),
        recorded_clues=tuple(recorded_clues),
        recorded_results=tuple(recorded_results),
        hops=hops,
    )


def state_from(
    source: Source,
    state_id: str,
    question_id: str,
    question: str,
    number: int,
    strategy: str,
    gold_docids: tuple[str, ...],
    known_important: frozenset[str],
    hops: int | None,
) -> State:
    """A state with these fields; `source` has the others."""
    state, put = object.__new__(State), object.__setattr__
    put(state, "_source", source)
    put(state, "state_id", state_id)
    put(state, "question_id", question_id)
    put(state, "question", question)
    put(state, "round", number)
    put(state, "strategy", strategy)
    put(state, "gold_docids", gold_docids)
    put(state, "known_important", known_important)
    put(state, "hops", hops)
    return state


def _refuse_repeats(table: str, ids: Sequence[str]) -> None:
    met: set[str] = set()
    for name in ids:
        if name in met:
            raise ValueError(f"{table} holds the id {name[:60]!r} twice; ids must be unique")
        met.add(name)
