"""A run owns one folder under `outputs/`: its parameters, lineage, metrics, rollouts, checkpoints,
evaluation and report. This file opens that folder, guards it, and reads it back."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import pandas as pd

from rlkit.config import RunConfig
from rlkit.errors import RlkitError, RunError, nearest
from rlkit.files import (
    append_line,
    flat,
    plain,
    read_jsonl,
    read_object,
    remove_leftovers,
    write_bytes,
    write_json,
    write_text,
)
from rlkit.lineage import environment_record
from rlkit.section import shown

# What may change between two openings of a run: how long it goes on, and what never touches the
# numbers that it has already written.
MAY_CHANGE = (
    "overrides",
    "output_root",
    "training.num_epochs",
    "training.max_steps",
    "training.resume",
    "model.vllm_base_url",
    "rollout.base_url",
    "rollout.adapters_path",
    "rollout.timeout",
    "rollout.gpu_memory_utilization",
    "search.url",
    "search.timeout",
    "answers.sft_accuracy_threshold",
    "answers.below_threshold",
    "executor.served_model",
    "executor.served_url",
    "checker.cache_path",
    "checker.concurrency",
    "checker.timeout",
    "checker.max_retries",
    "checker.patience",
    "monitoring.",
    "evaluation.",
    "tune.",
    "merge.",
)
# What recorded rounds and a split depend on: sections, and single keys.
SHAPES_ROUNDS = (
    "task", "seed", "data", "search", "executor", "checker",
    "answers.dataset", "answers.max_samples", "answers.augment",
)  # fmt: skip
_BUSY = "{} is being trained by another process; wait for it, stop it, or take another run_name."
STATES = ("running", "finished", "stopped", "failed")


class Run:
    """One experiment's folder. Get one with `Run.open(config)` or `Run.at(folder)`."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self._metrics_mended = False
        self._rows: list[dict[str, Any]] | None = None  # of `metrics_so_far`

    @classmethod
    def open(cls, config: RunConfig, *, create: bool = True) -> Run:
        """Open the folder of `config.run_name`; a new one is made where `create` allows it.

        Raises RunError where the folder holds a run of another configuration, where
        `training.resume` is false and it holds a run at all (only with `create`), and, without
        `create`, where there is none.
        """
        folder = Path(config.output_root) / config.run_name
        run, saved = cls(config, folder), None
        if run.config_path.exists():
            saved = RunConfig.load(run.config_path)
            run._accept(saved, create)
        elif not create:
            raise RunError(_no_run(config.run_name, config.output_root))
        elif run.checkpoints_folder.exists() or run.metrics_path.exists():
            raise RunError(
                f"{folder} holds a run without its config.yaml; move the folder away, or take "
                "another run_name."
            )
        if create and saved != config:
            if saved is not None and run.locked():
                raise RunError(_BUSY.format(folder))
            folder.mkdir(parents=True, exist_ok=True)
            config.save(run.config_path)
        return run

    @classmethod
    def at(cls, folder: str | Path) -> Run:
        """The run in a folder, with the configuration that it was run with."""
        folder = Path(folder)
        if not (folder / "config.yaml").exists():
            raise RunError(f"{folder} holds no run (no config.yaml); check the path.")
        return cls(RunConfig.load(folder / "config.yaml"), folder)

    def _accept(self, saved: RunConfig, create: bool) -> None:
        if create and not self.config.training.resume and self._begun():
            raise RunError(
                f"{self.folder} holds a run already and training.resume is false; set it to true "
                "to go on, take another run_name, or move the folder away."
            )
        differing = [row for row in differences(saved, self.config) if not self._free(row[0])]
        if differing:
            listed = "; ".join(f"{k} ({shown(a)} there, {shown(b)} given)" for k, a, b in differing)
            raise RunError(
                f"{self.folder} holds a run with other parameters: {listed}; give the same ones, "
                "take another run_name, or move the folder away."
            )

    def _begun(self) -> bool:
        """Whether anything was trained or evaluated here."""
        worked = (
            self.metrics_path,
            self.checkpoints_folder,
            self.sft_folder,
            self.evaluation_path,
            self.folder / "reference_adapter",
        )
        return any(path.exists() for path in worked)

    def _free(self, name: str) -> bool:
        """Whether nothing in the folder depends on this key yet, so that it may still change: a
        first try that failed over a slip must not block its own correction."""
        recorded = self.rounds_folder.exists() or (self.folder / "splits.json").exists()
        shapes_rounds = recorded and {name, name.split(".")[0]} & {*SHAPES_ROUNDS}
        return not self._begun() and not shapes_rounds

    config_path = property(lambda self: self.folder / "config.yaml")
    lineage_path = property(lambda self: self.folder / "lineage.json")
    metrics_path = property(lambda self: self.folder / "metrics.jsonl")
    status_path = property(lambda self: self.folder / "status.json")
    evaluation_path = property(lambda self: self.folder / "evaluation.json")
    report_path = property(lambda self: self.folder / "report.html")
    rounds_folder = property(lambda self: self.folder / "rounds")
    sft_folder = property(lambda self: self.folder / "sft")
    warm_start_folder = property(
        lambda self: self.sft_folder / ("adapter" if self.config.lora.enabled else "model")
    )
    checkpoints_folder = property(lambda self: self.folder / "lora_checkpoints")
    rollouts_folder = property(lambda self: self.folder / "rollouts")
    merged_folder = property(lambda self: self.folder / "merged")
    tensorboard_folder = property(lambda self: self.folder / "tensorboard")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for writing; the system frees it when the process ends, however.

        Raises RunError where another process, or another part of this one, holds it.
        """
        guard = filelock.FileLock(self.folder / ".lock", timeout=2)
        try:
            guard.acquire()
        except filelock.Timeout:
            raise RunError(_BUSY.format(self.folder)) from None
        try:
            self._remove_leftovers()
            yield
        finally:
            guard.release()

    def _remove_leftovers(self) -> None:
        """Half files of a process that was killed; only of what is written under the lock."""
        for path in (
            self.metrics_path,
            self.status_path,
            self.lineage_path,
            self.rollouts_folder / "step-*.parquet",
            self.sft_folder / "adapter",
            self.sft_folder / "model",
            self.folder / "reference_adapter",
        ):
            remove_leftovers(path)

    def locked(self) -> bool:
        """Whether somebody holds the folder at this moment."""
        guard = filelock.FileLock(self.folder / ".lock", timeout=0)
        try:
            guard.acquire()
        except filelock.Timeout:
            return True
        except OSError:  # a folder that may only be read: nobody can hold it from here
            return False
        guard.release()
        return False

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """Add one line to `metrics.jsonl`; NaN and infinity become null."""
        if not self._metrics_mended:
            self._cut_half_line()
        self._metrics_mended = False  # until the line is whole: the disk may be full
        row = plain(metrics)
        append_line(self.metrics_path, json.dumps(row, ensure_ascii=False))
        self._metrics_mended = True
        if self._rows is not None:
            self._rows.append(row)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; half a last line (the run was killed) is passed over."""
        if not self.metrics_path.exists():
            return []
        return [row for _, row in read_jsonl(self.metrics_path, skip_half_line=True)]

    def metrics_so_far(self) -> list[dict[str, Any]]:
        """What `read_metrics` gives, for whoever trains: the file is read once, and what this
        process appends is added. Anew after `cut_metrics`, with which every training begins."""
        if self._rows is None:
            self._rows = self.read_metrics()
        return self._rows

    def cut_metrics(self, step: int) -> None:
        """Forget what was written after `step`, the step of the checkpoint that is resumed (-1:
        there is none): later metrics, and later rollouts with them.

        Raises RunError, and forgets nothing, where there is no checkpoint and there must have been
        one: somebody took it away, and the metrics and rollouts are all that is left.
        """
        self._rows = None
        if self.metrics_path.exists():
            rows = self.read_metrics()
            if step < 0:
                self._check_none_is_gone(rows)
            kept = [row for row in rows if row.get("step", 0) <= step]
            write_text(
                self.metrics_path,
                "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept),
            )
        for later, path in self._rollout_files():
            if later > step:
                path.unlink()

    def _check_none_is_gone(self, rows: list[dict[str, Any]]) -> None:
        training = self.config.training
        last = max([row.get("step", 0) for row in rows], default=0)
        # the steps that are saved: with null steps an epoch, where the metrics say that one ended
        ends = [row.get("step", 0) for row in rows if row.get("epoch", 0) >= 1]
        saved = (training.save_every_n_steps, training.steps_per_epoch, training.max_steps, *ends)
        if last > min(step for step in saved if step):
            raise RunError(
                f"{self.metrics_path} goes on to step {last}, but {self.checkpoints_folder} holds "
                "no checkpoint; bring it back, or move the run's folder away to start anew."
            )

    def _cut_half_line(self) -> None:
        if self.metrics_path.exists():
            content = self.metrics_path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                write_bytes(self.metrics_path, whole)

    def write_rollouts(self, step: int, rollouts: pd.DataFrame) -> Path:
        """Write every action of a step, one row each, to `rollouts/step-<n>.parquet`."""
        buffer = io.BytesIO()
        rollouts.to_parquet(buffer, index=False)
        return write_bytes(self.rollouts_folder / f"step-{step}.parquet", buffer.getvalue())

    def read_rollouts(self, step: int | None = None) -> pd.DataFrame:
        """The actions of one step, or of all; a column `step` is added where it is missing."""
        frames = []
        for number, path in self._rollout_files():
            if step is None or number == step:
                frame = pd.read_parquet(path)
                if "step" not in frame.columns:
                    frame.insert(0, "step", number)
                frames.append(frame)
        if step is not None and not frames:
            raise RunError(f"{self.rollouts_folder} holds no actions of step {step}.")
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def _rollout_files(self) -> list[tuple[int, Path]]:
        files = self.rollouts_folder.glob("step-*.parquet")
        named = ((path.stem.removeprefix("step-"), path) for path in files)
        return sorted((int(number), path) for number, path in named if number.isdigit())

    def set_status(self, state: str, **details: Any) -> None:
        """Write `status.json`: what the run is doing, and since when (UTC)."""
        if state not in STATES:
            raise ValueError(f"state {state!r}; allowed are {', '.join(STATES)}")
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(self.status_path, {"state": state, **plain(details), "updated": now})

    def status(self) -> dict[str, Any]:
        """What `status.json` says; `interrupted` where a running run's process is gone, `new`
        where nothing has begun."""
        if not self.status_path.exists():
            return {"state": "new"}
        found = read_object(self.status_path)
        if found.get("state") not in STATES:
            raise RunError(
                f"{self.status_path} names no state; allowed are {', '.join(STATES)}: remove the "
                "file, and the run goes by its checkpoints."
            )
        if found.get("state") == "running" and not self.locked():
            found["state"] = "interrupted"
        return found

    def write_lineage(self, extra: dict[str, Any] | None = None) -> None:
        """Write `lineage.json`: where this run comes from. On a resumed run, the record before is
        kept under `earlier`. `extra` brings what only the caller knows: device, data
        fingerprint."""
        record = {"schema": 1, "run_name": self.config.run_name, "seed": self.config.seed}
        record |= environment_record() | plain(extra or {})
        if self.lineage_path.exists():
            before = read_object(self.lineage_path)
            earlier = before.pop("earlier", None)
            record["earlier"] = [*(earlier if isinstance(earlier, list) else []), before]
        write_json(self.lineage_path, record)


