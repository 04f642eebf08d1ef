"""One question in play: plan, write clues, search, check, update the tables, until the planner ends
it. A round whose agents fail is recorded as failed, and the next one begins where it began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rlkit.agents.entities import ReadDocument, Tables, shorten
from rlkit.agents.parse import parse_clues_from_output
from rlkit.agents.planner import Plan
from rlkit.errors import AgentError, RlkitError, ServerAwayError
from rlkit.library.corpus import Question
from rlkit.rounds.state import (
    ANSWER,
    FAILED,
    FINISHED,
    SEARCH,
    MetaFile,
    ResultRow,
    RoundFile,
    State,
    Verdict,
    make_state,
)
from rlkit.rounds.tables import one_line
from rlkit.rounds.writer import refs_of

if TYPE_CHECKING:
    from rlkit.agents.team import Team

MAX_REASON = 600  # characters of an error that are recorded


class Recorded(NamedTuple):
    """One played question, ready for `RoundWriter.write_run`."""

    meta: MetaFile
    rounds: list[RoundFile]


class Game:
    """One question in play. `state` is what the Executor sees next; None once it has ended.

    `begin` comes first, then `play_round` with what the Executor wrote for `state`, until that is
    None. Whoever fails with an AgentError may do better next time: such a round counts neither as
    played nor against `max_rounds`, but more than `max_failed_rounds` of them end the question as
    failed. Any other RlkitError ends it at once, but a ServerAwayError comes through, since no
    other question could do better; all other exceptions are bugs and come through. Once the
    rounds are used up, the question is finished, even where the planner then gives no answer that
    can be used; `unanswered` says why.
    """

    def __init__(self, team: Team, question: Question) -> None:
        self.team, self.question = team, question
        self.state: State | None = None
        self.final_answer: str | None = None
        self.unanswered: str | None = None
        self.history: list[RoundFile] = []  # every round, failed or not, and what was before it
        self.played: list[RoundFile] = []  # the same without the failed ones
        self.failures: dict[int, str] = {}  # round -> reason
        self.lost = False  # ended as failed
        self.plan = Plan("", "")

    @property
    def round(self) -> int:
        """The round that is being played, from 1 to `max_rounds`; failed ones do not count."""
        return min(max(len(self.played), 1), self.team.max_rounds)

    def begin(self) -> None:
        """Make the tables before the first round, and plan it."""
        tables, error = Tables(), None
        try:
            with self.team.turn(self.team.entities):
                tables = self.team.entities.begin(self.question.text)
        except RlkitError as failure:
            error = failure
        self._file(_round_file(0, self.plan, (), tables, (), ()))
        if error is not None:  # without tables no round could do better
            self._fail((), error)
            self.lost = True
        self._plan_next()

    def play_round(self, text: str | RlkitError) -> None:
        """Search, check and file what the Executor wrote (or why it could not), then plan on."""
        clues: tuple[str, ...] = ()
        try:
            if isinstance(text, RlkitError):
                raise text
            clues = parse_clues_from_output(text, self.team.max_clues, self.team.plain_lines).clues
            self._file(self._round_of(clues))
        except RlkitError as error:
            self._fail(clues, error)
        self._plan_next()

    def recorded(self) -> Recorded:
        """The files of the question as it stands."""
        rounds = tuple(
            ref.model_copy(update={"failed": self.failures.get(ref.round)})
            for ref in refs_of(self.history)
        )
        agents = {
            role: agent.label
            for role in ("planner", "entities", "checker", "executor")
            if isinstance(getattr(agent := getattr(self.team, role), "label", None), str)
        }
        meta = MetaFile(
            schema=1,
            question_id=self.question.question_id,
            question=self.question.text,
            answer=self.question.answer,
            gold_docids=self.question.gold_docids or None,
            hops=self.question.hops,
            status=FAILED if self.lost else FINISHED,
            final_answer=self.final_answer,
            collector=self.team.collector,
            rounds=rounds,
            **({"unanswered": self.unanswered} if self.unanswered else {}),
            **({"agents": agents} if agents else {}),
        )
        return Recorded(meta, self.history)

    def _plan_next(self) -> None:
        """Set the next state, or None where the planner ends or fails, or the rounds are over."""
        self.state = None
        while not self.lost:
            try:
                self.plan = self._next_plan()
                break
            except RlkitError as error:
                self._fail((), error)
        if self.lost or self.plan.strategy != SEARCH:
            self.final_answer = None if self.lost else self.plan.answer
            return
        gold = self.question.gold_docids
        self.state = make_state(
            self.history[-1],
            question_id=self.question.question_id,
            question=self.question.text,
            run=self.team.collector,
            strategy=SEARCH,
            subgoal=self.plan.subgoal,
            gold_docids=gold,
            known_important=gold,
            hops=self.question.hops,
        )

    def _next_plan(self) -> Plan:
        """What the planner says; once the rounds are used up, only its answer, if it gives one."""
        planner, text = self.team.planner, self.question.text
        if len(self.played) <= self.team.max_rounds:
            self.plan = Plan("", "")  # in case that it fails
            with self.team.turn(planner):
                return planner.plan(text, self.played)
        self.plan = Plan(ANSWER, "")
        if not hasattr(planner, "answer"):
            return self.plan
        try:
            with self.team.turn(planner):
                return Plan(ANSWER, "", planner.answer(text, self.played))
        except ServerAwayError:
            raise
        except AgentError as error:
            self.unanswered = _reason(error)
            return self.plan

    def _file(self, file: RoundFile) -> None:
        self.history.append(file)
        self.played.append(file)

    def _fail(self, clues: tuple[str, ...], error: RlkitError) -> None:
        """Record the round of `plan` as failed; its file repeats the state before it."""
        if isinstance(error, ServerAwayError):
            raise error
        before = self.history[-1]
        tables = Tables(
            before.entity_table, before.target_table, before.document_table, before.context_table
        )
        number, seen = before.round + 1, before.seen_docids
        self.history.append(_round_file(number, self.plan, clues, tables, seen, ()))
        self.failures[number] = _reason(error)
        may_do_better = isinstance(error, AgentError)
        self.lost = not may_do_better or len(self.failures) > self.team.max_failed_rounds

    def _round_of(self, clues: tuple[str, ...]) -> RoundFile:
        """The round that these clues make of the state before it."""
        team, before = self.team, self.history[-1]
        seen = frozenset(before.seen_docids)
        ranked = team.search(clues, seen)
        documents = [team.orchestrator.corpus.get(row.docid) for row in ranked]
        verdicts: Mapping[str, Verdict | None] = {}
        if documents:
            with team.turn(team.checker):
                verdicts = team.checker.check(self.state, documents)
        read = [ReadDocument(d, verdicts.get(d.docid)) for d in documents if d.docid not in seen]
        with team.turn(team.entities):
            tables = team.entities.update(before, self.plan, read)
        results = tuple(
            ResultRow(
                docid=row.docid,
                clue=row.clue,
                rank=row.rank,
                score=float(row.score),
                verdict=verdicts.get(row.docid),
            )
            for row in ranked
        )
        now_seen = before.seen_docids + tuple(item.document.docid for item in read)
        return _round_file(before.round + 1, self.plan, clues, tables, now_seen, results)


def _reason(error: RlkitError) -> str:
    """Why an agent failed, as it is recorded."""
    return shorten(one_line(str(error)), MAX_REASON)


def _round_file(
    number: int,
    plan: Plan,
    clues: tuple[str, ...],
    tables: Tables,
    seen: tuple[str, ...],
    results: tuple[ResultRow, ...],
) -> RoundFile:
    extra: dict[str, Any] = {"tables_by_rules": True} if tables.by_rules else {}
    return RoundFile(
        schema=1,
        round=number,
        strategy=plan.strategy,
        subgoal=plan.subgoal,
        clues=clues,
        entity_table=tables.entities,
        target_table=tables.targets,
        document_table=tables.documents,
        context_table=tables.contexts,
        seen_docids=seen,
        results=results,
        **extra,
    )
