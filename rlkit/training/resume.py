"""Where a trainer stands, kept in its run's checkpoints and taken up again, bit for bit.

Everything random is drawn from counters, so that this is all: adapter (or all weights), optimiser,
gradients that wait for the optimiser's move, groups that wait for further passes, and the counts in
`Progress`. Of several processes, the main rank writes what each of them has waiting; the same
number of them goes on bitwise, another one with the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlkit.errors import RunError
from rlkit.training import weights
from rlkit.training.adapters import load_lora_checkpoint, save_lora_checkpoint
from rlkit.training.checkpointing import (
    PREFIX,
    Checkpoint,
    arithmetic,
    newest_checkpoint,
    optimizer_tensors,
    prune_checkpoints,
    read_checkpoint,
    restore_optimizer,
    tidy_checkpoints,
    whole_state,
    write_checkpoint,
)
from rlkit.training.overlap import kept_early, restored_early
from rlkit.training.rollout import group_from_tensors, group_tensors


@dataclass
class Progress:
    """Where a run stands: what a checkpoint keeps besides adapter and optimiser."""

    step: int = 0
    groups: int = 0  # of all processes: the position in the data
    moves: int = 0
    denominator: float = 0.0
    visits: dict[str, int] = field(default_factory=dict)
    best_step: int | None = None
    best_value: float | None = None


def begin_training(trainer: Any) -> dict[str, Tensor] | None:
    """A copy of the weights before training, for a run that is taken back to its beginning; where
    all are trained, the reference serves as one, and without a reference there is none."""
    kept = weights.begin_training(trainer.model, reference=trainer.settings.kl_penalty > 0)
    if weights.of(trainer.model) is not None:
        return kept
    return {name: p.detach().clone() for name, p in trainer.parameters.items()}


def save_trainer(trainer: Any, step: int) -> Path:
    """Write `checkpoint-<step>` whole; keeps the last `keep_last` ones and the best."""
    folder = trainer.run.checkpoints_folder / f"{PREFIX}{step}"
    waiting = {
        "denominator": trainer.progress.denominator,
        "window": [g.state.state_id for g in trainer.window],
        **kept_early(trainer.early)[0],
    }
    moments = whole_state(trainer.optimizer)
    everyone = trainer.ranks.gather((waiting, _pending(trainer)))
    if not everyone:
        return folder
    others = [waits for waits, _ in everyone[1:]]
    pending = {
        _of_rank(rank, name): tensor
        for rank, (_, tensors) in enumerate(everyone)
        for name, tensor in tensors.items()
    }
    state = {
        **vars(trainer.progress),
        "arithmetic": _circumstances(trainer),
        **waiting,
        "base_model": trainer.config.model.base_model_path,
        **({"others": others} if others else {}),
        **({"loss_scale": trainer.scaler.state_dict()} if trainer.scaler.is_enabled() else {}),
    }
    write_checkpoint(
        folder,
        lambda path: save_lora_checkpoint(trainer.model, path),
        state,
        optimizer_tensors(trainer.optimizer, list(trainer.parameters), moments),
        pending,
    )
    best = {trainer.progress.best_step} - {None}
    prune_checkpoints(trainer.run.checkpoints_folder, trainer.config.training.keep_last, best)
    return folder


def _of_rank(rank: int, name: str) -> str:
    """A pending tensor's name in the file: main's have their own, as those of one process."""
    return f"rank/{rank}/{name}" if rank else name


def _circumstances(trainer: Any) -> dict[str, Any]:
    """What must be the same for a resumed run to be bitwise: arithmetic, and the documents."""
    lineage = getattr(trainer.task, "lineage", dict)()
    documents = {k: v for k, v in lineage.items() if k == "corpus_fingerprint"}
    spread = {"processes": trainer.ranks.size, "strategy": trainer.strategy.name}
    return {**arithmetic(trainer.device), **documents, **spread}


def say_what_changed(before: dict[str, Any], now: dict[str, Any], log: Any) -> None:
    """Say why a resumed run is not bitwise the run that was not interrupted, where it is not."""
    changed = [f"{k} (was {before.get(k)}, now {v})" for k, v in now.items() if before.get(k) != v]
    if changed:
        log(f"not bitwise: the run goes on with other {', '.join(changed)}")


def _pending(trainer: Any) -> dict[str, Tensor]:
    """Gradients that wait for the optimiser, for further passes their groups, and what was sampled
    ahead."""
    tensors = {
        f"gradient/{name}": parameter.grad.detach().cpu().contiguous()
        for name, parameter in trainer.parameters.items()
        if parameter.grad is not None
    }
    if trainer.settings.num_iterations > 1:
        for i, group in enumerate(trainer.window):
            tensors |= {f"group/{i}/{k}": v for k, v in group_tensors(group).items()}
    return tensors | kept_early(trainer.early)[1]


def restore_trainer(trainer: Any) -> int:
    """Go on from the newest whole checkpoint of the run's folder; returns its step (0: none).

    What was written after it (metrics, rollouts) is cut off, so that nothing is there twice;
    what this trainer did after it, in a kernel that was interrupted, is forgotten.
    """
    ranks, training = trainer.ranks, trainer.config.training
    found = _newest_of_all(trainer)
    if found is None:
        _forget(trainer)
        if ranks.is_main:
            trainer.run.cut_metrics(-1)
        return 0
    load_lora_checkpoint(trainer.model, found.folder)
    restore_optimizer(trainer.optimizer, trainer.parameters, found.optimizer)
    state = {"groups": found.state["step"] * training.batch_size, **found.state}
    trainer.progress = progress = Progress(**{name: state[name] for name in vars(Progress())})
    if training.steps_per_epoch is None:
        trainer.ahead = progress.step - progress.groups // (training.batch_size * ranks.size)
    _restore_waiting(trainer, found)
    if trainer.scaler.is_enabled() and "loss_scale" in state:
        trainer.scaler.load_state_dict(state["loss_scale"])
    before = {"processes": 1, "strategy": "ddp", **state["arithmetic"]}
    say_what_changed(before, _circumstances(trainer), trainer.log)
    if ranks.is_main:
        trainer.run.cut_metrics(progress.step)
    return progress.step


def _newest_of_all(trainer: Any) -> Checkpoint | None:
    """The checkpoint that main finds, on every rank."""
    ranks, folder, found = trainer.ranks, trainer.run.checkpoints_folder, None
    if ranks.is_main:
        tidy_checkpoints(folder)
        found = newest_checkpoint(folder, trainer.log)
    name = ranks.broadcast(found and found.folder.name)
    return found if ranks.is_main or name is None else read_checkpoint(folder / name)


def _restore_waiting(trainer: Any, found: Checkpoint) -> None:
    """What waits for this rank: its own, or, where there were more ranks or fewer, the sums on the
    main one, and a part of the groups on each."""
    ranks, pending = trainer.ranks, found.pending
    everyone = [found.state, *found.state.get("others", ())]
    windows = [[(rank, i) for i in range(len(w["window"]))] for rank, w in enumerate(everyone)]
    if len(everyone) == ranks.size:
        summed, window = [ranks.rank], windows[ranks.rank]
    else:
        summed = list(range(len(everyone))) if ranks.is_main else []
        all_groups = [place for window in windows for place in window]
        window = [all_groups[i] for i in ranks.part(len(all_groups))]
    trainer.progress.denominator = sum(everyone[rank]["denominator"] for rank in summed)
    for name, parameter in trainer.parameters.items():
        names = [_of_rank(rank, f"gradient/{name}") for rank in summed]
        parts = [pending[name].to(parameter.device) for name in names if name in pending]
        parameter.grad = sum(parts[1:], parts[0]) if parts else None
    trainer.window, trainer.early = [], None
    if len(everyone) == ranks.size:
        prefix = _of_rank(ranks.rank, "early/")
        trainer.early = restored_early(trainer, everyone[ranks.rank], pending, prefix)
    if window and trainer.settings.num_iterations > 1:
        by_id = {s.state_id: s for s in trainer.task.states("train")}
        for rank, i in window:
            prefix = _of_rank(rank, f"group/{i}/")
            state = by_id[everyone[rank]["window"][i]]
            trainer.window.append(group_from_tensors(state, pending, prefix, trainer.device))


@torch.no_grad()
def _forget(trainer: Any) -> None:
    """Be as new: an interrupt before the first checkpoint leaves half a step behind."""
    trainer.early = None
    if trainer.progress == Progress():
        return
    if trainer.untrained is None:
        raise RunError(
            "there is no checkpoint yet, and of the weights before training no copy is kept (all "
            "are trained, and grpo.kl_penalty is 0); load the model and make the trainer anew."
        )
    for name, parameter in trainer.parameters.items():
        parameter.copy_(trainer.untrained[name])
    restore_optimizer(trainer.optimizer, trainer.parameters, {})
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.progress, trainer.window, trainer.ahead = Progress(), [], 0
