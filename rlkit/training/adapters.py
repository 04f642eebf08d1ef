"""The LoRA adapters of a model: which are on it, and how they are saved and loaded. Whether one
that is given fits, adapter_check.py says.

`default` is the adapter that is trained; `reference` the frozen warm start whose KL is penalised.
Where all weights are trained instead, the same functions go on to weights.py: nobody else needs to
know which it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import peft
from torch import nn

from rlkit.errors import ModelError
from rlkit.files import read_json, write_json
from rlkit.training import fingerprint, weights
from rlkit.training.adapter_check import check_adapter
from rlkit.training.weights import REFERENCE, TRAINED


def save_lora_checkpoint(model: nn.Module, path: str | Path) -> Path:
    """Save the trained adapter in PEFT's own format (adapter_config.json, safetensors), with the
    hashes of its base (base.json); of a fully trained model, a model folder."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if weights.of(model) is not None:
        weights.save_weights(model, folder)
        return folder
    model.save_pretrained(folder, selected_adapters=[TRAINED], save_embedding_layers=False)
    path = folder / "adapter_config.json"
    settings = read_json(path)
    if isinstance(settings["target_modules"], list):  # PEFT writes a set, in any order
        write_json(path, settings | {"target_modules": sorted(settings["target_modules"])})
    record = _base_record(model)
    if record is not None:
        write_json(folder / fingerprint.FILE, record)
    return folder


def load_lora_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Put a saved adapter's weights into the trained adapter, in place; in a fully trained model,
    those of a model folder.

    Raises ModelError where the folder is missing, damaged, for another base, or of another rank,
    alpha or modules.
    """
    if weights.of(model) is not None:
        return weights.load_weights(model, path)
    ours = model.peft_config[TRAINED]
    _check_fits(model, path)
    theirs = peft.LoraConfig.from_pretrained(str(path))
    for name in ("r", "lora_alpha", "target_modules"):
        if getattr(theirs, name) != getattr(ours, name):
            raise ModelError(
                f"the adapter at {path} has {name} {getattr(theirs, name)}, the model's has "
                f"{getattr(ours, name)}; give the lora section that it was trained with."
            )
    saved = peft.utils.load_peft_weights(str(path), device="cpu")
    outcome = peft.set_peft_model_state_dict(model, saved, adapter_name=TRAINED)
    if outcome.unexpected_keys:
        raise ModelError(
            f"the adapter at {path} has other modules than the model "
            f"({outcome.unexpected_keys[0]})."
        )


@contextmanager
def using_adapter(model: nn.Module, name: str | None) -> Iterator[None]:
    """The model with another adapter (or set of weights) than the trained one, frozen; None: the
    untouched base."""
    if weights.of(model) is not None:
        with weights.using_weights(model, name):
            yield
    elif not isinstance(model, peft.PeftModel) or name == TRAINED:
        yield
    elif name is None:
        with model.disable_adapter():
            yield
    else:
        model.set_adapter(name, inference_mode=True)
        try:
            yield
        finally:
            model.set_adapter(TRAINED)


def add_adapter(model: nn.Module, path: str | Path, name: str) -> None:
    """Put a saved adapter (or model folder) beside the trained one, frozen, as `name`.

    Raises ModelError as `check_adapter` and `check_base`, or as `weights.load_weights`.
    """
    if weights.of(model) is not None:
        return weights.add_weights(model, path, name)
    _check_fits(model, path)
    model.load_adapter(str(path), adapter_name=name, is_trainable=False)


def as_reference(model: nn.Module) -> AbstractContextManager[None]:
    """The model as the reference: its frozen warm start where there is one, else adapter off; of a
    fully trained model, the copy of the weights that training started from."""
    if weights.of(model) is not None:
        return weights.using_weights(model, REFERENCE)
    return using_adapter(model, REFERENCE if REFERENCE in model.peft_config else None)


def has_reference(model: nn.Module) -> bool:
    """Whether `as_reference` can be had: always, but for a fully trained model without a copy."""
    found = weights.of(model)
    return found is None or REFERENCE in found.sets


def _check_fits(model: nn.Module, path: str | Path) -> None:
    base = str(model.peft_config[TRAINED].base_model_name_or_path)
    check_adapter(path, model.get_base_model(), base)
    fingerprint.check_base(path, base, _base_record(model))


def _base_record(model: nn.Module) -> dict[str, Any] | None:
    """What `load_model_with_lora` found its base to be; None where another one loaded it."""
    return getattr(model, "base_record", None)


def _peft_config(base: nn.Module, base_path: str | Path, lora: Any) -> peft.LoraConfig:
    names = {
        name.rsplit(".", 1)[-1] for name, m in base.named_modules() if hasattr(m, "in_features")
    }
    missing = [name for name in lora.target_modules if name not in names]
    if missing:
        raise ModelError(
            f"lora.target_modules names {missing[0]!r}, which {base_path} does not have; it has "
            + ", ".join(sorted(names - {"lm_head"}))
            + "."
        )
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules),
        task_type="CAUSAL_LM",
    )
