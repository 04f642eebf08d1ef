"""What trials share: recorded rounds and warm starts are made once for all trials that would make
the same ones, so that a trial is GRPO alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import filelock

from rlkit.config import RunConfig
from rlkit.run import SHAPES_ROUNDS, Run
from rlkit.tuning.space import changed

Log = Callable[[str], None]
SHAPES_WARM_START = (*SHAPES_ROUNDS, "model", "lora", "sft", "answers")


def shared_parts(
    base: RunConfig, tuned: Mapping[str, Any], study: str, folder: Path, log: Log
) -> dict[str, str]:
    """`data.rounds_path` and `model.init_adapter` for a trial that changes `base` by `tuned`.

    They are made where they are not there yet, each in a run of its own beside the trials:
    `<study>-rounds` and `<study>-warm`, with a digest of the tuned values that shape it.
    """
    shared: dict[str, str] = {}
    if base.task == "search" and base.data.source != "rounds" and not base.data.rounds_path:
        run = _made(base, tuned, SHAPES_ROUNDS, f"{study}-rounds", folder, _record, log)
        shared["data.rounds_path"] = str(run.rounds_folder)
    if base.model.init_adapter == "auto":
        below = changed(base, shared)
        run = _made(below, tuned, SHAPES_WARM_START, f"{study}-warm", folder, _warm_start, log)
        shared["model.init_adapter"] = str(run.warm_start_folder)
    return shared


def _made(
    base: RunConfig,
    tuned: Mapping[str, Any],
    sections: tuple[str, ...],
    name: str,
    folder: Path,
    make: Callable[[RunConfig, Log], None],
    log: Log,
) -> Run:
    """The run that holds the shared part; one process makes it, the others wait."""
    shaping = {key: v for key, v in sorted(tuned.items()) if key.partition(".")[0] in sections}
    if shaping:
        name += "-" + hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:8]
    config = changed(base, {**shaping, "run_name": name})
    with filelock.FileLock(folder / f".{name}.lock"):
        run = Run.open(config)
        if run.status()["state"] != "finished":
            log(f"{name}: made once, for all trials that share it")
            make(config, log)
            run.set_status("finished")
    return run


def _record(config: RunConfig, log: Log) -> None:
    from rlkit.training.stages import prepare_data

    run = Run.open(config)
    with run.lock():
        prepare_data(config, run, log)


def _warm_start(config: RunConfig, log: Log) -> None:
    from rlkit.training.stages import sft_run

    sft_run(config, log=log)
