"""Attention that reads a group's prompt once, however many actions follow it.

Registered with transformers under the name `rlkit`; a model loaded with that name behaves like
any causal model until a call brings a `group`, which says what the tokens of the call are:

- `PromptCache`: the first P - 1 tokens of each prompt. Their keys and values are kept, and the
  pass ends in the last layer where its attention would begin: no more of it is needed.
- `PackedGroup`: one row [prompt, a_1, ..., a_K], or [last prompt token, a_1, ..., a_K] behind a
  `PromptCache`. Each action attends to the prompt and to itself, as if it stood alone behind it.
- `PackedExamples`: one row of examples, each of which attends to itself alone.
- `DecodingCache`: one new token of every row; the prompts' keys and values are kept once a
  prompt, the rows' own ones in buffers that are filled in place.

An action's attention has two parts, on the prompt and on itself. Each is computed by itself, for
the prompt with the queries of all actions at once, and the two are merged by their log-sum-exps
(`flash.merge`); no mask of the whole row is built, and without a sliding window no scores are
kept, on a CPU and, in 16 bits, on CUDA. (A `group` here says what a call's tokens are; a group of
actions is `rollout.Group`.)

Shape letters: B prompts, K actions a prompt, P prompt tokens, C action tokens, T tokens of a row
so far, S keys, H query heads, J key heads, G = H / J query heads a key head, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from rlkit.errors import ModelError
from rlkit.training import flash
from rlkit.training.caches import (
    DecodingCache,
    PackedExamples,
    PackedGroup,
    PromptCache,
    PromptRead,
    score_bias,
)
from rlkit.training.flash import merge

NAME = "rlkit"


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    group: PromptCache | PackedGroup | PackedExamples | DecodingCache | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """transformers' attention interface: (B, H, T, D) queries to (B, T, H, D) outputs."""
    if softcap is not None or kwargs.get("s_aux") is not None:
        raise ModelError(
            "this model's attention has a soft cap (Gemma 2) or sinks (gpt-oss), which rlkit's "
            "does not compute; choose another model."
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if isinstance(group, PackedGroup):
        output = _packed(query, key, value, scale, group, sliding_window, module.layer_idx)
    elif isinstance(group, PackedExamples):
        parts = (x.split(group.lengths, dim=2) for x in (query, key, value))
        each = [_causal(*part, scale, sliding_window) for part in zip(*parts, strict=True)]
        output = torch.cat(each, dim=2)
    elif isinstance(group, DecodingCache):
        output = decode_attention(query, key, value, scale, group, sliding_window, module.layer_idx)
    else:
        if isinstance(group, PromptCache):
            group.layers[module.layer_idx] = (key, value)
            if group.ends_early and module.layer_idx == group.last_layer:
                raise PromptRead
        output = _causal(query, key, value, scale, sliding_window, attention_mask)
    return output.transpose(1, 2).contiguous(), None


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(B, H, T, D) queries on (B, J, S, D) keys: outputs, and log-sum-exps (B, H, T).

    `bias` is added to the scores and broadcast over them. Softmax in float32 at the least. The
    same code with and without gradients: policy and reference agree to the bit at the first step.
    """
    b, heads, t, size = query.shape
    # query heads that share a key head stand in one matrix of G * T rows
    rows = query.reshape(b, key.shape[1], -1, size) * scale
    scores = (rows @ key.transpose(2, 3)).view(b, heads, t, key.shape[2])
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if bias is not None:
        scores = scores + bias
    lse = torch.logsumexp(scores, dim=-1)
    weights = (scores - lse[..., None]).exp().to(value.dtype)
    return (weights.view(rows.shape[:3] + key.shape[2:3]) @ value).view(query.shape), lse


def _decode(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`attend` while actions are sampled: by the CPU's kernel, which knows no gradient."""
    if torch.is_grad_enabled() or not flash.on_cpu(query):
        return attend(query, key, value, scale, bias)
    b, _, t, _ = query.shape
    mask = None if bias is None else bias.expand(b, 1, t, key.shape[2])
    return flash.forward(query, key, value, scale, bias=mask)


def shared_attention(
    query: Tensor,
    prompt_key: Tensor,
    prompt_value: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """(H, K, C, D): the queries of K actions on one prompt (1, J, P, D) and on their own keys
    (K, J, C, D), causal inside an action."""
    heads, k, c, size = query.shape
    p = prompt_key.shape[2]
    hides = window is not None and window < p + c
    if not hides and (flash.on_cpu(query) or flash.on_cuda(query)):
        parts = (query, prompt_key, prompt_value, own_key, own_value)
        return flash.SharedAttention.apply(*parts, scale)
    steps = torch.arange(c, device=query.device)
    distance = steps[:, None] - steps[None, :]  # (C, C)
    own_hidden, bias = distance < 0, None
    if hides:
        own_hidden = own_hidden | (distance >= window)
        back = (p + steps)[:, None] - torch.arange(p, device=query.device)[None, :]  # (C, P)
        bias = score_bias(back >= window, query).repeat(k, 1)[None, None]  # for K * C rows a head
    own_bias = score_bias(own_hidden, query)[None, None].expand(k, 1, c, c)
    output_1, lse_1 = attend(
        query.reshape(1, heads, k * c, size), prompt_key, prompt_value, scale, bias
    )
    output_2, lse_2 = attend(query.transpose(0, 1), own_key, own_value, scale, own_bias)
    return merge(
        output_1.reshape(query.shape),
        lse_1.reshape(heads, k, c),
        output_2.transpose(0, 1),
        lse_2.transpose(0, 1),
    )


def _causal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    mask: Tensor | None = None,
) -> Tensor:
    """Plain causal attention; right padding needs no mask, since nothing real looks right.

    The queries are the last tokens of the keys: all of them, or those behind a user's own cache.
    """
    length, keys = query.shape[2], key.shape[2]
    if mask is None and length == 1:
        start = 0 if window is None else max(0, keys - window)
        key, value = key[:, :, start:], value[:, :, start:]
    elif mask is None and (keys > length or (window is not None and window < keys)):
        position = torch.arange(keys - length, keys, device=query.device)  # of the queries
        distance = position[:, None] - torch.arange(keys, device=query.device)
        mask = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    if mask is None and flash.on_cuda(query):
        return flash.Attention.apply(query, key, value, scale, length > 1)
    return nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        scale=scale,
        is_causal=mask is None and length > 1,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    group: PackedGroup,
    window: int | None,
    layer: int,
) -> Tensor:
    """(1, H, p + K C, D): the prompt's causal attention, then K actions on the shared prompt."""
    p, k, c = group.prompt_length, group.actions, group.length
    heads, key_heads, size = query.shape[1], key.shape[1], query.shape[3]
    prompt_key, prompt_value = key[:, :, :p], value[:, :, :p]
    if group.prefix is not None:
        before_key, before_value = group.prefix.layers[layer]
        prompt_key = torch.cat([before_key, prompt_key], dim=2)
        prompt_value = torch.cat([before_value, prompt_value], dim=2)
    prompt = _causal(query[:, :, :p], prompt_key, prompt_value, scale, window)
    if k * c == 0:
        return prompt
    own = (x[0, :, p:].view(key_heads, k, c, size).transpose(0, 1) for x in (key, value))
    queries = query[0, :, p:].reshape(heads, k, c, size)
    output = shared_attention(queries, prompt_key, prompt_value, *own, scale, window)
    return torch.cat([prompt, output.reshape(1, heads, k * c, size)], dim=2)


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    cache: DecodingCache,
    window: int | None,
    layer: int,
) -> Tensor:
    """(B K, H, 1, D), before the start (B, H, 1, D): one new token a row, on its prompt and on
    its own tokens."""
    if not cache.started:
        prompt_key, prompt_value = cache.join_prompt(layer, key, value)
        bias = cache.prompt_bias(window, query)
        return _decode(query, prompt_key, prompt_value, scale, bias)[0]
    own_key, own_value = cache.append(layer, key, value)
    own_bias = cache.own_bias(query)
    if window is not None:
        own_key, own_value = own_key[:, :, -window:], own_value[:, :, -window:]
    prompt_key, prompt_value = cache.prompt[layer]
    b, key_heads = prompt_key.shape[:2]
    k, heads, size = cache.actions, query.shape[1], query.shape[3]
    g = heads // key_heads
    # (B, J, K G, D): the rows of one prompt that share a key head
    rows = query.view(b, k, key_heads, g, size).transpose(1, 2).reshape(b, key_heads, k * g, size)
    bias = cache.prompt_bias(window, query)
    output_1, lse_1 = _decode(rows, prompt_key, prompt_value, scale, bias)
    output_2, lse_2 = _decode(query, own_key, own_value, scale, own_bias)
    output_1 = output_1.reshape(b, key_heads, k, g, size).transpose(1, 2).reshape(query.shape)
    lse_1 = lse_1.reshape(b, key_heads, k, g).transpose(1, 2).reshape(lse_2.shape)
    return merge(output_1, lse_1, output_2, lse_2)


def padding_mask(attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """transformers' mask interface: a mask only where a caller's batch is padded, as in a plain
    `model(input_ids, attention_mask=...)`; a call with a `group` has none and needs none."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return sdpa_mask(attention_mask=attention_mask, **options)


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, padding_mask)
