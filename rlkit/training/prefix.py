"""Reading prompts once: the keys and values that everything behind a prompt attends to.

Only a prompt's last token predicts anything, so the others are read for their keys and values
alone, and the last layer ends where its attention would begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import nn

from rlkit.errors import ModelError
from rlkit.training import sharding
from rlkit.training.caches import PromptCache, PromptRead
from rlkit.training.models import resolve_base_model


def decoder_and_head(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The layers without the LM head, and the head, of a plain or a PEFT model."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base.get_decoder(), base.get_output_embeddings()


def shares_graphs(model: nn.Module) -> bool:
    """Whether a policy pass can go on from the graph of a prompt's own pass: not with gradient
    checkpointing, which keeps none, nor where every pass is called and undone in lock step."""
    decoder, _ = decoder_and_head(model)
    return not decoder.is_activation_checkpointing and sharding.of(model) is None


def check_length(model: nn.Module, prompt: int, action: int) -> None:
    """Raise ModelError where prompt and action have more tokens than the model has positions."""
    limit, steady = _limits(model.config)
    if limit and prompt + action > limit:
        raise ModelError(
            f"a prompt of {prompt} tokens and an action of up to {action} do not fit into the "
            f"{limit} tokens that the model can read; lower executor.max_prompt_tokens or "
            "grpo.max_new_tokens."
        )
    if steady and prompt + action > steady:
        raise ModelError(
            f"this model changes its rotary positions beyond {steady} tokens (longrope), and "
            f"prompt and action have up to {prompt + action}; lower executor.max_prompt_tokens or "
            "grpo.max_new_tokens."
        )


def longest_text(config: Any) -> int | None:
    """The tokens of prompt and action together that a model with this (transformers) config may
    be given; None where it names no limit."""
    return min(filter(None, _limits(config)), default=None)


def longest_text_of(base_path: str, *, trust_remote_code: bool = False) -> int | None:
    """`longest_text` of a base model that is not loaded. Raises ModelError without a config."""
    try:
        config = transformers.AutoConfig.from_pretrained(
            resolve_base_model(base_path), trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the model {base_path!r} has no config that can be read ({type(error).__name__}); "
            "check model.base_model_path."
        ) from error
    return longest_text(config)


def _limits(config: Any) -> tuple[int | None, int | None]:
    """The model's positions; and those beyond which rotations would differ between a prompt and
    what stands behind it: with `longrope` they depend on the longest position of a call."""
    config = config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return positions, None
    steady = rope.get("original_max_position_embeddings")
    return positions, steady or getattr(config, "original_max_position_embeddings", None)


def read_prompts(model: nn.Module, prompts: Sequence[Sequence[int]]) -> PromptCache | None:
    """Read all but the last token of B prompts; None where no prompt has more than one.

    With gradients enabled, the cache carries the graph of the pass that made it.
    """
    length = max(len(prompt) for prompt in prompts) - 1
    if length == 0:
        return None
    device = sharding.computes_on(model)
    ids = torch.zeros(len(prompts), length, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt) - 1] = torch.tensor(list(prompt[:-1]), device=device)
    decoder, _ = decoder_and_head(model)
    cache = PromptCache(model.config.get_text_config().num_hidden_layers - 1, length)
    cache.ends_early = sharding.of(model) is None
    positions = torch.arange(length, device=device)[None].expand_as(ids)
    try:
        decoder(input_ids=ids, position_ids=positions, use_cache=False, group=cache)
    except PromptRead:
        pass
    if len(cache.layers) != cache.last_layer + 1:
        raise ModelError(
            f"not every layer of {type(decoder).__name__} is attention that passes through "
            "rlkit's (hybrid and recurrent models are not supported), so a prompt cannot be "
            "shared; choose another model, loaded by rlkit.training.policy.load_model_with_lora."
        )
    return cache
