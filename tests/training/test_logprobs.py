"""Log-probabilities: by hand, in chunks, and whatever the padding."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from rlkit.errors import ModelError
from rlkit.training import attention
from rlkit.training.logprobs import (
    check_sharing,
    compute_sequence_log_prob,
    get_token_log_probs,
    group_log_probs,
    score_tokens,
)
from tests.training.conftest import tiny_base, with_lora

PROMPT = list(range(5, 15))


def test_chunks_and_masks_change_no_value_and_no_gradient():
    model = tiny_base().double()
    tokens = torch.randint(3, 200, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(7) < torch.tensor([[7], [3], [0]])
    results = []
    for options in ({}, {"max_logits": 2 * model.lm_head.out_features}, {"mask": mask}):
        model.zero_grad()
        logp, entropy = group_log_probs(model, PROMPT, tokens, **options)
        (logp * mask).sum().backward()
        results.append((logp.detach() * mask, entropy * mask, model.model.norm.weight.grad.clone()))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_a_frozen_head_gives_the_values_and_gradients_of_autograd():
    head = torch.nn.Linear(6, 50, bias=False).double()
    hidden = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(9)
    results = []
    for frozen in (False, True):
        head.weight.requires_grad_(not frozen)
        logp, entropy = score_tokens(head, hidden, targets, 0.7)
        (gradient,) = torch.autograd.grad((logp * logp.detach().cos()).sum(), hidden)
        assert not entropy.requires_grad
        results.append((logp.detach(), entropy, gradient))
    plain = torch.log_softmax(head(hidden) / 0.7, -1)[torch.arange(9), targets]
    for a, b, c in zip(*results, (plain, None, None), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
        if c is not None:
            torch.testing.assert_close(a, c, atol=1e-12, rtol=0)


def test_in_bfloat16_a_confident_token_keeps_its_gradient():
    """p near 1: the difference of two rounded vectors would be nothing but rounding."""
    torch.manual_seed(0)
    head = torch.nn.Linear(256, 500, bias=False).to(torch.bfloat16).requires_grad_(False)
    targets = torch.arange(64)
    hidden = head.weight[:64].float()
    hidden = (hidden * 12 / hidden.pow(2).sum(-1, keepdim=True)).to(torch.bfloat16)

    def slope(head, hidden):
        hidden = hidden.clone().requires_grad_()
        score_tokens(head, hidden, targets, 1.0)[0].sum().backward()
        return hidden.grad.double()

    exact = slope(copy.deepcopy(head).double(), hidden.double())
    assert float(score_tokens(head, hidden, targets, 1.0)[0].exp().median()) > 0.99
    error = (slope(head, hidden) - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert float(error.median()) < 0.05


def test_padding_that_is_no_end_token_is_not_scored():
    model, row = tiny_base(), [5, 6, 2]
    apart = SimpleNamespace(pad_token_id=0, eos_token_id=2)
    with torch.no_grad():
        scored = get_token_log_probs(model, torch.tensor([[*row, 0, 0, 0]]), apart)[0]
        alone = get_token_log_probs(model, torch.tensor([row]), apart)[0]
    assert scored[2:].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(scored[:2], alone, atol=1e-6, rtol=0)


def test_an_empty_action_of_a_16_bit_model_has_no_log_probabilities():
    model = with_lora(tiny_base().to(torch.bfloat16))
    assert group_log_probs(model, PROMPT, torch.zeros(2, 0, dtype=torch.long))[0].shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_shares_prompts_rightly_is_let_through(dtype):
    check_sharing(with_lora(tiny_base().to(dtype)))


def test_a_model_whose_actions_see_something_else_is_refused():
    model = tiny_base(initializer_range=0.4)

    def scaled(module, args, output):
        output.logits = output.logits * 3
        return output

    check_sharing(model)
    model.register_forward_hook(scaled)  # outside of decoder and head, as some models do
    with pytest.raises(ModelError, match="other log-probabilities than alone"):
        check_sharing(model)


def test_a_hybrid_model_is_refused():
    config = Qwen3NextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
        num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, attn_implementation=attention.NAME,
    )  # fmt: skip
    with pytest.raises(ModelError, match="hybrid"):
        check_sharing(Qwen3NextForCausalLM(config).eval())


@pytest.mark.parametrize("frozen", [True, False])
def test_no_graph_holds_a_number_for_every_token_of_the_vocabulary(frozen):
    """N x C x V floats would not fit for real vocabularies."""
    head = torch.nn.Linear(4, 1000, bias=False).requires_grad_(not frozen)
    hidden = torch.randn(8, 4, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        score_tokens(head, hidden, torch.arange(8), 1.0)
    assert kept and all(shape.numel() < 8 * 1000 for shape in kept if shape != head.weight.shape)


def test_actions_of_one_token_are_predicted_by_the_prompt_alone():
    """Every action of a group may end at once; then nothing stands behind the prompt."""
    model = tiny_base().double()
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0, -1], -1)
    logp, _ = group_log_probs(model, PROMPT, torch.tensor([[2], [7]]))
    torch.testing.assert_close(logp.detach()[:, 0], expected[[2, 7]], atol=1e-10, rtol=0)


def test_actions_without_tokens_have_log_probabilities_without_numbers():
    logp, entropy = group_log_probs(tiny_base(), PROMPT, torch.zeros(3, 0, dtype=torch.long))
    assert logp.shape == entropy.shape == (3, 0)


def test_entropy_is_that_of_the_tempered_distribution():
    model = tiny_base().double()
    tokens = torch.tensor([[9, 8]])
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, 9, 8]])).logits[0, len(PROMPT) - 1 : -1] / 0.5
        _, entropy = group_log_probs(model, PROMPT, tokens, temperature=0.5)
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(entropy[0], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_company_change_no_log_probability(side):
    model, tokenizer = tiny_base(), SimpleNamespace(pad_token_id=0)
    rows = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
    padded = [r + [0] * (6 - len(r)) if side == "right" else [0] * (6 - len(r)) + r for r in rows]
    with torch.no_grad():
        together = get_token_log_probs(model, torch.tensor(padded), tokenizer)
        alone = get_token_log_probs(model, torch.tensor([rows[1]]), tokenizer)[0]
    real = together[1][together[1] != 0]
    torch.testing.assert_close(real[: len(alone)], alone, atol=1e-6, rtol=0)


def test_sequence_log_prob_sums_the_tokens_that_count():
    logps = torch.tensor([[-1.0, -2.0, -4.0]])
    assert compute_sequence_log_prob(logps, torch.tensor([[3, 4, -100]])).tolist() == [-3.0]
    full = torch.log_softmax(torch.tensor([[[2.0, 1.0, 0.0]]]), -1)
    assert compute_sequence_log_prob(full, torch.tensor([[1]])).item() == full[0, 0, 1].item()
