"""`collect`: plays a set of questions with a team and records every one that ends; stopped work
is continued, and a second call adds nothing that is there already."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlkit.agents.team import Recorded, Team
from rlkit.errors import ConfigError
from rlkit.files import check_id
from rlkit.library.corpus import Question
from rlkit.rounds.reading import DamagedFile, read_recorded
from rlkit.rounds.state import FAILED, FINISHED, MetaFile
from rlkit.rounds.writer import META_NAME, RoundWriter, run_folders


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
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; it must be at least 1.")
    for question in questions:
        check_id(question.question_id, "the question id")
    writer, report = RoundWriter(root), CollectReport(team.collector, len(questions))
    todo = [q for q in questions if not is_recorded(root, q.question_id, team.collector)]
    report.skipped = len(questions) - len(todo)
    start = time.monotonic()
    if batch_size is None:
        batch_size = 8 if hasattr(team.executor, "write_batch") else 1
    for first in range(0, len(todo), batch_size):
        for recorded in team.play_many(todo[first : first + batch_size]):
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


def _count(recorded: Recorded, report: CollectReport) -> None:
    report.played += 1
    report.rounds += len(recorded.meta.rounds)
    report.documents_read += len(recorded.rounds[-1].seen_docids)
    if recorded.meta.status == FAILED:
        report.failed += 1
        report.first_failure = report.first_failure or recorded.meta.rounds[-1].failed
