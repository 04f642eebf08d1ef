"""A whole training run in five stages: data, model, environment, trainer, loop.

`python -m rlkit train` calls `train_run`; `notebooks/train.ipynb` calls the stages one by one: the
first two stand in stages.py, the environment is the task's, the loop is here. Of several processes
each goes through all of them; main alone writes, logs, and decides when it is over.

| what ends a run | status.json | what was done at the end | how it goes on |
|---|---|---|---|
| `num_epochs`, `max_steps` | finished | what waits applied, dev, checkpoint | with a higher limit |
| `cpu_minutes`, an alarm of `stop_on` | finished | the same | not; another run_name |
| `patience`, at an evaluation | finished | dev, checkpoint | not; another run_name |
| the first interrupt | stopped | the step finished, checkpoint | by the same command, bitwise |
| a second interrupt | stopped | nothing: the last checkpoint counts | the same |
| an error | failed, with the reason | nothing | the same, once it is mended |
| a killed process | interrupted, when read | nothing | the same |
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from rlkit.files import plain
from rlkit.run import Run
from rlkit.training import alarms, stopping
from rlkit.training.dev import dev_evaluation
from rlkit.training.engines import check_engine
from rlkit.training.interrupts import interrupt_flag
from rlkit.training.monitor import Monitor
from rlkit.training.ranks import JobError
from rlkit.training.schedule import state_order
from rlkit.training.stages import Log, at_work, prepare_data, prepare_model
from rlkit.training.trainer import GRPOTrainer


def train_run(
    config: Any, *, log: Log = print, progress: Callable[[dict], None] | None = None
) -> Run:
    """Train as `config` says, or go on where its run stands; returns the run.

    A finished run is not trained again: it is returned as it is, and `log` says how to go on.
    """
    with at_work(config, log) as (ranks, run, log):
        with ranks.main_first():
            if run.status()["state"] != "finished":
                check_engine(config)  # before a warm start is made in vain
            task = prepare_data(config, run, log)  # 1 data, and 3 the environment inside the task
        model, tokenizer = prepare_model(config, run, task, log, ranks)  # 2, with its warm start
        trainer = GRPOTrainer(config, task, model, tokenizer, run, log=log, ranks=ranks)  # 4
        train(trainer, progress=progress)  # 5 loop
    return run


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
            f"{run.folder} is finished ({start} steps{over and ': ' + over}); "
            f"{_how_to_go_on(trainer, over)}"
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
            over = _one_step(trainer, monitor, progress, last=step == total)
            if over and step < total:
                log(f"ended after step {step}: {over}")
                break
            if ranks.any(interrupted.is_set()) and step < total:
                trainer.save_checkpoint()
                return "stopped"
    return "finished"


def _is_over(trainer: GRPOTrainer, *coming: dict[str, Any]) -> str:
    """Why training ends before its last step, with the lines that are written and the one that is
    coming; empty where it goes on."""
    over = ""
    if trainer.ranks.is_main:
        rows = [*trainer.run.metrics_so_far(), *map(plain, coming)]
        over = stopping.reason(rows, trainer.config.training)
    return trainer.ranks.broadcast(over)


def _how_to_go_on(trainer: GRPOTrainer, over: str) -> str:
    """What lets a finished run go on: what ended it, where that may change (`run.MAY_CHANGE`)."""
    training, step = trainer.config.training, trainer.progress.step
    if over:
        return "what ended it may not change within a run; take another run_name to train anew"
    epochs = training.num_epochs * trainer.epoch_steps + trainer.ahead
    limits = {"training.num_epochs": epochs, "training.max_steps": training.max_steps}
    reached = [name for name, limit in limits.items() if limit is not None and step >= limit]
    return f"raise {' and '.join(reached)}, or take another run_name"


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


def _one_step(trainer: GRPOTrainer, monitor: Any, progress: Any, last: bool) -> str:
    """A step, with all that is written of it; why training ends with it, empty where it does not.

    Its own figures are asked first: where they end training, this step is the last one, with what
    waits applied and dev evaluated. `patience` is asked after that, since it goes by dev.
    """
    training, ranks = trainer.config.training, trainer.ranks
    states = next_states(trainer)
    overlaps = trainer.config.rollout.overlap != "none"
    coming = next_states(trainer, behind=len(states)) if overlaps else ()
    cpu = time.process_time()
    metrics = trainer.training_step(states, coming)
    metrics["cpu_time"] = ranks.total(time.process_time() - cpu)
    if training.flat_share < 1:
        known = [group for group in trainer.last_groups if group.flat is not None]
        metrics["groups_flat"] = {group.state.state_id: group.flat for group in known}
    step, epoch = trainer.progress.step, trainer.position / trainer.epoch_steps
    row = {"step": step, "epoch": epoch, **metrics}
    over = _is_over(trainer, row)
    last = last or bool(over)
    if last:  # a partial accumulation is applied
        row |= trainer.final_update()
    epoch_ends = trainer.position % trainer.epoch_steps == 0 or last
    if epoch_ends:
        row |= dev_evaluation(trainer)
    _record(trainer, monitor, progress, row)
    if ranks.is_main:
        trainer.write_rollouts()
    if epoch_ends:
        over = over or _is_over(trainer)
    if epoch_ends or step % training.save_every_n_steps == 0:
        trainer.save_checkpoint()
    _set_status(trainer, "running")
    return over


def next_states(trainer: GRPOTrainer, behind: int = 0) -> list[Any]:
    """A batch for every process, so many states behind where the run stands in the data."""
    training, ranks, flat = trainer.config.training, trainer.ranks, frozenset()
    if training.flat_share < 1:
        if ranks.is_main:
            flat = stopping.flat_states(trainer.run.metrics_so_far())
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
    begun = alarms.begun([*trainer.run.metrics_so_far(), plain(metrics)])
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
