"""Attention that reads a group's prompt once, however many actions follow it.

Registered with transformers under the name `rlkit`; a model loaded with that name behaves like
any causal model until a call brings a `group`:

- `PackedGroup`: one sequence [prompt, a_1, ..., a_K] in one row. The prompt attends to itself;
  each action attends to the prompt and to itself, as if it stood alone behind the prompt. No
  P x K dense mask is built: prompt keys and own keys are scored apart and share one softmax.
- `DecodingCache`: one new token for each of B * K rows; the prompts' keys and values are kept
  once a prompt, the rows' own ones in buffers that are filled in place.

Shape letters: B prompts, K actions a prompt, P prompt tokens, C action tokens, T tokens of a row
so far, H query heads, J key heads, G = H / J query heads a key head, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "rlkit"


@dataclass(frozen=True)
class PackedGroup:
    """The layout of one packed row: `prompt_length` P, then `actions` K times `length` tokens."""

    prompt_length: int
    actions: int
    length: int

    def position_ids(self, device: torch.device) -> Tensor:
        """(1, P + K * length): every action begins at position P."""
        prompt = torch.arange(self.prompt_length, device=device)
        action = torch.arange(self.length, device=device) + self.prompt_length
        return torch.cat([prompt, action.repeat(self.actions)])[None]


@dataclass
class DecodingCache:
    """Keys and values of B right-padded prompts, and of the K rows that grow behind each.

    The first pass (B rows, P tokens) fills the prompt part; every later pass (B * K rows, one
    token) writes its keys at `self.length` of the rows' buffers and copies nothing.
    """

    prompt_lengths: Tensor  # (B,)
    actions: int
    max_length: int
    prompt: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # (B, J, P, D)
    own: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # (B * K, J, C, D)
    length: int = 0
    padded: bool = False

    def __post_init__(self) -> None:
        self.padded = bool((self.prompt_lengths != self.prompt_lengths.max()).any())

    def update(self, key: Tensor, value: Tensor, layer: int, *args, **kwargs):
        """Store what a layer computed (the interface of transformers' caches)."""
        if layer not in self.prompt:
            self.prompt[layer] = (key, value)
            return key, value
        if layer not in self.own:
            shape = (key.shape[0], key.shape[1], self.max_length, key.shape[3])
            self.own[layer] = (key.new_empty(shape), value.new_empty(shape))
        keys, values = self.own[layer]
        keys[:, :, self.length] = key[:, :, 0]
        values[:, :, self.length] = value[:, :, 0]
        return keys[:, :, : self.length + 1], values[:, :, : self.length + 1]

    def get_seq_length(self, layer: int = 0) -> int:
        return int(self.prompt_lengths.max()) + self.length if self.prompt else 0

    def position_ids(self) -> Tensor:
        """(B * K, 1): the position of the next token of every row."""
        return (self.prompt_lengths + self.length).repeat_interleave(self.actions)[:, None]


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    group: PackedGroup | DecodingCache | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """transformers' attention interface: (B, H, T, D) queries to (B, T, H, D) outputs."""
    if softcap is not None:
        raise ValueError("attention scores with a soft cap (Gemma 2) are not supported")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if isinstance(group, PackedGroup):
        output = _packed(query, key, value, scale, group, sliding_window)
    elif isinstance(group, DecodingCache) and query.shape[2] == 1 and group.own:
        prompt = group.prompt[module.layer_idx]
        output = _decode(query, key, value, scale, group, prompt, sliding_window)
    else:
        output = _causal(query, key, value, scale, sliding_window, attention_mask)
    return output.transpose(1, 2).contiguous(), None


def _causal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    mask: Tensor | None = None,
) -> Tensor:
    """Plain causal attention; right padding needs no mask, since nothing real looks right."""
    length = query.shape[2]
    if mask is None and window is not None and window < length:
        steps = torch.arange(length, device=query.device)
        distance = steps[:, None] - steps[None, :]
        mask = (distance >= 0) & (distance < window)
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
) -> Tensor:
    """(1, H, P + K C, D): the prompt's causal attention, then K actions on the shared prompt."""
    p = group.prompt_length
    prompt = _causal(query[:, :, :p], key[:, :, :p], value[:, :, :p], scale, window)
    if group.actions * group.length == 0:
        return prompt
    k, c = group.actions, group.length
    heads, key_heads, size = query.shape[1], key.shape[1], query.shape[3]
    g = heads // key_heads
    # The queries of all actions that share a key head stand in one matrix: G * K * C rows.
    q = query[0, :, p:].reshape(key_heads, g, k, c, size) * scale
    own_key = key[0, :, p:].reshape(key_heads, 1, k, c, size)
    own_value = value[0, :, p:].reshape(key_heads, 1, k, c, size)
    at_prompt = q.reshape(key_heads, g * k * c, size) @ key[0, :, :p].transpose(1, 2)
    at_prompt = at_prompt.view(key_heads, g, k, c, p)
    at_own = q @ own_key.transpose(3, 4)  # (J, G, K, C, C)
    at_prompt, at_own = _mask_group(at_prompt, at_own, window)
    weights = _softmax(torch.cat([at_prompt, at_own], dim=-1)).to(value.dtype)
    from_prompt = weights[..., :p].reshape(key_heads, g * k * c, p) @ value[0, :, :p]
    output = from_prompt.view(key_heads, g, k, c, size) + weights[..., p:] @ own_value
    return torch.cat([prompt, output.reshape(1, heads, k * c, size)], dim=2)


