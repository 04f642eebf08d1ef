"""A whole training run in five stages: data, model, environment, trainer, loop.

`python -m rlkit train` calls `train_run`; `notebooks/train.ipynb` calls the stages one by one. Of
several processes (ranks.py) each goes through all of them; main goes first where something is made
once (rounds, split, index, warm start), and it alone writes, logs, and decides when it is over.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rlkit.agents.recording import now_and_then
from rlkit.errors import RunError
from rlkit.files import new_folder, plain
from rlkit.practice.task import build_task
from rlkit.run import Run
from rlkit.training import alarms, fingerprint, stopping
from rlkit.training.adapters import load_lora_checkpoint
from rlkit.training.checkpointing import arithmetic
from rlkit.training.dev import dev_evaluation, sft_evaluation
from rlkit.training.engines import check_engine
from rlkit.training.interrupts import interrupt_flag
from rlkit.training.launcher import check_launcher, launched_dtype
from rlkit.training.models import resolve_base_model
from rlkit.training.monitor import Monitor, check_trackers
from rlkit.training.policy import load_model_with_lora, prompt_counter
from rlkit.training.ranks import JobError, Ranks, asked_device, device_of, joined
from rlkit.training.schedule import state_order
from rlkit.training.sft import (
    checkpoints_of,
    encode_examples,
    remove_checkpoints,
    save_warm_start,
    train_sft,
)
from rlkit.training.sharding import Strategy, launched_strategy
from rlkit.training.text import token_counter
from rlkit.training.trainer import GRPOTrainer

Log = Callable[[str], None]


def train_run(
    config: Any, *, log: Log = print, progress: Callable[[dict], None] | None = None
) -> Run:
    """Train as `config` says, or go on where its run stands; returns the run.

    A finished run is not trained again: it is returned as it is, and `log` says how to go on.
    """
    with _at_work(config, log) as (ranks, run, log):
        with ranks.main_first():
            if run.status()["state"] != "finished":
                check_engine(config)  # before a warm start is made in vain
            task = prepare_data(config, run, log)  # 1 data, and 3 the environment inside the task
        model, tokenizer = prepare_model(config, run, task, log, ranks)  # 2, with its warm start
        trainer = GRPOTrainer(config, task, model, tokenizer, run, log=log, ranks=ranks)  # 4
        train(trainer, progress=progress)  # 5 loop
    return run


@contextmanager
def _at_work(config: Any, log: Log) -> Iterator[tuple[Ranks, Run, Log]]:
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


def sft_run(config: Any, *, log: Log = print) -> Path:
    """`python -m rlkit sft`: data, model, and the warm start alone; returns its folder. Of several
    processes main does it, and the others wait."""
    with _at_work(config, log) as (ranks, run, log), ranks.main_first():
        if ranks.is_main:
            task = prepare_data(config, run, log)
            if not run.warm_start_folder.exists():
                device = device_of(ranks.local_rank, config.model.device)
                known = {"device": device, "processes": ranks.size}
                known |= task.lineage() if hasattr(task, "lineage") else {}
                run.write_lineage({**known, "arithmetic": arithmetic(torch.device(device))})
            warm_start(config, run, task, log=log)
    return run.warm_start_folder


def train(trainer: GRPOTrainer, *, progress: Callable[[dict], None] | None = None) -> str:
    """Stage 5: step until the end, with metrics, rollouts and a checkpoint each step, and an
    evaluation on dev at the end of each epoch. Returns `finished` or `stopped`.

    The first interrupt ends the run after the step that is under way; a second one at once.
    """
    run, log, ranks = trainer.run, trainer.log, trainer.ranks
    start = trainer.load_checkpoint()
    total, over = trainer.total_steps, _is_over(trainer)
    if start >= total or over:
        log(
            f"{run.folder} is finished ({start} steps{over and ': ' + over}); raise "
            "training.num_epochs, or take another run_name"
        )
        _set_status(trainer, "finished")
        return "finished"
    log(f"loop: step {start + 1} to {total}" if start else f"loop: {total} steps")
    monitor = None
    if ranks.is_main:
        known = {"device": str(trainer.device), "processes": ranks.size}
        run.write_lineage({**known, **trainer.lineage()})
        monitor = Monitor(trainer.config, run, start)
    _set_status(trainer, "running")
    try:
        ended = _steps(trainer, monitor, progress, start, total)
        _set_status(trainer, ended)
    except BaseException as error:
        state = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        kind = "" if isinstance(error, JobError) else f"{type(error).__name__}: "
        with contextlib.suppress(OSError):  # a full disk must not hide what failed
            _set_status(trainer, state, done=_steps_done(trainer), reason=f"{kind}{error}"[:500])
        raise
    finally:
        if monitor:
            monitor.close()
    if ended == "stopped":
        log(f"stopped after step {trainer.progress.step}; the same command goes on")
    return ended


def _steps(trainer: GRPOTrainer, monitor: Any, progress: Any, start: int, total: int) -> str:
    """The steps after `start`; how they ended."""
    log, ranks = trainer.log, trainer.ranks
    with interrupt_flag(log) as interrupted:
        if start == 0:
            _first_line(trainer, monitor, progress)
        for step in range(start + 1, total + 1):
            _one_step(trainer, monitor, progress, last=step == total)
            if ranks.any(interrupted.is_set()) and step < total:
                trainer.save_checkpoint()
                return "stopped"
            over = _is_over(trainer)
            if over and step < total:
                trainer.save_checkpoint()
                log(f"ended after step {step}: {over}")
                break
    return "finished"


def _is_over(trainer: GRPOTrainer) -> str:
    """Why training ends before its last step; empty where it goes on."""
    over = ""
    if trainer.ranks.is_main:
        over = stopping.reason(trainer.run.read_metrics(), trainer.config.training)
    return trainer.ranks.broadcast(over)


def _set_status(trainer: GRPOTrainer, state: str, done: int | None = None, **details: Any) -> None:
    """`done` steps are finished; by default all that the trainer counts."""
    if trainer.ranks.is_main:
        step = trainer.progress.step if done is None else done
        trainer.run.set_status(state, step=step, **details)


def _steps_done(trainer: GRPOTrainer) -> int:
    """The step of the last line of metrics: the trainer may have counted one that broke off."""
    rows = trainer.run.read_metrics()
    return rows[-1]["step"] if rows else 0


def _first_line(trainer: GRPOTrainer, monitor: Any, progress: Any) -> None:
    """Step 0: what the policy does on dev before it is trained."""
    found = dev_evaluation(trainer)
    if found:
        _record(trainer, monitor, progress, {"step": 0, "epoch": 0.0, **found})


def _one_step(trainer: GRPOTrainer, monitor: Any, progress: Any, last: bool) -> None:
    training, ranks = trainer.config.training, trainer.ranks
    states = next_states(trainer)
    overlaps = trainer.config.rollout.overlap != "none"
    coming = next_states(trainer, behind=len(states)) if overlaps else ()
    cpu = time.process_time()
    metrics = trainer.training_step(states, coming)
    metrics["cpu_time"] = ranks.total(time.process_time() - cpu)
    if training.flat_share < 1:
        metrics["groups_flat"] = {
            g.state.state_id: stopping.is_flat(g.rewards) for g in trainer.last_groups
        }
    step = trainer.progress.step
    if last:  # a partial accumulation is applied
        metrics |= trainer.final_update()
    epoch_ends = trainer.position % trainer.epoch_steps == 0 or last
    if epoch_ends:
        metrics |= dev_evaluation(trainer)
    epoch = trainer.position / trainer.epoch_steps
    _record(trainer, monitor, progress, {"step": step, "epoch": epoch, **metrics})
    if ranks.is_main:
        trainer.write_rollouts()
    if epoch_ends or step % training.save_every_n_steps == 0:
        trainer.save_checkpoint()
    _set_status(trainer, "running")


def next_states(trainer: GRPOTrainer, behind: int = 0) -> list[Any]:
    """A batch for every process, so many states behind where the run stands in the data."""
    training, ranks, flat = trainer.config.training, trainer.ranks, frozenset()
    if training.flat_share < 1:
        if ranks.is_main:
            flat = stopping.flat_states(trainer.run.read_metrics())
        flat = ranks.broadcast(flat)
    return state_order(
        trainer.task.states("train"),
        trainer.config.seed,
        trainer.progress.groups + behind,
        training.batch_size * ranks.size,
        flat,
        training.flat_share,
    )


def _record(trainer: GRPOTrainer, monitor: Any, progress: Any, metrics: dict[str, Any]) -> None:
    """Send a line of metrics where it belongs; alarms that begin with it become part of it."""
    if not trainer.ranks.is_main:
        return
    begun = alarms.begun([*trainer.run.read_metrics(), plain(metrics)])
    if begun:
        metrics = metrics | {"alarms": begun}
    trainer.run.append_metrics(metrics)
    monitor.log(metrics)
    if progress:
        progress(metrics)
    else:
        trainer.log(step_line(metrics))
    for alarm in begun:
        trainer.log(f"alarm at step {metrics['step']}: {alarm}")


def step_line(metrics: dict[str, Any]) -> str:
    """One line for those who watch a terminal."""
    shown = {
        "reward": metrics.get("reward"),
        "discovery": metrics.get("discovery_rate"),
        "accuracy": metrics.get("accuracy"),
        "kl": metrics.get("kl"),
        "invalid": metrics.get("invalid_share"),
        "seconds": metrics.get("step_time"),
        "dev reward": metrics.get("eval/reward"),
        "dev discovery": metrics.get("eval/discovery_rate"),
        "dev accuracy": metrics.get("eval/accuracy"),
    }
    parts = [f"{name} {value:.3g}" for name, value in shown.items() if value is not None]
    return f"step {metrics['step']}: " + ", ".join(parts)


def _keep_reference(adapter: Path, kept: Path) -> None:
    """Copy the adapter that training starts from into the run, so that the run stands alone."""
    with new_folder(kept) as temporary:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(adapter / name, temporary / name)
        if (adapter / fingerprint.FILE).is_file():  # others write none
            shutil.copyfile(adapter / fingerprint.FILE, temporary / fingerprint.FILE)


def _said(log: Log) -> Callable[[dict[str, Any]], None]:
    def say(row: dict[str, Any]) -> None:
        if row["update"] == 1 or row["update"] % 10 == 0 or row["update"] == row["updates"]:
            log(f"warm start: update {row['update']} of {row['updates']}, loss {row['loss']:.3f}")

    return say
