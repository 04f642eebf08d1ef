"""Adapters one on the other, a warm start that was continued, and embeddings that are tied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlkit.deploy.merge import merge_lora_to_base
from rlkit.errors import ModelError
from rlkit.training.adapters import save_lora_checkpoint
from rlkit.training.policy import load_model_with_lora
from tests.deploy.tiny import ALPHA, ATTENTION, RANK, make_adapter, update_of

MATRIX = "model.layers.1.self_attn.v_proj"
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: x.double() for name, x in load_file(folder / "model.safetensors").items()}


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).abs().max() < 1e-6 * max(1.0, float(expected.abs().max())))


def test_two_stacked_adapters_are_merged_as_one_sum(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    other = make_adapter(base, tmp_path / "other", targets=["v_proj", "up_proj"], seed=2)
    report = merge_lora_to_base(base, [adapter, other], tmp_path / "merged", "float32")
    before, after = weights(base), weights(tmp_path / "merged")
    both = update_of(adapter, MATRIX) + update_of(other, MATRIX)
    assert near(after[f"{MATRIX}.weight"], before[f"{MATRIX}.weight"] + both)
    up, query = "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj"
    assert near(after[f"{up}.weight"], before[f"{up}.weight"] + update_of(other, up))
    assert near(after[f"{query}.weight"], before[f"{query}.weight"] + update_of(adapter, query))
    assert [a["name"] for a in report.adapters] == ["checkpoint-5", "other"]


def test_an_adapter_cannot_be_stacked_on_itself(base: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="several that differ"):
        merge_lora_to_base(base, [adapter, str(adapter)], tmp_path / "merged")


def test_a_warm_start_that_was_continued_is_one_adapter_and_merged_once(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    """The trained adapter began as the warm start; the frozen copy beside it adds nothing."""
    lora = SimpleNamespace(
        enabled=True, rank=RANK, alpha=ALPHA, dropout=0.0, target_modules=[*ATTENTION]
    )
    model, _ = load_model_with_lora(
        base, lora, device="cpu", dtype="float32", adapter=adapter, log=lambda line: None
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B.default" in name:
                parameter += 0.05  # what GRPO did
    save_lora_checkpoint(model, tmp_path / "continued")
    merge_lora_to_base(base, tmp_path / "continued", tmp_path / "merged", "float32")
    update = update_of(tmp_path / "continued", MATRIX)
    assert (update - update_of(adapter, MATRIX)).abs().max() > 0.01
    found = weights(tmp_path / "merged")[f"{MATRIX}.weight"]
    assert near(found, weights(base)[f"{MATRIX}.weight"] + update)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
@pytest.mark.parametrize(
    ("targets", "options", "moved"),
    [
        ([HEAD, "q_proj"], {}, [HEAD]),
        (["embed_tokens", "q_proj"], {}, [EMBEDDING]),
        ([HEAD, "embed_tokens"], {}, [HEAD, EMBEDDING]),
        (["embed_tokens"], {"ensure_weight_tying": True}, [EMBEDDING, "both"]),
    ],
)
def test_tied_embeddings_are_parted_where_an_adapter_moves_one(
    base: Path, tmp_path: Path, targets: list[str], options: dict, moved: list[str]
) -> None:
    adapter = make_adapter(base, tmp_path / "adapter", targets=targets, **options)
    report = merge_lora_to_base(base, adapter, tmp_path / "merged", "float32")
    shared, after = weights(base)[f"{EMBEDDING}.weight"], weights(tmp_path / "merged")
    assert f"{HEAD}.weight" not in weights(base) and report.untied
    for name in (EMBEDDING, HEAD):
        source = EMBEDDING if "both" in moved else name
        update = update_of(adapter, source) if name in moved or "both" in moved else 0.0
        assert near(after[f"{name}.weight"], shared + update), name
    assert json.loads((tmp_path / "merged" / "config.json").read_text())[
        "tie_word_embeddings"
    ] is False  # fmt: skip
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        trained = peft.PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base), adapter
        )
        expected = trained.eval()(ids).logits
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()(ids).logits
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_tied_embeddings_that_no_adapter_moves_stay_tied(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    report = merge_lora_to_base(base, adapter, tmp_path / "merged", "float32")
    assert not report.untied and f"{HEAD}.weight" not in weights(tmp_path / "merged")


def test_an_embedding_of_other_size_is_found(
    base: Path, base_maker: Callable, tmp_path: Path
) -> None:
    adapter = make_adapter(base, tmp_path / "adapter", targets=["embed_tokens"])
    wide = base_maker("tiny-qwen3", hidden_size=48)
    with pytest.raises(ModelError, match="does not fit.*embed_tokens: 32 against 48"):
        merge_lora_to_base(wide, adapter, tmp_path / "merged")
