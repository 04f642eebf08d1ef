"""4-bit layers of bitsandbytes on a CPU, made to compute what they hold."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from bitsandbytes.nn import Linear4bit


def mend_four_bit(model: nn.Module) -> None:
    """Two faults of bitsandbytes 0.50 on CPUs, kept out of a 4-bit model; elsewhere nothing is
    changed.

    With avx512_bf16, the first evaluation repacks the weights for a kernel that has no gradients,
    computes in bfloat16 whatever is asked for, and refuses rows that are no multiple of a block.
    With AVX-512, rows that are no multiple of a block (64 values) are dequantised with the scales
    of other blocks.
    """
    from bitsandbytes.nn import Linear4bit

    for layer in model.modules():
        if isinstance(layer, Linear4bit) and layer.weight.device.type == "cpu":
            layer.support_avx512bf16_for_cpu = False
            if layer.in_features % layer.weight.blocksize:
                layer.forward = functools.partial(_forward, layer)


def dequantised(layer: Linear4bit) -> Tensor:
    """The matrix (out, in) that a 4-bit layer stands for, in the dtype that it was rounded from;
    dequantised as one row, as it was quantised."""
    from bitsandbytes.functional import dequantize_4bit

    state = copy.copy(layer.weight.quant_state)
    shape, state.shape = state.shape, torch.Size([state.shape.numel()])
    return dequantize_4bit(layer.weight.data.reshape(-1, 1), state).reshape(shape)


def _forward(layer: Linear4bit, x: Tensor) -> Tensor:
    kind = layer.compute_dtype or x.dtype
    bias = None if layer.bias is None else layer.bias.to(kind)
    return nn.functional.linear(x.to(kind), dequantised(layer).to(kind), bias).to(x.dtype)
