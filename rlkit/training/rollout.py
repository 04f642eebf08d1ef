"""A group as it was sampled and scored: K actions of one state, and the table rows kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlkit.practice.seam import Score
from rlkit.training.caches import PromptCache
from rlkit.training.sampling import SampledActions


@dataclass
class Group:
    """K actions for one state.

    sampled.tokens, .mask, .logprobs: (K, C); advantages: (K, C) float64; `counted(...)`: (K,) bool,
    False for an action that leaves the loss and every denominator (unscorable, or cut and masked).
    old_logp and ref_logp are filled in by the first pass. prefix: what sampling read of the
    prompt, with its graph, until the first pass has used it. off_policy: sampled by another program
    than the policy pass, or under older weights; the first pass then fills in the (K, C) importance
    weights of the loss (grpo.py).
    """

    state: Any
    visit: int
    prompt: list[int]
    sampled: SampledActions
    texts: list[str]
    scores: list[Score]
    advantages: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    old_logp: Tensor | None = None
    ref_logp: Tensor | None = None
    entropy: Tensor | None = None
    prefix: PromptCache | None = None
    off_policy: bool = False
    weights: Tensor | None = None

    @property
    def rewards(self) -> list[float | None]:
        return [score.reward for score in self.scores]

    @property
    def flat(self) -> bool | None:
        """Whether the group teaches nothing: no sampled token has an advantage. None where that is
        because fewer than two actions have a reward, which says nothing of the state."""
        if self.advantages[self.sampled.mask.cpu().numpy()].any():
            return False
        return True if sum(reward is not None for reward in self.rewards) >= 2 else None

    def counted(self, mask_truncated: bool) -> Tensor:
        """(K,) bool: which actions enter the loss."""
        known = torch.tensor([reward is not None for reward in self.rewards])
        return known & self.sampled.ended.cpu() if mask_truncated else known

    def loss_mask(self, mask_truncated: bool) -> Tensor:
        """(K, C) bool: which tokens enter the loss."""
        return (
            self.sampled.mask & self.counted(mask_truncated).to(self.sampled.mask.device)[:, None]
        )

    def rows(self) -> list[dict[str, Any]]:
        """One flat row an action, for `rollouts/*.parquet`."""
        rows = []
        for k, (text, score) in enumerate(zip(self.texts, self.scores, strict=True)):
            real = self.sampled.mask[k]
            row = {
                "state_id": self.state.state_id,
                "question_id": self.state.question_id,
                "action": k,
                "visit": self.visit,
                "prompt_tokens": len(self.prompt),
                "text": text,
                "token_ids": self.sampled.tokens[k][real].tolist(),
                "ended": bool(self.sampled.ended[k]),
                "sampled_logp": self.sampled.logprobs[k][real].tolist(),
                "policy_logp": _values(self.old_logp, k, real),
                "reference_logp": _values(self.ref_logp, k, real),
                "reward": score.reward,
                "advantage": float(self.advantages[k][0]),
            }
            if self.weights is not None:
                row["importance_weight"] = _values(self.weights, k, real)
            rows.append(row | score.components)
        return rows


def _values(logp: Tensor | None, k: int, real: Tensor) -> list[float] | None:
    return None if logp is None else logp[k][real].tolist()


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known; None of nothing."""
    known = [float(v) for v in values if v is not None]
    return sum(known) / len(known) if known else None


def parcel(group: Group) -> Group:
    """A copy to be sent to another process: on the CPU, without the state, which is known there."""
    sampled, values = group.sampled, vars(group) | {"state": None, "prefix": None}
    tensors = {k: v.detach().cpu() for k, v in values.items() if isinstance(v, Tensor)}
    on_cpu = {name: value.cpu() for name, value in vars(sampled).items()}
    return Group(**values | tensors | {"sampled": type(sampled)(**on_cpu)})


def group_tensors(group: Group) -> dict[str, Tensor]:
    """What further passes over a group need, on the CPU: `prompt` (P,), `ended` and `known` (K,),
    all others (K, C). `known`: which actions have a reward. What the group lacks is left out."""
    tensors = {
        "prompt": torch.tensor(group.prompt),
        "tokens": group.sampled.tokens,
        "mask": group.sampled.mask,
        "sampled_logp": group.sampled.logprobs,
        "ended": group.sampled.ended,
        "advantages": torch.from_numpy(group.advantages),
        "known": torch.tensor([reward is not None for reward in group.rewards]),
        "old_logp": group.old_logp,
        "entropy": group.entropy,
        "ref_logp": group.ref_logp,
        "weights": group.weights,
    }
    return {k: v.detach().cpu().contiguous() for k, v in tensors.items() if v is not None}


def group_from_tensors(state: Any, pending: dict[str, Tensor], prefix: str, device: Any) -> Group:
    """A group that only waits for further passes: its texts and scores are in the rollouts. The
    names of its tensors begin with `prefix`."""
    t = {
        key.rsplit("/", 1)[1]: value.to(device)
        for key, value in pending.items()
        if key.startswith(prefix)
    }
    sampled = SampledActions(t["tokens"], t["mask"], t["sampled_logp"], t["ended"])
    scores = [Score(0.0 if known else None, {}) for known in t["known"].tolist()]
    return Group(
        state,
        0,
        t["prompt"].tolist(),
        sampled,
        [""] * len(scores),
        scores,
        t["advantages"].cpu().numpy(),
        t["old_logp"],
        t.get("ref_logp"),
        t["entropy"],
        weights=t.get("weights"),
    )
