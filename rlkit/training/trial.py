"""One training step on a few states, and what it showed, as plain numbers: for a look before a run.

Nothing of it reaches a run: the trainer that is given has no run, or one in a temporary folder.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlkit.errors import ModelError
from rlkit.training.rollout import Group
from rlkit.training.trainer import GRPOTrainer
from rlkit.training.weights import TRAINED

OUT_OF_MEMORY = torch.OutOfMemoryError  # for callers that load no torch themselves


@dataclass(frozen=True)
class Trial:
    """What a step showed.

    rows: one an action, as in the rollouts. gradients: of each tensor that should learn, `ok`,
    `waits` (a LoRA A whose B is still 0: its gradient is exactly 0), `missing`, `zero`, `not
    finite`, or `frozen` (the optimiser does not have it). off_ratio: the largest |ratio - 1| of a
    second pass before the optimiser moved. off_reference: the largest difference from the
    reference's log-probabilities, None without a reference (nats). moved: whether the optimiser's
    move changed a trained tensor. seconds: of sampling, scoring and learning, a group. peak: bytes
    of the device's memory, None on a CPU.
    """

    rows: list[dict[str, Any]]
    gradients: dict[str, str]
    off_ratio: float
    off_reference: float | None
    moved: bool
    seconds: float
    peak: int | None = None


def try_step(trainer: GRPOTrainer, states: Sequence[Any]) -> Trial:
    """Take a step on `states`, then move the optimiser; the trainer's config must let gradients
    of one step wait (gradient_accumulation_steps of 2 or more).

    Raises ModelError where the device's memory does not suffice.
    """
    before = {name: p.detach().clone() for name, p in trainer.parameters.items()}
    cuda = trainer.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    trainer._checked = True  # a missing gradient is a finding here, not an error
    begun = time.perf_counter()
    try:
        trainer.training_step(states)
        seconds = (time.perf_counter() - begun) / len(states)
        groups = trainer.last_groups
        if not any(_teaches(trainer, group) for group in groups):
            _follow_likelihood(trainer, groups[0])
        gradients = gradient_kinds(trainer)
        off_ratio = max(_off_ratio(trainer, group) for group in groups)
        trainer.final_update()
    except torch.OutOfMemoryError as error:
        raise ModelError(
            "the device's memory does not suffice for a step; lower grpo.group_size, "
            "executor.max_prompt_tokens or grpo.max_new_tokens, or set "
            "training.gradient_checkpointing or model.load_in_4bit to true."
        ) from error
    return Trial(
        rows=[row for group in groups for row in group.rows()],
        gradients=gradients,
        off_ratio=off_ratio,
        off_reference=_off_reference(groups),
        moved=any(not torch.equal(before[n], p) for n, p in trainer.parameters.items()),
        seconds=seconds,
        peak=torch.cuda.max_memory_allocated() if cuda else None,
    )


def gradient_kinds(trainer: GRPOTrainer) -> dict[str, str]:
    """Of each tensor that should learn, what its gradient is; see `Trial`."""
    trained, wanted = trainer.parameters, dict(trainer.parameters)
    for name, parameter in trainer.model.named_parameters():  # also those that somebody froze
        if "lora_" in name and f".{TRAINED}." in name:
            wanted[name] = parameter
    return {n: _kind(n, p, wanted) if n in trained else "frozen" for n, p in wanted.items()}


def _kind(name: str, parameter: nn.Parameter, others: dict[str, nn.Parameter]) -> str:
    if parameter.grad is None:
        return "missing"
    if not torch.isfinite(parameter.grad).all():
        return "not finite"
    if parameter.grad.any():
        return "ok"
    other = others.get(name.replace("lora_A", "lora_B"))
    return "waits" if "lora_A" in name and other is not None and not other.any() else "zero"


def _teaches(trainer: GRPOTrainer, group: Group) -> bool:
    """Whether any token of the loss has an advantage: cut actions may be left out of it."""
    mask = group.loss_mask(trainer.settings.mask_truncated).cpu().numpy()
    return bool(group.advantages[mask].any())


def _follow_likelihood(trainer: GRPOTrainer, group: Group) -> None:
    """Where nothing in the loss had any advantage, gradients of the actions' likelihood show which
    tensors learn; those of the step, all 0, are thrown away, and the optimiser moves with these."""
    trainer.optimizer.zero_grad(set_to_none=True)
    logp, _ = trainer.log_probs(group.prompt, group.sampled.tokens, group.sampled.mask)
    trainer.scaler.scale(-logp.sum()).backward()
    trainer.progress.denominator = float(group.sampled.mask.sum())


def _off_ratio(trainer: GRPOTrainer, group: Group) -> float:
    mask = group.sampled.mask
    with torch.no_grad():
        logp, _ = trainer.log_probs(group.prompt, group.sampled.tokens, mask)
    return float(((logp - group.old_logp)[mask].exp() - 1).abs().max())


def _off_reference(groups: Sequence[Group]) -> float | None:
    if any(group.ref_logp is None for group in groups):
        return None
    return max(
        float((group.ref_logp - group.old_logp)[group.sampled.mask].abs().max()) for group in groups
    )
