"""What two models make of the same prompts: logits position by position, and greedy texts.

Shapes: P prompt tokens, C completion tokens, T positions compared, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn

from rlkit.training.text import encode_prompt, end_ids

Prompt = str | list[dict[str, str]]  # plain text, or chat messages
POSITIONS = 64  # compared in each text, from its end: all of a vocabulary is kept for each
NEW_TOKENS = 32  # of each greedy completion
PROMPTS = {
    "built-in 1": "Question: Which river flows through the city where the composer was born?\n",
    "built-in 2": "<search_clues><clue>founder of the harbour company</clue><clue>born in 1872",
    "built-in 3": "问题：这部小说的作者出生在哪座城市？\n",
}
_CHUNK = 16  # positions whose distributions are in memory in float64


@dataclass(frozen=True)
class Difference:
    """How far one model's logits are from another's, over all positions compared."""

    max_difference: float  # largest absolute difference of a logit
    mean_difference: float
    top1_agreement: float  # share of positions with the same most likely next token
    kl: float  # nats a position, KL(first model || second model), averaged
    positions: int


def encode(
    tokenizer: transformers.PreTrainedTokenizerBase,
    prompts: Mapping[str, Prompt],
    enable_thinking: bool = False,
) -> dict[str, Tensor]:
    """Each prompt's ids (1, P): plain text as it is, messages by the chat template."""
    return {
        name: tokenizer(prompt, return_tensors="pt")["input_ids"]
        if isinstance(prompt, str)
        else torch.tensor([encode_prompt(tokenizer, prompt, enable_thinking)])
        for name, prompt in prompts.items()
    }


def greedy(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    prompts: Sequence[Tensor],
) -> list[list[int]]:
    """Greedy completions, at most NEW_TOKENS each, by transformers' own `generate`."""
    ends = list(end_ids(model, tokenizer))
    config = transformers.GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        temperature=1.0,
        top_p=1.0,
        top_k=50,
        repetition_penalty=1.0,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0],
    )
    found = []
    for ids in prompts:
        whole = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config
        )
        found.append(whole[0, ids.shape[1] :].tolist())
    return found


def joined(prompts: Sequence[Tensor], completions: Sequence[Sequence[int]]) -> list[Tensor]:
    """Prompt and completion as one text each, (1, P + C)."""
    pairs = zip(prompts, completions, strict=True)
    return [torch.cat([ids, torch.tensor([list(new)], dtype=ids.dtype)], 1) for ids, new in pairs]


@torch.no_grad()
def last_logits(model: nn.Module, texts: Sequence[Tensor]) -> list[Tensor]:
    """For each text the logits (T, V) of its last positions, at most POSITIONS."""
    takes = "logits_to_keep" in inspect.signature(model.forward).parameters
    options = {"logits_to_keep": POSITIONS} if takes else {}
    return [
        model(input_ids=ids, use_cache=False, **options).logits[0, -POSITIONS:].clone()
        for ids in texts
    ]


def compare(first: Sequence[Tensor], second: Sequence[Tensor]) -> Difference:
    """Logits of two models for the same texts, in float64; NaN where one of them is not finite."""
    largest = summed = agreed = kl = 0.0
    positions = values = 0
    for whole_a, whole_b in zip(first, second, strict=True):
        for a, b in zip(whole_a.split(_CHUNK), whole_b.split(_CHUNK), strict=True):
            a, b = a.double(), b.double()
            gap = (a - b).abs()
            largest = max(largest, float(gap.max())) if gap.isfinite().all() else float("nan")
            summed += float(gap.sum())
            agreed += float((a.argmax(-1) == b.argmax(-1)).sum())
            log_p, log_q = a.log_softmax(-1), b.log_softmax(-1)
            kl += float((log_p.exp() * (log_p - log_q)).sum())
            positions, values = positions + len(a), values + a.numel()
            if largest != largest:
                return Difference(largest, largest, 0.0, largest, positions)
    return Difference(largest, summed / values, agreed / positions, max(kl, 0.0) / positions,
                      positions)  # fmt: skip


def largest_logit(logits: Sequence[Tensor]) -> float:
    return max(float(x.abs().max()) for x in logits)
