"""4-bit layers on a CPU: what they compute is what they hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlkit.training.four_bit import dequantised, mend_four_bit
from tests.training.conftest import NF4

pytest.importorskip("bitsandbytes")


def layer_of(weight: torch.Tensor) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    rows, columns = weight.shape
    layer = Linear4bit(
        columns, rows, bias=False, compute_dtype=torch.float32, compress_statistics=False
    )
    layer.weight = Params4bit(
        weight.clone(), quant_type="nf4", compress_statistics=False, module=layer
    )
    return layer.to("cpu")


@pytest.mark.parametrize("columns", [16, 64, 96, 160])
def test_a_row_of_any_width_computes_with_the_scales_of_its_own_blocks(columns):
    """Each 64 values, counted through the rows, are some of NF4's steps of the largest of them."""
    scales = torch.arange(1.0, columns / 2 + 1)  # 32 rows make columns / 2 blocks of 64
    code = torch.tensor(NF4)[torch.arange(32 * columns) * 7 % 16].reshape(-1, 64)
    held = (code * scales[:, None]).reshape(32, columns)
    model = nn.Sequential(layer_of(held))
    mend_four_bit(model)
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(dequantised(model[0]), held, atol=1e-4 * float(scales.max()))
    for _ in range(2):  # the first evaluation would repack the weights
        with torch.no_grad():
            found = model.eval()(x)
        assert torch.allclose(found, x @ held.T, atol=1e-3 * float(scales.max()))
    x.requires_grad_(True)
    model(x).sum().backward()
    wanted = held.sum(0).expand_as(x)
    assert torch.allclose(x.grad, wanted, atol=1e-3 * float(scales.max()))
