"""What a call's tokens are, and the keys and values that they attend to besides their own.

`attention.attention_forward` is told by one of these: `PromptCache`, `PackedGroup`,
`PackedExamples`, or `DecodingCache`. Shape letters as in attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


class PromptRead(Exception):
    """Ends the pass over a prompt in the last layer: its keys and values are all there."""


@dataclass
class PromptCache:
    """Keys and values of all but the last token of B right-padded prompts, layer by layer."""

    last_layer: int
    length: int  # P - 1 of the longest prompt
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # (B, J, P - 1, D)
    ends_early: bool = True  # not where hooks must run to their end (sharding.py)

    def of(self, row: int, length: int) -> PromptCache:
        """The cache of one of the prompts, which has `length` + 1 tokens."""
        layers = {
            layer: tuple(x[row : row + 1, :, :length] for x in pair)
            for layer, pair in self.layers.items()
        }
        return PromptCache(self.last_layer, length, layers, self.ends_early)


def joined(caches: Sequence[PromptCache]) -> PromptCache:
    """The cache of several prompts together, right-padded, without a graph."""
    first, length = caches[0], max(cache.length for cache in caches)
    layers = {}
    for layer in first.layers:
        pairs = [cache.layers[layer] for cache in caches]
        layers[layer] = tuple(
            torch.cat([_padded(pair[i].detach(), length) for pair in pairs]) for i in (0, 1)
        )
    return PromptCache(first.last_layer, length, layers, first.ends_early)


def _padded(x: Tensor, length: int) -> Tensor:
    return nn.functional.pad(x, (0, 0, 0, length - x.shape[2]))


@dataclass(frozen=True)
class PackedGroup:
    """The layout of one packed row: `prompt_length` tokens, then `actions` K times `length`.

    `prompt_length` is P, or 1 behind a `prefix` of P - 1 tokens.
    """

    prompt_length: int
    actions: int
    length: int
    prefix: PromptCache | None = None

    def position_ids(self, device: torch.device) -> Tensor:
        """(1, prompt_length + K * length): every action begins at position P."""
        start = self.prefix.length if self.prefix else 0
        prompt = torch.arange(self.prompt_length, device=device) + start
        action = torch.arange(self.length, device=device) + start + self.prompt_length
        return torch.cat([prompt, action.repeat(self.actions)])[None]


@dataclass(frozen=True)
class PackedExamples:
    """The layout of one row of examples, so long, that stand beside each other unseen."""

    lengths: tuple[int, ...]


@dataclass
class DecodingCache:
    """Keys and values of B right-padded prompts, and of the K rows that grow behind each.

    The first call (B rows) brings every prompt's last token, which joins `prefix`; every later
    one (B * K rows) writes its keys at `self.length` of the rows' buffers and copies nothing.

    With `whole`, the buffers are always attended to as a whole, what is still to come hidden, and
    the place of the next token is a tensor: every call has the same shapes, and can be recorded as
    a CUDA graph (recorded.py). For models without sliding windows.
    """

    prompt_lengths: Tensor  # (B,)
    actions: int
    max_length: int
    prefix: PromptCache | None = None
    whole: bool = False
    prompt: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # (B, J, P, D)
    own: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # (B * K, J, C, D)
    length: int = 0
    started: bool = False

    def __post_init__(self) -> None:
        self.longest = int(self.prompt_lengths.max())
        self.padded = bool((self.prompt_lengths != self.longest).any())
        self._bias: dict[int | None, Tensor] = {}  # by window, for one token
        self._own_bias: Tensor | None = None  # for one token
        self._place = torch.zeros_like(self.prompt_lengths[:1])  # (1,) with `whole`: `length`

    def position_ids(self) -> Tensor:
        """(B * K, 1), before the start (B, 1): the position of the next token of every row."""
        self._own_bias = None  # of the token before, or of a recording that failed
        if not self.started:
            return (self.prompt_lengths - 1)[:, None]
        behind = self._place if self.whole else self.length
        return (self.prompt_lengths + behind).repeat_interleave(self.actions)[:, None]

    def advance(self) -> None:
        """The token of the call is in; the next one comes behind it."""
        if self.started:
            self.length += 1
            if self.whole:
                self._place += 1  # in place, so that a recorded call finds it
        self.started = True
        self._bias = {window: b for window, b in self._bias.items() if window is None}

    def join_prompt(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put (B, J, 1, D) of the last prompt tokens behind each prompt's others."""
        if self.prefix is None:
            joined = (key, value)
        else:
            joined = tuple(
                self._insert(old, new)
                for old, new in zip(self.prefix.layers[layer], (key, value), strict=True)
            )
        self.prompt[layer] = joined
        return joined

    def _insert(self, old: Tensor, new: Tensor) -> Tensor:
        if not self.padded:
            return torch.cat([old, new], dim=2)
        wide = nn.functional.pad(old, (0, 0, 0, 1))
        wide[torch.arange(len(old), device=old.device), :, self.prompt_lengths - 1] = new[:, :, 0]
        return wide

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B * K, J, 1, D) of the rows' newest tokens; returns all of their own so far."""
        if layer not in self.own:
            shape = (key.shape[0], key.shape[1], self.max_length, key.shape[3])
            self.own[layer] = (key.new_zeros(shape), value.new_zeros(shape))
        keys, values = self.own[layer]
        if self.whole:
            return keys.index_copy_(2, self._place, key), values.index_copy_(2, self._place, value)
        keys[:, :, self.length] = key[:, :, 0]
        values[:, :, self.length] = value[:, :, 0]
        return keys[:, :, : self.length + 1], values[:, :, : self.length + 1]

    def own_bias(self, like: Tensor) -> Tensor | None:
        """(1, 1, 1, C): `HIDDEN` at the places of tokens to come; None where none is handed out."""
        if not self.whole:
            return None
        if self._own_bias is None:
            steps = torch.arange(self.max_length, device=like.device)
            self._own_bias = score_bias(steps > self._place, like)[None, None, None]
        return self._own_bias

    def prompt_bias(self, window: int | None, like: Tensor) -> Tensor | None:
        """(B, 1, 1, P): `HIDDEN` at padding, and further back than the window; None: all seen."""
        position = self.longest + self.length if self.started else self.longest - 1
        if not self.padded and (window is None or window > position):
            return None
        if window not in self._bias:
            steps = torch.arange(self.longest, device=like.device)[None]
            lengths = self.prompt_lengths[:, None]
            hidden = steps >= lengths
            if window is not None:
                now = lengths + self.length if self.started else lengths - 1
                hidden = hidden | (now - steps >= window)
            self._bias[window] = score_bias(hidden, like)[:, None, None]
        return self._bias[window]


def hidden_score(like: Tensor) -> float:
    """What hides a key: finite, so that a query that sees no key of a part stays finite too; the
    part's weight in `merge` is then exactly 0."""
    return torch.finfo(like.dtype).min / 4


def score_bias(hidden: Tensor, like: Tensor) -> Tensor:
    """What is added to scores: `hidden_score` where `hidden`, else 0."""
    zeros = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill(hidden, hidden_score(like))
