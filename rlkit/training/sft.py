"""Supervised fine-tuning on examples (messages, completion): the warm start, of any task.

The loss is the mean negative log-likelihood of the completion's tokens, its end-of-turn token
included, over all tokens of an update; the prompt is read and not learnt. `lora.dropout` is on, and
drawn from (seed, update), so that a run that goes on from a checkpoint (sft_state.py) is bitwise
the run that was not interrupted.
"""

from __future__ import annotations

import math
import shutil
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
from rlkit.training import weights
from rlkit.training.adapters import save_lora_checkpoint
from rlkit.training.gradients import assert_gradients, clip_and_step, loss_scaler, trainable
from rlkit.training.interrupts import interrupt_flag
from rlkit.training.packing import packed_log_probs, packed_rows
from rlkit.training.prefix import longest_text
from rlkit.training.sft_best import BestAdapter, best_folder, is_over
from rlkit.training.sft_state import SftState, begun_with
from rlkit.training.text import encode_prompt

LOGGED = ("loss", "learning_rate", "grad_norm")  # of an update, by its monitor


@dataclass(frozen=True)
class Example:
    """What the policy should have written: token ids of prompt and completion, and whose."""

    prompt: list[int]
    completion: list[int]
    name: str = ""


def encode_examples(
    tokenizer: Any,
    pairs: Sequence[tuple[list[dict[str, str]], str]],
    enable_thinking: bool = False,
    names: Sequence[str] = (),
) -> list[Example]:
    """(messages, text) pairs as token ids; the end-of-turn token closes every completion. `names`
    (of rows or states; else their numbers) are for sentences about one of them."""
    names = names or [str(number) for number in range(1, len(pairs) + 1)]
    return [
        Example(
            encode_prompt(tokenizer, messages, enable_thinking),
            tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id],
            name,
        )
        for (messages, text), name in zip(pairs, names, strict=True)
    ]


