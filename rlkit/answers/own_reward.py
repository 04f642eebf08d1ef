"""A reward function of the user's own: called as TRL's are, and what it returns checked.

A task scores texts, so that a `completion_ids` without a default gets None (`lengths` counts the
tokens), and a completion is a text that can also be read as the chat message that TRL passes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlkit.errors import ConfigError

RewardFunction = Callable[..., list[float | None]]


class Completion(str):
    """A completion's text; `completion[0]["content"]`, as of TRL's list of messages, is it too."""

    def __getitem__(self, index: Any) -> str:
        if index not in (0, -1):
            return super().__getitem__(index)
        sign = _Sign(self[:1] if index == 0 else self[-1:])  # of an empty text an empty one
        sign.message = {"role": "assistant", "content": str(self)}
        return sign


class _Sign(str):
    """The first or last sign of a completion; by a key, what the message would have there."""

    message: dict[str, str]

    def __getitem__(self, index: Any) -> str:
        return self.message[index] if isinstance(index, str) else super().__getitem__(index)


class OwnReward:
    """A user's function: given the columns that it asks for, and what it returns checked."""

    def __init__(self, name: str, function: Any) -> None:
        self.name, self.function = name, function
        if not callable(function):
            raise ConfigError(
                f"the reward function {name} is of type {type(function).__name__}; give a function "
                "fn(completions, **columns) that returns a list of numbers."
            )
        try:
            wanted = inspect.signature(function).parameters.values()
        except (ValueError, TypeError):  # some functions written in C do not tell
            wanted = []
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in wanted)
        named = [p for p in wanted if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.names = {p.name for p in named}
        self.needed = {p.name for p in named if p.default is p.empty}
        if "completions" not in self.names and not self.takes_all:
            raise ConfigError(
                f"the reward function {name} has no parameter named completions; write it as "
                "fn(completions, **columns)."
            )

    def __call__(
        self, completions: list[str], columns: Mapping[str, Sequence[Any]]
    ) -> list[float | None]:
        given = {"completions": [Completion(text) for text in completions]} | dict(columns)
        if "completion_ids" in self.needed:
            given["completion_ids"] = None
        missing = sorted(self.needed - set(given))
        if missing:
            raise ConfigError(
                f"the reward function {self.name} wants {missing[0]}, which is no column; there "
                f"are {', '.join(given)}."
            )
        if not self.takes_all:
            given = {name: values for name, values in given.items() if name in self.names}
        return self._checked(self.function(**given), len(completions))

    def _checked(self, result: Any, wanted: int) -> list[float | None]:
        if hasattr(result, "tolist"):  # an array or a tensor
            result = result.tolist()
        if not isinstance(result, (list, tuple)) or len(result) != wanted:
            found = f"{len(result)}" if isinstance(result, (list, tuple)) else "no list"
            raise ConfigError(
                f"the reward function {self.name} returned {found} for {wanted} completions; it "
                "must return a list with one number, or None, for each."
            )
        return [None if value is None else self._number(value) for value in result]

    def _number(self, value: Any) -> float:
        try:
            number = math.nan if isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ConfigError(
                f"the reward function {self.name} returned {str(value)[:40]!r}; it must return "
                "finite numbers, or None for what it cannot score."
            )
        return number
