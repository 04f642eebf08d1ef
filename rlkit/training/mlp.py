"""A gated MLP that keeps two tensors for its backward pass where autograd keeps three.

silu(gate) * up: autograd keeps gate, silu(gate) and up, each as wide as the MLP, of every token of
every layer: about half of all that a policy pass keeps when the MLP's weights are frozen. silu of
gate is cheaper to compute again than to keep.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

# MLPs of transformers that are down(act(gate(x)) * up(x)).
GATED = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP")


class GatedProduct(torch.autograd.Function):
    """silu(gate) * up, keeping gate and up."""

    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate) * up

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        to_gate = torch.ops.aten.silu_backward(gradient * up, gate)
        return to_gate, silu(gate).mul_(gradient)


def keep_less(model: nn.Module) -> None:
    """Let every gated MLP of `model` keep less; values and gradients stay what they are."""
    for module in model.modules():
        if type(module).__name__ in GATED and getattr(module.config, "hidden_act", None) == "silu":
            module.__class__ = _lean(type(module))


@cache
def _lean(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass of the same name, so that whoever looks a module up finds what it was."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(GatedProduct.apply(self.gate_proj(x), self.up_proj(x)))

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
