"""A study: its trials are proposed, run one by one, and kept.

Optuna's samplers propose, its median pruner ends hopeless trials early, and its journal file in
`outputs/<run_name>-<method>/` keeps every trial, so that a study goes on after any stop and several
processes can share it. Each trial is an ordinary run, `<run_name>-<method>-trial-003`. A trial
whose process died, however, is taken up by the next one that asks: same parameters, same folder,
from its last checkpoint; until it has died three times. Optuna has heartbeats for that, but for
databases alone, and they begin a second trial.

A trial is worth what its last checkpoint is worth on the dev split: taking its best epoch would
favour trials that were measured more often. `results.py` tells what came out.
"""

from __future__ import annotations

import gc
import math
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import optuna
import pandas as pd
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError, RlkitError, RunError, did_you_mean
from rlkit.files import flat, write_bytes
from rlkit.run import MAY_CHANGE, Run
from rlkit.section import shown
from rlkit.training import interrupts
from rlkit.tuning.results import STATES, trial_table, write_table
from rlkit.tuning.shared import shared_parts
from rlkit.tuning.space import changed, in_words, parameters_of, read_space

Log = Callable[[str], None]
DEFAULT_TRIALS = {"random": 10, "bayesian": 20}
DEATHS = 3  # of a trial's process, without an epoch between them, until the trial has failed
# What may differ between two calls for one study; what a trial's value depends on may not.
_FREE = ("tune.trials", "tune.minutes") + tuple(
    key for key in MAY_CHANGE if not key.startswith(("training.", "evaluation.", "tune."))
)


class ObjectiveError(ConfigError):
    """The objective cannot be measured: no trial could be worth anything, so the study ends."""


class _Grid(optuna.samplers.GridSampler):
    def after_trial(self, *_: Any, **__: Any) -> None:
        """Optuna stops `Study.optimize` here, which is not under way: `Study.run` counts."""


