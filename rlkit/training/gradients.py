"""What every training pass shares: the mode that the model is in, and gradients that are sound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from rlkit.errors import ModelError
from rlkit.training.sharding import computes_on


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


def assert_gradients(model: nn.Module, finite: bool = True) -> None:
    """Raise ModelError unless every trainable parameter has a gradient, and a `finite` one.

    4-bit layers on some CPUs lose gradients with no more than a warning; this finds it.
    """
    for name, parameter in trainable(model).items():
        if parameter.grad is None:
            raise ModelError(
                f"after the first backward pass {name} has no gradient; it would learn nothing."
            )
        if finite and not torch.isfinite(parameter.grad).all():
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


def loss_scaler(model: nn.Module) -> torch.amp.GradScaler:
    """What scales the loss of a base that computes in float16, where small gradients would be 0
    (arXiv:1710.03740, section 3.2); of any other base, one that does nothing."""
    device = computes_on(model)
    half = any(parameter.dtype == torch.float16 for parameter in model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=half)
    scaler.scale(torch.zeros((), device=device))  # made now: not every process has a loss
    return scaler


def clip_and_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    max_norm: float,
) -> float | None:
    """Clip the gradients and move; returns the norm that they had. Where gradients of a scaled
    loss overflowed, nothing moves, the next loss is scaled by half as much, and there is no norm.

    Raises ModelError where the norm is not finite and no scaling is to blame.
    """
    if not scaler.is_enabled():
        norm = clip_gradients(model, max_norm)
        optimizer.step()
        return norm
    scaler.unscale_(optimizer)
    norm = float(nn.utils.get_total_norm([p.grad for p in trainable(model).values()]))
    if math.isfinite(norm) or scaler.get_scale() <= 1:
        clip_gradients(model, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm if math.isfinite(norm) else None
