"""Log-probabilities of a group's actions, in one pass that reads the prompt once.

The prompt is read once (prefix.read_prompts), and the actions pass behind it in one packed row
(attention.PackedGroup). Only the positions that predict action tokens reach the LM head, in
chunks, so that N x C x V floats never stand in memory at once. Temperature divides the logits
before the softmax.

Shape letters: K actions, P prompt tokens, C action tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlkit.errors import ModelError
from rlkit.training import sharding
from rlkit.training.caches import PackedGroup, PromptCache
from rlkit.training.prefix import check_length, decoder_and_head, read_prompts, shares_graphs

MAX_LOGITS = 2**20  # floats of one chunk of logits (4 MiB in fp32) ...
LEAST_ROWS = 128  # ... but never fewer positions than a matrix product needs to be fast


def group_log_probs(
    model: nn.Module,
    prompt: Sequence[int],
    tokens: Tensor,
    *,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    max_logits: int | None = None,
    prefix: PromptCache | None = None,
) -> tuple[Tensor, Tensor]:
    """(K, C) log-probabilities and (K, C) entropies (nats, no gradient) of a group's actions.

    `prompt` has P ids, `tokens` (K, C) ids, `mask` (K, C) bool the tokens to score (all by
    default); the others are not computed and stand as 0. `prefix` is what `read_prompts` made of
    this prompt under the same weights, where that is there already.
    """
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    _, head = decoder_and_head(model)
    hidden = _hidden_states(model, prompt, tokens, prefix)  # (K, C, D)
    head = sharding.whole_head(head)
    logprobs, entropies = score_positions(head, hidden[mask], tokens[mask], temperature, max_logits)
    empty = logprobs.new_zeros(tokens.shape)
    return empty.masked_scatter(mask, logprobs), empty.masked_scatter(mask, entropies)


@torch.no_grad()
def check_sharing(model: nn.Module) -> None:
    """Raise ModelError where actions behind a shared prompt are not what they are alone: recurrent
    layers beside attention, scaled logits, and whatever else the engine does not know of.

    The two differ by rounding: below 1e-4 nat in float32, on average below 0.1 in 16 bits.
    """
    decoder, head = decoder_and_head(model)
    ids = torch.arange(9, device=sharding.computes_on(model)) * 7 % head.weight.shape[0]
    prompt, tokens = ids[:6].tolist(), torch.stack([ids[6:], ids[:3]])
    shared, _ = group_log_probs(model, prompt, tokens)
    rows = torch.cat([ids[:6].expand(2, -1), tokens], dim=1)
    if sharding.of(model) is None:
        logits = model(input_ids=rows, use_cache=False).logits
    else:
        logits = sharding.whole_head(head)(decoder(rows, use_cache=False).last_hidden_state)
    logits = logits[:, 5:-1].float()
    alone = torch.log_softmax(logits, -1).gather(2, tokens[..., None])[..., 0]
    difference = float((shared.float() - alone).abs().mean())
    bound = 0.01 if next(model.parameters()).dtype == torch.float32 else 0.5
    if not difference < bound:
        raise ModelError(
            f"{type(model).__name__} gives actions behind a shared prompt other log-probabilities "
            f"than alone (by {difference:.2g} nat on average), so it cannot be trained here; "
            "choose another model."
        )


def _chunk_size(vocabulary: int) -> int:
    return max(MAX_LOGITS, LEAST_ROWS * vocabulary)


def score_positions(
    head: nn.Module,
    hidden: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    max_logits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`score_tokens` of any number of positions, (M, D) and (M,), in chunks."""
    size = max(1, (max_logits or _chunk_size(head.out_features)) // head.out_features)
    parts = [
        score_tokens(head, hidden[i : i + size], targets[i : i + size], temperature)
        for i in range(0, max(len(hidden), 1), size)
    ]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def score_tokens(
    head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """(M,) log-probabilities and entropies (no gradient) of M positions: (M, D) and (M,).

    No (M, V) tensor outlives the call, in the graph either.
    """
    frozen = type(head) is nn.Linear and head.bias is None and not head.weight.requires_grad
    if frozen:
        return _TokenScore.apply(hidden, head.weight, targets, temperature)
    if torch.is_grad_enabled():
        return checkpoint(_score, head, hidden, targets, temperature, use_reentrant=False)
    return _score(head, hidden, targets, temperature)


class _TokenScore(torch.autograd.Function):
    """log softmax(h W^T / T) at the targets, whose gradient is found together with the value.

    d logp / d h = -sum_v (p_v - [v = target]) W[v] / T does not depend on what comes behind, so
    (M, D) of it are kept and the (M, V) logits are not; backward computes no logits again.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature):
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        logits = (hidden @ weight.t()).to(dtype).div_(temperature)  # (M, V)
        highest = logits.amax(dim=-1, keepdim=True)
        exp = (logits - highest).exp_()
        total = exp.sum(dim=-1, keepdim=True)
        lse = highest + total.log()
        logprobs = (logits.gather(1, targets[:, None]) - lse)[:, 0]
        entropy = (lse - logits.mul_(exp).sum(dim=-1, keepdim=True) / total)[:, 0]
        if ctx.needs_input_grad[0]:  # p - onehot is exact before rounding, also where p is near 1
            exp.div_(total).scatter_add_(1, targets[:, None], -torch.ones_like(lse))
            ctx.save_for_backward((exp.to(weight.dtype) @ weight).div_(-temperature))  # (M, D)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, gradient, _):
        (slope,) = ctx.saved_tensors
        return (gradient[:, None] * slope).to(slope.dtype), None, None, None


def _hidden_states(
    model: nn.Module, prompt: Sequence[int], tokens: Tensor, prefix: PromptCache | None
) -> Tensor:
    """(K, C, D): the state that predicts each action token, the prompt computed once.

    The prompt's last token and the actions pass behind the prompt's prefix. With gradient
    checkpointing, which would compute a layer's keys and values anew, all is one row instead, and
    so it is where the model is divided.
    """
    k, c = tokens.shape
    check_length(model, len(prompt), c)
    if c == 0:
        weight = decoder_and_head(model)[1].weight
        return weight.new_zeros(k, 0, weight.shape[1])
    device = tokens.device
    decoder, _ = decoder_and_head(model)
    if shares_graphs(model):
        prefix = prefix or read_prompts(model, [prompt])
    start = prefix.length if prefix else 0
    group = PackedGroup(len(prompt) - start, k, c - 1, prefix)
    ids = torch.cat([torch.tensor(list(prompt[start:]), device=device), tokens[:, :-1].flatten()])
    hidden = decoder(
        input_ids=ids[None],
        position_ids=group.position_ids(device),
        use_cache=False,
        group=group,
    ).last_hidden_state[0]  # (p + K (C - 1), D), p prompt tokens in the row
    p = group.prompt_length
    first = hidden[p - 1].expand(k, 1, -1)
    return torch.cat([first, hidden[p:].view(k, c - 1, hidden.shape[-1])], dim=1)


def _score(
    head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """`score_tokens` for a head that is trained, or is more than a matrix."""
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature  # (M, V)
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


def get_token_log_probs(
    model: nn.Module, input_ids: Tensor, tokenizer: Any, *, temperature: float = 1.0
) -> Tensor:
    """(N, T - 1) log-probabilities of tokens 1..T-1 of each row; 0 at padding. The dense way.

    `input_ids` is (N, T), padded left or right with the tokenizer's padding token. This is the
    oracle that tests hold the packed pass against: each row is computed by itself, unpadded, so
    padding and company change nothing.
    """
    result = torch.zeros(input_ids.shape[0], input_ids.shape[1] - 1, device=input_ids.device)
    rows = []
    ends_too = tokenizer.pad_token_id == getattr(tokenizer, "eos_token_id", None)
    for ids in input_ids:
        real = _real_span(ids, tokenizer.pad_token_id, ends_too)
        logits = model(input_ids=ids[real][None], use_cache=False).logits[0, :-1]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        logprobs = torch.log_softmax(wide, -1).gather(1, ids[real][1:, None])[:, 0]
        rows.append(nn.functional.pad(logprobs, (real.start, len(ids) - real.stop)))
    return torch.stack(rows) if rows else result


def _real_span(ids: Tensor, pad: int, ends_too: bool) -> slice:
    """The part of a row between left and right padding. Where padding is also the end token (as
    in SmolLM2), the first one behind the text is taken for its end."""
    real = (ids != pad).nonzero()[:, 0]
    if len(real) == 0:
        return slice(0, len(ids))
    stop = int(real[-1]) + 1 + ends_too
    return slice(int(real[0]), min(stop, len(ids)))


def compute_sequence_log_prob(log_probs: Tensor, token_ids: Tensor) -> Tensor:
    """(N,) log-probability of whole sequences: (N, C, V) or (N, C) log-probabilities summed.

    With (N, C, V) the entries of `token_ids` (N, C) are taken first; negative ids are padding and
    add nothing.
    """
    if log_probs.dim() == 3:
        log_probs = log_probs.gather(2, token_ids.clamp(min=0)[..., None])[..., 0]
    return log_probs.masked_fill(token_ids < 0, 0.0).sum(dim=-1)