class Study:
    """A study's folder and what is in it; `run` works until the budget is used up.

    Raises ConfigError for a space that RunConfig does not accept, RunError where the folder holds
    a study with other parameters.
    """

    def __init__(self, config: RunConfig, log: Log = print) -> None:
        self.config, self.log, self.space = config, log, read_space(config)
        self.name = f"{config.run_name}-{config.tune.method}"
        self.root = Path(config.output_root)
        self.folder = self.root / self.name
        given = config.model_dump(exclude_unset=True) | {"tune": {}}
        self.base = changed(RunConfig.from_sections(**given), {"training.resume": True})
        self.run_config(0, {})  # a name that is too long is told now
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._open()

    def _open(self) -> None:
        if (self.folder / "config.yaml").exists():
            raise RunError(f"{self.folder} holds a run, no study; take another run_name.")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock("study"):
            self._compare(self.folder / "study.yaml")
            journal = self.folder / "journal.log"
            with self._lock("journal"):
                _cut_half_line(journal)
            try:
                # the system frees this lock when a process ends; Optuna's own waits 30 seconds
                backend = JournalFileBackend(str(journal), lock_obj=self._lock("journal"))
                self.optuna = optuna.create_study(
                    study_name="study",
                    storage=optuna.storages.JournalStorage(backend),
                    direction=self.config.tune.direction,
                    pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_min_trials=2),
                    load_if_exists=True,
                )
            except (ValueError, KeyError) as error:
                raise DataError(
                    f"{journal} is damaged ({error}); move the study's folder away to start anew."
                ) from error

    def _compare(self, path: Path) -> None:
        """Keep the study's parameters, or refuse ones under which trials cannot be compared."""
        if path.exists():
            before, now = flat(RunConfig.load(path).as_dict()), flat(self.config.as_dict())
            differing = [
                f"{key} ({shown(before.get(key))} there, {shown(now.get(key))} given)"
                for key in sorted(before.keys() | now.keys())
                if before.get(key) != now.get(key) and not _free(key)
            ]
            if differing:
                raise RunError(
                    f"{self.folder} holds a study with other parameters: {'; '.join(differing)}; "
                    "give the same ones, take another run_name, or move the folder away."
                )
        self.config.save(path)

    def _lock(self, name: str) -> filelock.FileLock:
        return filelock.FileLock(self.folder / f".{name}.lock")

    @property
    def trials(self) -> list[Any]:
        """All trials as Optuna keeps them, in their order."""
        return self.optuna.get_trials(deepcopy=False)

    @property
    def limit(self) -> int:
        """How many trials the study has in all."""
        given = self.config.tune.trials
        if self.config.tune.method != "grid":
            return given or DEFAULT_TRIALS[self.config.tune.method]
        size = math.prod(len(dimension.grid()) for dimension in self.space.values())
        return min(given or size, size)

    def run_name(self, number: int) -> str:
        """The name of a trial's run and of its folder."""
        return f"{self.name}-trial-{number:03}"

    def run_config(self, number: int, params: dict[str, Any], **shared: Any) -> RunConfig:
        """The parameters of a trial's run: the study's, changed by Optuna's `params`."""
        tuned = parameters_of(self.space, params)
        name = {"run_name": self.run_name(number)}
        return changed(self.base, {**tuned, **shared.get("shared", {}), **name})

    def run(self) -> str:
        """Run trials until the budget is used up: `finished`; or until an interrupt: `stopped`.

        A trial that fails is kept with its reason, and the next one begins. Raises ObjectiveError
        where the objective is not among what is measured.
        """
        before = interrupts.noted  # one in a trial's last step leaves the trial finished
        while (taken := self._take()) is not None:
            trial, lock = taken
            try:
                ended = self._attempt(trial)
            finally:
                lock.release()
            gc.collect()  # the trial's model, before the next one is loaded
            with self._lock("study"):  # else an older table could be written over a newer one
                write_table(self)
            if not ended or interrupts.noted > before:
                self.log(f"stopped in or after trial {trial.number}; the same command goes on")
                return "stopped"
        return "finished"

    @property
    def done(self) -> bool:
        """Whether the budget is used up and no trial is under way or broken off."""
        return self._used_up() and all(trial.state.is_finished() for trial in self.trials)

    def table(self) -> pd.DataFrame:
        """One row a trial, see `trial_table`."""
        return trial_table(self)

    def alive(self, number: int) -> bool:
        """Whether a process is working at this trial at the moment."""
        lock = self._lock(f"trial-{number:03}")
        if _got(lock):
            lock.release()
            return False
        return True

    def _take(self) -> tuple[Trial, filelock.FileLock] | None:
        """The next trial with its lock: one whose process is gone, or else a new one; None where
        the budget is used up."""
        with self._lock("study"):
            for trial in self.trials:
                lock = self._lock(f"trial-{trial.number:03}")
                if trial.state != TrialState.RUNNING or not _got(lock):
                    continue
                if trial.user_attrs.get("deaths", 0) < DEATHS:
                    self.log(f"trial {trial.number} was broken off; it goes on")
                    self.optuna.sampler = self._sampler(trial.number)
                    return self._filled(Trial(self.optuna, trial._trial_id)), lock
                self._give_up(Trial(self.optuna, trial._trial_id))
                lock.release()
            if self._used_up():
                return None
            number = len(self.trials)
            lock = self._lock(f"trial-{number:03}")
            lock.acquire()
            self.optuna.sampler = self._sampler(number)
            return self._filled(self.optuna.ask()), lock

    def _give_up(self, trial: Trial) -> None:
        """A trial that kills its process, such as by its memory, must not block the study."""
        reason = f"its process died {DEATHS} times"
        trial.set_user_attr("reason", reason)
        self.optuna.tell(trial, None, TrialState.FAIL)
        self.log(f"trial {trial.number} failed: {reason}")

    def _filled(self, trial: Trial) -> Trial:
        for dimension in self.space.values():
            dimension.suggest(trial)
        return trial

    def _used_up(self) -> bool:
        seconds = sum(trial.user_attrs.get("seconds", 0.0) for trial in self.trials)
        minutes = self.config.tune.minutes
        return len(self.trials) >= self.limit or (minutes is not None and seconds >= 60 * minutes)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """A sampler for this trial alone, so that a study that was stopped proposes what an
        unbroken one would have, and no two processes draw the same."""
        tune, seed = self.config.tune, self.config.seed
        if tune.method == "grid":
            return _Grid({key: d.grid() for key, d in self.space.items()}, seed=seed)
        own = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        if tune.method == "random":
            return optuna.samplers.RandomSampler(seed=own)
        return optuna.samplers.TPESampler(n_startup_trials=tune.startup_trials, seed=own)

    def _attempt(self, trial: Trial) -> bool:
        """Run a trial and tell Optuna what it is worth; False where it was interrupted."""
        watch = _Watch(self, trial)
        watch.count_death()
        tuned = parameters_of(self.space, trial.params)
        self.log(f"trial {trial.number}: " + in_words(tuned))
        try:
            value = self._value(trial, tuned, watch)
        except optuna.TrialPruned as pruned:
            self._settle(trial, watch, TrialState.PRUNED, str(pruned))
            Run.at(self.root / self.run_name(trial.number)).set_status(
                "stopped", step=watch.step, reason=f"pruned: {pruned}"
            )
        except Exception as error:  # kept with its reason, shown, and never taken for a value
            if not isinstance(error, RlkitError):
                self.log(traceback.format_exc())
            reason = f"{type(error).__name__}: {error}"[:500]
            self._settle(trial, watch, TrialState.FAIL, reason)
            if isinstance(error, ObjectiveError):
                raise
        else:
            if value is None:
                return False
            self._settle(trial, watch, TrialState.COMPLETE, "", value)
        finally:
            watch.end()
        return True

    def _value(self, trial: Trial, tuned: dict[str, Any], watch: _Watch) -> float | None:
        """Train, and read what the last checkpoint is worth on dev; None: it was interrupted."""
        from rlkit.training.loop import train_run  # torch, only now

        shared = shared_parts(self.base, tuned, self.name, self.folder, self.log)
        config = self.run_config(trial.number, trial.params, shared=shared)
        watch.training = config.training
        run = train_run(config, log=lambda line: self.log(f"  {line}"), progress=watch)
        if run.status()["state"] == "stopped":
            return None
        measured = [row for row in run.read_metrics() if "eval/seconds" in row]
        if not measured:
            raise ObjectiveError("nothing was measured on dev, since it is empty; give more data.")
        value = measured[-1].get(self.config.tune.objective)
        if value is None:
            raise RunError("no action on the dev states could be scored after the last step.")
        return float(value)

    def _settle(
        self,
        trial: Trial,
        watch: _Watch,
        state: TrialState,
        reason: str,
        value: float | None = None,
    ) -> None:
        if state != TrialState.COMPLETE:
            trial.set_user_attr("reason", reason)
        watch.save_seconds()
        self.optuna.tell(trial, value, state)
        told = reason or f"{self.config.tune.objective} {value:.4g} on dev"
        self.log(f"trial {trial.number} {STATES[state]}: {told}")


