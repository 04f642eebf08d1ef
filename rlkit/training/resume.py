"""Where a trainer stands, kept in its run's checkpoints and taken up again, bit for bit.

Everything random is drawn from counters, so that this is all: adapter (or all weights), optimiser,
gradients that wait for the optimiser's move, groups that wait for further passes, and the counts in
`Progress`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlkit.errors import RunError
from rlkit.training.adapters import load_lora_checkpoint, save_lora_checkpoint
from rlkit.training.checkpointing import (
    PREFIX,
    arithmetic,
    newest_checkpoint,
    optimizer_tensors,
    prune_checkpoints,
    restore_optimizer,
    tidy_checkpoints,
    write_checkpoint,
)
from rlkit.training.rollout import group_from_tensors, group_tensors


@dataclass
class Progress:
    """Where a run stands: what a checkpoint keeps besides adapter and optimiser."""

    step: int = 0
    moves: int = 0
    denominator: float = 0.0
    visits: dict[str, int] = field(default_factory=dict)
    best_step: int | None = None
    best_value: float | None = None


def save_trainer(trainer: Any, step: int) -> Path:
    """Write `checkpoint-<step>` whole; keeps the last `keep_last` ones and the best."""
    folder = trainer.run.checkpoints_folder / f"{PREFIX}{step}"
    state = {
        **vars(trainer.progress),
        "arithmetic": _circumstances(trainer),
        "window": [g.state.state_id for g in trainer.window],
        "base_model": trainer.config.model.base_model_path,
    }
    write_checkpoint(
        folder,
        lambda path: save_lora_checkpoint(trainer.model, path),
        state,
        optimizer_tensors(trainer.optimizer, list(trainer.parameters)),
        _pending(trainer),
    )
    best = {trainer.progress.best_step} - {None}
    prune_checkpoints(trainer.run.checkpoints_folder, trainer.config.training.keep_last, best)
    return folder


def _circumstances(trainer: Any) -> dict[str, Any]:
    """What must be the same for a resumed run to be bitwise: arithmetic, and the documents."""
    lineage = getattr(trainer.task, "lineage", dict)()
    documents = {k: v for k, v in lineage.items() if k == "corpus_fingerprint"}
    return {**arithmetic(trainer.device), **documents}


def say_what_changed(before: dict[str, Any], now: dict[str, Any], log: Any) -> None:
    """Say why a resumed run is not bitwise the run that was not interrupted, where it is not."""
    changed = [f"{k} (was {before.get(k)}, now {v})" for k, v in now.items() if before.get(k) != v]
    if changed:
        log(f"not bitwise: the run goes on with another {', '.join(changed)}")


def _pending(trainer: Any) -> dict[str, Tensor]:
    """Gradients that wait for the optimiser, and, for further passes, their groups."""
    tensors = {
        f"gradient/{name}": parameter.grad.detach().cpu().contiguous()
        for name, parameter in trainer.parameters.items()
        if parameter.grad is not None
    }
    if trainer.settings.num_iterations > 1:
        for i, group in enumerate(trainer.window):
            tensors |= {f"group/{i}/{k}": v for k, v in group_tensors(group).items()}
    return tensors


def restore_trainer(trainer: Any) -> int:
    """Go on from the newest whole checkpoint of the run's folder; returns its step (0: none).

    What was written after it (metrics, rollouts) is cut off, so that nothing is there twice;
    what this trainer did after it, in a kernel that was interrupted, is forgotten.
    """
    tidy_checkpoints(trainer.run.checkpoints_folder)
    found = newest_checkpoint(trainer.run.checkpoints_folder, trainer.log)
    if found is None:
        _forget(trainer)
        trainer.run.cut_metrics(-1)
        return 0
    load_lora_checkpoint(trainer.model, found.folder)
    restore_optimizer(trainer.optimizer, trainer.parameters, found.optimizer)
    state = found.state
    trainer.progress = Progress(**{name: state[name] for name in vars(Progress())})
    for name, parameter in trainer.parameters.items():
        gradient = found.pending.get(f"gradient/{name}")
        parameter.grad = None if gradient is None else gradient.to(parameter.device)
    by_id = {s.state_id: s for s in trainer.task.states("train")} if state["window"] else {}
    trainer.window = [
        group_from_tensors(by_id[state_id], found.pending, i, trainer.device)
        for i, state_id in enumerate(state["window"])
        if trainer.settings.num_iterations > 1
    ]
    say_what_changed(state["arithmetic"], _circumstances(trainer), trainer.log)
    trainer.run.cut_metrics(trainer.progress.step)
    return trainer.progress.step


@torch.no_grad()
def _forget(trainer: Any) -> None:
    """Be as new: an interrupt before the first checkpoint leaves half a step behind."""
    if trainer.progress == Progress():
        return
    if trainer.untrained is None:
        raise RunError(
            "there is no checkpoint yet, and of the weights before training no copy is kept (all "
            "are trained, and grpo.kl_penalty is 0); load the model and make the trainer anew."
        )
    for name, parameter in trainer.parameters.items():
        parameter.copy_(trainer.untrained[name])
    trainer.optimizer.state.clear()
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.progress, trainer.window = Progress(), []
