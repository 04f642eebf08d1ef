"""`RLCheckpointLoader`: from a folder of recorded runs to training states and their split. It
reads one question after the other; a damaged file costs its run, not the scan."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlkit.errors import DataError, RlkitError
from rlkit.files import check_id
from rlkit.rounds.reading import Damaged, DamagedFile, read_recorded
from rlkit.rounds.split import split_states
from rlkit.rounds.state import FAILED, SEARCH, MetaFile, RoundFile, RoundRef, State, make_state
from rlkit.rounds.writer import META_NAME, round_name, run_folders


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


@dataclass(frozen=True, slots=True)
class _Run:
    name: str
    meta: MetaFile
    files: dict[int, RoundFile]  # by round; 0 is the state before the first


class RLCheckpointLoader:
    """Turns `<rounds_path>/<question_id>/run_NNN/` into states (DESIGN, section 6).

    Keeps SEARCH rounds with at least `min_clues_per_round` clues, at most
    `max_samples_per_question` per question, chosen by `seed`. A failed run gives no samples once
    the same collector has played its question again, so that no round counts twice; `superseded`
    has the states that it gave until then.
    """

    def __init__(
        self,
        rounds_path: str | Path,
        min_clues_per_round: int = 2,
        max_samples_per_question: int = 10,
        seed: int = 7,
    ) -> None:
        self.rounds_path = Path(rounds_path)
        self.min_clues_per_round = min_clues_per_round
        self.max_samples_per_question = max_samples_per_question
        self.seed = seed
        self.damaged: list[Damaged] = []
        self.superseded: list[State] = []
        self._failures: list[str] = []  # of the questions all of whose runs failed
        self._questions = 0
        self._samples: list[State] | None = None

    def load_data(self) -> ScanReport:
        """Scan the folder; `damaged` then lists what was set aside.

        Raises DataError where the folder is missing or holds no run at all.
        """
        report, self.damaged, self._samples = ScanReport(), [], []
        self.superseded, self._failures = [], []
        for folder in self._question_folders():
            runs = self._read_runs(folder, report)
            if runs:
                self._samples += self._samples_of(runs, report)
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

    def _question_folders(self) -> list[Path]:
        try:
            found = [path for path in self.rounds_path.iterdir() if not path.name.startswith(".")]
        except OSError as error:
            raise DataError(
                f"{self.rounds_path} cannot be read ({error.strerror}); data.rounds_path must name "
                "the folder that holds the question folders."
            ) from error
        return sorted((path for path in found if path.is_dir()), key=lambda path: path.name)

    def _read_runs(self, folder: Path, report: ScanReport) -> list[_Run]:
        """The whole runs of one question; damaged ones are set aside and counted."""
        runs: list[_Run] = []
        for run_folder in run_folders(folder):
            if not (run_folder / META_NAME).exists():
                report.unfinished_runs += 1
                continue
            try:
                run = _read_run(run_folder, folder.name)
                if runs and run.meta.question != runs[0].meta.question:
                    raise DamagedFile(
                        run_folder / META_NAME, None, f"asks another question than {runs[0].name}"
                    )
            except DamagedFile as error:
                report.damaged_runs += 1
                self.damaged.append(error.damaged)
            else:
                runs.append(run)
        return runs

    def _samples_of(self, runs: Sequence[_Run], report: ScanReport) -> list[State]:
        """The states of one question's runs, at most as many as the cap allows."""
        gold = next((run.meta.gold_docids for run in runs if run.meta.gold_docids), ())
        known = frozenset(gold) or _labelled_important(runs)
        old = _superseded(runs)
        current = [run for run in runs if run not in old]
        report.questions += 1
        report.questions_without_gold += not gold
        report.runs += len(current)
        report.superseded_runs += len(old)
        if all(run.meta.status == FAILED for run in current):
            reason = failure_of(current[0].meta) or "no reason was recorded"
            self._failures.append(f"{current[0].meta.question_id}: {reason}")
        self.superseded += self._states_of(old, gold, known, ScanReport())
        return self._states_of(current, gold, known, report)

    def _states_of(
        self,
        runs: Sequence[_Run],
        gold: Sequence[str],
        known: frozenset[str],
        report: ScanReport,
    ) -> list[State]:
        """The states of these runs that can be used, within the cap; `report` counts the rest."""
        states: list[State] = []
        for run in runs:
            for ref in run.meta.rounds:
                if ref.round == 0:
                    continue
                report.rounds += 1
                clues = ref.clues or run.files[ref.round].clues
                if self._is_usable(ref, clues, report):
                    states.append(_state_before(run, ref, clues, gold, known))
        return self._capped(states, report)

    def _is_usable(self, ref: RoundRef, clues: Sequence[str], report: ScanReport) -> bool:
        if ref.failed is not None:  # also where the planner failed, and there is no strategy
            report.failed_rounds += 1
        elif ref.strategy != SEARCH:
            report.not_search += 1
        elif len(clues) < self.min_clues_per_round:
            report.too_few_clues += 1
        else:
            return True
        return False

    def _capped(self, states: list[State], report: ScanReport) -> list[State]:
        cap = self.max_samples_per_question
        if len(states) <= cap:
            return states
        report.over_the_cap += len(states) - cap
        generator = random.Random(f"{self.seed}/{states[0].question_id}")
        return [states[i] for i in sorted(generator.sample(range(len(states)), cap))]


