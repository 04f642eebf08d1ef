"""The formulas of GRPO and its relatives, as pure functions on one group.

A group is K actions of up to C tokens for one state. Every function takes (K, C) tensors and a
boolean mask of the tokens that count; masked positions are taken out before any exp, so that
whatever stands there, no loss and no gradient is NaN. A loss is returned as a sum and a
denominator: gradients of sums are added up over the groups of an update and divided once, by the
denominators of all of them, so that an update does not depend on how its groups were split.

| loss_type | policy term of a token                        | averaged over                 |
|-----------|-----------------------------------------------|-------------------------------|
| grpo      | -min(r A, clip(r, 1-e, 1+e_high) A)           | tokens of an action, actions  |
| bnpo      | the same                                      | tokens of the group, groups   |
| dapo      | the same                                      | all tokens of the update      |
| dr_grpo   | the same                                      | actions x maximum length      |
| gspo      | the same, r of the whole action               | tokens of an action, actions  |
| cispo     | -sg(min(r, 1+e_high)) A logp                  | all tokens of the update      |

On the first pass over a group r is 1 and nothing clips: gspo then has grpo's gradient, and cispo
dapo's. They differ with `num_iterations` above 1, or where groups are off-policy.

Actions that another program sampled, or older weights (`Group.off_policy`), have their policy term
multiplied by min(pi_old / pi_sampled, cap), truncated importance sampling: pi_old is the policy
pass's own distribution, from which r is measured, and the KL is left as it is.

`clip_epsilon` 0.2 suits a token's r. The mean over an action moves far less: GSPO's paper (section
5.1) clips at 1 - 3e-4 and 1 + 4e-4, and at 0.2 gspo is next to unclipped.

Sources: GRPO arXiv:2402.03300 eq. 3; DAPO 2503.14476; Dr. GRPO 2503.20783; GSPO 2507.18071 eq. 5-7;
CISPO 2506.13585 eq. 4-5; the KL estimators k1, k2, k3: J. Schulman, "Approximating KL divergence";
the weights: F. Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
training"; truncation: E. Ionides 2008, "Truncated importance sampling".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlkit.practice.reward import compute_group_advantages

MAX_LOG_RATIO = 20.0  # log-ratios are clamped to this before exp


@dataclass(frozen=True)
class GroupLoss:
    """`total` / `denominator` is the group's own loss; `stats` are plain numbers for metrics."""

    total: Tensor
    denominator: float
    stats: dict[str, float]


def group_loss(
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    settings: Any,
    weights: Tensor | None = None,
) -> GroupLoss:
    """The loss of one group: `pg + beta * kl` per token, averaged as `settings.loss_type` says.

    logp, old_logp, ref_logp: (K, C); advantages: (K, 1) or (K, C); mask: (K, C) bool. `settings`
    has the attributes of the params section `grpo`. `weights`: (K, C) `importance_weights` of an
    off-policy group; they multiply `pg`. An empty mask gives 0 with a graph.
    """
    advantages = advantages.to(logp).expand_as(logp)
    counted = mask.any(dim=1)
    log_ratio = torch.where(mask, logp - old_logp.detach(), torch.zeros_like(logp))
    log_ratio = _masked_log_ratio(log_ratio, mask, settings.importance_level)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    safe_logp = torch.where(mask, logp, torch.zeros_like(logp))
    per_token = _policy_term(ratio, safe_logp, advantages, settings)
    if weights is not None:
        per_token = per_token * weights.detach().to(per_token)
    if ref_logp is not None and settings.kl_penalty:
        difference = torch.where(mask, ref_logp.detach() - logp, torch.zeros_like(logp))
        per_token = per_token + settings.kl_penalty * KL_ESTIMATORS[settings.kl_estimator](
            difference
        )
    per_token = torch.where(mask, per_token, torch.zeros_like(per_token))
    total, denominator = AVERAGES[settings.loss_type](
        per_token, mask, int(counted.sum()), settings.max_new_tokens
    )
    return GroupLoss(total, denominator, _clip_stats(ratio.detach(), advantages, mask, settings))


def _masked_log_ratio(log_ratio: Tensor, mask: Tensor, level: str) -> Tensor:
    """Per token, or (GSPO eq. 7) the mean over an action's tokens for each of them."""
    if level == "token":
        return log_ratio
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    mean = log_ratio.sum(dim=1, keepdim=True) / lengths
    return mean.expand_as(log_ratio)


def importance_weights(
    policy_logp: Tensor, sampled_logp: Tensor, mask: Tensor, level: str, cap: float
) -> Tensor:
    """(K, C) truncated importance weights of an off-policy group: `sampling_ratio`, at most `cap`
    (Yao et al. 2025)."""
    return sampling_ratio(policy_logp, sampled_logp, mask, level).clamp(max=cap)


def sampling_ratio(policy_logp: Tensor, sampled_logp: Tensor, mask: Tensor, level: str) -> Tensor:
    """(K, C) how much likelier the policy pass finds what was sampled than the sampler did:
    exp(policy_logp - sampled_logp) of each token; at `level` sequence the geometric mean over the
    action, since that is what r is there: r times the ratio is r measured from the sampler.

    policy_logp, sampled_logp: (K, C); masked positions may hold anything. No gradient.
    """
    difference = (policy_logp - sampled_logp).detach()
    difference = torch.where(mask, difference, torch.zeros_like(difference))
    difference = _masked_log_ratio(difference, mask, level)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _policy_term(ratio: Tensor, logp: Tensor, advantages: Tensor, settings: Any) -> Tensor:
    """(K, C) what is minimised of every token, before the KL."""
    low, high = clip_range(settings)
    if settings.loss_type == "cispo":
        return -ratio.clamp(max=high).detach() * advantages * logp
    return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)


