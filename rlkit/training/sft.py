"""Supervised fine-tuning of the adapter on examples (state, completion): the warm start.

The loss is the mean negative log-likelihood of the completion's tokens, its end-of-turn token
included, over all tokens of an update; the prompt is read and not learnt. `lora.dropout` is on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rlkit.errors import DataError
from rlkit.files import new_folder, write_json
from rlkit.training.adapters import save_lora_checkpoint
from rlkit.training.gradients import assert_gradients, clip_gradients, trainable
from rlkit.training.logprobs import group_log_probs
from rlkit.training.text import encode_prompt


@dataclass(frozen=True)
class Example:
    """What the policy should have written: token ids of prompt and completion."""

    prompt: list[int]
    completion: list[int]


def encode_examples(
    tokenizer: Any,
    pairs: Sequence[tuple[list[dict[str, str]], str]],
    enable_thinking: bool = False,
) -> list[Example]:
    """(messages, text) pairs as token ids; the end-of-turn token closes every completion."""
    return [
        Example(
            encode_prompt(tokenizer, messages, enable_thinking),
            tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id],
        )
        for messages, text in pairs
    ]


def train_sft(
    model: nn.Module,
    examples: Sequence[Example],
    settings: Any,
    seed: int,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Train in place; returns one row an update: update, loss, tokens, learning_rate, seconds.

    `settings` is the params section `sft`. Raises DataError where there are no examples.
    """
    if not examples:
        raise DataError(
            "there is nothing to warm up on: no recorded action of the train split found a missing "
            "document with words that stand in its state; collect with another policy, or set "
            "model.init_adapter to null."
        )
    parameters = trainable(model)
    optimizer = torch.optim.AdamW(parameters.values(), lr=settings.learning_rate, weight_decay=0.0)
    torch.manual_seed(seed)  # dropout
    rows, batches = [], _batches(len(examples), settings, seed)
    for number, batch in enumerate(batches):
        start = time.perf_counter()
        chosen = [examples[i] for i in batch]
        tokens = sum(len(example.completion) for example in chosen)
        loss = sum(_backward(model, example, tokens) for example in chosen)
        if number == 0:
            assert_gradients(model)
        rate = settings.learning_rate * min(1.0, (number + 1) / max(settings.warmup_steps, 1))
        for group in optimizer.param_groups:
            group["lr"] = rate
        clip_gradients(model, settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        rows.append(
            {
                "update": number + 1,
                "updates": len(batches),
                "loss": loss,
                "tokens": tokens,
                "learning_rate": rate,
                "seconds": time.perf_counter() - start,
            }
        )
        if progress:
            progress(rows[-1])
    model.eval()
    return rows


def save_warm_start(model: nn.Module, rows: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write the adapter and its training curve so that both appear whole."""
    with new_folder(folder) as temporary:
        save_lora_checkpoint(model, temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
        write_json(temporary / "sft_metrics.json", list(rows))
    return folder


def _backward(model: nn.Module, example: Example, tokens: int) -> float:
    """Add one example's gradient, divided by the update's tokens; its share of the loss."""
    model.train()
    device = next(model.parameters()).device
    completion = torch.tensor([example.completion], device=device)
    logprobs, _ = group_log_probs(model, example.prompt, completion)
    loss = -logprobs.sum() / tokens
    loss.backward()
    return float(loss.detach())


def _batches(count: int, settings: Any, seed: int) -> list[list[int]]:
    """Indices of every update; each epoch is a shuffle drawn from (seed, epoch)."""
    limit = min(count, settings.max_samples or count)
    chosen = np.random.default_rng([seed, 0]).permutation(count)[:limit]
    batches: list[list[int]] = []
    for epoch in range(settings.num_epochs):
        order = np.random.default_rng([seed, 1 + epoch]).permutation(limit)
        for start in range(0, limit, settings.batch_size):
            batches.append(chosen[order[start : start + settings.batch_size]].tolist())
    assert len(batches) == settings.num_epochs * math.ceil(limit / settings.batch_size)
    return batches
