"""The plain decoder writes what the model's modules write, and steps aside where it can't."""

from __future__ import annotations

import peft
import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from rlkit.training import attention, sampling
from rlkit.training.caches import DecodingCache
from rlkit.training.decoding import LAYERS, PlainDecoder, Projection
from rlkit.training.logprobs import group_log_probs
from rlkit.training.prefix import read_prompts
from rlkit.training.recorded import can_record
from rlkit.training.sampling import sample_actions, uniform_numbers
from tests.training.architectures import build
from tests.training.conftest import tiny_base, with_lora

PROMPT = list(range(5, 22))
PLAIN = ["llama", "qwen2", "qwen3", "mistral"]


def sampled(model, prompts=(PROMPT,), actions=3, length=9):
    draws = [uniform_numbers(7, f"s{i}", 0, actions, length) for i in range(len(prompts))]
    uniforms = torch.cat([torch.from_numpy(d) for d in draws]).numpy()
    return sample_actions(model, prompts, actions, length, end_ids=[63], uniforms=uniforms)


class _ByModules:
    of = staticmethod(lambda model: None)


@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, PROMPT[:5], PROMPT[:1]]])
@pytest.mark.parametrize("name", PLAIN)
def test_plain_decoding_is_decoding_by_the_modules(monkeypatch, name, prompts):
    model = build(name)
    assert PlainDecoder.of(model) is not None
    plain = sampled(model, prompts)
    monkeypatch.setattr(sampling, "PlainDecoder", _ByModules)
    modules = sampled(model, prompts)
    assert plain.rows() == modules.rows()
    torch.testing.assert_close(plain.logprobs, modules.logprobs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, PROMPT[:5], PROMPT[:1]]])
def test_buffers_read_as_a_whole_give_what_growing_ones_give(monkeypatch, prompts):
    """As decoding is recorded on CUDA: the same shapes for every token, what is to come hidden."""
    model = build("qwen3")
    growing = sampled(model, prompts)
    monkeypatch.setattr(sampling, "can_record", lambda plain, device: True)
    monkeypatch.setattr(sampling, "Recorded", lambda function: function)
    whole = sampled(model, prompts)
    assert whole.rows() == growing.rows()
    torch.testing.assert_close(whole.logprobs, growing.logprobs, atol=1e-6, rtol=0)


def test_nothing_is_recorded_on_a_cpu_nor_behind_a_sliding_window():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    plain, sliding = (PlainDecoder.of(build(name)) for name in ("qwen3", "mistral"))
    assert can_record(plain, cuda) and not can_record(plain, cpu)
    assert not can_record(sliding, cuda) and not can_record(None, cuda)


def test_every_listed_layer_is_tested():
    layers = [type(build(name).get_base_model().model.layers[0]).__name__ for name in PLAIN]
    assert sorted(layers) == sorted(LAYERS)


@pytest.mark.parametrize("name", ["gemma3", "phi3"])
def test_layers_of_another_form_are_left_to_their_modules(name):
    assert PlainDecoder.of(build(name)) is None


def test_decoders_of_other_names_are_left_to_their_modules():
    config = GPTNeoXConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, attn_implementation=attention.NAME,
    )  # fmt: skip
    model = GPTNeoXForCausalLM(config).double().eval()
    assert PlainDecoder.of(model) is None
    drawn = sampled(model)
    logp, _ = group_log_probs(model, PROMPT, drawn.tokens, mask=drawn.mask)
    torch.testing.assert_close(drawn.logprobs.double(), logp.detach(), atol=1e-6, rtol=0)


def test_a_base_of_bfloat16_under_an_adapter_of_float32_decodes_plainly(monkeypatch):
    model = with_lora(tiny_base().to(torch.bfloat16))
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if "lora" in name else torch.bfloat16)
    exact = with_lora(tiny_base().to(torch.bfloat16)).float()  # the same rounded weights
    plain = last_hidden(model, PlainDecoder.of(model))
    modules, true = last_hidden(model, None), last_hidden(exact, None)
    assert plain.dtype == torch.bfloat16
    # of the numbers' own size, about 1, bfloat16 keeps 8 bits
    assert (modules - true).abs().max() < 0.1 and (plain - true).abs().max() < 0.1


@torch.no_grad()
def last_hidden(model, plain):
    """(4, E) hidden states behind the prompt and one token more."""
    prefix = read_prompts(model, [PROMPT])
    cache = DecodingCache(torch.tensor([len(PROMPT)]), 4, 2, prefix)
    step = sampling.step_function(model, plain)
    step(torch.tensor(PROMPT[-1:]), cache)
    return step(torch.tensor([3, 9, 27, 44]), cache)


def test_a_projection_adds_the_scaled_adapter():
    base = torch.nn.Sequential(torch.nn.Linear(2, 3))
    model = peft.get_peft_model(base, peft.LoraConfig(r=1, lora_alpha=4, target_modules=["0"]))
    layer = model.base_model.model[0]
    with torch.no_grad():
        layer.base_layer.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
        layer.base_layer.bias.copy_(torch.tensor([0.5, 0.0, 0.0]))
        layer.lora_A["default"].weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.lora_B["default"].weight.copy_(torch.tensor([[1.0], [0.0], [-1.0]]))
        # x = [1, 1]: base [1.5, 1, 2]; A x = 3, times alpha / r = 4: 12
        assert Projection.of(layer)(torch.ones(1, 2)).tolist() == [[13.5, 1.0, -10.0]]
        with model.disable_adapter():
            assert Projection.of(layer)(torch.ones(1, 2)).tolist() == [[1.5, 1.0, 2.0]]


def test_a_switched_off_adapter_writes_as_the_base_does():
    model = with_lora(tiny_base(), spread=0.5)
    with model.disable_adapter():
        off = sampled(model).rows()
    assert off == sampled(tiny_base()).rows() and off != sampled(model).rows()


def test_hooks_and_other_adapters_are_respected():
    model = with_lora(tiny_base())
    hook = model.get_base_model().model.layers[0].register_forward_hook(lambda *_: None)
    assert PlainDecoder.of(model) is None
    hook.remove()
    assert PlainDecoder.of(model) is not None
    dora = peft.LoraConfig(r=2, use_dora=True, target_modules=["q_proj"])
    assert PlainDecoder.of(peft.get_peft_model(tiny_base(), dora)) is None
