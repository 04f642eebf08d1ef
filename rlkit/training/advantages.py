"""What each token of a step's groups is credited with: an action's advantage, or its clue's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlkit.training.credit import clue_advantages, clue_of_tokens
from rlkit.training.grpo import best_action_advantages, scaled_advantages, step_divisor
from rlkit.training.rollout import Group
from rlkit.training.text import token_texts


def token_advantages(
    groups: Sequence[Group],
    settings: Any,
    tokenizer: Any,
    rewards: Sequence[Sequence[float | None]] | None = None,
) -> list[np.ndarray]:
    """(K, C) float64 advantages of every group of a step; `rewards` are those of all its groups
    where other processes have some.

    `settings` has the attributes of the params section `grpo`. With `credit: clue` an action that
    has no reward is no company for the others' clues, and clues are scaled as actions are
    (`scale_rewards`). Raises DataError for a reward that is not finite.
    """
    rewards = [group.rewards for group in groups] if rewards is None else rewards
    divisor = step_divisor(rewards, settings.scale_rewards)
    result = []
    for group in groups:
        if settings.advantage == "best":
            advantages = best_action_advantages(group.rewards)
        else:
            advantages = scaled_advantages(group.rewards, divisor)
        owners, values = np.full(group.sampled.tokens.shape, -1), []
        if settings.credit == "clue":
            for k, (ids, score) in enumerate(zip(group.sampled.rows(), group.scores, strict=True)):
                spans = score.components.get("clue_spans")
                worth = score.components.get("clue_values")
                pieces = token_texts(tokenizer, ids)
                owners[k, : len(ids)] = clue_of_tokens(pieces, [] if spans is None else spans)
                known = score.reward is not None and worth is not None
                values.append(list(worth) if known else [])
        result.append(clue_advantages(advantages, values, owners, divisor))
    return result
