"""Splits states into train, dev and evaluation by question, never by round, so that no question
text stands on two sides; hard questions first into evaluation, at random, or by hops."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from rlkit.errors import ConfigError, DataError
from rlkit.library.tokenize import folded
from rlkit.rounds.state import State


@dataclass(frozen=True, slots=True)
class Splits:
    """The three parts; `shared_gold` counts the known documents that stand in more than one."""

    train: list[State]
    dev: list[State]
    eval: list[State]
    how: str
    shared_gold: int

    def part(self, name: str) -> list[State]:
        """The states of `train`, `dev` or `eval`. Raises ConfigError for another name."""
        parts = {"train": self.train, "dev": self.dev, "eval": self.eval}
        if name not in parts:
            raise ConfigError(f"{name!r} is no part of a split; choose one of {', '.join(parts)}.")
        return parts[name]

    def describe(self) -> dict[str, dict[str, int]]:
        """Questions and states of each part."""
        return {
            name: {"questions": len({s.question_id for s in states}), "states": len(states)}
            for name, states in (("train", self.train), ("dev", self.dev), ("eval", self.eval))
        }


@dataclass(slots=True)
class _Unit:
    """All states whose questions have the same folded text; never torn apart."""

    key: str
    states: list[State]

    @property
    def hops(self) -> int:
        return max((state.hops or 0 for state in self.states), default=0)

    @property
    def discovery(self) -> float:
        """Mean recorded discovery; questions that had nothing left to find count as easy."""
        rates = [rate for s in self.states if (rate := s.recorded_discovery) is not None]
        return sum(rates) / len(rates) if rates else 1.0


def split_states(
    states: Sequence[State],
    train_ratio: float = 0.8,
    dev_ratio: float = 0.1,
    how: str = "hard_first",
    seed: int = 7,
) -> Splits:
    """Split by question. `train_ratio` is the share of questions that are not evaluation;
    `dev_ratio` the share of those that becomes dev (for epoch evaluations).

    Evaluation and train get at least one question each, dev too if `dev_ratio` is above 0 and
    two questions are left for it and train. The same states and seed give the same split,
    whatever the order of `states`. Raises ConfigError for a ratio or a way that is not allowed,
    DataError where fewer than two different questions are there.
    """
    _check(train_ratio, dev_ratio, how)
    units = _units(states)
    if len(units) < 2:
        raise DataError(
            f"{len(units)} question(s) with usable rounds cannot be split into train and "
            "evaluation; record rounds of at least two different questions."
        )
    held_out = min(max(round((1 - train_ratio) * len(units)), 1), len(units) - 1)
    evaluation, rest = CHOICES[how](units, held_out, random.Random(f"{seed}/{how}/eval"))
    kept_for_dev = 0
    if dev_ratio > 0 and len(rest) >= 2:
        kept_for_dev = min(max(round(dev_ratio * len(rest)), 1), len(rest) - 1)
    pick = CHOICES["random" if how == "hard_first" else how]
    dev, train = pick(rest, kept_for_dev, random.Random(f"{seed}/{how}/dev"))
    parts = [_states(train), _states(dev), _states(evaluation)]
    return Splits(*parts, how=how, shared_gold=_shared_gold(parts))


def _hard_first(
    units: list[_Unit], count: int, generator: random.Random
) -> tuple[list[_Unit], list[_Unit]]:
    order = list(units)
    generator.shuffle(order)  # ties are broken by chance, not by name
    order.sort(key=lambda unit: unit.discovery)
    return order[:count], order[count:]


def _random(
    units: list[_Unit], count: int, generator: random.Random
) -> tuple[list[_Unit], list[_Unit]]:
    order = sorted(units, key=lambda unit: unit.key)
    generator.shuffle(order)
    return order[:count], order[count:]


def _stratified(
    units: list[_Unit], count: int, generator: random.Random
) -> tuple[list[_Unit], list[_Unit]]:
    """The same share of every number of hops (largest remainders get the odd places)."""
    strata: dict[int, list[_Unit]] = defaultdict(list)
    for unit in units:
        strata[unit.hops].append(unit)
    exact = {hops: count * len(strata[hops]) / len(units) for hops in sorted(strata)}
    places = {hops: int(share) for hops, share in exact.items()}
    by_remainder = sorted(exact, key=lambda hops: (places[hops] - exact[hops], hops))
    for hops in by_remainder[: count - sum(places.values())]:
        places[hops] += 1
    chosen: list[_Unit] = []
    rest: list[_Unit] = []
    for hops in sorted(strata):
        first, second = _random(strata[hops], places[hops], generator)
        chosen, rest = chosen + first, rest + second
    return chosen, rest


Choice = Callable[[list[_Unit], int, random.Random], tuple[list[_Unit], list[_Unit]]]
CHOICES: dict[str, Choice] = {
    "hard_first": _hard_first,
    "random": _random,
    "stratified": _stratified,
}


def _check(train_ratio: float, dev_ratio: float, how: str) -> None:
    if how not in CHOICES:
        raise ConfigError(f"data.split {how!r} is not known; choose one of {', '.join(CHOICES)}.")
    if not 0 < train_ratio < 1:
        raise ConfigError(f"data.train_ratio is {train_ratio}; it must lie between 0 and 1.")
    if not 0 <= dev_ratio < 1:
        raise ConfigError(f"data.dev_ratio is {dev_ratio}; it must be at least 0 and below 1.")


def _units(states: Sequence[State]) -> list[_Unit]:
    groups: dict[str, list[State]] = defaultdict(list)
    for state in states:
        groups[folded(state.question)].append(state)
    return [
        _Unit(key, sorted(groups[key], key=lambda state: (state.question_id, state.state_id)))
        for key in sorted(groups)
    ]


def _states(units: Sequence[_Unit]) -> list[State]:
    found = [state for unit in units for state in unit.states]
    return sorted(found, key=lambda state: (state.question_id, state.state_id))


def _shared_gold(parts: Sequence[Sequence[State]]) -> int:
    known = [{docid for state in part for docid in state.known_important} for part in parts]
    shared: set[str] = set()
    for one, other in combinations(known, 2):
        shared |= one & other
    return len(shared)
