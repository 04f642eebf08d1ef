"""`collect`: plays a set of questions with a team and records every one that ends; stopped work
is continued, and a second call adds nothing that is there already."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import filelock

from rlkit.agents.game import Game, Recorded
from rlkit.agents.side_by_side import play_each
from rlkit.agents.team import Team
from rlkit.errors import ConfigError, RunError
from rlkit.files import append_line, check_id
from rlkit.library.corpus import Question
from rlkit.rounds.checkpoints import failure_of
from rlkit.rounds.reading import DamagedFile, read_recorded
from rlkit.rounds.state import FAILED, FINISHED, MetaFile
from rlkit.rounds.writer import META_NAME, RoundWriter, run_folders

MAX_TRIES = 3  # of a question that fails
EVERY = 10.0  # seconds from one line of `now_and_then` to the next
WAIT = 2  # seconds, for another process that records the same
NAMED = 5  # questions that a report names
SPENT = "collected.jsonl"  # below the rounds: one line for each time that questions were played
Progress = Callable[["CollectReport"], None]


@dataclass(slots=True)
class CollectReport:
    """What one collector did so far; counts, seconds of wall time, and, where agents ask a server,
    the tokens of their prompts and replies, and what they cost, where prices are known.

    `failed` questions are those without a finished run: played in vain now, or `given_up`, each
    with its reason, after MAX_TRIES earlier tries. `in_play` counts the questions in each round.
    """

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
    given_up: list[str] = field(default_factory=list)
    in_play: dict[int, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Questions that are still to be played to their end."""
        return self.questions - self.skipped - len(self.given_up) - self.played

    @property
    def seconds_left(self) -> float | None:
        """What the rest takes if it goes on at this pace; None before the first question."""
        return self.seconds / self.played * self.left if self.played else None

    def spent(self) -> dict[str, str | int | float]:
        """Who played how many questions, the seconds that it took, and what servers counted."""
        kept = ("collector", "played", "seconds", "requests", "cost")
        tokens = ("prompt_tokens", "completion_tokens")
        return {name: value for name, value in asdict(self).items() if name in kept + tokens}

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
        rounds = (f"{count} at round {number}" for number, count in sorted(self.in_play.items()))
        in_play = f"; in play: {', '.join(rounds)}" if self.in_play else ""
        left = f"; about {_duration(self.seconds_left)} left" if self.seconds_left else ""
        return (
            f"{self.collector}: {self.played} of {self.questions} questions played in "
            f"{self.seconds:.1f} s, {self.skipped} were recorded already{failures}; "
            f"{self.rounds} rounds{lost}, {self.documents_read} documents read{tokens}{in_play}"
            f"{left}{self._not_tried() if not self.left else ''}"
        )

    def _not_tried(self) -> str:
        """A line for each question that was given up, the first ones of many."""
        lines = self.given_up[:NAMED]
        if len(self.given_up) > NAMED:
            lines.append(f"and {len(self.given_up) - NAMED} more questions in the same way")
        return "".join(f"\n  not tried again: {line}" for line in lines)


def collect(
    team: Team,
    questions: Sequence[Question],
    root: str | Path,
    progress: Progress | None = None,
    batch_size: int | None = None,
) -> CollectReport:
    """Play every question that `team.collector` has not finished below `root` yet, and record it.

    Each question is written whole as soon as it ends, so that the work can be stopped at any time
    and continued. A question that failed is played again, in a new run that takes the failed one's
    place among the samples (`RLCheckpointLoader`), but after MAX_TRIES failed runs it is given up
    and named. Several are played at once, see `play_each`; a model in this process writes for
    `batch_size` of them together. `progress` is called after each question, and now and then in
    between. An agent may have `prepare()`, which is called first if there is anything to play.
    Raises, before anything is played, DataError for a question id that cannot name a folder,
    AgentError where a server is not there, and RunError where another process is at work for the
    same collector: each would play what the other has not finished yet.
    """
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; it must be at least 1.")
    for question in questions:
        check_id(question.question_id, "the question id")
    books = _Books(team, CollectReport(team.collector, len(questions)), progress)
    todo = [question for question in questions if books.is_open(root, question.question_id)]
    with _alone(root, team.collector) if todo else nullcontext():
        # what another process has finished meanwhile is there now
        todo = [question for question in todo if books.is_open(root, question.question_id)]
        _play(team, todo, root, books, batch_size)
    if books.report.given_up and not todo:
        books.show()
    return books.report