def _softmax(scores: Tensor) -> Tensor:
    """In float32 at the least, whatever the model's dtype."""
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _mask_group(at_prompt: Tensor, at_own: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """Causal inside an action; with a sliding window also a limit on how far back it looks."""
    c, p = at_own.shape[-1], at_prompt.shape[-1]
    steps = torch.arange(c, device=at_own.device)
    distance = steps[:, None] - steps[None, :]  # (C, C)
    hidden = distance < 0
    if window is not None and window < p + c:
        hidden = hidden | (distance >= window)
        back = (p + steps)[:, None] - torch.arange(p, device=at_own.device)[None, :]  # (C, P)
        at_prompt = at_prompt.masked_fill(back >= window, float("-inf"))
    return at_prompt, at_own.masked_fill(hidden, float("-inf"))


def _decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    cache: DecodingCache,
    prompt: tuple[Tensor, Tensor],
    window: int | None,
) -> Tensor:
    """(B K, H, 1, D): one new token a row, on its prompt and on its own T tokens."""
    prompt_key, prompt_value = prompt
    b, key_heads, p, size = prompt_key.shape
    k, heads = cache.actions, query.shape[1]
    g = heads // key_heads
    q = query.view(b, k, key_heads, g, size) * scale
    shared = q.transpose(1, 2).reshape(b, key_heads, k * g, size)
    at_prompt = shared @ prompt_key.transpose(2, 3)  # (B, J, K G, P)
    hidden = _hidden_prompt(cache, p, window)
    if hidden is not None:
        at_prompt = at_prompt.masked_fill(hidden[:, None, None], float("-inf"))
    rows = q.reshape(b * k, key_heads, g, size)
    at_own = rows @ key.transpose(2, 3)  # (B K, J, G, T)
    if window is not None and window < at_own.shape[-1]:
        at_own[..., : at_own.shape[-1] - window] = float("-inf")
    t = at_own.shape[-1]
    own_first = at_own.view(b, k, key_heads, g, t).transpose(1, 2).reshape(b, key_heads, k * g, t)
    weights = _softmax(torch.cat([at_prompt, own_first], dim=-1)).to(value.dtype)
    output = (weights[..., :p] @ prompt_value).view(b, key_heads, k, g, size).transpose(1, 2)
    own = weights[..., p:].view(b, key_heads, k, g, t).transpose(1, 2)
    output = output.reshape(b * k, key_heads, g, size) + own.reshape(b * k, key_heads, g, t) @ value
    return output.reshape(b * k, heads, 1, size)


def _hidden_prompt(cache: DecodingCache, p: int, window: int | None) -> Tensor | None:
    """(B, P) True where a prompt position is padding, or further back than the window."""
    if not cache.padded and (window is None or window > p + cache.length):
        return None
    steps = torch.arange(p, device=cache.prompt_lengths.device)[None]
    lengths = cache.prompt_lengths[:, None]
    hidden = steps >= lengths
    if window is not None:
        hidden = hidden | (lengths + cache.length - steps >= window)
    return hidden


AttentionInterface.register(NAME, attention_forward)
