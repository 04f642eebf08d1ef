"""What every training pass shares: the mode that the model is in, and gradients that are sound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from rlkit.errors import ModelError


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """A pass without dropout: in evaluation mode, or, where gradient checkpointing needs training
    mode, with every dropout module off. The model is left in evaluation mode."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    model.train(bool(getattr(base, "is_activation_checkpointing", False)))
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    for module in dropouts:
        module.eval()
    try:
        yield
    finally:
        model.eval()


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, by name, in a fixed order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def assert_gradients(model: nn.Module) -> None:
    """Raise ModelError unless every trainable parameter has a finite gradient.

    4-bit layers on some CPUs lose gradients with no more than a warning; this finds it.
    """
    for name, parameter in trainable(model).items():
        if parameter.grad is None:
            raise ModelError(
                f"after the first backward pass {name} has no gradient; it would learn nothing."
            )
        if not torch.isfinite(parameter.grad).all():
            raise ModelError(f"after the first backward pass the gradient of {name} is not finite.")


def clip_gradients(model: nn.Module, max_norm: float) -> float:
    """Clip the trainable parameters' gradients to a norm; returns the norm that they had.

    Raises ModelError where it is not finite: a step with it would leave an adapter of NaN.
    """
    norm = float(nn.utils.clip_grad_norm_(trainable(model).values(), max_norm))
    if not math.isfinite(norm):
        raise ModelError(
            f"the norm of the gradient is {norm}, so the optimiser does not move; lower the "
            "learning rate, or set model.dtype to float32."
        )
    return norm
