"""A tiny random Qwen3 with a byte-level tokenizer, and an adapter whose update is not zero."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import peft
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from rlkit.training.models import byte_tokenizer, debug_config

ALPHA, RANK = 12, 4
ATTENTION = ("q_proj", "v_proj", "k_proj", "o_proj")


def make_base(folder: Path, seed: int = 0, **changes: object) -> Path:
    torch.manual_seed(seed)
    tokenizer = byte_tokenizer()
    Qwen3ForCausalLM(debug_config(len(tokenizer), **changes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_adapter(
    base: Path,
    folder: Path,
    trained_on: str | None = None,
    targets: Sequence[str] = ATTENTION,
    seed: int = 1,
    **changes: object,
) -> Path:
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0.1,
        target_modules=list(targets),
        task_type="CAUSAL_LM",
        init_lora_weights=False,  # B is random too, so that the update is not zero
        **changes,
    )
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    model.peft_config["default"].base_model_name_or_path = trained_on or str(base)
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def update_of(adapter: Path, module: str) -> torch.Tensor:
    """(alpha / r) BA in float64, from the adapter's file; of an embedding (tokens, D)."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = f"base_model.model.{module}"
    if f"{name}.lora_embedding_A" in tensors:
        a, b = (tensors[f"{name}.lora_embedding_{x}"].double() for x in "AB")
        return ALPHA / RANK * (b @ a).T
    a, b = (tensors[f"{name}.lora_{x}.weight"].double() for x in "AB")
    return ALPHA / RANK * (b @ a)
