"""The cache of rows that come and go: nothing of a row that left is handed out with another."""

from __future__ import annotations

import torch

from rlkit.deploy.serving.slots import RowCache

HEADS, SIZE = 2, 4


def layers(length: int, value: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One layer's keys and values of a row's tokens."""
    return [(torch.full((1, HEADS, length, SIZE), value),) * 2]


def handed_out(cache: RowCache, value: float = 1.0) -> torch.Tensor:
    """The keys (N, J, S, D) of a call that brings one token of every row."""
    cache.begin(torch.device("cpu"))
    cache.position_ids()
    new = torch.full((len(cache.lengths), HEADS, 1, SIZE), value)
    keys, values = cache.join_prompt(0, new, new)
    assert torch.equal(keys.isnan(), values.isnan())
    cache.advance()
    return keys.clone()


def test_what_a_request_left_in_its_place_is_not_handed_to_the_next_one():
    cache = RowCache(2)
    cache.admit(layers(9, 1.0), 9)
    cache.admit(layers(6, float("nan")), 6)  # places 0 to 5 of the second row
    cache.remove(1)
    cache.admit(layers(2, 2.0), 2)
    keys = handed_out(cache)  # (2, J, 10, D): of the second row only 0 to 2 are its own
    assert keys[1, 0, :, 0].tolist() == [2, 2, 1, 0, 0, 0, 0, 0, 0, 0]


def test_a_row_that_takes_anothers_place_brings_zeros_behind_its_own_tokens():
    cache = RowCache(3)
    cache.admit(layers(6, float("nan")), 6)
    cache.admit(layers(9, 1.0), 9)
    cache.admit(layers(2, 2.0), 2)
    cache.remove(0)  # the last row moves to the front
    keys = handed_out(cache)
    assert keys[0, 0, :, 0].tolist() == [2, 2, 1, 0, 0, 0, 0, 0, 0, 0]
    assert keys[1, 0, :, 0].tolist() == [1] * 10


def test_zeros_stay_behind_a_row_when_the_buffers_grow():
    cache = RowCache(2)
    cache.admit(layers(2, 2.0), 2)
    cache.admit(layers(6, float("nan")), 6)
    cache.remove(1)
    cache.admit(layers(600, 1.0), 600)
    keys = handed_out(cache)
    assert keys.shape[2] == 601 and keys[0, 0, 3:].eq(0).all() and keys[1].eq(1).all()
