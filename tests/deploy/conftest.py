"""A tiny random Qwen3 with a byte-level tokenizer, and an adapter whose update is not zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from rlkit.training.models import byte_tokenizer, debug_config

ALPHA, RANK = 12, 4


def make_base(folder: Path, seed: int = 0, **changes: object) -> Path:
    torch.manual_seed(seed)
    tokenizer = byte_tokenizer()
    Qwen3ForCausalLM(debug_config(len(tokenizer), **changes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_adapter(base: Path, folder: Path, trained_on: str | None = None) -> Path:
    torch.manual_seed(1)
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0.1,
        target_modules=["q_proj", "v_proj", "k_proj", "o_proj"],
        task_type="CAUSAL_LM",
        init_lora_weights=False,  # B is random too, so that the update is not zero
    )
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    model.peft_config["default"].base_model_name_or_path = trained_on or str(base)
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(scope="session")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(base, tmp_path_factory.mktemp("adapters") / "checkpoint-5")


@pytest.fixture()
def base_maker(tmp_path: Path) -> Callable[..., Path]:
    return lambda name, **changes: make_base(tmp_path / name, **changes)


@pytest.fixture()
def adapter_maker() -> Callable[..., Path]:
    return make_adapter
