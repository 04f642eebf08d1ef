"""Sampling depends on (seed, state, visit, action, token) and on nothing else."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Phi3Config

from rlkit.errors import ModelError
from rlkit.training.logprobs import group_log_probs
from rlkit.training.prefix import check_length, longest_text
from rlkit.training.sampling import pick, sample_actions, uniform_numbers
from tests.training.conftest import tiny_base, with_lora

PROMPT = list(range(5, 15))


def test_a_longer_or_larger_group_begins_with_the_same_numbers():
    small, large = uniform_numbers(7, "s", 0, 2, 3), uniform_numbers(7, "s", 0, 4, 9)
    assert np.array_equal(small, large[:2, :3])
    assert ((large >= 0) & (large < 1)).all()


def test_seed_state_and_visit_each_change_the_numbers():
    base = uniform_numbers(7, "s", 0, 1, 4)
    for other in [(8, "s", 0), (7, "t", 0), (7, "s", 1)]:
        assert not np.array_equal(base, uniform_numbers(*other, 1, 4))


def test_numbers_are_pinned_so_that_stored_runs_can_be_repeated():
    words = np.random.Philox(
        key=np.frombuffer(
            __import__("hashlib").sha256(b"(7, 's', 0, 0)").digest()[:16], dtype="<u8"
        )
    ).random_raw(8)
    expected = [(int(words[0]) >> 11) / 2**53, (int(words[4]) >> 11) / 2**53]
    assert uniform_numbers(7, "s", 0, 1, 2)[0].tolist() == expected


def test_the_first_numbers_are_these():
    expected = [0.8390070327902812, 0.0233516958585116, 0.43458759329625163]
    assert uniform_numbers(7, "s", 0, 1, 3)[0].tolist() == expected


def test_numbers_are_uniform():
    numbers = np.sort(uniform_numbers(1, "x", 0, 8, 500).ravel())
    steps = np.arange(1, len(numbers) + 1) / len(numbers)
    assert np.abs(numbers - steps).max() < 1.63 / math.sqrt(len(numbers))  # Kolmogorov, 1 %


def test_the_token_is_where_the_cumulative_probability_passes_the_number():
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).repeat(5, 1)
    tokens, logprobs = pick(
        logits, 1.0, torch.tensor([0.0, 0.19, 0.21, 0.69, 0.71], dtype=torch.float64)
    )
    assert tokens.tolist() == [0, 0, 1, 1, 2]
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.2, 0.2, 0.5, 0.5, 0.3]))


def test_the_largest_number_never_picks_a_token_that_has_no_probability():
    largest = torch.full((2,), 1.0 - 2.0**-53, dtype=torch.float64)
    logits = torch.tensor([[0.1, 0.7, -2000.0], [0.3, 0.3, -math.inf]])
    tokens, logprobs = pick(logits, 1.0, largest)
    assert tokens.tolist() == [1, 1] and torch.isfinite(logprobs).all()


def test_logits_that_are_no_numbers_are_one_sentence():
    with pytest.raises(ModelError, match="not finite"):
        pick(torch.tensor([[1.0, math.nan]]), 1.0, torch.zeros(1, dtype=torch.float64))


def test_rotary_positions_that_change_with_the_length_of_a_call_are_refused_beyond_it():
    config = Phi3Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16,
            "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
        },
        original_max_position_embeddings=16,
    )  # fmt: skip
    model = SimpleNamespace(config=config)
    check_length(model, 10, 6)
    assert longest_text(config) == 16 < config.max_position_embeddings
    with pytest.raises(ModelError, match="beyond 16 tokens .longrope."):
        check_length(model, 10, 7)


def test_temperature_divides_the_logits():
    _, logprobs = pick(torch.tensor([[2.0, 1.0, 0.0]]), 0.5, torch.zeros(1, dtype=torch.float64))
    assert abs(float(logprobs[0]) - -0.1429) < 5e-5


def test_an_action_by_itself_is_the_group_s_k_th_action():
    model = tiny_base().double()
    draws = uniform_numbers(7, "s", 0, 4, 12)
    group = sample_actions(model, [PROMPT], 4, 12, end_ids=[2], uniforms=draws).rows()
    for k in range(4):
        alone = sample_actions(model, [PROMPT], 1, 12, end_ids=[2], uniforms=draws[k : k + 1])
        assert alone.rows()[0] == group[k]


def test_a_prompt_that_the_model_cannot_read_is_one_sentence():
    model = with_lora(tiny_base(max_position_embeddings=16))
    assert len(sample_actions(model, [PROMPT], 1, 6, end_ids=[999]).rows()[0]) == 6
    said = "10 tokens and an action of up to 7 do not fit into the 16"
    with pytest.raises(ModelError, match=said):
        sample_actions(model, [PROMPT[:3], PROMPT], 1, 7, end_ids=[999])
    with pytest.raises(ModelError, match=said):
        group_log_probs(model, PROMPT, torch.ones(2, 7, dtype=torch.long))


def test_the_end_token_belongs_to_the_action_and_padding_does_not():
    model = tiny_base()
    with torch.no_grad():  # a model that always says 40, 41, 2 whatever came before
        probe = sample_actions(model, [PROMPT], 1, 6, end_ids=[999]).rows()[0]
    ended = sample_actions(model, [PROMPT], 2, 6, end_ids=[probe[2]])
    first = probe.index(probe[2]) + 1
    assert ended.rows() == [probe[:first]] * 2
    assert ended.ended.tolist() == [True, True]
    cut = sample_actions(model, [PROMPT], 1, 3, end_ids=[999])
    assert cut.ended.tolist() == [False] and cut.mask.all()
