"""The shared prompt is the plain forward pass of transformers, for every architecture: values,
gradients, sampling; with and without gradient checkpointing; in float64, float32 and bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlkit.training.gradients import trainable, without_dropout
from rlkit.training.logprobs import group_log_probs
from rlkit.training.sampling import sample_actions, uniform_numbers
from tests.training.architectures import CONFIGS, build, dense_log_probs

PROMPT = list(range(5, 22))
TOKENS = torch.randint(3, 60, (3, 7), generator=torch.Generator().manual_seed(2))
MASK = torch.arange(7) < torch.tensor([[7], [4], [1]])


def gradients(model, function, events=None):
    """The values that count, and the gradient of an uneven sum of them; "backward" is put among
    `events` where it begins."""
    model.zero_grad()
    with without_dropout(model):
        value = function(model) * MASK
        value.register_hook(lambda _: events.append("backward") if events is not None else None)
        weights = torch.arange(1.0, 1 + value.numel(), dtype=value.dtype).view_as(value).cos()
        (value * weights).sum().backward()
    return value.detach(), {name: p.grad.clone() for name, p in trainable(model).items()}


def shared(model):
    return group_log_probs(model, PROMPT, TOKENS, mask=MASK)[0]


def dense(model):
    return dense_log_probs(model, PROMPT, TOKENS)


def assert_gradients_equal(found, expected, relative):
    """To `relative` of the largest entry of each tensor; every tensor has one that is not 0."""
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=relative * scale, msg=name)


def checkpoint(model, how):
    """Switch gradient checkpointing on, the way that PEFT wants it where it is reentrant."""
    if how != "off":
        model.get_base_model().activation_checkpointing_enable(
            {"use_reentrant": how == "reentrant"}
        )
    if how == "reentrant":
        model.enable_input_require_grads()


@pytest.mark.parametrize("how", ["off", "not reentrant", "reentrant"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_shared_prompt_is_the_dense_pass_in_float64(name, how):
    """Values and every adapter tensor's gradient to 1e-10, whatever is recomputed."""
    value, expected = gradients(build(name, "sdpa"), dense)
    model = build(name)
    checkpoint(model, how)
    layer, events = model.get_base_model().model.layers[0].mlp, []
    layer.register_forward_pre_hook(lambda *_: events.append("layer"))
    found, gradient = gradients(model, shared, events)
    recomputed = "layer" in events[events.index("backward") :]
    assert recomputed == (how != "off")
    torch.testing.assert_close(found, value, rtol=0, atol=1e-10)
    assert_gradients_equal(gradient, expected, 1e-10)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_shared_prompt_is_the_dense_pass_in_float32(name):
    value, expected = gradients(build(name, "sdpa", torch.float32), dense)
    found, gradient = gradients(build(name, dtype=torch.float32), shared)
    torch.testing.assert_close(found, value, rtol=0, atol=1e-5)
    assert_gradients_equal(gradient, expected, 1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_stays_near_its_float32_twin(name):
    """The same rounded weights in both: log-probabilities within 0.1 nat (7 bits of mantissa, two
    layers), the adapter's gradient in the same direction."""
    half = build(name, dtype=torch.bfloat16)
    twin = build(name, dtype=torch.float32)
    twin.load_state_dict({k: v.float() for k, v in half.state_dict().items()})
    value, gradient = gradients(half, shared)
    expected, reference = gradients(twin, shared)
    assert value.dtype == torch.float32
    assert float((value - expected).abs().max()) < 0.1
    for tensor, like in reference.items():
        cosine = torch.cosine_similarity(gradient[tensor].float().ravel(), like.ravel(), dim=0)
        assert cosine > 0.98, tensor
    draws = uniform_numbers(7, "s", 0, 3, 9)
    sampled = sample_actions(half, [PROMPT], 3, 9, end_ids=[63], uniforms=draws)
    again, _ = group_log_probs(half, PROMPT, sampled.tokens, mask=sampled.mask)
    assert float((again.detach() - sampled.logprobs).abs().max()) < 0.1


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_padding_and_company_change_no_log_probability(name, side):
    """Alone and unpadded, against transformers' own batch of three, padded on either side."""
    model, oracle = build(name), build(name, "sdpa")
    with torch.no_grad():
        batch = dense_log_probs(oracle, PROMPT, TOKENS, padding=5, side=side)
        together, _ = group_log_probs(model, PROMPT, TOKENS)
        for k in range(len(TOKENS)):
            alone, _ = group_log_probs(model, PROMPT, TOKENS[k : k + 1])
            torch.testing.assert_close(alone[0], batch[k], rtol=0, atol=1e-10)
            torch.testing.assert_close(alone[0], together[k], rtol=0, atol=1e-10)
            cut, _ = group_log_probs(model, PROMPT, TOKENS[k : k + 1, :4])  # causal
            torch.testing.assert_close(cut[0], alone[0, :4], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CONFIGS)
def test_decoding_samples_from_the_dense_distribution(name):
    """Every token of cached decoding, recomputed: its log-probability, and that the uniform number
    falls into its part of transformers' own cumulative distribution."""
    model, oracle = build(name), build(name, "sdpa")
    draws = uniform_numbers(7, "s", 0, 3, 12)
    sampled = sample_actions(
        model, [PROMPT], 3, 12, end_ids=[*range(40, 50)], temperature=0.7, uniforms=draws
    )
    assert len({len(row) for row in sampled.rows()}) > 1
    for k, row in enumerate(sampled.rows()):
        with torch.no_grad():
            logits = oracle(torch.tensor([PROMPT + row]), use_cache=False).logits[0]
        probabilities = torch.softmax(logits[len(PROMPT) - 1 : -1] / 0.7, dim=-1)
        for t, token in enumerate(row):
            upper = float(probabilities[t, : token + 1].sum())
            lower = upper - float(probabilities[t, token])
            assert lower - 1e-9 <= draws[k, t] <= upper + 1e-9
            logprob = float(probabilities[t, token].log())
            assert float(sampled.logprobs[k, t]) == pytest.approx(logprob, abs=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_of_unequal_length_sample_together_what_each_samples_alone(name):
    model = build(name)
    prompts = [PROMPT, PROMPT[:8], PROMPT[3:16]]
    draws = [uniform_numbers(7, f"s{i}", 0, 2, 10) for i in range(len(prompts))]
    options = dict(end_ids=[2], temperature=0.9)
    together = sample_actions(model, prompts, 2, 10, uniforms=np.concatenate(draws), **options)
    rows, logprobs = together.rows(), together.logprobs
    for i, prompt in enumerate(prompts):
        alone = sample_actions(model, [prompt], 2, 10, uniforms=draws[i], **options)
        assert rows[2 * i : 2 * i + 2] == alone.rows()
        own = logprobs[2 * i : 2 * i + 2, : alone.logprobs.shape[1]]
        torch.testing.assert_close(own, alone.logprobs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
@pytest.mark.parametrize("length", [1, 2, 3, 17])
@pytest.mark.parametrize("k, c", [(1, 1), (1, 4), (3, 1), (3, 2)])
def test_prompts_and_actions_may_be_as_short_as_one_token(name, length, k, c):
    model, tokens = build(name), TOKENS[:k, :c]
    with torch.no_grad():
        expected = dense_log_probs(build(name, "sdpa"), PROMPT[:length], tokens)
    found, _ = group_log_probs(model, PROMPT[:length], tokens)
    torch.testing.assert_close(found.detach(), expected, rtol=0, atol=1e-10)
    draws = uniform_numbers(7, "s", 0, k, c)
    sampled = sample_actions(model, [PROMPT[:length]], k, c, end_ids=[63], uniforms=draws)
    again, _ = group_log_probs(model, PROMPT[:length], sampled.tokens, mask=sampled.mask)
    torch.testing.assert_close(again.detach().float(), sampled.logprobs, rtol=0, atol=1e-6)


def test_a_prompt_of_one_token_samples_beside_longer_ones_what_it_samples_alone():
    model, prompts = build("gemma3"), [PROMPT[:1], PROMPT, PROMPT[:2]]
    draws = uniform_numbers(7, "s", 0, 2, 8)
    together = sample_actions(
        model, prompts, 2, 8, end_ids=[2], uniforms=np.concatenate([draws] * 3)
    ).rows()
    for i, prompt in enumerate(prompts):
        alone = sample_actions(model, [prompt], 2, 8, end_ids=[2], uniforms=draws)
        assert together[2 * i : 2 * i + 2] == alone.rows()