def train_sft(
    model: nn.Module,
    examples: Sequence[Example],
    settings: Any,
    seed: int,
    *,
    checkpoints: Path | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    monitor: Callable[[int], Any] | None = None,
    evaluate: Callable[[], dict[str, Any]] | None = None,
    best: str = "reward",
    log: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Train in place; returns one row an update: update, updates, loss, tokens, learning_rate,
    grad_norm (None where a loss that is scaled, of a float16 base, overflowed and nothing moved),
    seconds, cpu_seconds (of the processor).

    `settings` is the params section `sft`. With a folder `checkpoints`, the state is saved there
    every `save_every_n_updates` updates, and training goes on from what is there.
    `monitor` makes a Monitor, given how many updates are done. The first
    interrupt ends it after the update that is under way, which is saved; a second one at once.
    `evaluate` is called every `evaluate_every_n_updates` updates and after the last one; what it
    measures stands in the row as `eval/...`, training ends as `sft_best.is_over` says, and the
    model is left as it was where the metric `best` was highest.

    Raises DataError where there are no examples, or one that is used is longer than the model can
    read, RunError where other ones, or other settings,
    were begun with, and KeyboardInterrupt after an interrupt.
    """
    if not examples:
        raise DataError(
            "there is nothing to learn from: the task gives no examples of its train split; give "
            "other data, or set model.init_adapter to null."
        )
    weights.warn_of_rate(model, "sft.learning_rate", settings.learning_rate, log)
    batches = _batches(len(examples), settings, seed)
    _check_lengths(model, [examples[i] for i in sorted({i for batch in batches for i in batch})])
    weights.begin_training(model, reference=False)
    parameters = list(trainable(model).values())
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=0.0)
    scaler = loss_scaler(model)
    begun = begun_with(examples, settings, seed)
    state = SftState(checkpoints, model, optimizer, begun, log, scaler)
    rows = state.restore()
    board = monitor(len(rows)) if monitor else None
    kept = BestAdapter(checkpoints, model, best, evaluate, settings)
    try:
        with interrupt_flag(log, "update") as interrupted:
            for number in range(len(rows), len(batches)):
                if is_over(rows, settings, best):
                    break
                chosen = [examples[i] for i in batches[number]]
                row = _update(model, optimizer, scaler, chosen, settings, seed, number)
                if row["grad_norm"] is None:
                    log(f"the gradients overflowed: scaled by {scaler.get_scale():g} now")
                rows.append({"update": number + 1, "updates": len(batches), **row})
                last = number + 1 == len(batches) or is_over(rows, settings, best)
                evaluated = kept.evaluated(rows, last)
                if board:
                    board.log({"step": number + 1} | {f"sft/{name}": row[name] for name in LOGGED})
                if progress:
                    progress(rows[-1])
                due = (number + 1) % settings.save_every_n_updates == 0 or evaluated
                if interrupted.is_set() or (due and number + 1 < len(batches)):
                    state.save(rows)
                if interrupted.is_set():
                    log(f"stopped after update {number + 1} of {len(batches)}")
                    raise KeyboardInterrupt
        kept.put_back(rows, log)
    finally:
        model.eval()
        if board:
            board.close()
    return rows


def save_warm_start(model: nn.Module, rows: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write the adapter (the model, where all weights are trained) and its training curve so that
    both appear whole; the checkpoints beside it, which have served, are removed."""
    with new_folder(folder) as temporary:
        save_lora_checkpoint(model, temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
        write_json(temporary / "sft_metrics.json", list(rows))
    remove_checkpoints(folder)
    return folder


def checkpoints_of(folder: Path) -> Path:
    """Where the warm start that will stand in `folder` keeps its state until it does."""
    return folder.with_name("checkpoint")


def remove_checkpoints(folder: Path) -> None:
    """Of a warm start that is written: its process may have been killed before it could."""
    checkpoints = checkpoints_of(folder)
    for path in (checkpoints, best_folder(checkpoints)):
        shutil.rmtree(path, ignore_errors=True)


def _update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    examples: Sequence[Example],
    settings: Any,
    seed: int,
    number: int,
) -> dict[str, Any]:
    """One update, whose number counts from 0; its loss, tokens, rate, norm and seconds."""
    start, cpu = time.perf_counter(), time.process_time()
    tokens = sum(len(example.completion) for example in examples)
    torch.manual_seed(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))  # dropout
    model.train()
    packs = settings.packing == "auto"
    parts = packed_rows(examples) if packs else [[example] for example in examples]
    loss = sum(_backward(model, scaler, part, tokens) for part in parts)
    if number == 0:
        assert_gradients(model, finite=not scaler.is_enabled())
    rate = settings.learning_rate * min(1.0, (number + 1) / max(settings.warmup_steps, 1))
    for group in optimizer.param_groups:
        group["lr"] = rate
    norm = clip_and_step(model, optimizer, scaler, settings.max_grad_norm)
    optimizer.zero_grad(set_to_none=True)
    figures = {"loss": loss, "tokens": tokens, "learning_rate": rate, "grad_norm": norm}
    spent = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    return {**figures, **spent}


def _backward(
    model: nn.Module, scaler: torch.amp.GradScaler, examples: Sequence[Example], tokens: int
) -> float:
    """Add the (scaled) gradient of one row, divided by the update's tokens; its share of the
    loss."""
    loss = -packed_log_probs(model, examples).sum() / tokens
    scaler.scale(loss).backward()
    return float(loss.detach())


def _check_lengths(model: nn.Module, examples: Sequence[Example]) -> None:
    limit = longest_text(model.config)
    long = [e for e in examples if limit and len(e.prompt) + len(e.completion) > limit]
    if long:
        first = long[0]
        raise DataError(
            f"{len(long)} of {len(examples)} examples do not fit into the {limit} tokens that the "
            f"model can read, first {first.name!r} with a prompt of {len(first.prompt)} tokens "
            f"and a completion of {len(first.completion)}; take such rows out of the data (search: "
            "lower executor.max_prompt_tokens), or give a model that reads more."
        )


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