@dataclass(frozen=True)
class RunFrames:
    """A run, read back: metrics one row a step, rollouts one row an action."""

    config: RunConfig
    metrics: pd.DataFrame
    rollouts: pd.DataFrame
    evaluation: dict[str, Any] | None
    lineage: dict[str, Any]


def load_run(name: str, output_root: str | Path = "outputs") -> RunFrames:
    """A run as pandas frames; `name` is a run's name, or the path of its folder."""
    run = Run.at(find_run(name, output_root))
    return RunFrames(
        config=run.config,
        metrics=pd.DataFrame(run.read_metrics()),
        rollouts=run.read_rollouts(),
        evaluation=read_object(run.evaluation_path) if run.evaluation_path.exists() else None,
        lineage=read_object(run.lineage_path) if run.lineage_path.exists() else {},
    )


def find_run(name: str, output_root: str | Path = "outputs") -> Path:
    """The folder of a run, by name or by path; raises RunError naming the nearest run."""
    for folder in (Path(output_root) / name, Path(name)):
        if (folder / "config.yaml").exists():
            return folder
    raise RunError(_no_run(name, output_root))


def list_runs(output_root: str | Path = "outputs") -> list[dict[str, Any]]:
    """One row a run, newest first: run_name, state, step, updated, evaluated, report."""
    rows = []
    for config_path in Path(output_root).glob("*/config.yaml"):
        run = Run(RunConfig(), config_path.parent)  # its own parameters may not be sound
        try:
            status = run.status()
        except RlkitError:  # one damaged run must not hide the others
            status = {"state": "damaged"}
        rows.append(
            {
                "run_name": run.folder.name,
                "state": status["state"],
                "step": status.get("step"),
                "updated": status.get("updated"),
                "evaluated": run.evaluation_path.exists(),
                "report": str(run.report_path) if run.report_path.exists() else None,
            }
        )
    return sorted(rows, key=lambda row: (row["updated"] or "", row["run_name"]), reverse=True)


def differences(saved: RunConfig, given: RunConfig) -> list[tuple[str, Any, Any]]:
    """(key, saved value, given value) of every key that may not change between two openings."""
    before, after = flat(saved.as_dict()), flat(given.as_dict())
    return [
        (name, before[name], after[name])
        for name in after
        if before[name] != after[name] and not _may_change(name)
    ]


def _may_change(name: str) -> bool:
    return any(name == free or (free[-1] == "." and name.startswith(free)) for free in MAY_CHANGE)


def _no_run(name: str, output_root: str | Path) -> str:
    names = [path.parent.name for path in Path(output_root).glob("*/config.yaml")]
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else "`python -m rlkit runs` lists those that are there."
    return f"there is no run {name!r} under {output_root}; {hint}"
