"""What a trainer's policy does greedily: the figures of the dev split during training. Its states
are spread over the ranks; all of them get the same figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rlkit.training import sharding
from rlkit.training.adapters import as_reference, has_reference
from rlkit.training.caches import PromptCache
from rlkit.training.gradients import without_dropout
from rlkit.training.grpo import k3
from rlkit.training.prefix import read_prompts, shares_graphs
from rlkit.training.rollout import mean
from rlkit.training.sampling import sample_actions
from rlkit.training.text import decode, encode_prompt


def greedy_evaluation(trainer: Any, states: Sequence[Any]) -> dict[str, float | None]:
    """Greedy actions on `states`: mean reward, mean KL (k3, per token) to the reference (None
    where `trainer` has no `log_probs`, as in SFT), and the means of the components that the
    task's `step_metrics` name.

    Means are over states, all alike; `evaluation.json` averages within a question first, so that
    its discovery rate of the same actions may be another."""
    names = getattr(trainer.task, "step_metrics", {})
    mine = [states[i] for i in trainer.ranks.part(len(states))]
    together = mine  # of a divided model, all ranks call it as often: some states stand in
    if sharding.of(trainer.model):
        most = math.ceil(len(states) / trainer.ranks.size)
        together = mine + list(states[:1]) * (most - len(mine))
    with trainer.ranks.telling():
        ours = _greedy(trainer, together, names, len(mine))
    everyone = trainer.ranks.gather_all(ours)
    scores = [score for one in everyone for score in one[0]]
    kl, tokens = (sum(one[i] for one in everyone) for i in (1, 2))
    parts = {name: mean([components[name] for _, components in scores]) for name in names}
    return {
        "reward": mean([reward for reward, _ in scores]),
        "kl": kl / tokens if tokens else None,
        **parts,
        "states": float(len(states)),
    }


def _greedy(
    trainer: Any, states: Sequence[Any], names: Iterable[str], counted: int
) -> tuple[list[tuple[float | None, dict[str, Any]]], float, float]:
    """Of this process' states, the first `counted` ones: rewards with components, the sum of k3,
    and its tokens."""
    prompts = [
        encode_prompt(
            trainer.tokenizer, trainer.task.prompt(s), trainer.config.model.enable_thinking
        )
        for s in states
    ]
    scores, kl, tokens = [], 0.0, 0.0
    evaluation, model = trainer.config.evaluation, trainer.model
    compared = evaluation.epoch_kl and hasattr(trainer, "log_probs") and has_reference(model)
    size = evaluation.batch_size
    for start in range(0, len(states), size):
        part = range(start, min(start + size, len(states)))
        prefix = _read(trainer, [prompts[i] for i in part])
        sampled = sample_actions(
            model,
            [prompts[i] for i in part],
            1,
            trainer.settings.max_new_tokens,
            end_ids=trainer.ends,
            prefix=prefix,
            complete=trainer.complete,
        )
        for i, ids in zip(part, sampled.rows(), strict=True):
            known = False
            if i < counted:
                (score,) = trainer.task.score(states[i], [decode(trainer.tokenizer, ids)])
                scores.append((score.reward, {name: score.components.get(name) for name in names}))
                known = score.reward is not None  # unscorable ones count nowhere
            if compared and (known or sharding.of(trainer.model)):
                alone = prefix and prefix.of(i - start, len(prompts[i]) - 1)
                found = _kl_sum(trainer, prompts[i], ids, alone)
                kl, tokens = kl + found * known, tokens + len(ids) * known
    return scores, kl, tokens


@torch.no_grad()
def _read(trainer: Any, prompts: list[list[int]]) -> PromptCache | None:
    """The prompts, read once for sampling and for the policy's log-probabilities."""
    if not shares_graphs(trainer.model):
        return None
    with without_dropout(trainer.model):
        return read_prompts(trainer.model, prompts)


@torch.no_grad()
def _kl_sum(trainer: Any, prompt: list[int], ids: list[int], prefix: PromptCache | None) -> float:
    tokens = torch.tensor([ids], device=trainer.device)
    policy, _ = trainer.log_probs(prompt, tokens, prefix=prefix)
    with as_reference(trainer.model):
        reference, _ = trainer.log_probs(prompt, tokens)
    return float(k3(reference - policy).sum())
