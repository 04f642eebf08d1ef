"""PyTorch's flash attention together with the log-sum-exps of its scores, and nothing kept of the
scores: on a CPU, and on CUDA in 16 bits.

`scaled_dot_product_attention` keeps the log-sum-exps to itself. Whoever computes attention in two
parts needs them to merge the parts (`merge`), and gives the merged ones to each part's backward
pass. On CUDA the backward pass takes PyTorch's deterministic variant, so that a run can be repeated
bit for bit.

Shape letters as in attention.py; (B, H, T, D) queries on (B, J, S, D) keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_CUDA = torch.ops.aten._scaled_dot_product_flash_attention
_CUDA_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward


def on_cpu(query: Tensor) -> bool:
    return query.device.type == "cpu"


def on_cuda(query: Tensor) -> bool:
    """Whether CUDA's kernel takes such queries: 16 bits, Ampere or newer, heads of up to 256."""
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    causal: bool = False,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs, and log-sum-exps (B, H, T) in float32 at the least. Causal only where S = T; `bias`
    (on a CPU alone) is added to the scores."""
    if on_cpu(query):
        return _CPU(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)
    return _CUDA(query, key, value, 0.0, causal, False, scale=scale)[:2]


def backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value. `output` and `lse` may be those of a larger set of keys:
    with P = exp(S - l), dS = P * (dO V^T - rowsum(dO * O)) holds for any subset of them
    (FlashAttention-2, arXiv:2307.08691, algorithm 2)."""
    given = (gradient, query, key, value, output, lse.contiguous())
    if on_cpu(query):  # in 16 bits its backward pass takes up to ten times as long as in float32
        wide = (x.float() if x.element_size() < 4 else x for x in given)
        to_each = _CPU_BACKWARD(*wide, 0.0, causal, scale=scale)
        return tuple(x.to(query.dtype) for x in to_each)
    lengths = query.shape[2], key.shape[2]
    no_dropout = torch.zeros(2, dtype=torch.int64, device=query.device)  # seed, offset: unread
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return _CUDA_BACKWARD(
            *given, None, None, *lengths, 0.0, causal, no_dropout, no_dropout[1], scale=scale
        )
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def merge(output_1: Tensor, lse_1: Tensor, output_2: Tensor, lse_2: Tensor) -> Tensor:
    """Attention on the union of two key sets: sum_i exp(l_i - l) o_i with l = log sum_i exp(l_i).

    The weight of the first is the logistic function of l_1 - l_2.
    """
    weight = torch.sigmoid(lse_1 - lse_2)[..., None].to(output_1.dtype)
    return output_2 + weight * (output_1 - output_2)


class Attention(torch.autograd.Function):
    """Attention on one set of keys."""

    @staticmethod
    def forward(ctx: Any, query, key, value, scale: float, causal: bool) -> Tensor:
        output, lse = forward(query, key, value, scale, causal)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.scale, ctx.causal = scale, causal
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *backward(gradient, *ctx.saved_tensors, ctx.scale, ctx.causal), None, None


class SharedAttention(torch.autograd.Function):
    """`attention.shared_attention`: (H, K, C, D) queries of K actions, on one prompt (1, J, P, D)
    and on their own keys (K, J, C, D). Each part's backward pass is given the merged output and
    the merged log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, query, prompt_key, prompt_value, own_key, own_value, scale: float):
        heads, k, c, size = query.shape
        rows = query.reshape(1, prompt_key.shape[1], -1, size)
        by_action = query.transpose(0, 1)  # (K, H, C, D)
        output_1, lse_1 = forward(rows, prompt_key, prompt_value, scale)
        output_2, lse_2 = forward(by_action, own_key, own_value, scale, causal=True)
        lse_1, lse_2 = lse_1.reshape(heads, k, c), lse_2.transpose(0, 1)
        output = merge(output_1.reshape(query.shape), lse_1, output_2.transpose(0, 1), lse_2)
        lse = torch.logaddexp(lse_1, lse_2)
        ctx.save_for_backward(query, prompt_key, prompt_value, own_key, own_value, output, lse)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, prompt_key, prompt_value, own_key, own_value, output, lse = ctx.saved_tensors
        shape = (1, prompt_key.shape[1], -1, query.shape[3])
        rows_1, *to_prompt = backward(
            gradient.reshape(shape),
            query.reshape(shape),
            prompt_key,
            prompt_value,
            output.reshape(shape),
            lse.reshape(shape[:3]),
            ctx.scale,
        )
        by_action, *to_own = backward(
            gradient.transpose(0, 1),
            query.transpose(0, 1),
            own_key,
            own_value,
            output.transpose(0, 1),
            lse.transpose(0, 1),
            ctx.scale,
            causal=True,
        )
        to_query = rows_1.reshape(query.shape) + by_action.transpose(0, 1)
        return to_query, *to_prompt, *to_own, None
