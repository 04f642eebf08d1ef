"""What other losses would have made of the actions that a run sampled, with no new sampling.

`compare_loss_types` reads `rollouts/*.parquet`, computes each group's log-probabilities once under
a given adapter, and asks every loss of grpo.py for its gradient at the same place. With the
adapter that sampled the actions all ratios are 1; with a later one they are not, and clipping
shows. All groups together count as one update; `grpo.max_grad_norm` is left out.

| column | meaning |
|---|---|
| loss | the loss, KL included, with its own denominator |
| cosine | between this gradient of the adapter and that of the run's own settings |
| norm_ratio | its length, divided by that of the run's own |
| clip_low, clip_high | share of tokens with ratio < 1 - e and A < 0; with ratio > 1 + e_high and A > 0. There every loss type but cispo has no gradient; cispo's weight is capped |
| effective_tokens | tokens t for which the derivative of the policy term (the loss without its KL) by logp_t is not exactly 0: A is not 0, and clipping does not hold the token. With an importance level of sequence, all tokens of an action or none |
| tokens | tokens that the loss counts |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rlkit.config import RunConfig
from rlkit.errors import ConfigError, RunError
from rlkit.run import Run
from rlkit.training.adapters import load_lora_checkpoint
from rlkit.training.advantages import token_advantages
from rlkit.training.checkpointing import PREFIX, checkpoint_steps, newest_checkpoint
from rlkit.training.gradients import trainable, without_dropout
from rlkit.training.grpo import AVERAGES, group_loss
from rlkit.training.logprobs import group_log_probs
from rlkit.training.rollout import Group
from rlkit.training.stored import chosen_actions, stored_groups

Setting = str | Mapping[str, Any]  # a loss type, or changes of the section `grpo`


def compare_loss_types(
    run: Run | str | Path,
    task: Any,
    model: Any,
    tokenizer: Any,
    *,
    steps: Sequence[int] | None = None,
    loss_types: Sequence[Setting] = tuple(AVERAGES),
    checkpoint: int | str | None = "newest",
) -> pd.DataFrame:
    """One row a setting, the run's own first; columns as above.

    `run` is a run or its folder; `task`, `model` (with its adapter) and `tokenizer` are those of
    the run. `steps`: whose actions; by default the last two in which rewards differ within a
    group. `loss_types`: names, or changes such as `{"loss_type": "dapo", "clip_epsilon_high":
    0.28}`, of the run's section `grpo`. `checkpoint`: the step whose adapter is taken, `newest`,
    or None for the model as it stands; the model's own adapter is put back afterwards.

    Raises RunError where the run has no such actions or checkpoint, ConfigError for a setting
    that is not allowed, DataError where `task` is not the one of the run.
    """
    run = run if isinstance(run, Run) else Run.at(run)
    settings = _all_settings(run.config, loss_types)
    rollouts = chosen_actions(run, steps)
    if rollouts["reference_logp"].isna().any() and any(s.kl_penalty for s in settings.values()):
        raise ConfigError(
            "the run kept no reference log-probabilities, since its grpo.kl_penalty is 0; leave "
            "kl_penalty out."
        )
    sums = {name: _Sum() for name in settings}
    with _adapter_of(run, model, checkpoint):
        for _, actions in rollouts.groupby("step"):
            groups = stored_groups(actions, task, tokenizer, run.config, _device(model))
            credit = {name: token_advantages(groups, s, tokenizer) for name, s in settings.items()}
            for i, group in enumerate(groups):
                each = {name: advantages[i] for name, advantages in credit.items()}
                _add_group(sums, settings, each, model, group, run.config.grpo.temperature)
    own = next(iter(sums.values()))
    table = pd.DataFrame({name: total.row(own) for name, total in sums.items()}).T
    return table.astype({"effective_tokens": int, "tokens": int})


@dataclass(frozen=True)
class TokenWeights:
    """What one loss makes of a group: its sum and denominator, the (K, C) derivatives of the sum
    by the log-probabilities, the number of effective tokens, and the loss's own counts."""

    total: float
    denominator: float
    weights: Tensor
    effective: int
    stats: dict[str, float]


def token_weights(
    logp: Tensor, group: Group, advantages: np.ndarray, settings: Any
) -> TokenWeights:
    """The weights of a group's tokens in the gradient of a loss, at the log-probabilities `logp`.

    logp, advantages: (K, C). `settings` has the attributes of the params section `grpo`.
    """
    leaf = logp.detach().requires_grad_()
    mask = group.loss_mask(settings.mask_truncated).to(leaf.device)
    old, ref = (None if t is None else t.to(leaf) for t in (group.old_logp, group.ref_logp))
    credit = torch.from_numpy(advantages).to(leaf.device)
    policy = group_loss(leaf, old, None, credit, mask, settings, group.weights)
    (held,) = torch.autograd.grad(policy.total, leaf)
    loss = group_loss(leaf, old, ref, credit, mask, settings, group.weights)
    (weights,) = torch.autograd.grad(loss.total, leaf)
    effective = int((held != 0).sum())
    total = float(loss.total.detach())
    return TokenWeights(total, loss.denominator, weights, effective, loss.stats)


