"""The team plays whole questions over a library, and `collect` records what it did. Any `Policy`
can be the Executor; all other agents are frozen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rlkit.agents.checker import DocumentChecker
from rlkit.agents.entities import EntityManager, ReadDocument, RuleEntityManager, Tables
from rlkit.agents.executor import Policy
from rlkit.agents.parse import parse_clues_from_output
from rlkit.agents.planner import Plan, Planner, RulePlanner
from rlkit.errors import DataError, RlkitError
from rlkit.files import check_id
from rlkit.library.corpus import Document, Question
from rlkit.library.orchestrator import RankedDocument, SearchOrchestrator
from rlkit.rounds.reading import DamagedFile, read_recorded
from rlkit.rounds.state import (
    SEARCH,
    MetaFile,
    ResultRow,
    RoundFile,
    RoundRef,
    State,
    Verdict,
    make_state,
)
from rlkit.rounds.writer import META_NAME, RoundWriter, round_name, run_folders

FINISHED, FAILED = "finished", "failed"


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
        ranked = self.orchestrator.search(
            clues, top_k=len(seen) + self.max_documents if deep else None
        )
        new = [document for document in ranked if document.docid not in seen]
        read = {document.docid for document in new[: self.max_documents]}
        return [d for d in ranked if d.docid in seen or d.docid in read]


class _Game:
    """One question in play. `state` is what the Executor sees next; None once it has ended."""

    def __init__(self, team: Team, question: Question) -> None:
        self.team, self.question = team, question
        self.status, self.refs = FINISHED, []
        self.state: State | None = None
        tables = team.entities.begin(question.text)
        self.history = [_round_file(0, Plan("", ""), (), tables, (), ())]
        self._plan_next()

    def play_round(self, text: str | RlkitError) -> None:
        """Search, check and file what the Executor wrote, then plan the next round."""
        plan, before = self.plan, self.history[-1]
        if isinstance(text, RlkitError):
            return self._fail((), text)
        parsed = parse_clues_from_output(text, self.team.max_clues, self.team.plain_lines)
        try:
            ranked = self.team.search(parsed.clues, frozenset(before.seen_docids))
            documents = [self._document(row.docid) for row in ranked]
            verdicts = self.team.checker.check(self.state, documents) if documents else {}
            after = self._round_after(parsed.clues, ranked, documents, verdicts)
        except RlkitError as error:
            return self._fail(parsed.clues, error)
        self.history.append(after)
        self.refs.append(_ref(after.round, plan, parsed.clues))
        return self._plan_next()

    def recorded(self) -> Recorded:
        meta = MetaFile(
            schema=1,
            question_id=self.question.question_id,
            question=self.question.text,
            answer=self.question.answer,
            gold_docids=self.question.gold_docids or None,
            hops=self.question.hops,
            status=self.status,
            collector=self.team.collector,
            rounds=tuple(self.refs),
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
        before = self.history[-1]
        tables = Tables(
            before.entity_table, before.target_table, before.document_table, before.context_table
        )
        number = before.round + 1
        self.history.append(
            _round_file(number, self.plan, clues, tables, before.seen_docids, ())
        )
        self.refs.append(_ref(number, self.plan, clues, failed=str(error)))
        self.status, self.state = FAILED, None

    def _document(self, docid: str) -> Document:
        return self.team.orchestrator.corpus[self.team.orchestrator.corpus.position(docid)]

    def _round_after(
        self,
        clues: tuple[str, ...],
        ranked: Sequence[RankedDocument],
        documents: Sequence[Document],
        verdicts: Mapping[str, Verdict | None],
    ) -> RoundFile:
        before = self.history[-1]
        seen = set(before.seen_docids)
        read = [ReadDocument(d, verdicts.get(d.docid)) for d in documents if d.docid not in seen]
        tables = self.team.entities.update(before, self.plan, read)
        results = tuple(
            ResultRow(
                docid=row.docid,
                clue=row.clue,
                rank=row.rank,
                score=row.score,
                verdict=verdicts.get(row.docid),
            )
            for row in ranked
        )
        now_seen = before.seen_docids + tuple(item.document.docid for item in read)
        return _round_file(before.round + 1, self.plan, clues, tables, now_seen, results)


@dataclass(slots=True)
class CollectReport:
    """What one collector did; counts, and seconds of wall time."""

    collector: str
    questions: int
    played: int = 0
    skipped: int = 0
    failed: int = 0
    rounds: int = 0
    documents_read: int = 0
    seconds: float = 0.0
    first_failure: str | None = None

    def __str__(self) -> str:
        failures = f", {self.failed} failed (first: {self.first_failure})" if self.failed else ""
        return (
            f"{self.collector}: {self.played} of {self.questions} questions played in "
            f"{self.seconds:.1f} s, {self.skipped} were recorded already{failures}; "
            f"{self.rounds} rounds, {self.documents_read} documents read"
        )


def collect(
    team: Team,
    questions: Sequence[Question],
    root: str | Path,
    progress: Callable[[CollectReport], None] | None = None,
    batch_size: int | None = None,
) -> CollectReport:
    """Play every question that `team.collector` has not finished below `root` yet, and record it.

    Each question is written whole when it ends, so that the work can be stopped at any time and
    continued; failed questions are played again. `batch_size` questions are played side by side
    (default 8 for a policy with `write_batch`, else 1); `progress` is called after each batch.
    Raises DataError, before anything is played, for a question id that cannot name a folder.
    """
    for question in questions:
        check_id(question.question_id, "the question id")
    writer, report = RoundWriter(root), CollectReport(team.collector, len(questions))
    todo = [q for q in questions if not is_recorded(root, q.question_id, team.collector)]
    report.skipped = len(questions) - len(todo)
    start = time.monotonic()
    for batch in _batches(todo, batch_size or (8 if hasattr(team.executor, "write_batch") else 1)):
        for recorded in team.play_many(batch):
            writer.write_run(recorded.meta, recorded.rounds)
            _count(recorded, report)
        report.seconds = time.monotonic() - start
        if progress is not None:
            progress(report)
    return report


def is_recorded(root: str | Path, question_id: str, collector: str) -> bool:
    """Whether `collector` has finished this question below `root`; damaged runs do not count."""
    for folder in run_folders(Path(root) / question_id):
        try:
            meta = read_recorded(folder / META_NAME, MetaFile)
        except DamagedFile:
            continue
        if meta.collector == collector and meta.status == FINISHED:
            return True
    return False


def _batches(questions: Sequence[Question], size: int) -> Iterator[Sequence[Question]]:
    if size < 1:
        raise DataError(f"batch_size is {size}; it must be at least 1.")
    for start in range(0, len(questions), size):
        yield questions[start : start + size]


def _count(recorded: Recorded, report: CollectReport) -> None:
    report.played += 1
    report.rounds += len(recorded.meta.rounds)
    report.documents_read += len(recorded.rounds[-1].seen_docids)
    if recorded.meta.status == FAILED:
        report.failed += 1
        report.first_failure = report.first_failure or recorded.meta.rounds[-1].failed


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


def _ref(
    number: int, plan: Plan, clues: tuple[str, ...], failed: str | None = None
) -> RoundRef:
    return RoundRef(
        round=number,
        strategy=plan.strategy,
        subgoal=plan.subgoal,
        clues=clues,
        checkpoint=round_name(number),
        failed=failed,
    )
