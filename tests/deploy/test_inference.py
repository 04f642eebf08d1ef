"""A merged model in 8 and 4 bits on a CPU: what is rounded and how, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from rlkit.deploy.inference import load_merged, write
from rlkit.deploy.probe import PROMPTS, compare, encode, last_logits
from rlkit.errors import ModelError
from rlkit.training.four_bit import dequantised
from rlkit.training.text import encode_prompt
from tests.training.conftest import NF4

KINDS = {8: Linear8bitLt, 4: Linear4bit}
LEAST = {8: 0.85, 4: 0.6}  # share of equal next tokens, of SmolLM2; measured .92 and .67
MOST = {8: 0.1, 4: 1.0}  # nats a token from the unquantised model; measured .04 and .60


def quiet(line: str) -> None:
    """Logs go nowhere."""


def in_int8(weight: Tensor) -> Tensor:
    """Each row in 127 steps of its largest value, worked out here."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale


def in_nf4(weight: Tensor) -> Tensor:
    """Each 64 values as the nearest ones of NF4 times the largest of them."""
    blocks = weight.reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    code = torch.tensor(NF4)
    nearest = (blocks[..., None] / scale[..., None] - code).abs().argmin(-1)
    return (code[nearest] * scale).reshape(weight.shape)


def stored(layer: nn.Module) -> Tensor:
    """The matrix that a quantised layer stands for."""
    if isinstance(layer, Linear8bitLt):
        return layer.weight.CB.float() * layer.weight.SCB[:, None] / 127
    return dequantised(layer).float()


@pytest.mark.parametrize(("bits", "rounded"), [(8, in_int8), (4, in_nf4)])
def test_all_matrices_of_the_layers_are_rounded_and_the_head_is_not(
    base: Path, bits: int, rounded: Callable[[Tensor], Tensor]
) -> None:
    exact = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model, _ = load_merged(base, bits, dtype="float32", log=quiet)
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    inner = [name for name, layer in linear.items() if isinstance(layer, KINDS[bits])]
    assert len(inner) == 2 * 7 and [*linear.keys() - set(inner)] == ["lm_head"]
    for name in inner:
        wanted = rounded(exact.get_submodule(name).weight.detach())
        close = torch.isclose(stored(linear[name]), wanted, atol=1e-3 * float(wanted.abs().max()))
        assert close.float().mean() > 0.95  # one that lies between two steps can fall either way
    assert torch.equal(linear["lm_head"].weight, exact.lm_head.weight)
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_logits_are_those_of_the_rounded_matrices(
    base: Path, bits: int, capfd: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Near them in 8 bits, whose activations are rounded, too; and nothing is said of it."""
    model, tokenizer = load_merged(base, bits, dtype="float32", log=quiet)
    rounded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    for name, layer in model.named_modules():
        if isinstance(layer, KINDS[bits]):
            rounded.get_submodule(name).weight.data = stored(layer)
    texts = [*encode(tokenizer, PROMPTS).values()]
    wanted = last_logits(rounded, texts)
    found = compare(wanted, last_logits(model, texts))
    largest = max(float(x.abs().max()) for x in wanted)
    assert found.max_difference < (0.05 if bits == 8 else 1e-4) * largest
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_unquantised_it_is_the_saved_model(base: Path) -> None:
    told: list[str] = []
    model, tokenizer = load_merged(base, dtype="float32", log=told.append)
    texts = [*encode(tokenizer, PROMPTS).values()]
    exact = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    for a, b in zip(last_logits(model, texts), last_logits(exact, texts), strict=True):
        assert torch.equal(a, b)
    assert len(told) == 1 and "not quantised, the rest in float32" in told[0]


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_the_devices_are_chosen_by_device_map(
    base: Path, bits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict] = []
    real = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM,
        "from_pretrained",
        lambda *a, **options: (asked.append(options), real(*a, **options))[1],
    )
    load_merged(base, bits, log=quiet)
    config = asked[0].get("quantization_config")
    assert asked[0]["device_map"] == "auto"
    assert (config and (config.load_in_8bit, config.load_in_4bit)) == (
        bits and (bits == 8, bits == 4)
    )


def test_an_answer_is_greedy_without_its_prompt_and_with_its_confidence(base: Path) -> None:
    """Against a loop that recomputes everything for each token."""
    model, tokenizer = load_merged(base, dtype="float32", log=quiet)
    messages = [{"role": "user", "content": "Say something."}]
    ids, logprobs = encode_prompt(tokenizer, messages), []
    start = len(ids)
    with torch.no_grad():
        while len(ids) < start + 6:
            row = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(row.argmax()))
            logprobs.append(float(row.max()))
    found = write(model, tokenizer, messages, max_tokens=6)
    assert found.text == tokenizer.decode(ids[start:], skip_special_tokens=True)
    assert found.confidence == pytest.approx(math.exp(sum(logprobs) / 6), rel=1e-4)


# ---- refused, each in a sentence


def test_an_adapter_is_no_merged_model(adapter: Path) -> None:
    with pytest.raises(ModelError, match=r"holds an adapter .*`python -m rlkit merge`"):
        load_merged(adapter, 4)


def test_a_folder_without_a_model_and_a_path_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="config.json is missing"):
        load_merged(tmp_path)
    with pytest.raises(ModelError, match="there is no model folder at"):
        load_merged(tmp_path / "gone")


def test_other_bits_are_refused_with_those_that_there_are(base: Path) -> None:
    with pytest.raises(ModelError, match="bits is 2; allowed are 8, 4, or None"):
        load_merged(base, 2)


def test_a_quantised_model_is_not_quantised_again(base: Path, tmp_path: Path) -> None:
    model, tokenizer = load_merged(base, 4, log=quiet)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is quantised already; load it without `bits`"):
        load_merged(tmp_path, 8)
    again, _ = load_merged(tmp_path, log=quiet)
    assert sum(isinstance(m, Linear4bit) for m in again.modules()) == 2 * 7


def test_without_bitsandbytes_it_says_what_to_install(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlkit.training.precision._four_bit_problem", lambda: "it is not there")
    with pytest.raises(ModelError, match="8 bits need bitsandbytes .*it is not there"):
        load_merged(base, 8)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_smollm2_mostly_has_the_same_next_token(bits: int) -> None:
    """docs/results.md has the figures of a merged model."""
    exact, tokenizer = load_merged("smollm2-135m-instruct", dtype="float32", log=quiet)
    texts = [*encode(tokenizer, PROMPTS).values()]
    logits = last_logits(exact, texts)
    memory = exact.get_memory_footprint()
    model, _ = load_merged("smollm2-135m-instruct", bits, dtype="float32", log=quiet)
    found = compare(logits, last_logits(model, texts))
    assert found.top1_agreement >= LEAST[bits] and found.kl < MOST[bits]
    assert model.get_memory_footprint() < memory / 2
