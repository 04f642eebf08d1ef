"""What one step says of itself: TRL's metric names where they exist, and the search's own.

| name | meaning |
|---|---|
| reward, reward_std | mean reward of scored actions; mean standard deviation within groups |
| frac_reward_zero_std | share of groups whose rewards are all equal, or of which fewer than two are known |
| frac_groups_flat | share of groups that teach nothing, since all their advantages are 0 (with `advantage: best` and `credit: clue` others than those above); groups with fewer than two rewards are passed over |
| groups_flat | only where training.flat_share is below 1: an object, by state id whether its group was flat; groups with fewer than two rewards are left out |
| kl | k3 to the reference, per token that the loss counts; none where it counts no token |
| entropy | of the policy, nats per token that the loss counts |
| loss | of the step; near 0 on-policy, since advantages sum to 0: that is normal |
| completions/mean_length, completions/clipped_ratio | tokens an action; share cut at the limit |
| clip_ratio/low_mean, clip_ratio/high_mean | share of tokens clipped, in later passes |
| sampling_logp_difference, sampling_logp_difference_max | mean and largest absolute difference between sampling and policy pass, nats, of the tokens that the loss counts |
| sampling/importance_sampling_ratio/min, .../mean, .../max | off-policy groups only (vLLM, overlap): the weights of their tokens, truncated |
| sampling/importance_sampling_ratio/truncated | share of these tokens whose ratio is above rollout.importance_cap |
| sampling/effective_sample_size | (sum w)^2 / (M sum w^2) over the M ratios w of these tokens before truncation: 1 where the policy is who sampled |
| eval/... | of greedy actions on dev states (greedy.py): means over states, while evaluation.json averages within a question first |
| unjudged_share | share of actions that could not be scored: they leave the loss |
| verdict_cache_hit_rate | live checker: share of the documents looked up that were judged before |
| time/... | share of the step's time in sampling, environment (waited for), training |
| time/environment_hidden | with rollout.overlap: time of the environment, as a share of the step's, beside which the step sampled or learnt |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlkit.training.grpo import k3, sampling_ratio
from rlkit.training.rollout import Group, mean


def step_metrics(
    groups: Sequence[Group],
    stats: Sequence[dict[str, float]],
    update: dict[str, float],
    clock: dict[str, float],
    seconds: float,
    settings: Any,
    components: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """One line of metrics.jsonl, without step and epoch. `components` are those parts of a score
    whose mean is a metric, with its name (the task's `step_metrics`)."""
    scores = [score for group in groups for score in group.scores]
    lengths = [int(row.sum()) for group in groups for row in group.sampled.mask]
    total = {key: sum(s.get(key, 0.0) for s in stats) for key in {k for s in stats for k in s}}
    metrics: dict[str, Any] = {
        "reward": mean([score.reward for score in scores]),
        "reward_std": mean([_spread(group.rewards) for group in groups]),
        "frac_reward_zero_std": mean([float(_spread(group.rewards) == 0) for group in groups]),
        "frac_groups_flat": mean([group.flat for group in groups]),
        **token_means(groups, settings.mask_truncated),
        **mismatch(groups, settings),
        "loss": total.get("total", 0.0) / max(total.get("denominator", 0.0), 1.0),
        "grad_norm": None,
        "learning_rate": None,
        "completions/mean_length": mean(lengths),
        "completions/clipped_ratio": mean(
            [float(not ended) for group in groups for ended in group.sampled.ended.tolist()]
        ),
        **clip_ratios(stats),
        "unjudged_share": mean([float(score.reward is None) for score in scores]),
    }
    metrics |= update
    for component, name in components.items():
        values = [score.components.get(component) for score in scores]
        if any(component in score.components for score in scores):
            metrics[name] = mean(values)
    metrics["tokens_per_second"] = sum(lengths) / seconds if seconds else None
    metrics |= {f"time/{part}": spent / seconds for part, spent in clock.items() if seconds}
    metrics["step_time"] = seconds
    return metrics


SUMMED = "judge_"  # how the names of counts begin


def task_metrics(task: Any) -> dict[str, float | None]:
    """What the task itself counted since the last call, such as `verdict_cache_hit_rate`."""
    take = getattr(task, "take_metrics", None)
    return take() if take else {}


def over_ranks(told: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """What the ranks' tasks counted (`task_metrics`), as one: what is counted of a judge
    (`judge_...`) is summed, of anything else, such as a rate, the mean is taken."""
    found: dict[str, float | None] = {}
    for name in told[0]:
        values = [one[name] for one in told if one.get(name) is not None]
        found[name] = sum(values) if values and name.startswith(SUMMED) else mean(values)
    return found


def token_means(groups: Sequence[Group], mask_truncated: bool) -> dict[str, float | None]:
    """`kl`, `entropy` and `sampling_logp_difference` at a step's first pass, averaged over the
    tokens that the loss counts; None where there is none (and `kl` where there is no reference).
    """
    columns: dict[str, list[Tensor]] = {"kl": [], "entropy": [], "sampling_logp_difference": []}
    for group in groups:
        counted = group.loss_mask(mask_truncated)
        policy = group.old_logp[counted]  # (M,) of the group's M counted tokens
        if group.ref_logp is not None:
            columns["kl"].append(k3(group.ref_logp[counted] - policy))
        columns["entropy"].append(group.entropy[counted])
        difference = (policy - group.sampled.logprobs[counted]).abs()
        columns["sampling_logp_difference"].append(difference)
    values = {name: torch.cat(parts) if parts else None for name, parts in columns.items()}
    return {n: float(v.mean()) if v is not None and len(v) else None for n, v in values.items()}


def mismatch(groups: Sequence[Group], settings: Any) -> dict[str, float]:
    """How far what was sampled is from the policy pass, over the tokens that the loss counts: the
    largest difference, and, of off-policy groups, the importance weights and the effective sample
    size (L. Kish 1965, "Survey Sampling") as a share of the tokens."""
    largest, weights, ratios = [], [], []
    for group in groups:
        counted = group.loss_mask(settings.mask_truncated)
        logp, sampled = group.old_logp, group.sampled.logprobs
        largest.append((logp - sampled)[counted].abs())
        if group.weights is not None:
            weights.append(group.weights[counted])
            level = settings.importance_level
            ratios.append(sampling_ratio(logp, sampled, counted, level)[counted])
    found = {"sampling_logp_difference_max": _largest(_joined(largest))}
    w, ratio = _joined(weights), _joined(ratios)
    if not len(w):
        return found
    name = "sampling/importance_sampling_ratio"
    return found | {
        f"{name}/min": float(w.min()),
        f"{name}/mean": float(w.mean()),
        f"{name}/max": float(w.max()),
        f"{name}/truncated": float((ratio > w).double().mean()),
        "sampling/effective_sample_size": float(ratio.sum() ** 2 / (ratio**2).sum() / len(ratio)),
    }


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)).double() if parts else torch.zeros(0)


def _largest(values: Tensor) -> float | None:
    return float(values.max()) if len(values) else None


def clip_ratios(stats: Sequence[dict[str, float]]) -> dict[str, float]:
    """The share of counted tokens, over some passes, that clipping held back."""
    tokens = max(sum(s["tokens"] for s in stats), 1.0)
    return {
        f"clip_ratio/{side}_mean": sum(s[f"clipped_{side}"] for s in stats) / tokens
        for side in ("low", "high")
    }


def _spread(rewards: Sequence[float | None]) -> float:
    """Population standard deviation of the known rewards; 0 where fewer than two are known."""
    known = np.array([r for r in rewards if r is not None], dtype=np.float64)
    if len(known) < 2 or known.min() == known.max():
        return 0.0
    return float(known.std())