class _Sum:
    """The gradient of one setting, summed over groups, with what its row says."""

    def __init__(self) -> None:
        self.gradient: list[Tensor] | None = None
        self.total = self.denominator = 0.0
        self.counts = dict.fromkeys(("tokens", "clipped_low", "clipped_high", "effective"), 0.0)

    def add(self, found: TokenWeights, gradient: Sequence[Tensor], factor: float) -> None:
        self.total += found.total
        self.denominator += found.denominator
        for name, count in (found.stats | {"effective": found.effective}).items():
            self.counts[name] += count
        if self.gradient is None:
            self.gradient = [factor * part for part in gradient]
        else:
            torch._foreach_add_(self.gradient, list(gradient), alpha=factor)

    def dot(self, other: _Sum) -> float:
        pairs = zip(self.gradient or (), other.gradient or (), strict=True)
        return sum(float((a.double() * b.double()).sum()) for a, b in pairs)

    def row(self, own: _Sum) -> dict[str, float]:
        length, unit = self.dot(self) ** 0.5, own.dot(own) ** 0.5
        share = max(self.denominator, 1e-300), max(own.denominator, 1e-300)
        tokens = max(self.counts["tokens"], 1.0)
        return {
            "loss": self.total / share[0],
            "cosine": self.dot(own) / (length * unit) if length * unit else np.nan,
            "norm_ratio": (length / share[0]) / (unit / share[1]) if unit else np.nan,
            "clip_low": self.counts["clipped_low"] / tokens,
            "clip_high": self.counts["clipped_high"] / tokens,
            "effective_tokens": self.counts["effective"],
            "tokens": self.counts["tokens"],
        }


def _add_group(
    sums: Mapping[str, _Sum],
    settings: Mapping[str, Any],
    credit: Mapping[str, np.ndarray],
    model: Any,
    group: Group,
    temperature: float,
) -> None:
    """One forward pass over a group, and through its graph at most one backward pass a setting."""
    with without_dropout(model), torch.enable_grad():
        logp, _ = group_log_probs(
            model,
            group.prompt,
            group.sampled.tokens,
            mask=group.sampled.mask,
            temperature=temperature,
        )
    parameters = list(trainable(model).values())
    known: list[tuple[Tensor, tuple[Tensor, ...]]] = []
    for name, setting in settings.items():
        found = token_weights(logp, group, credit[name], setting)
        factor, gradient = _multiple(found.weights, known)
        if gradient is None:
            gradient = torch.autograd.grad(logp, parameters, found.weights, retain_graph=True)
            known.append((found.weights, gradient))
        sums[name].add(found, gradient, factor)


def _multiple(
    weights: Tensor, known: Sequence[tuple[Tensor, tuple[Tensor, ...]]]
) -> tuple[float, tuple[Tensor, ...] | None]:
    """(factor, gradient) of weights that are, but for rounding, a multiple of weights whose
    gradient is known: within a group those of bnpo, dapo and dr_grpo are. Else (1, None)."""
    for other, gradient in known:
        size = float((other * other).sum())
        factor = float((weights * other).sum()) / size if size else 0.0
        if torch.allclose(weights, factor * other, rtol=1e-5, atol=0):
            return factor, gradient
    return 1.0, None


# -- settings -----------------------------------------------------------------------------------


def _all_settings(config: RunConfig, loss_types: Sequence[Setting]) -> dict[str, Any]:
    """Section `grpo` by the name of its row; the run's own comes first."""
    own = config.grpo.loss_type
    settings = {own: config.grpo}
    for given in loss_types:
        changes = {"loss_type": given} if isinstance(given, str) else dict(given)
        name = ", ".join([changes.get("loss_type", own), *_shown(changes)])
        if name not in settings:
            settings[name] = _changed(config.grpo, changes)
    return settings


def _shown(changes: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items() if key != "loss_type"]


def _changed(grpo: Any, changes: Mapping[str, Any]) -> Any:
    """The run's section `grpo` with some keys changed; gspo brings its importance level along."""
    given = grpo.model_dump()
    if "gspo" in (grpo.loss_type, changes.get("loss_type")):
        given.pop("importance_level")
    return RunConfig.from_sections(grpo=given | dict(changes)).grpo


# -- the adapter --------------------------------------------------------------------------------


@contextmanager
def _adapter_of(run: Run, model: Any, checkpoint: int | str | None) -> Iterator[None]:
    """The model with the adapter of a checkpoint; its own comes back."""
    folder = _checkpoint_folder(run, checkpoint)
    kept = {name: p.detach().clone() for name, p in trainable(model).items()}
    try:
        if folder is not None:
            load_lora_checkpoint(model, folder)
        yield
    finally:
        with torch.no_grad():
            for name, parameter in trainable(model).items():
                parameter.copy_(kept[name])


def _checkpoint_folder(run: Run, checkpoint: int | str | None) -> Path | None:
    if checkpoint is None:
        return None
    steps = checkpoint_steps(run.checkpoints_folder)
    if checkpoint == "newest":
        found = newest_checkpoint(run.checkpoints_folder)
        if found is not None:
            return found.folder
    elif checkpoint in steps:
        return run.checkpoints_folder / f"{PREFIX}{checkpoint}"
    listed = ", ".join(str(step) for step in steps) or "none"
    raise RunError(
        f"{run.checkpoints_folder} has no checkpoint {checkpoint!r}; there are: {listed}. None "
        "takes the adapter as the model has it."
    )


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device
