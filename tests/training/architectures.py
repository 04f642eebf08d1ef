"""Tiny random models of the architectures that users bring, each under our attention and under
transformers' own (the oracle), with the same weights and the same adapter."""

from __future__ import annotations

import peft
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from rlkit.training import attention
from tests.training.conftest import in_float64

WINDOW = 6  # shorter than every prompt of these tests
SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    initializer_range=0.2,  # logits that differ, so that a wrong token shows
)
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES),
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=WINDOW),
    "phi3": lambda: Phi3Config(**SIZES),  # q, k and v are one matrix
}


def build(name: str, kind: str = attention.NAME, dtype: torch.dtype = torch.float64):
    """A PEFT model with an adapter that moves every tensor; `kind` names the attention."""
    torch.manual_seed(0)
    config = CONFIGS[name]()
    base = AutoModelForCausalLM.from_config(config, attn_implementation=kind)
    modules = [
        part
        for part in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")
        if any(module.endswith(f".{part}") for module, _ in base.named_modules())
    ]
    torch.manual_seed(1)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=modules))
    for parameter_name, parameter in model.named_parameters():
        if "lora_B" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.2)
    if dtype == torch.float64:
        return in_float64(model).eval()
    return model.to(dtype).eval()


def dense_log_probs(model, prompt, tokens, padding=0, side="left", temperature=1.0):
    """(K, C): every action behind its own copy of the prompt, as one padded batch of `padding`
    more columns; transformers masks and counts positions itself."""
    k, c = tokens.shape
    rows = torch.cat([torch.tensor(prompt).expand(k, -1), tokens], dim=1)
    real = torch.ones_like(rows)
    ahead, behind = (padding, 0) if side == "left" else (0, padding)
    rows, real = (torch.nn.functional.pad(x, (ahead, behind)) for x in (rows, real))
    positions = (real.cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=rows,
        attention_mask=real if padding else None,
        position_ids=positions,
        use_cache=False,
    ).logits
    first = ahead + len(prompt) - 1
    logprobs = torch.log_softmax(logits[:, first : first + c] / temperature, dim=-1)
    return logprobs.gather(2, tokens[..., None])[..., 0]
