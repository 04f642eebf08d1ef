"""The packed pass and the cached decoding are the plain forward pass, values and gradients."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig

from rlkit.errors import ModelError
from rlkit.training import attention
from rlkit.training.caches import DecodingCache, PackedGroup
from rlkit.training.gradients import trainable, without_dropout
from rlkit.training.logprobs import group_log_probs
from rlkit.training.sampling import sample_actions, uniform_numbers
from tests.training.conftest import in_float64, tiny_base, with_lora

PROMPT = list(range(5, 22))


def sliding_gemma(window: int) -> Gemma3ForCausalLM:
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention"],
        attn_implementation=attention.NAME,
    )
    return Gemma3ForCausalLM(config).eval()


def dense_log_probs(model, prompt, tokens):
    """Every action behind its own copy of the prompt: the plain, expensive way."""
    rows = []
    for action in tokens:
        ids = torch.cat([torch.tensor(prompt), action])[None]
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        rows.append(torch.log_softmax(logits, -1).gather(1, action[:, None])[:, 0])
    return torch.stack(rows)


def gradients(model, function):
    model.zero_grad()
    with without_dropout(model):
        value = function()
        (
            value * torch.arange(value.numel(), dtype=value.dtype).view_as(value).cos()
        ).sum().backward()
    return value.detach(), {name: p.grad.clone() for name, p in trainable(model).items()}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["full", "window 4", "window 12"])
def test_packed_pass_equals_dense_in_values_and_gradients(kind, checkpointing):
    base = tiny_base() if kind == "full" else sliding_gemma(int(kind.split()[1]))
    model = in_float64(with_lora(base))
    tokens = torch.randint(3, 60, (3, 6), generator=torch.Generator().manual_seed(2))
    _, dense = gradients(model, lambda: dense_log_probs(model, PROMPT, tokens))
    if checkpointing:
        base.activation_checkpointing_enable({"use_reentrant": False})
    with torch.no_grad():
        expected = dense_log_probs(model, PROMPT, tokens)
    value, packed = gradients(model, lambda: group_log_probs(model, PROMPT, tokens)[0])
    torch.testing.assert_close(value, expected, atol=1e-10, rtol=0)
    for name, gradient in dense.items():
        torch.testing.assert_close(packed[name], gradient, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [4, 12])
def test_a_window_s_log_probabilities_are_bitwise_those_of_a_pass_without_gradients(window, dtype):
    """The reference is scored without gradients and the policy with them: by the same code."""
    model = with_lora(sliding_gemma(window)).to(dtype)
    tokens = torch.randint(3, 60, (3, 6), generator=torch.Generator().manual_seed(2))
    with without_dropout(model):
        policy, _ = group_log_probs(model, PROMPT, tokens)
        with torch.no_grad():
            reference, _ = group_log_probs(model, PROMPT, tokens)
    assert policy.requires_grad and torch.equal(policy, reference)


@pytest.mark.parametrize("window", [None, 4, 12])
def test_decoding_gives_the_log_probabilities_of_the_dense_pass(window):
    model = tiny_base() if window is None else sliding_gemma(window)
    model = in_float64(model)
    draws = uniform_numbers(7, "s", 0, 3, 9)
    sampled = sample_actions(model, [PROMPT], 3, 9, end_ids=[63], uniforms=draws)
    with torch.no_grad():
        dense = dense_log_probs(model, PROMPT, sampled.tokens)
    torch.testing.assert_close(
        sampled.logprobs.double()[sampled.mask], dense[sampled.mask], atol=1e-6, rtol=0
    )


def test_prompts_of_unequal_length_decode_as_if_each_were_alone():
    model = tiny_base().double()
    prompts = [PROMPT, PROMPT[:5], PROMPT[3:12]]
    together = sample_actions(model, prompts, 1, 12, end_ids=[2])
    for prompt, row in zip(prompts, together.rows(), strict=True):
        assert sample_actions(model, [prompt], 1, 12, end_ids=[2]).rows()[0] == row


@pytest.mark.parametrize("kind", ["full", "window 4"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_plain_call_with_padding_gives_each_row_its_own_logits(kind, side):
    """What `model.generate`, or a user, calls: no group, a batch, and its attention mask."""
    model = in_float64(tiny_base() if kind == "full" else sliding_gemma(4))
    rows = [list(range(5, 15)), list(range(20, 26))]
    ids, mask = torch.zeros(2, 10, dtype=torch.long), torch.zeros(2, 10, dtype=torch.long)
    for i, row in enumerate(rows):
        where = slice(10 - len(row), 10) if side == "left" else slice(0, len(row))
        ids[i, where], mask[i, where] = torch.tensor(row), 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        for i, row in enumerate(rows):
            alone = model(input_ids=torch.tensor([row])).logits[0]
            torch.testing.assert_close(logits[i][mask[i] == 1], alone, atol=1e-10, rtol=0)


def test_every_action_begins_behind_the_prompt():
    positions = PackedGroup(prompt_length=3, actions=2, length=2).position_ids(torch.device("cpu"))
    assert positions.tolist() == [[0, 1, 2, 3, 4, 3, 4]]


def test_a_cache_counts_its_rows_from_their_own_prompt():
    cache = DecodingCache(torch.tensor([5, 3]), actions=2, max_length=4)
    assert cache.position_ids()[:, 0].tolist() == [4, 2]  # the prompts' last tokens
    cache.advance()
    cache.advance()
    assert cache.position_ids()[:, 0].tolist() == [6, 6, 4, 4]


def tokens_forwarded(model, layer: int = 0):
    """A list that receives the number of tokens of every call of a layer."""
    seen = []
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    base.model.layers[layer].self_attn.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["hidden_states"].shape[:2].numel()),
        with_kwargs=True,
    )
    return seen


@pytest.mark.parametrize("actions", [1, 4])
def test_the_prompt_is_forwarded_once_however_many_actions_follow(actions):
    model = tiny_base()
    seen = tokens_forwarded(model)
    group_log_probs(model, PROMPT, torch.full((actions, 5), 9))
    before = len(PROMPT) - 1  # the last prompt token passes with the actions
    assert seen == [before, 1 + actions * 4]
    seen.clear()
    draws = uniform_numbers(7, "s", 0, actions, 5)
    sample_actions(model, [PROMPT], actions, 5, end_ids=[999], uniforms=draws)
    assert seen == [before, 1] + [actions] * 4


def test_the_last_layer_computes_nothing_of_a_prompt_but_keys_and_values():
    model = tiny_base()
    seen = []
    model.model.layers[-1].mlp.register_forward_pre_hook(
        lambda _, args: seen.append(args[0].shape[:2].numel())
    )
    group_log_probs(model, PROMPT, torch.full((4, 5), 9))
    assert seen == [1 + 4 * 4]


def test_soft_capped_attention_is_refused():
    query = torch.zeros(1, 2, 3, 4)
    for option in ({"softcap": 30.0}, {"s_aux": torch.zeros(2)}):
        with pytest.raises(ModelError, match="soft cap .* or sinks"):
            attention.attention_forward(None, query, query, query, **option)


@pytest.mark.parametrize("kind", ["full", "window 4"])
def test_a_plain_call_behind_a_cache_of_the_user_s_goes_on_where_it_ends(kind):
    """Chunked prefill, or going on with a chat: several queries behind cached keys."""
    model = in_float64(tiny_base() if kind == "full" else sliding_gemma(4))
    ids = torch.arange(5, 17)[None]
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        cache = DynamicCache()  # keeps all keys, also of layers with a window
        model(input_ids=ids[:, :7], cache=cache, use_cache=True)
        rest = model(input_ids=ids[:, 7:], cache=cache, use_cache=True).logits
    torch.testing.assert_close(rest, whole[:, 7:], atol=1e-10, rtol=0)
