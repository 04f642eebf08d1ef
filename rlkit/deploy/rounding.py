"""The merge of one matrix after the other, each checked against W + s·BA in float64, and how much
of the update is left once it is rounded to the dtype that is saved.

Shapes: W is (m, n); an update is scale · left (m, r) @ right (r, n), whichever kind of layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import peft
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from rlkit.errors import ModelError
from rlkit.training.adapter_check import beyond_lora

Factors = tuple[Tensor, Tensor, float]  # left, right, scale
TOLERANCE = 1e-6  # of the largest merged weight: float32 rounds to 6e-8 of it
_BLOCK = 1 << 22  # values of a matrix that are looked at together, in float64


@dataclass(frozen=True)
class Update:
    """What the update of one matrix (or of all together) was, and what rounding left of it."""

    name: str
    weights: int
    exact_square: float  # squared Frobenius norm of the update
    rounded_square: float  # the same, of the difference between the rounded matrices
    product: float  # inner product of both
    changed: int  # weights that differ after rounding

    @property
    def norm_ratio(self) -> float | None:
        """Norm of the rounded update over the exact one's; above 1 it carries rounding noise."""
        return math.sqrt(self.rounded_square / self.exact_square) if self.exact_square else None

    @property
    def kept(self) -> float | None:
        """The rounded update's part along the exact one, over the exact one: 1 where it is whole
        or rounded without bias, 0 where it was rounded away."""
        return self.product / self.exact_square if self.exact_square else None

    @property
    def changed_share(self) -> float:
        return self.changed / self.weights

    def row(self) -> dict[str, Any]:
        """For `certificate.json`."""
        return {
            "name": self.name,
            "weights": self.weights,
            "norm": math.sqrt(self.exact_square),
            "norm_ratio": self.norm_ratio,
            "kept": self.kept,
            "changed": self.changed_share,
        }


def total(updates: Sequence[Update]) -> Update:
    """All matrices as one."""
    rows = [asdict(update) for update in updates]
    sums = {key: sum(row[key] for row in rows) for key in rows[0] if key != "name"}
    return Update("all", **sums)


def merge_layers(model: nn.Module, dtype: torch.dtype) -> list[Update]:
    """Merge all active adapters into a float32 model's weights, layer by layer and in place.

    Raises ModelError where an adapter is broken, or a merged matrix is not W + Σ s·BA.
    """
    layers = {n: m for n, m in model.named_modules() if isinstance(m, BaseTunerLayer)}
    return [_merge(name, layer, dtype) for name, layer in layers.items()]


def _merge(name: str, layer: Any, dtype: torch.dtype) -> Update:
    weight = layer.get_base_layer().weight
    if weight.ndim != 2:
        raise ModelError(f"{name} is no matrix ({tuple(weight.shape)}) and cannot be merged.")
    before = weight.detach().clone()
    try:
        layer.merge(safe_merge=True)
    except ValueError as error:  # PEFT's own check that every merged weight is finite
        raise ModelError(f"the adapter cannot be merged into {name}: {error}") from error
    return compare_update(name, before, layer.get_base_layer().weight.detach(), factors(layer),
                          dtype)  # fmt: skip


def factors(layer: Any) -> list[Factors]:
    """(left, right, scale) of every active adapter of a PEFT layer."""
    found = []
    for adapter in layer.active_adapters:
        if adapter in layer.lora_embedding_A:
            a, b = layer.lora_embedding_A[adapter], layer.lora_embedding_B[adapter]
            turned = True  # an embedding's matrix is (tokens, width)
        elif adapter in layer.lora_A:
            a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
            turned = getattr(layer, "fan_in_fan_out", False)
        else:
            continue
        left, right = (a.T, b.T) if turned else (b, a)
        found.append((left.detach(), right.detach(), layer.scaling[adapter]))
    return found


def compare_update(
    name: str, before: Tensor, after: Tensor, parts: Sequence[Factors], dtype: torch.dtype
) -> Update:
    """What became of an update, `before` and `after` in float32.

    Raises ModelError where `after` is not what float64 makes of `before` and the factors.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    error = largest = 0.0
    rows = max(1, _BLOCK // before.shape[1])
    for start in range(0, len(before), rows):
        block = slice(start, start + rows)
        update = sum(s * (left[block].double() @ right.double()) for left, right, s in parts)
        exact = before[block].double() + update
        error = max(error, float((after[block].double() - exact).abs().max()))
        largest = max(largest, float(exact.abs().max()))
        was, now = before[block].to(dtype), after[block].to(dtype)
        rounded = now.double() - was.double()
        values = (update**2).sum(), (rounded**2).sum(), (rounded * update).sum(), (now != was).sum()
        sums += torch.stack([value.double() for value in values])
    if not error <= TOLERANCE * largest:
        raise ModelError(
            f"{name} is not W + (alpha / r) BA after merging (off by {error:.1e} where the largest "
            f"weight is {largest:.1e}); the merged model would not be the trained one."
        )
    exact_square, rounded_square, product, changed = sums.tolist()
    return Update(name, before.numel(), exact_square, rounded_square, product, int(changed))


def plain_lora(config: peft.LoraConfig, adapter: object) -> None:
    """Raise ModelError for an adapter that is more than matrices added to matrices."""
    odd = beyond_lora(config)
    if odd:
        raise ModelError(
            f"the adapter at {adapter} is no plain LoRA ({odd[0]} is set), and this merge would "
            "leave a part of it out; merge it with PEFT's own merge_and_unload."
        )