def failure_of(meta: MetaFile) -> str | None:
    """Why a question's last failed round failed; None where no round has a reason."""
    return next((ref.failed for ref in reversed(meta.rounds) if ref.failed), None)


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


def _read_run(folder: Path, question_id: str) -> _Run:
    """Read a whole run. Raises DamagedFile at the first file that is missing or damaged."""
    path = folder / META_NAME
    meta = read_recorded(path, MetaFile)
    try:
        check_id(meta.question_id, "question_id")
    except RlkitError as error:
        raise DamagedFile(path, None, str(error)) from error
    if meta.question_id != question_id:
        reason = f"question_id is {meta.question_id!r}, and the folder is {question_id!r}"
        raise DamagedFile(path, None, reason)
    names = {0: round_name(0), **{ref.round: ref.checkpoint for ref in meta.rounds}}
    files = {number: _read_round(folder / name, number) for number, name in names.items()}
    return _Run(folder.name, meta, files)


def _read_round(path: Path, number: int) -> RoundFile:
    file = read_recorded(path, RoundFile)
    if file.round != number:
        reason = f"holds round {file.round}, and the run lists it as round {number}"
        raise DamagedFile(path, None, reason)
    return file


def _state_before(
    run: _Run, ref: RoundRef, clues: Sequence[str], gold: Sequence[str], known: frozenset[str]
) -> State:
    """The training sample of a round: the state in the previous round's file."""
    return make_state(
        run.files[ref.round - 1],
        question_id=run.meta.question_id,
        question=run.meta.question,
        run=run.name,
        strategy=ref.strategy,
        subgoal=ref.subgoal,
        gold_docids=gold,
        known_important=known,
        recorded_clues=clues,
        recorded_results=run.files[ref.round].results,
        hops=run.meta.hops or len(set(gold)) or None,
    )


def _superseded(runs: Sequence[_Run]) -> list[_Run]:
    """The failed runs whose collector has played the question again, in the order given."""
    last = {run.meta.collector: run.name for run in runs}
    return [
        run
        for run in runs
        if run.meta.status == FAILED
        and run.meta.collector is not None
        and last[run.meta.collector] != run.name
    ]


def _labelled_important(runs: Iterable[_Run]) -> frozenset[str]:
    """Every document that any record of the question labels IMPORTANT."""
    rows = (
        row
        for run in runs
        for file in run.files.values()
        for row in (*file.document_table, *file.results)
    )
    return frozenset(row.docid for row in rows if row.verdict == "IMPORTANT")
