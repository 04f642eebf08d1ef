"""What a trainer's policy does greedily: the figures of the dev split during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlkit.training.adapters import as_reference, has_reference
from rlkit.training.grpo import k3
from rlkit.training.rollout import mean
from rlkit.training.sampling import sample_actions
from rlkit.training.text import decode, encode_prompt


def greedy_evaluation(trainer: Any, states: Sequence[Any]) -> dict[str, float | None]:
    """Greedy actions on `states`: mean reward, mean KL (k3, per token) to the reference, and
    the means of the components that the task's `step_metrics` name."""
    prompts = [
        encode_prompt(
            trainer.tokenizer, trainer.task.prompt(s), trainer.config.model.enable_thinking
        )
        for s in states
    ]
    scores, kl, tokens, compared = [], 0.0, 0.0, has_reference(trainer.model)
    size = trainer.config.evaluation.batch_size
    for start in range(0, len(states), size):
        part = range(start, min(start + size, len(states)))
        sampled = sample_actions(
            trainer.model,
            [prompts[i] for i in part],
            1,
            trainer.settings.max_new_tokens,
            end_ids=trainer.ends,
        )
        for i, ids in zip(part, sampled.rows(), strict=True):
            (score,) = trainer.task.score(states[i], [decode(trainer.tokenizer, ids)])
            scores.append(score)
            if compared and score.reward is not None:  # unscorable ones count nowhere
                kl += _kl_sum(trainer, prompts[i], ids)
                tokens += len(ids)
    names = getattr(trainer.task, "step_metrics", {})
    parts = {name: mean([s.components.get(name) for s in scores]) for name in names}
    return {
        "reward": mean([score.reward for score in scores]),
        "kl": kl / tokens if tokens else None,
        **parts,
        "states": float(len(states)),
    }


@torch.no_grad()
def _kl_sum(trainer: Any, prompt: list[int], ids: list[int]) -> float:
    tokens = torch.tensor([ids], device=trainer.device)
    policy, _ = trainer.log_probs(prompt, tokens)
    with as_reference(trainer.model):
        reference, _ = trainer.log_probs(prompt, tokens)
    return float(k3(reference - policy).sum())
