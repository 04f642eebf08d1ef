"""What a run needs, estimated from shapes: held against peaks that were measured."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from rlkit.config import RunConfig
from rlkit.training.estimate import (
    Shape,
    container_free,
    disk_terms,
    memory_terms,
    shape_of,
    skeleton,
    weights_are_here,
)
from rlkit.training.precision import Precision

GIB = 2**30
MODELS = {
    "0.6B": Qwen3Config(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True,
    ),
    "8B": Qwen3Config(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=False,
    ),
    "SmolLM2": LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True,
    ),
}  # fmt: skip


def config(prompt: int, k: int, c: int, **training) -> RunConfig:
    return RunConfig.from_sections(
        executor={"max_prompt_tokens": prompt},
        grpo={"group_size": k, "max_new_tokens": c},
        training={"gradient_checkpointing": False} | training,
    )


def shape(name: str, settings: RunConfig) -> Shape:
    with torch.device("meta"):
        return shape_of(AutoModelForCausalLM.from_config(MODELS[name]), settings.lora)


@pytest.mark.parametrize(
    ("name", "workload", "dtype", "peak", "parameters"),
    [
        ("0.6B", (1024, 8, 64), torch.bfloat16, 5.1 * GIB, 596e6),
        ("0.6B", (2048, 16, 64), torch.bfloat16, 7.8 * GIB, 596e6),
        ("8B", (1024, 8, 64), torch.bfloat16, 26.5 * GIB, 8.19e9),
        ("SmolLM2", (512, 8, 48), torch.float32, 2421 * 2**20, 134.5e6),
    ],
)
def test_the_estimate_is_within_a_third_of_the_peaks_that_docs_results_has(
    name, workload, dtype, peak, parameters
):
    settings = config(*workload)
    found = shape(name, settings)
    assert found.parameters == pytest.approx(parameters, rel=0.01)
    terms = memory_terms(found, settings, Precision("", dtype, False, ""))
    if dtype == torch.bfloat16:  # measured on a GPU: torch's own memory alone
        del terms["libraries"]
    assert peak / 1.33 < sum(terms.values()) < peak * 1.33


def test_terms_by_hand():
    settings = config(100, 4, 25, gradient_checkpointing=True, keep_last=3, max_steps=10)
    small = Shape(1000, 800, 2, 8, 16, 32, 16, 50, 60, None)
    terms = memory_terms(small, settings, Precision("cpu", torch.bfloat16, True, ""))
    assert terms["weights"] == 2 * 200 + 0.5625 * 800
    assert terms["training"] == 60 * (4 + 4 + 8 + 4)  # no reference is kept beside it
    assert terms["cache"] == (100 + 4 * 25) * 2 * 16 * 2
    layer = 2 * (2 * 16 + 4 * 8 + 4 * 32) + 4 * (2 * 8 + 2 * 32)
    assert terms["activations"] == 200 * (2 * 2 * 8 + layer)
    left = disk_terms(small, settings)
    assert left["checkpoints"] == 16 * 60 * (3 + 2) and left["warm start"] == 0
    assert left["rollouts"] == 10 * 4 * (2000 + 12 * 25)


@pytest.mark.parametrize(("penalty", "copies"), [(0.0, 0), (0.1, 1)])
def test_all_weights_are_counted_once_with_the_one_copy_that_is_the_reference(penalty, copies):
    settings = RunConfig.from_sections(lora={"enabled": False}, grpo={"kl_penalty": penalty})
    whole = Shape(1000, 800, 2, 8, 16, 32, 16, 50, 1000, None)
    terms = memory_terms(whole, settings, Precision("cpu", torch.float32, False, ""))
    assert terms["weights"] == 4 * 1000
    assert terms["training"] == 1000 * (4 + 8 + 4 * copies)  # gradient, AdamW, copy


def test_the_page_cache_of_a_container_counts_as_free(tmp_path):
    assert container_free(tmp_path) is None
    for name, text in {
        "max": "1000\n",
        "current": "900\n",
        "stat": "anon 300\ninactive_file 400\nactive_file 150\nfile 550\n",
    }.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert container_free(tmp_path) == 1000 - 900 + 400 + 150
    (tmp_path / "memory.max").write_text("max\n")
    assert container_free(tmp_path) is None


def test_a_skeleton_has_shapes_and_no_weights_and_asks_no_hub(tmp_path):
    found = skeleton("debug")
    assert {parameter.device.type for parameter in found.parameters()} == {"meta"}
    assert shape_of(found, RunConfig().lora).hidden == 32
    assert weights_are_here("debug")
    assert skeleton("nobody/has-this") is None and not weights_are_here("nobody/has-this")