def _play(
    team: Team, todo: Sequence[Question], root: str | Path, books: _Books, batch_size: int | None
) -> None:
    writer = RoundWriter(root)
    for agent in team.agents if todo else ():
        if hasattr(agent, "prepare"):
            agent.prepare()

    def on_end(index: int, recorded: Recorded) -> None:
        writer.write_run(recorded.meta, recorded.rounds)
        books.enter(index, recorded)
        books.show()

    try:
        play_each(team, todo, on_end, books.show, batch_size, books.playing.__setitem__)
    finally:  # what an interrupted work has cost is not forgotten
        books.bring_up_to_date()
        if books.report.played or (books.report.requests and Path(root).is_dir()):
            append_line(Path(root) / SPENT, json.dumps(books.report.spent()))


@contextmanager
def _alone(root: str | Path, collector: str) -> Iterator[None]:
    """Hold the rounds of one collector; the system frees them when the process ends, however.

    The lock lies beside the folder, which is there only once something is recorded; within it
    where nothing can be written beside it. Raises RunError where another process holds it.
    """
    root = Path(root).resolve()
    root.parent.mkdir(parents=True, exist_ok=True)
    name = f"{hashlib.sha256(collector.encode(errors='replace')).hexdigest()[:12]}.lock"
    beside = os.access(root.parent, os.W_OK) or not root.is_dir()
    path = root.with_name(f".{root.name}.{name}") if beside else root / f".{name}"
    guard = filelock.FileLock(path, timeout=WAIT)
    try:
        guard.acquire()
    except filelock.Timeout:
        raise RunError(
            f"another process records rounds of {collector} in {root} at this moment; wait for it, "
            "stop it, or name another folder."
        ) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # held: who waits for it sees that it is gone
        guard.release()


def now_and_then(log: Callable[[str], None], seconds: float = EVERY) -> Progress:
    """A `progress` that logs a report every so many seconds at most, and the last one."""
    last = time.monotonic()

    def say(report: CollectReport) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds or not report.left:
            last = time.monotonic()
            log(str(report))

    return say


def recorded_runs(root: str | Path, question_id: str, collector: str) -> dict[Path, MetaFile]:
    """What `collector` recorded of this question below `root`, by folder; damaged runs apart."""
    runs = {}
    for folder in run_folders(Path(root) / question_id):
        try:
            meta = read_recorded(folder / META_NAME, MetaFile)
        except DamagedFile:
            continue
        if meta.collector == collector:
            runs[folder] = meta
    return runs


class _Books:
    """Keeps a report up to date while questions end in any order."""

    def __init__(
        self,
        team: Team,
        report: CollectReport,
        progress: Progress | None,
    ) -> None:
        self.report, self.progress = report, progress
        self.playing: dict[int, Game] = {}
        self._prices, self._usages = team.prices, [client.usage for client in team.clients]
        self._before = self._used()
        self._start = time.monotonic()
        self._failures: dict[int, str | None] = {}

    def is_open(self, root: str | Path, question_id: str) -> bool:
        """Whether a question must be played; if not, it is counted as skipped or given up."""
        runs, report = recorded_runs(root, question_id, self.report.collector), self.report
        if any(meta.status == FINISHED for meta in runs.values()):
            report.skipped += 1
            return False
        failed = [folder for folder, meta in runs.items() if meta.status == FAILED]
        if len(failed) < MAX_TRIES:
            return True
        reason = failure_of(runs[failed[-1]])
        report.failed += 1
        report.first_failure = report.first_failure or reason
        report.given_up.append(
            f"{question_id} failed {len(failed)} times, last: {reason} (to try it once more, "
            f"delete {failed[-1]})"
        )
        return False

    def enter(self, index: int, recorded: Recorded) -> None:
        """Count one question that has ended."""
        self.playing.pop(index, None)
        report, rounds = self.report, recorded.meta.rounds
        report.played += 1
        report.rounds += len(rounds)
        report.failed_rounds += sum(ref.failed is not None for ref in rounds)
        report.documents_read += len(recorded.rounds[-1].seen_docids)
        if recorded.meta.status == FAILED:
            report.failed += 1
            self._failures[index] = failure_of(recorded.meta)
            report.first_failure = self._failures[min(self._failures)]

    def bring_up_to_date(self) -> None:
        """Seconds, tokens, and rounds in play as they are now."""
        self.report.seconds = time.monotonic() - self._start
        games = self.playing.copy().values()  # other threads add to it
        self.report.in_play = dict(Counter(game.round for game in games))
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
