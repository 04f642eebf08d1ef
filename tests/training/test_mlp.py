"""The lean MLP is the MLP, and keeps less."""

from __future__ import annotations

import copy

import pytest
import torch

from rlkit.training.mlp import GATED, GatedProduct, keep_less
from tests.training.architectures import build
from tests.training.conftest import tiny_base


def test_the_gradient_is_that_of_silu_times_up():
    gate, up = torch.randn(2, 5, 7, dtype=torch.float64).requires_grad_().unbind()
    assert torch.autograd.gradcheck(GatedProduct.apply, (gate, up))
    assert torch.equal(GatedProduct.apply(gate, up), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_values_and_gradients_stay_what_they_were(name):
    plain = build(name)
    lean = copy.deepcopy(plain)
    keep_less(lean)
    results = []
    for model in (plain, lean):
        logits = model(torch.tensor([[5, 9, 17, 23]])).logits
        logits.cos().sum().backward()
        results.append((logits.detach(), [p.grad for p in model.parameters() if p.requires_grad]))
    assert torch.equal(results[0][0], results[1][0])
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def kept_bytes(mlp) -> int:
    weights = {p.untyped_storage().data_ptr() for p in mlp.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        mlp(torch.randn(1, 100, mlp.hidden_size, requires_grad=True))
    return sum(kept.values())


def test_two_wide_tensors_are_kept_and_not_three():
    model = tiny_base().requires_grad_(False)
    mlp = model.model.layers[0].mlp
    wide = 100 * mlp.intermediate_size * 4  # bytes
    assert kept_bytes(mlp) == 3 * wide
    keep_less(model)
    assert kept_bytes(mlp) == 2 * wide


def test_every_listed_kind_is_tested_and_others_are_left_alone():
    kinds = {
        type(build(n).base_model.model.model.layers[0].mlp).__name__
        for n in ("llama", "mistral", "qwen2", "qwen3")
    }
    assert kinds == set(GATED)
    gemma = build("gemma3")
    before = [type(m) for m in gemma.modules()]
    keep_less(gemma)
    assert [type(m) for m in gemma.modules()] == before
