"""The order in which states are visited and the learning rate of each move; both are functions of
counters, so that a resumed run needs no state of them; of the states whose last group was flat it
needs the ids (`stopping.flat_states`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
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


def state_order(
    states: Sequence[Any],
    seed: int,
    start: int,
    count: int,
    flat: Collection[str] = (),
    flat_share: float = 1.0,
) -> list[Any]:
    """States number `start` to `start + count` of an endless row of shuffles, each of which holds
    every state once; shuffle n is drawn from (seed, n).

    A state whose id is in `flat` keeps its place with the chance `flat_share`; else another one,
    which is not, takes it, drawn from (seed, place in the row). Where all are flat, all keep it.
    """
    others = [] if flat_share >= 1 else [s for s in states if s.state_id not in flat]
    chosen = []
    for index in range(start, start + count):
        shuffle, place = divmod(index, len(states))
        order = np.random.default_rng([seed, shuffle]).permutation(len(states))
        state = states[order[place]]
        if others and state.state_id in flat:
            draw = np.random.default_rng([seed, index, 1])
            if draw.random() >= flat_share:
                state = others[draw.integers(len(others))]
        chosen.append(state)
    return chosen
