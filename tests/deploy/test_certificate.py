"""What a certificate says: figures that can be worked out by hand, and a verdict in words."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlkit.deploy.merge import merge_lora_to_base
from rlkit.deploy.probe import PROMPTS, compare
from rlkit.deploy.rounding import compare_update, total
from rlkit.errors import ModelError
from rlkit.training.fingerprint import base_fingerprint, record_base
from tests.deploy.tiny import make_adapter, make_base

LOG2, LOG3 = math.log(2), math.log(3)


def test_a_difference_of_logits_by_hand() -> None:
    """p = (1/4, 3/4), q = (1/2, 1/2): KL = ¼ log ½ + ¾ log 3/2; the other position is equal."""
    first = torch.tensor([[0.0, LOG3], [2.0, 0.0]])
    second = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    found = compare([first], [second])
    assert found.max_difference == pytest.approx(LOG3)
    assert found.mean_difference == pytest.approx(LOG3 / 4)
    assert found.top1_agreement == 0.5 and found.positions == 2  # a tie is the first token
    assert found.kl == pytest.approx((LOG3 * 3 / 4 - LOG2) / 2, rel=1e-6)


def test_a_logit_that_is_not_finite_shows() -> None:
    bad = torch.tensor([[0.0, float("inf")]])
    assert math.isnan(compare([torch.zeros(1, 2)], [bad]).max_difference)


def test_what_rounding_leaves_of_an_update_by_hand() -> None:
    """bfloat16 has steps of 2^-7 from 1 on. Of the updates 2^-7 is kept whole, 2^-9 is rounded
    away, 3 · 2^-9 becomes 2^-7, and 0 stays 0."""
    step = 2.0**-7
    before = torch.ones(2, 2)
    update = torch.tensor([[step, step / 4], [3 * step / 4, 0.0]])
    parts = [(update, torch.eye(2), 1.0)]
    found = compare_update("w", before, before + update, parts, torch.bfloat16)
    assert (found.weights, found.changed_share) == (4, 0.5)
    assert found.exact_square == pytest.approx(step**2 * (1 + 1 / 16 + 9 / 16))
    assert found.norm_ratio == pytest.approx(math.sqrt(2 / (26 / 16)))
    assert found.kept == pytest.approx((1 + 3 / 4) / (26 / 16))
    both = total([found, replace(found, weights=12, changed=1)])
    assert both.changed_share == 3 / 16 and both.kept == pytest.approx(found.kept)


def test_an_update_is_compared_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    before, left, right = torch.randn(7, 5), torch.randn(7, 2), torch.randn(2, 5)
    after = (before.double() + 0.01 * left.double() @ right.double()).float()
    whole = compare_update("w", before, after, [(left, right, 0.01)], torch.bfloat16)
    monkeypatch.setattr("rlkit.deploy.rounding._BLOCK", 10)
    parted = compare_update("w", before, after, [(left, right, 0.01)], torch.bfloat16)
    assert parted.changed == whole.changed and parted.product == pytest.approx(whole.product)
    after[6, 4] += 1e-3
    with pytest.raises(ModelError, match="w is not W"):
        compare_update("w", before, after, [(left, right, 0.01)], torch.bfloat16)


@pytest.fixture(scope="module")
def merged(base: Path, tmp_path_factory: pytest.TempPathFactory):
    """A merge in bfloat16 whose adapter says which base it was trained on."""
    folder = tmp_path_factory.mktemp("certified")
    adapter = make_adapter(base, folder / "adapter")
    record_base(adapter, base)
    report = merge_lora_to_base(base, adapter, folder / "merged")
    return base, adapter, folder / "merged", report


def test_the_certificate_says_what_was_merged_and_on_what_it_was_compared(merged) -> None:
    base, adapter, folder, report = merged
    stored = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    assert stored["schema"] == 1 and stored["n_prompts"] == len(PROMPTS)
    assert stored["base"] == {"name": str(base), **base_fingerprint(base), "checked": True}
    (kept,) = stored["adapters"]
    assert (kept["rank"], kept["alpha"], kept["folder"]) == (4, 12, str(adapter))
    assert len(kept["sha256"]) == 64 and stored["device"] == "cpu"
    assert {"torch", "peft", "transformers"} <= set(stored["environment"]["versions"])
    assert stored["verdict"] == report.verdict and stored["cautions"] == []
    assert stored["float32"]["max_difference"] <= 1e-4 < stored["reloaded"]["max_difference"] < 1
    assert stored["in_memory"] == stored["reloaded"]  # what was written is what was in memory
    assert len(stored["rounding"]["tensors"]) == 8 and stored["rounding"]["all"]["weights"] == 6144


def test_the_greedy_texts_are_those_of_the_folder_on_disk(merged) -> None:
    """Worked out by a loop over whole sequences, without a cache and without `generate`."""
    _, _, folder, report = merged
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(PROMPTS["built-in 1"], return_tensors="pt")["input_ids"]
    length = ids.shape[1]
    while ids.shape[1] < length + 6:
        with torch.no_grad():
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    (text, *_) = [text for text in report.greedy if text.prompt == "built-in 1"]
    assert text.merged.startswith(tokenizer.decode(ids[0, length : length + 4]).rstrip("\ufffd"))
    written = [int(token) for token in text.merged_ids.split()]  # not what the text would give
    assert written[:6] == ids[0, length:].tolist()
    assert [int(token) for token in text.prompt_ids.split()] == ids[0, :length].tolist()
    assert len(text.adapter_ids.split()) == text.tokens
    assert text.same == (text.adapter == text.merged) and text.same_tokens <= text.tokens


def test_a_verdict_names_the_figures_and_what_speaks_against_it(merged) -> None:
    _, _, _, report = merged
    assert f"(n = {report.n_tokens} positions of 3 prompts)" in report.verdict
    assert "Caution" not in report.verdict
    lost = {"all": {"kept": 0.31, "norm_ratio": 0.5, "changed": 0.02, "weights": 6144}}
    assert "31% is left in bfloat16" in replace(report, rounding=lost).verdict
    far = replace(report.reloaded_from_float32, kl=10 * report.own_rounding.kl + 1)
    assert "merge into float32" in replace(report, reloaded_from_float32=far).verdict
    larger = {"all": {**lost["all"], "kept": 1.15}}
    noisy = replace(report, rounding=larger).verdict
    assert "made the update larger, to 115% of what was learnt" in noisy and "left" not in noisy


def test_an_update_that_is_rounded_away_is_told(tmp_path: Path) -> None:
    """The base is in bfloat16 and the update a thousandth of its steps: nothing is left."""
    base = make_base(tmp_path / "tiny-qwen3")
    weights = load_file(base / "model.safetensors")
    coarse = {n: x.to(torch.bfloat16).float() for n, x in weights.items()}
    save_file(coarse, base / "model.safetensors", metadata={"format": "pt"})
    adapter = make_adapter(base, tmp_path / "adapter")
    tensors = load_file(adapter / "adapter_model.safetensors")
    small = {n: x * 1e-8 if ".lora_B." in n else x for n, x in tensors.items()}
    save_file(small, adapter / "adapter_model.safetensors")
    report = merge_lora_to_base(base, adapter, tmp_path / "merged")
    assert report.rounding["all"]["changed"] == 0 and report.rounding["all"]["kept"] == 0
    assert any("0% is left in bfloat16" in caution for caution in report.cautions)
    whole = merge_lora_to_base(base, adapter, tmp_path / "whole", "float32")
    assert whole.rounding["all"]["kept"] > 0


def test_an_adapter_of_a_twin_with_the_same_name_is_found_by_its_hash(tmp_path: Path) -> None:
    ours = make_base(tmp_path / "a" / "tiny-qwen3")
    twin = make_base(tmp_path / "b" / "tiny-qwen3", seed=9)
    adapter = make_adapter(twin, tmp_path / "adapter")
    record_base(adapter, twin)
    with pytest.raises(ModelError, match="its weights differ"):
        merge_lora_to_base(ours, adapter, tmp_path / "out" / "merged")
    assert not (tmp_path / "out").exists()
    twin.rename(tmp_path / "renamed")  # the same model by another name is no other model
    merge_lora_to_base(tmp_path / "renamed", adapter, tmp_path / "merged", "float32")


def test_given_prompts_are_what_is_compared(base: Path, adapter: Path, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Which bridge?"}]
    report = merge_lora_to_base(
        base, adapter, tmp_path / "merged", "float32", prompts={"q1": chat, "q2": "ab"}
    )
    assert [text.prompt for text in report.greedy] == ["q1", "q2"]
    assert 64 + 2 <= report.n_tokens <= 64 + 34  # the whole of a short text, the end of a long one


def test_an_adapter_of_a_quantised_base_goes_into_the_unquantised_one_with_a_caution(
    base: Path, tmp_path: Path
) -> None:
    quantised = Path(shutil.copytree(base, tmp_path / "tiny-bnb-4bit"))
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (quantised / "config.json").write_text(json.dumps(config))
    adapter = make_adapter(base, tmp_path / "adapter", trained_on=str(quantised))
    record_base(adapter, quantised)
    shutil.rmtree(quantised)
    report = merge_lora_to_base(base, adapter, tmp_path / "merged", "float32")
    assert report.base["checked"] is False
    (caution,) = report.cautions
    assert "tiny-bnb-4bit', which is quantised: no hash can say" in caution


def test_an_adapter_that_says_nothing_of_its_base_is_merged_with_a_caution(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    report = merge_lora_to_base(base, adapter, tmp_path / "merged", "float32")
    assert report.base["checked"] is False
    assert "does not say by a hash" in report.verdict
