"""`collect`: plays a set of questions with a team and records every one that ends; stopped work
is continued, and a second call adds nothing that is there already."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlkit.agents.game import Recorded
from rlkit.agents.side_by_side import play_each
from rlkit.agents.team import Team
from rlkit.errors import ConfigError
from rlkit.files import check_id
from rlkit.library.corpus import Question
from rlkit.rounds.reading import DamagedFile, read_recorded
from rlkit.rounds.state import FAILED, FINISHED, MetaFile
from rlkit.rounds.writer import META_NAME, RoundWriter, run_folders


@dataclass(slots=True)
class CollectReport:
    """What one collector did so far; counts, seconds of wall time, and, where agents ask a server,
    the tokens of their prompts and replies, and what they cost, where prices are known."""

    collector: str
    questions: int
    played: int = 0
    skipped: int = 0
    failed: int = 0
    rounds: int = 0
    failed_rounds: int = 0
    documents_read: int = 0
    seconds: float = 0.0
    first_failure: str | None = None
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """What the rest takes if it goes on at this pace; None before the first question."""
        left = self.questions - self.skipped - self.played
        return self.seconds / self.played * left if self.played else None

    def __str__(self) -> str:
        failures = f", {self.failed} failed (first: {self.first_failure})" if self.failed else ""
        lost = f" ({self.failed_rounds} of them failed)" if self.failed_rounds else ""
        tokens = (
            f"; {self.requests:,} requests, {self.prompt_tokens:,} + {self.completion_tokens:,} "
            "tokens"
            if self.requests
            else ""
        )
        tokens += f", cost {self.cost:.2f}" if self.cost else ""
        left = f"; about {_duration(self.seconds_left)} left" if self.seconds_left else ""
        return (
            f"{self.collector}: {self.played} of {self.questions} questions played in "
            f"{self.seconds:.1f} s, {self.skipped} were recorded already{failures}; "
            f"{self.rounds} rounds{lost}, {self.documents_read} documents read{tokens}{left}"
        )


def collect(
    team: Team,
    questions: Sequence[Question],
    root: str | Path,
    progress: Callable[[CollectReport], None] | None = None,
    batch_size: int | None = None,
) -> CollectReport:
    """Play every question that `team.collector` has not finished below `root` yet, and record it.

    Each question is written whole as soon as it ends, so that the work can be stopped at any time
    and continued; failed questions are played again. Several are played at once, see `play_each`;
    a model in this process writes for `batch_size` of them together. `progress` is called after
    each question, and now and then in between. An agent may have `prepare()`, which is called
    first if there is anything to play. Raises DataError, before anything is played, for a question
    id that cannot name a folder, and AgentError where a server is not there.
    """
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; it must be at least 1.")
    for question in questions:
        check_id(question.question_id, "the question id")
    todo = [q for q in questions if not is_recorded(root, q.question_id, team.collector)]
    books = _Books(team, CollectReport(team.collector, len(questions)), progress)
    books.report.skipped = len(questions) - len(todo)
    writer = RoundWriter(root)
    for agent in team.agents if todo else ():
        if hasattr(agent, "prepare"):
            agent.prepare()

    def on_end(index: int, recorded: Recorded) -> None:
        writer.write_run(recorded.meta, recorded.rounds)
        books.enter(index, recorded)
        books.show()

    play_each(team, todo, on_end, books.show, batch_size)
    books.bring_up_to_date()
    return books.report


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


class _Books:
    """Keeps a report up to date while questions end in any order."""

    def __init__(
        self,
        team: Team,
        report: CollectReport,
        progress: Callable[[CollectReport], None] | None,
    ) -> None:
        self.report, self.progress = report, progress
        self._prices, self._usages = team.prices, [client.usage for client in team.clients]
        self._before = self._used()
        self._start = time.monotonic()
        self._failures: dict[int, str | None] = {}

    def enter(self, index: int, recorded: Recorded) -> None:
        """Count one question that has ended."""
        report, rounds = self.report, recorded.meta.rounds
        report.played += 1
        report.rounds += len(rounds)
        report.failed_rounds += sum(ref.failed is not None for ref in rounds)
        report.documents_read += len(recorded.rounds[-1].seen_docids)
        if recorded.meta.status == FAILED:
            report.failed += 1
            self._failures[index] = rounds[-1].failed
            report.first_failure = self._failures[min(self._failures)]

    def bring_up_to_date(self) -> None:
        """Seconds and tokens as they are now."""
        self.report.seconds = time.monotonic() - self._start
        report, before, now = self.report, self._before, self._used()
        report.requests, report.prompt_tokens, report.completion_tokens = (
            round(a - b) for a, b in zip(now[:3], before[:3], strict=True)
        )
        report.cost = now[3] - before[3]

    def show(self) -> None:
        if self.progress is not None:
            self.bring_up_to_date()
            self.progress(self.report)

    def _used(self) -> tuple[float, float, float, float]:
        """Requests, tokens of prompts, tokens of replies, and cost, of all clients of the team."""
        return (
            sum(usage.requests for usage in self._usages),
            sum(usage.prompt_tokens for usage in self._usages),
            sum(usage.completion_tokens for usage in self._usages),
            sum(usage.cost(*self._prices) for usage in self._usages),
        )


def _duration(seconds: float) -> str:
    """`40 s`, `3 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
