"""Keys and values of rows that differ in length, come and go: the cache of continuous batching.

Every row's token t stands at place t of its own buffer; a call brings one new token of every row,
and each row attends to its own places alone. A row that is done gives its place to the last one, so
that the rows of a call are always the first N of the buffers.

Shape letters: N rows, J key heads, S places, D head size, P prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from rlkit.training.caches import DecodingCache, PackedExamples, score_bias
from rlkit.training.prefix import decoder_and_head

_LEAST = 256  # places that the buffers begin with; they double when a row needs more


class RowCache(DecodingCache):
    """Of at most `rows` rows. To `attention.decode_attention` it is a cache that never starts:
    what it hands out by `join_prompt` is all that a row attends to, its new token included."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.clear()

    def clear(self) -> None:
        """Forget all rows, and free their memory."""
        self.lengths: list[int] = []  # of each row, the token that is being computed left out
        self.capacity = _LEAST
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}  # by layer, (rows, J, capacity, D)
        self._places: Tensor | None = None  # (N,): `lengths` on the device
        self._bias = {}

    def admit(self, layers: Sequence[tuple[Tensor, Tensor]], length: int) -> None:
        """A new last row: keys and values (1, J, length, D) of its tokens, layer by layer. Places
        behind them are zeros: what is hidden is still multiplied (by 0), and what another request
        left there may not be finite."""
        if length >= self.capacity:
            self._grow(length + 1)
        for layer, pair in enumerate(layers):
            for buffer, new in zip(self._of(layer, pair[0]), pair, strict=True):
                buffer[len(self.lengths), :, :length] = new[0]
                buffer[len(self.lengths), :, length:] = 0
        self.lengths.append(length)
        self._places = None

    def remove(self, row: int) -> None:
        """Row `row` is done; the last row takes its place."""
        last = len(self.lengths) - 1
        if not last:
            return self.clear()
        if row != last:
            for pair in self._buffers.values():
                for buffer in pair:
                    buffer[row] = buffer[last]  # with the zeros behind its tokens
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        self._places = None

    def position_ids(self) -> Tensor:
        """(N, 1): the position of every row's new token."""
        self._bias = {}
        return self._places[:, None]

    def begin(self, device: torch.device) -> None:
        """A call with one new token of every row comes next."""
        if max(self.lengths) >= self.capacity:
            self._grow(max(self.lengths) + 1)
        if self._places is None:
            self._places = torch.tensor(self.lengths, device=device)

    def advance(self) -> None:
        """The call's tokens are in."""
        self.lengths = [length + 1 for length in self.lengths]
        self._places = self._places + 1

    def join_prompt(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store (N, J, 1, D) of the new tokens; returns (N, J, S, D) of all places in use."""
        keys, values = self._of(layer, key)
        rows, used = torch.arange(len(key), device=key.device), max(self.lengths) + 1
        keys[rows, :, self._places] = key[:, :, 0]
        values[rows, :, self._places] = value[:, :, 0]
        return keys[: len(key), :, :used], values[: len(key), :, :used]

    def prompt_bias(self, window: int | None, like: Tensor) -> Tensor | None:
        """(N, 1, 1, S): hides the places behind a row's new token, and beyond its window."""
        used = max(self.lengths) + 1
        if min(self.lengths) + 1 == used and (window is None or window >= used):
            return None
        if window not in self._bias:
            steps, now = torch.arange(used, device=like.device), self._places[:, None]
            hidden = steps > now
            if window is not None:
                hidden = hidden | (now - steps >= window)
            self._bias[window] = score_bias(hidden, like)[:, None, None]
        return self._bias[window]

    def _of(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if layer not in self._buffers:
            shape = (self.rows, like.shape[1], self.capacity, like.shape[3])
            self._buffers[layer] = like.new_zeros(shape), like.new_zeros(shape)
        return self._buffers[layer]

    def _grow(self, least: int) -> None:
        """Room for `least` places; zeros, as `admit` has them."""
        while self.capacity < least:
            self.capacity *= 2
        for layer, pair in self._buffers.items():
            more = self.capacity - pair[0].shape[2]
            wide = tuple(nn.functional.pad(buffer, (0, 0, 0, more)) for buffer in pair)
            self._buffers[layer] = wide


class PromptReader:
    """Reads a prompt: all but its last token, which predicts the first new one. At once with other
    prompts (`read_together`), or part by part."""

    def __init__(self, model: nn.Module, prompt: Sequence[int]) -> None:
        self._decoder, _ = decoder_and_head(model)
        self._device = next(model.parameters()).device
        self._ids = list(prompt[:-1])
        self._cache = DynamicCache()  # of plain layers: a window is the attention's own affair
        self._layers: list[tuple[Tensor, Tensor]] = []
        self.left = len(self._ids)  # tokens that are still to be read

    @property
    def begun(self) -> bool:
        return self.left < len(self._ids)

    def read(self, tokens: int) -> int:
        """Read up to `tokens` more; returns how many."""
        start = len(self._ids) - self.left
        part = self._ids[start : start + tokens]
        ids = torch.tensor([part], device=self._device)
        positions = torch.arange(start, start + len(part), device=self._device)[None]
        self._decoder(input_ids=ids, position_ids=positions, cache=self._cache, use_cache=True)
        self.left -= len(part)
        self._layers = [(layer.keys, layer.values) for layer in self._cache.layers]
        return len(part)

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values (1, J, P - 1, D) of every layer; none of a prompt of one token."""
        return self._layers

    @classmethod
    def read_together(cls, readers: Sequence[PromptReader], tokens: int) -> int:
        """One pass over up to `tokens` tokens: all prompts at the head of `readers` that fit as a
        whole, side by side in one row, or else a part of the first. Returns how many."""
        whole, total = [], 0
        for reader in readers:
            if reader.begun or total + reader.left > tokens:
                break
            whole.append(reader)
            total += reader.left
        if not whole:
            return readers[0].read(tokens)
        if whole := [reader for reader in whole if reader.left]:
            cls._pack(whole)
        return total

    @staticmethod
    def _pack(readers: Sequence[PromptReader]) -> None:
        decoder, device = readers[0]._decoder, readers[0]._device
        lengths, cache = tuple(reader.left for reader in readers), DynamicCache()
        ids = [token for reader in readers for token in reader._ids]
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        decoder(
            input_ids=torch.tensor([ids], device=device),
            position_ids=positions[None],
            cache=cache,
            use_cache=True,
            group=PackedExamples(lengths),
        )
        parts = [(x.keys.split(lengths, 2), x.values.split(lengths, 2)) for x in cache.layers]
        for i, reader in enumerate(readers):
            reader._layers = [(keys[i], values[i]) for keys, values in parts]
            reader.left = 0
