"""The order in which states are visited and the learning rate of each move; both are functions of
counters, so that a resumed run needs no state of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def learning_rate(settings: Any, move: int, planned: int) -> float:
    """The rate of move number `move` (from 0): linear warm-up, then the schedule."""
    if move < settings.warmup_steps:
        return settings.learning_rate * (move + 1) / settings.warmup_steps
    left = max(planned - settings.warmup_steps, 1)
    done = min((move - settings.warmup_steps) / left, 1.0)
    factor = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": (1.0 + math.cos(math.pi * done)) / 2,
    }[settings.lr_schedule]
    return settings.learning_rate * factor


def state_order(states: Sequence[Any], seed: int, start: int, count: int) -> list[Any]:
    """States number `start` to `start + count` of an endless row of shuffles, each of which holds
    every state once; shuffle n is drawn from (seed, n)."""
    chosen = []
    for index in range(start, start + count):
        shuffle, place = divmod(index, len(states))
        order = np.random.default_rng([seed, shuffle]).permutation(len(states))
        chosen.append(states[order[place]])
    return chosen