def clip_range(settings: Any) -> tuple[float, float]:
    """(1 - epsilon, 1 + epsilon_high)."""
    high = (
        settings.clip_epsilon if settings.clip_epsilon_high is None else settings.clip_epsilon_high
    )
    return 1.0 - settings.clip_epsilon, 1.0 + high


def squared(difference: Tensor) -> Tensor:
    """(ref - logp)^2, which is twice k2."""
    return difference**2


def k2(difference: Tensor) -> Tensor:
    """(ref - logp)^2 / 2."""
    return difference**2 / 2


def k3(difference: Tensor) -> Tensor:
    """exp(ref - logp) - (ref - logp) - 1: unbiased and never negative."""
    difference = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"squared": squared, "k2": k2, "k3": k3}


def _over_actions(per_token: Tensor, mask: Tensor, actions: int, _: int) -> tuple[Tensor, float]:
    lengths = mask.sum(dim=1).clamp(min=1)
    return (per_token.sum(dim=1) / lengths).sum(), float(actions)


def _over_tokens(per_token: Tensor, mask: Tensor, _: int, __: int) -> tuple[Tensor, float]:
    return per_token.sum(), float(mask.sum())


def _within_group(per_token: Tensor, mask: Tensor, actions: int, _: int) -> tuple[Tensor, float]:
    return per_token.sum() / mask.sum().clamp(min=1), float(actions > 0)


def _over_maximum(per_token: Tensor, _: Tensor, actions: int, longest: int) -> tuple[Tensor, float]:
    return per_token.sum(), float(actions * longest)


AVERAGES: dict[str, Callable[[Tensor, Tensor, int, int], tuple[Tensor, float]]] = {
    "grpo": _over_actions,
    "gspo": _over_actions,
    "bnpo": _within_group,
    "dapo": _over_tokens,
    "cispo": _over_tokens,
    "dr_grpo": _over_maximum,
}


def _clip_stats(ratio: Tensor, advantages: Tensor, mask: Tensor, settings: Any) -> dict[str, float]:
    """Counts of tokens where clipping binds: below where A < 0, above where A > 0. cispo caps the
    weight of either sign, above alone."""
    low, high = clip_range(settings)
    below, above = (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0)
    if settings.loss_type == "cispo":
        below, above = torch.zeros_like(below), (ratio > high) & (advantages != 0)
    return {
        "tokens": float(mask.sum()),
        "clipped_low": float((below & mask).sum()),
        "clipped_high": float((above & mask).sum()),
    }


def group_advantages(
    groups: Sequence[Sequence[float | None]], scale: str = "group"
) -> list[np.ndarray]:
    """(K,) float64 advantages of each group of a step; None gets 0.

    `group`: (r - mean) / (std + 1e-8) within the group; `batch`: r - mean of the group, divided
    by the standard deviation of all rewards of the step; `none`: r - mean (Dr. GRPO). Raises
    DataError for a reward that is not finite.
    """
    divisor = step_divisor(groups, scale)
    return [scaled_advantages(group, divisor) for group in groups]


def step_divisor(groups: Sequence[Sequence[float | None]], scale: str) -> float | None:
    """What r - mean is divided by, the same for every group of a step: with `batch` the standard
    deviation of all its rewards + 1e-8, with `none` 1; None with `group`: each by its own.

    Where all rewards of a `batch` are equal there is no scale, and it is infinite: not only the
    advantages are 0 then but also the values of clues (credit.py), which may differ all the same.
    """
    if scale == "group":
        return None
    known = np.array([r for group in groups for r in group if r is not None], dtype=np.float64)
    if scale == "none" or not len(known) or not np.isfinite(known).all():
        return 1.0  # rewards that are not finite are refused where their group is scaled
    if known.min() == known.max():
        return math.inf
    return float(known.std()) + 1e-8


def scaled_advantages(rewards: Sequence[float | None], divisor: float | None) -> np.ndarray:
    """(K,) float64 (r - mean) / divisor over the known rewards, or as `compute_group_advantages`
    where the divisor is None: 0 for None, and everywhere where all are equal. Raises DataError
    for a reward that is not finite."""
    within = compute_group_advantages(rewards)  # the check of the rewards is there
    if divisor is None:
        return within
    known = np.array([r is not None for r in rewards], dtype=bool)
    values = np.array([r for r in rewards if r is not None], dtype=np.float64)
    advantages = np.zeros(len(known))
    if len(values) >= 2 and values.min() != values.max():
        advantages[known] = (values - values.mean()) / divisor
    return advantages


def best_action_advantages(rewards: Sequence[float | None]) -> np.ndarray:
    """(K,) float64: 1 for the first of the best actions, if its reward is above 0, else 0. On the
    first pass, where the ratio is 1, the gradient is that of this action's negative log-likelihood:
    rejection-sampling fine-tuning on the policy's own samples (RAFT, arXiv:2304.06767).
    """
    compute_group_advantages(rewards)  # the check of the rewards is there
    advantages = np.zeros(len(rewards))
    known = [(reward, -k) for k, reward in enumerate(rewards) if reward is not None]
    if known and max(known)[0] > 0:
        advantages[-max(known)[1]] = 1.0
    return advantages
