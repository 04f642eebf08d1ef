"""`RLCheckpointLoader`: from a folder of recorded runs to training states and their split; a
damaged file costs its run, not the scan."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlkit.errors import DataError
from rlkit.rounds.reading import Damaged
from rlkit.rounds.records import RecordedRound, Recording, Round, Run
from rlkit.rounds.scan import no_garbage_collection, scan
from rlkit.rounds.split import split_states
from rlkit.rounds.stamps import META_NAME, folder_names
from rlkit.rounds.state import FAILED, SEARCH, State
from rlkit.rounds.state import failure_of as failure_of


@dataclass(slots=True)
class ScanReport:
    """What the scan met; all counts."""

    questions: int = 0
    questions_without_gold: int = 0
    runs: int = 0
    rounds: int = 0
    samples: int = 0
    not_search: int = 0
    too_few_clues: int = 0
    failed_rounds: int = 0
    over_the_cap: int = 0
    superseded_runs: int = 0
    unfinished_runs: int = 0
    damaged_runs: int = 0

    def __str__(self) -> str:
        return (
            f"{self.questions} questions ({self.questions_without_gold} without gold), "
            f"{self.runs} runs, {self.rounds} rounds: {self.samples} samples; left out: "
            f"{self.not_search} rounds that are no search, {self.too_few_clues} with too few "
            f"clues, {self.failed_rounds} failed, {self.over_the_cap} over the cap per question, "
            f"{self.superseded_runs} failed runs that were played again, "
            f"{self.unfinished_runs} unfinished runs, {self.damaged_runs} damaged runs"
        )


class RLCheckpointLoader:
    """Turns `<rounds_path>/<question_id>/run_NNN/` into states (docs/formats.md).

    Keeps SEARCH rounds with at least `min_clues_per_round` clues, at most
    `max_samples_per_question` per question, chosen by `seed`. A failed run gives no samples once
    the same collector has played its question again, so that no round counts twice. `all_states`
    has what a split that was made earlier may name, when fewer rounds were recorded: those over
    the cap and those of failed runs, too. Of each state a few hundred bytes stay in memory; its
    tables are read from the files when they are asked for. Many questions are read by `processes`
    (None: as many as there are cores), and what they gave is kept in an index beside them.
    """

    def __init__(
        self,
        rounds_path: str | Path,
        min_clues_per_round: int = 2,
        max_samples_per_question: int = 10,
        seed: int = 7,
        processes: int | None = None,
    ) -> None:
        self.rounds_path = Path(rounds_path)
        self.min_clues_per_round = min_clues_per_round
        self.max_samples_per_question = max_samples_per_question
        self.seed = seed
        self.processes = processes
        self.damaged: list[Damaged] = []
        self._recordings: list[tuple[str, Recording]] = []
        self._all: list[State] | None = None  # of `all_states`
        self._failures: list[str] = []  # of the questions all of whose runs failed
        self._questions = 0
        self._samples: list[State] | None = None

    def load_data(self) -> ScanReport:
        """Scan the folder; `damaged` then lists what was set aside.

        Raises DataError where the folder is missing or holds no run at all.
        """
        with no_garbage_collection():
            return self._load_data()

    def _load_data(self) -> ScanReport:
        report, self.damaged, self._samples = ScanReport(), [], []
        self._recordings, self._all, self._failures = [], None, []
        names = self._question_names()
        found = scan(self.rounds_path, names, self.processes)
        for name, recording in zip(names, found, strict=True):
            report.unfinished_runs += recording.unfinished
            report.damaged_runs += len(recording.damaged)
            for run, file, line, reason in recording.damaged:
                self.damaged.append(Damaged(self.rounds_path / name / run / file, line, reason))
            if recording.runs:
                self._recordings.append((name, recording))
                self._samples += self._samples_of(name, recording, report)
        self._questions = report.questions
        if not report.runs + report.unfinished_runs + report.damaged_runs:
            raise DataError(
                f"{self.rounds_path} holds no recorded rounds; looked for "
                f"<question_id>/run_001/{META_NAME} below it. Collect rounds first, or name the "
                "folder that holds the question folders."
            )
        report.samples = len(self._samples)
        return report

    def extract_training_samples(self) -> list[State]:
        """The states before the SEARCH rounds, by question and round; scans first if needed.

        Raises DataError where no round can be used, with the reasons.
        """
        if self._samples is None:
            self.load_data()
        if not self._samples:
            first = f"; the first damaged file: {self.damaged[0]}" if self.damaged else ""
            raise DataError(
                f"{self.rounds_path} holds no SEARCH round with at least "
                f"{self.min_clues_per_round} clues ({len(self.damaged)} damaged runs were set "
                f"aside{first}); {self._what_failed()}"
            )
        return list(self._samples)

    def all_states(self) -> list[State]:
        """Every state that can be used, by question, run and round, whatever the cap, and of failed
        runs that were played again as well; scans first if needed."""
        if self._samples is None:
            self.load_data()
        if self._all is None:
            self._all = [
                state
                for name, recording in self._recordings
                for state in self._states(
                    name, recording, self._usable(recording.runs, ScanReport())
                )
            ]
        return list(self._all)

    def split_train_eval(
        self, train_ratio: float = 0.8, how: str = "hard_first"
    ) -> tuple[list[State], list[State]]:
        """Train and evaluation states, by question; dev stays within train."""
        samples = self.extract_training_samples()
        splits = split_states(samples, train_ratio, 0.0, how, self.seed)
        return splits.train, splits.eval

    def _what_failed(self) -> str:
        """How many questions failed with the first reason, and what to do."""
        other = "lower data.min_clues_per_round or record other rounds."
        failed = len(self._failures)
        if not failed:
            return other
        share = f"all {failed}" if failed == self._questions else f"{failed} of {self._questions}"
        rest = "." if failed == self._questions else f", or {other}"
        first = self._failures[0].rstrip(".")
        return f"{share} questions failed; the first: {first}. Mend that and collect again{rest}"

    def _question_names(self) -> list[str]:
        try:
            found = folder_names(self.rounds_path)
        except OSError as error:
            raise DataError(
                f"{self.rounds_path} cannot be read ({error.strerror}); data.rounds_path must name "
                "the folder that holds the question folders."
            ) from error
        return sorted(name for name in found if not name.startswith("."))

    def _samples_of(self, name: str, recording: Recording, report: ScanReport) -> list[State]:
        """The states of one question's runs, at most as many as the cap allows."""
        old = _superseded(recording.runs)
        current = [run for run in recording.runs if run not in old] if old else recording.runs
        report.questions += 1
        report.questions_without_gold += not recording.gold
        report.runs += len(current)
        report.superseded_runs += len(old)
        if all(run.status == FAILED for run in current):
            reason = current[0].failure or "no reason was recorded"
            self._failures.append(f"{name}: {reason}")
        usable = self._usable(current, report)
        return self._states(name, recording, self._capped(name, usable, report))

    def _usable(self, runs: Sequence[Run], report: ScanReport) -> list[tuple[Run, int]]:
        """The rounds of these runs that can be used, each as its run and number; `report` counts
        the others."""
        usable: list[tuple[Run, int]] = []
        for run in runs:
            report.rounds += len(run.rounds)
            for number, row in enumerate(run.rounds, start=1):
                if self._is_usable(row, report):
                    usable.append((run, number))
        return usable

    def _states(
        self, name: str, recording: Recording, rounds: Sequence[tuple[Run, int]]
    ) -> list[State]:
        folder = f"{self.rounds_path}/{name}"
        return [RecordedRound(folder, recording, run, number).state(name) for run, number in rounds]

    def _is_usable(self, row: Round, report: ScanReport) -> bool:
        if row.is_failed:  # also where the planner failed, and there is no strategy
            report.failed_rounds += 1
        elif row.strategy != SEARCH:
            report.not_search += 1
        elif row.clues < self.min_clues_per_round:
            report.too_few_clues += 1
        else:
            return True
        return False

    def _capped(
        self, name: str, usable: list[tuple[Run, int]], report: ScanReport
    ) -> list[tuple[Run, int]]:
        cap = self.max_samples_per_question
        if len(usable) <= cap:
            return usable
        report.over_the_cap += len(usable) - cap
        generator = random.Random(f"{self.seed}/{name}")
        return [usable[i] for i in sorted(generator.sample(range(len(usable)), cap))]


def discovery_by_round(states: Iterable[State]) -> dict[int, tuple[float, int]]:
    """Mean recorded discovery and number of questions, by round; averaged within a question
    first; states with nothing missing are left out."""
    rates: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for state in states:
        if (rate := state.recorded_discovery) is not None:
            rates[state.round][state.question_id].append(rate)
    return {
        number: (
            sum(sum(group) / len(group) for group in rates[number].values()) / len(rates[number]),
            len(rates[number]),
        )
        for number in sorted(rates)
    }


def _superseded(runs: Sequence[Run]) -> list[Run]:
    """The failed runs whose collector has played the question again, in the order given."""
    if len(runs) == 1:
        return []
    last = {run.collector: run.name for run in runs}
    return [
        run
        for run in runs
        if run.status == FAILED and run.collector is not None and last[run.collector] != run.name
    ]