class _Watch:
    """Hears of a trial's steps: reports its objective at each epoch, and ends a hopeless one."""

    def __init__(self, study: Study, trial: Trial) -> None:
        self.study, self.trial = study, trial
        self.step, self.training = 0, study.config.training
        self.known = set(study.trials[trial.number].intermediate_values)
        self.deaths = trial.user_attrs.get("deaths", 0)
        self.before, self.start = trial.user_attrs.get("seconds", 0.0), time.monotonic()

    def __call__(self, row: dict[str, Any]) -> None:
        tune, self.step = self.study.config.tune, row["step"]
        if "eval/seconds" not in row:
            return
        if tune.objective not in row:
            names = [k for k, v in row.items() if k[:5] == "eval/" and isinstance(v, (int, float))]
            raise ObjectiveError(
                f"tune.objective {tune.objective} is not measured here; there are "
                f"{', '.join(names)}" + did_you_mean(tune.objective, names)
            )
        epoch, value = math.ceil(row["epoch"]), row[tune.objective]
        if not epoch or value is None:
            return
        if epoch not in self.known:
            self.trial.report(value, epoch)
            self.deaths = 0  # it gets on
            self.count_death()
        self.save_seconds()
        last = row["epoch"] >= self.training.num_epochs or self.step == self.training.max_steps
        if tune.pruning and not last and self.trial.should_prune():
            raise optuna.TrialPruned(
                f"{tune.objective} {value:.4g} after epoch {epoch} is worse than the median"
            )

    def count_death(self) -> None:
        """Count the process as dead from now on: `end` takes it back, a killed one cannot."""
        self.trial.set_user_attr("deaths", self.deaths + 1)

    def end(self) -> None:
        """The attempt ended in order, be it by an interrupt."""
        self.save_seconds()
        if self._runs():
            self.trial.set_user_attr("deaths", self.deaths)

    def save_seconds(self) -> None:
        """Keep how long the trial took, all its attempts together."""
        seconds = self.before + time.monotonic() - self.start
        if self._runs():
            self.trial.set_user_attr("seconds", round(seconds, 2))

    def _runs(self) -> bool:
        return self.study.trials[self.trial.number].state == TrialState.RUNNING


def _cut_half_line(path: Path) -> None:
    """Take away half a last line, which a power cut leaves: Optuna would not read past it."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        write_bytes(path, whole)


def _free(key: str) -> bool:
    return any(key == free or (free[-1] == "." and key.startswith(free)) for free in _FREE)


def _got(lock: filelock.FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    return True
