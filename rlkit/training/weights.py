"""Full fine-tuning (`lora.enabled: false`): all weights are trained, and what adapters.py does with
adapters is done with sets of weights.

The trained weights are float32 on every device: in bfloat16 a move of AdamW at a rate of 5e-6 is
mostly rounded away. A set of weights (the reference, a checkpoint that is compared) is a frozen
copy, of the same size, that takes the place of the trained ones inside `using_weights`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from rlkit.errors import ModelError
from rlkit.training.adapter_check import check_weights

TRAINED, REFERENCE = "default", "reference"
SAFE_RATE = 1e-5  # above it, all weights together forget what they knew


@dataclass
class AllWeights:
    """What a fully trained model knows of itself, as its attribute `all_weights`.

    `base` names the set that is the untouched base model: the trained one until training begins,
    the reference where a copy was kept then, and None where there is no copy.
    """

    tokenizer: Any
    base: str | None = TRAINED
    sets: dict[str, dict[str, Tensor]] = field(default_factory=dict)


def of(model: nn.Module) -> AllWeights | None:
    """None for a model with an adapter, and for one that is not trained."""
    return getattr(model, "all_weights", None)


def train_all_weights(model: nn.Module, tokenizer: Any) -> nn.Module:
    """Make every weight of a float32 model trainable; it is saved with `tokenizer`.

    Raises ModelError where a weight is of another precision.
    """
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise ModelError(
                f"all weights are trained (lora.enabled is false), which takes float32, and {name} "
                f"is {str(parameter.dtype).removeprefix('torch.')}; set model.dtype to auto or "
                "float32."
            )
    model.requires_grad_(True)
    model.all_weights = AllWeights(tokenizer)
    return model


def begin_training(model: nn.Module, reference: bool) -> dict[str, Tensor] | None:
    """The weights are about to be moved: with `reference`, keep a frozen copy of them first,
    where none was kept before. Returns the copy if it was made now."""
    weights = of(model)
    if weights is None:
        return None
    made = None
    if reference and REFERENCE not in weights.sets:
        made = {name: p.detach().clone() for name, p in model.named_parameters()}
        weights.sets[REFERENCE] = made
    if weights.base == TRAINED:
        weights.base = REFERENCE if made else None
    return made


def warn_of_rate(model: nn.Module, key: str, rate: float, log: Callable[[str], None]) -> None:
    """Say where a learning rate is one for adapters and all weights are trained."""
    if of(model) is not None and rate > SAFE_RATE:
        log(
            f"warning: {key} is {rate:g} and all weights are trained (lora.enabled is false); "
            "1e-6 to 5e-6 is safe, and far above that a model forgets what it could do."
        )


@contextmanager
def using_weights(model: nn.Module, name: str | None) -> Iterator[None]:
    """The model with another set of weights, frozen; None: the untouched base.

    Raises ModelError where that set is not there.
    """
    weights = of(model)
    wanted = weights.base if name is None else name
    if wanted == TRAINED:
        yield
        return
    if wanted not in weights.sets:
        raise ModelError(
            f"no copy of {'the untouched base' if wanted is None else repr(wanted)} is kept beside "
            "the trained weights (there is a reference only where grpo.kl_penalty is above 0); "
            "load the model anew."
        )
    other = weights.sets[wanted]
    kept = {name: parameter.data for name, parameter in model.named_parameters()}
    try:
        for name, parameter in model.named_parameters():
            parameter.data = other[name]
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.data = kept[name]


def save_weights(model: nn.Module, folder: Path) -> None:
    """Save an ordinary model folder: weights (safetensors), config and tokenizer."""
    model.save_pretrained(folder)
    of(model).tokenizer.save_pretrained(folder)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Put the weights of a model folder in the place of the trained ones.

    Raises ModelError where the folder is missing, damaged, or holds another model.
    """
    saved = _read(model, path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(saved[name])
    if of(model).base == TRAINED:
        of(model).base = None


def add_weights(model: nn.Module, path: str | Path, name: str) -> None:
    """Keep the weights of a model folder as the set `name`; raises as `load_weights`."""
    device = next(model.parameters()).device
    of(model).sets[name] = {key: value.to(device) for key, value in _read(model, path).items()}


def check_model_folder(path: str | Path) -> Path:
    """Raise ModelError where a folder holds no whole model, such as an adapter."""
    folder = Path(path)
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{folder} holds an adapter, and lora.enabled is false; merge it into its base and "
            "give the merged folder as model.base_model_path, or set lora.enabled to true."
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"there is no model at {folder}: config.json is missing; check the path.")
    check_weights(folder)
    return folder


def _read(model: nn.Module, path: str | Path) -> dict[str, Tensor]:
    """The float32 weights of a folder by name; they fit the model, none is missing."""
    folder = check_model_folder(path)
    try:
        saved, found = type(model).from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"the model at {folder} is damaged or another one ({str(error).splitlines()[0][:200]});"
            " use another checkpoint."
        ) from error
    read = {name: parameter.detach() for name, parameter in saved.named_parameters()}
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    others = [name for name in shapes if name not in read or read[name].shape != shapes[name]]
    others += sorted({*found["missing_keys"], *found["unexpected_keys"]})
    if others or len(read) != len(shapes):
        raise ModelError(
            f"the model at {folder} is another one than the model that is trained"
            f"{f' ({others[0]})' if others else ''}; use its own base."
        )
    return read
