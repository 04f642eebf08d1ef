"""The stages before the loop: the run's folder among the processes of its job, data, and the model
with its warm start; and the warm start as a run of its own.

Of several processes (ranks.py) each goes through all of them; main goes first where something is
made once (rounds, split, index, warm start).
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rlkit.agents.recording import now_and_then
from rlkit.errors import RunError
from rlkit.files import new_folder
from rlkit.practice.task import build_task
from rlkit.run import Run
from rlkit.training import fingerprint
from rlkit.training.adapters import load_lora_checkpoint
from rlkit.training.checkpointing import arithmetic
from rlkit.training.dev import sft_evaluation
from rlkit.training.launcher import check_launcher, launched_dtype
from rlkit.training.models import resolve_base_model
from rlkit.training.monitor import Monitor, check_trackers
from rlkit.training.policy import load_model_with_lora, prompt_counter
from rlkit.training.ranks import JobError, Ranks, asked_device, device_of, joined
from rlkit.training.sft import (
    checkpoints_of,
    encode_examples,
    remove_checkpoints,
    save_warm_start,
    train_sft,
)
from rlkit.training.sharding import Strategy, launched_strategy
from rlkit.training.text import token_counter

Log = Callable[[str], None]


@contextmanager
def at_work(config: Any, log: Log) -> Iterator[tuple[Ranks, Run, Log]]:
    """This process among those of its job, the run (locked by main), and what main logs with."""
    with joined(config.model.device) as ranks:
        log = log if ranks.is_main else _silent
        check_launcher(config, log)
        launched_strategy()  # a slip there is told now
        if not ranks.alone:
            log(f"{ranks.size} processes, main on {ranks.device}")
        with ranks.main_first():
            resolve_base_model(config.model.base_model_path)  # a slip here should cost nothing
            run = Run.open(config) if ranks.is_main else _run_of_main(config)
        with run.lock() if ranks.is_main else contextlib.nullcontext():
            ranks.on_failure = functools.partial(_failed, run)
            yield ranks, run, log
            ranks.on_failure = _silent  # what ends now is no failure


def _run_of_main(config: Any) -> Run:
    folder = Path(config.output_root) / config.run_name
    if not folder.is_dir():
        raise RunError(
            f"the main process made {folder.absolute()}, which this machine does not see; put "
            "output_root on a file system that all machines of the job see."
        )
    return Run.open(config, create=False)


def _silent(said: Any) -> None:
    """Said by another process, or no longer of interest."""


def _failed(run: Run, error: JobError) -> None:
    step = {k: v for k, v in run.status().items() if k == "step"}
    run.set_status("failed", **step, reason=str(error)[:500])


def prepare_data(config: Any, run: Run, log: Log = print) -> Any:
    """Stage 1: what the task learns from, and the states of each split."""
    check_trackers(config)
    task = build_task(config, run, progress=now_and_then(log), count_tokens=prompt_counter(config))
    damaged = getattr(task, "damaged", ())
    for file in damaged[:5]:
        log(f"set aside: {file}")
    if len(damaged) > 5:
        log(f"set aside: {len(damaged) - 5} more runs with damaged files")
    sizes = ", ".join(f"{len(task.states(name))} {name}" for name in ("train", "dev", "eval"))
    log(f"data: {sizes} states")
    return task


def prepare_model(
    config: Any, run: Run, task: Any, log: Log = print, ranks: Ranks | None = None
) -> tuple[Any, Any]:
    """Stage 2: the base model with its adapter. With `model.init_adapter: auto` a warm start is
    made first, once, by main alone; a frozen copy of it is the reference from then on. Where all
    weights are trained, the trainer keeps that copy."""
    ranks = ranks or Ranks()
    adapter = config.model.init_adapter
    if adapter == "auto":
        with ranks.main_first():
            adapter = warm_start(config, run, task, log=log)
    kept = run.folder / "reference_adapter"
    if adapter is not None and kept.exists():
        adapter = kept
    model, tokenizer = load_model(config, adapter, log, launched_strategy())
    known = adapter in (None, kept)  # else it is kept, now that it is known to fit
    if config.lora.enabled and not known and ranks.is_main:
        _keep_reference(Path(adapter), kept)
    task.count_tokens = token_counter(tokenizer)
    return model, tokenizer


def load_model(
    config: Any,
    adapter: str | Path | None = None,
    log: Log = print,
    strategy: Strategy | None = None,
) -> tuple[Any, Any]:
    """The base model of `config` with a trainable adapter, fresh or continued; every process calls
    it where `strategy` divides the base."""
    return load_model_with_lora(
        config.model.base_model_path,
        config.lora,
        device=asked_device(config.model.device),
        dtype=launched_dtype(config, log),
        load_in_4bit=config.model.load_in_4bit,
        gradient_checkpointing=config.training.gradient_checkpointing,
        adapter=adapter,
        seed=config.seed,
        trust_remote_code=config.model.trust_remote_code,
        strategy=strategy,
        log=log,
    )


def _keep_reference(adapter: Path, kept: Path) -> None:
    """Copy the adapter that training starts from into the run, so that the run stands alone."""
    with new_folder(kept) as temporary:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(adapter / name, temporary / name)
        if (adapter / fingerprint.FILE).is_file():  # others write none
            shutil.copyfile(adapter / fingerprint.FILE, temporary / fingerprint.FILE)


def warm_start(
    config: Any,
    run: Run,
    task: Any,
    *,
    log: Log = print,
    progress: Callable[[dict], None] | None = None,
) -> Path:
    """Fine-tune on the task's examples; the folder `sft/adapter`, or `sft/model` where all weights
    are trained.

    A warm start that is there already is used as it is, and one that was begun goes on.
    """
    folder = run.warm_start_folder
    if folder.exists():
        remove_checkpoints(folder)
        log(f"warm start: {folder} is there already")
        return folder
    model, tokenizer = load_model(config, None, log)
    if config.sft.start_from is not None:
        load_lora_checkpoint(model, config.sft.start_from)
        log(f"warm start: goes on from {config.sft.start_from}")
    task.count_tokens = token_counter(tokenizer)
    found = list(task.examples())
    examples = encode_examples(
        tokenizer,
        [(task.prompt(state), text) for state, text in found],
        config.model.enable_thinking,
        [state.state_id for state, _ in found],
    )
    log(f"warm start: {len(examples)} examples")
    rows = train_sft(
        model,
        examples,
        config.sft,
        config.seed,
        checkpoints=checkpoints_of(folder),
        progress=progress or _said(log),
        monitor=functools.partial(Monitor, config, run, part="sft"),
        evaluate=sft_evaluation(config, task, model, tokenizer),
        best=config.training.best,
        log=log,
    )
    return save_warm_start(model, rows, folder)


def _said(log: Log) -> Callable[[dict[str, Any]], None]:
    def say(row: dict[str, Any]) -> None:
        if row["update"] == 1 or row["update"] % 10 == 0 or row["update"] == row["updates"]:
            log(f"warm start: update {row['update']} of {row['updates']}, loss {row['loss']:.3f}")

    return say


def sft_run(config: Any, *, log: Log = print) -> Path:
    """`python -m rlkit sft`: data, model, and the warm start alone; returns its folder. Of several
    processes main does it, and the others wait."""
    with at_work(config, log) as (ranks, run, log), ranks.main_first():
        if ranks.is_main:
            task = prepare_data(config, run, log)
            if not run.warm_start_folder.exists():
                device = device_of(ranks.local_rank, config.model.device)
                known = {"device": device, "processes": ranks.size}
                known |= task.lineage() if hasattr(task, "lineage") else {}
                run.write_lineage({**known, "arithmetic": arithmetic(torch.device(device))})
            warm_start(config, run, task, log=log)
    return run.warm_start_folder
