"""The team plays whole questions over a library. Any `Policy` can be the Executor; all other
agents are frozen. `collect` (in `recording.py`) plays a set of questions and records them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlkit.agents.checker import DocumentChecker
from rlkit.agents.entities import EntityManager, ReadDocument, RuleEntityManager, Tables
from rlkit.agents.executor import Policy
from rlkit.agents.parse import parse_clues_from_output
from rlkit.agents.planner import Plan, Planner, RulePlanner
from rlkit.errors import RlkitError
from rlkit.library.corpus import Question
from rlkit.library.orchestrator import RankedDocument, SearchOrchestrator, documents_taken
from rlkit.rounds.state import (
    FAILED,
    FINISHED,
    SEARCH,
    MetaFile,
    ResultRow,
    RoundFile,
    State,
    make_state,
)
from rlkit.rounds.writer import refs_of


class Recorded(NamedTuple):
    """One played question, ready for `RoundWriter.write_run`."""

    meta: MetaFile
    rounds: list[RoundFile]


@dataclass(slots=True)
class Team:
    """The agents around one library.

    `max_rounds` per question, `max_clues` per round, `max_documents` new documents read per
    round. `collector` names who wrote the clues; it stands in every run's `meta.json`.
    """

    executor: Policy
    orchestrator: SearchOrchestrator
    checker: DocumentChecker
    planner: Planner = field(default_factory=RulePlanner)
    entities: EntityManager = field(default_factory=RuleEntityManager)
    max_rounds: int = 3
    max_clues: int = 4
    max_documents: int = 8
    plain_lines: bool = True
    collector: str = "team"

    def play(self, question: Question) -> Recorded:
        """Play one question to its end. An agent that fails (RlkitError) ends it as `failed`,
        with the reason in the round's entry; any other exception is a bug and comes through."""
        return self.play_many([question])[0]

    def play_many(self, questions: Sequence[Question]) -> list[Recorded]:
        """Play several questions side by side, so that a model writes for all of them at once."""
        games = [_Game(self, question) for question in questions]
        while waiting := [game for game in games if game.state is not None]:
            for game, text in zip(waiting, self._write(waiting), strict=True):
                game.play_round(text)
        return [game.recorded() for game in games]

    def _write(self, games: Sequence[_Game]) -> list[str | RlkitError]:
        """What the Executor writes for each game, or why it could not."""
        states = [game.state for game in games]
        try:
            if len(states) > 1 and hasattr(self.executor, "write_batch"):
                return list(self.executor.write_batch(states))
            return [self.executor.write(state) for state in states]
        except RlkitError as error:
            return [error] * len(states)

    def search(self, clues: Sequence[str], seen: frozenset[str]) -> list[RankedDocument]:
        """The seen documents and the first `max_documents` new ones that the clues bring back.

        A policy with `deep` set writes one clue and is searched deeply enough to read as many.
        """
        deep = getattr(self.executor, "deep", False)
        top_k = len(seen) + self.max_documents if deep else None
        return documents_taken(self.orchestrator.search(clues, top_k), seen, self.max_documents)


class _Game:
    """One question in play. `state` is what the Executor sees next; None once it has ended."""

    def __init__(self, team: Team, question: Question) -> None:
        self.team, self.question = team, question
        self.failed: str | None = None
        self.state: State | None = None
        tables = team.entities.begin(question.text)
        self.history = [_round_file(0, Plan("", ""), (), tables, (), ())]
        self._plan_next()

    def play_round(self, text: str | RlkitError) -> None:
        """Search, check and file what the Executor wrote, then plan the next round."""
        if isinstance(text, RlkitError):
            return self._fail((), text)
        clues = parse_clues_from_output(text, self.team.max_clues, self.team.plain_lines).clues
        try:
            self.history.append(self._round_of(clues))
        except RlkitError as error:
            return self._fail(clues, error)
        return self._plan_next()

    def recorded(self) -> Recorded:
        rounds = refs_of(self.history)
        if self.failed:
            rounds = (*rounds[:-1], rounds[-1].model_copy(update={"failed": self.failed}))
        meta = MetaFile(
            schema=1,
            question_id=self.question.question_id,
            question=self.question.text,
            answer=self.question.answer,
            gold_docids=self.question.gold_docids or None,
            hops=self.question.hops,
            status=FAILED if self.failed else FINISHED,
            collector=self.team.collector,
            rounds=rounds,
        )
        return Recorded(meta, self.history)

    def _plan_next(self) -> None:
        """Set the next state, or None where the planner ends or the rounds are used up."""
        self.state = None
        if len(self.history) > self.team.max_rounds:
            return
        self.plan = self.team.planner.plan(self.question.text, self.history)
        if self.plan.strategy == SEARCH:
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

    def _fail(self, clues: tuple[str, ...], error: RlkitError) -> None:
        before, plan = self.history[-1], self.plan
        done = {"strategy": plan.strategy, "subgoal": plan.subgoal, "clues": clues, "results": ()}
        self.history.append(before.model_copy(update={"round": before.round + 1, **done}))
        self.failed, self.state = str(error), None

    def _round_of(self, clues: tuple[str, ...]) -> RoundFile:
        """The round that these clues make of the state before it."""
        before = self.history[-1]
        seen = frozenset(before.seen_docids)
        ranked = self.team.search(clues, seen)
        documents = [self.team.orchestrator.corpus.get(row.docid) for row in ranked]
        verdicts = self.team.checker.check(self.state, documents) if documents else {}
        read = [ReadDocument(d, verdicts.get(d.docid)) for d in documents if d.docid not in seen]
        tables = self.team.entities.update(before, self.plan, read)
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


def _round_file(
    number: int,
    plan: Plan,
    clues: tuple[str, ...],
    tables: Tables,
    seen: tuple[str, ...],
    results: tuple[ResultRow, ...],
) -> RoundFile:
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
    )
