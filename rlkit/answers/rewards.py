"""Rewards of answers: accuracy, length penalty, step reward, and functions of your own.

A function of your own is named in `answers.rewards` as module:object, and called as TRL's are:

    def short_words(completions, **columns) -> list[float | None]:
        return [-0.01 * max(map(len, text.split()), default=0) for text in completions]

The columns are lists as long as the completions: `prompts` (messages), `ground_truth`, `question`,
`full_answer`, `lengths` (tokens, or words where nothing counts tokens), and the rows' own. A
function without `**columns` gets those that its signature names. None: it cannot be scored. What
TRL's functions expect besides: own_reward.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

from rlkit.agents.clues import count_words
from rlkit.answers.extract import (
    MARKERS,
    Extracted,
    answer_value,
    extract_answer,
    visible_text,
)
from rlkit.answers.own_code import code_digest
from rlkit.answers.own_reward import OwnReward, RewardFunction
from rlkit.answers.steps import right_equations
from rlkit.config import load_object
from rlkit.errors import ConfigError
from rlkit.practice.task import Score

COMPONENTS = (
    "accuracy", "format", "length_penalty", "step_reward", "answer", "extracted_how", "length",
)  # fmt: skip
# columns of rollouts and evaluations, which a function's name must not replace
_TAKEN = {
    *COMPONENTS, "action", "advantage", "completion", "ended", "hops", "kl", "policy",
    "policy_logp", "prompt_tokens", "question_id", "reference_logp", "reward", "round",
    "sampled_logp", "state_id", "states", "text", "token_ids", "visit",
}  # fmt: skip
COMPONENT_OF = {"accuracy": "accuracy", "length": "length_penalty", "steps": "step_reward"}

registered = SimpleNamespace()  # what `register_reward_function` was given, by digest and name


def register_reward_function(name: str, function: RewardFunction) -> str:
    """Make a function known in this process; returns the dotted path that `answers.rewards` takes.

    A digest of the function stands in the path, so that a run knows it again, and an edited one
    is another. Raises ConfigError where the name is none of Python's, or the object cannot be
    called.
    """
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise ConfigError(
            f"{str(name)[:60]!r} is no name of a reward function; allowed are letters, digits and "
            "'_', not at the front."
        )
    check_reward_function(name, function)
    version = f"v{code_digest(function)}"
    setattr(registered, version, SimpleNamespace(**{name: function}))
    return f"{__name__}:registered.{version}.{name}"


def check_reward_function(name: str, function: RewardFunction) -> None:
    """Raise ConfigError where the object cannot be called with the columns."""
    OwnReward(name, function)


def accuracy(settings: Any = None) -> RewardFunction:
    """1 for an answer that equals `ground_truth` exactly, else 0; None where `ground_truth` is
    nothing that could be equalled."""

    def reward(
        completions: Sequence[str], *, ground_truth: Sequence[Any], **_: Any
    ) -> list[float | None]:
        pairs = zip(completions, ground_truth, strict=True)
        return [_is_right(extract_answer(text), answer_value(gold)) for text, gold in pairs]

    return reward


def length(settings: Any) -> RewardFunction:
    """Of a right answer: -`length_penalty` for each token beyond `length_limit`, at least -1; of
    a wrong one 0."""
    right = accuracy()

    def reward(completions: Sequence[str], **columns: Any) -> list[float]:
        over = (max(0, n - settings.length_limit) for n in _lengths(completions, columns))
        costs = [max(-1.0, -settings.length_penalty * n) + 0.0 for n in over]
        gates = right(completions, **columns)
        return [cost if gate else 0.0 for cost, gate in zip(costs, gates, strict=True)]

    return reward


def steps(settings: Any) -> RewardFunction:
    """Of a right answer: `step_bonus` for each step (steps.py; an equation that is repeated
    counts once), of at most `max_steps_rewarded`; of a wrong one 0."""
    right, most = accuracy(), settings.max_steps_rewarded

    def reward(completions: Sequence[str], **columns: Any) -> list[float]:
        gates = right(completions, **columns)
        found = (islice(right_equations(visible_text(text)), most) for text in completions)
        return [
            round(settings.step_bonus * sum(1 for _ in taken), 6) if gate else 0.0
            for taken, gate in zip(found, gates, strict=True)
        ]

    return reward


BUILT_IN: dict[str, Callable[[Any], RewardFunction]] = {
    "accuracy": accuracy,
    "length": length,
    "steps": steps,
}


class AnswerReward:
    """The weighted sum of `settings.rewards`, and of the functions in `own`, at weight 1 each.

    The length penalty takes from a right answer at most what its other parts earned, so that it
    never scores below a wrong one for its length. Totals are rounded to 1e-6 in float64.
    Raises ConfigError for a function that cannot be called with the columns.
    """

    def __init__(self, settings: Any, own: Sequence[RewardFunction] = ()) -> None:
        weights = settings.reward_weights or [1.0] * len(settings.rewards)
        named = list(zip(settings.rewards, weights, strict=True))
        if not own and {name for name, _ in named} == {"length"}:
            raise ConfigError(
                "answers.rewards is length alone, which only takes away; give accuracy with it."
            )
        self.built_in = {name: make(settings) for name, make in BUILT_IN.items()}
        self.weights: dict[str, float] = dict.fromkeys(COMPONENT_OF.values(), 0.0)
        self.own: dict[str, OwnReward] = {}
        for name, weight in named:
            if name in COMPONENT_OF:
                self.weights[COMPONENT_OF[name]] += weight
            else:
                self._add(load_object(name), weight, name.rpartition(":")[2].rpartition(".")[2])
        for function in own:
            self._add(function, 1.0, getattr(function, "__name__", type(function).__name__))

    def __call__(
        self, completions: Sequence[str], columns: Mapping[str, Sequence[Any]]
    ) -> list[Score]:
        """One Score a completion; `columns` are lists of the same length, `ground_truth` among
        them. A reward is None where a function of the user's own gave None."""
        completions = list(completions)
        columns = {"lengths": _lengths(completions, columns), **columns}
        columns.pop("completions", None)
        parts = {
            COMPONENT_OF[name]: function(completions, **columns)
            for name, function in self.built_in.items()
        }
        parts |= {name: own(completions, columns) for name, own in self.own.items()}
        answers = [extract_answer(text) for text in completions]
        scores = []
        for i, answer in enumerate(answers):
            values = {name: column[i] for name, column in parts.items()}
            facts = {
                "format": float(answer is not None and answer.how in MARKERS),
                "answer": answer.text if answer else None,
                "extracted_how": answer.how if answer else None,
                "length": columns["lengths"][i],
            }
            scores.append(Score(self._total(values), values | facts))
        return scores

    def _total(self, values: Mapping[str, float | None]) -> float | None:
        if None in values.values():
            return None
        weighted = {name: self.weights[name] * value for name, value in values.items()}
        penalty = weighted.pop("length_penalty")
        earned = math.fsum(weighted.values())
        return round(earned + max(penalty, -max(0.0, earned)), 6) + 0.0

    def _add(self, function: Any, weight: float, name: str) -> None:
        taken, plain, number = {*_TAKEN, *self.own}, name, 2
        while name in taken:
            name, number = f"{plain}_{number}", number + 1
        self.own[name] = OwnReward(name, function)
        self.weights[name] = weight


def _is_right(answer: Extracted | None, gold: Any) -> float | None:
    return None if gold is None else float(answer is not None and answer.value == gold)


def _lengths(completions: Sequence[str], columns: Mapping[str, Any]) -> Sequence[int]:
    return columns["lengths"] if "lengths" in columns else [count_words(t) for t in completions]
