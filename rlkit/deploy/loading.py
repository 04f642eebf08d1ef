"""What goes into a merge: the unquantised base, the adapters that were trained on it, and tied
embeddings parted where an adapter changes only one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from torch import nn

from rlkit.deploy.rounding import plain_lora
from rlkit.errors import ModelError
from rlkit.training.adapter_check import check_adapter
from rlkit.training.fingerprint import check_base, same_name, trained_on_quantised
from rlkit.training.models import resolve_base_model


@dataclass(frozen=True)
class Base:
    """A base model that can be merged into: `name` as it was given, `source` where it is."""

    name: str
    source: str
    trust_remote_code: bool = False

    @classmethod
    def of(cls, base_path: str | Path, trust_remote_code: bool = False) -> Base:
        """Raises ModelError where there is none, or where it is quantised."""
        base = cls(str(base_path), resolve_base_model(base_path), trust_remote_code)
        if getattr(base.config(), "quantization_config", None) is not None:
            raise ModelError(
                f"{base_path} is quantised, and merging into it would lose the update; give the "
                "unquantised base, such as the repository that it was quantised from."
            )
        return base

    def config(self) -> transformers.PretrainedConfig:
        return self._read(transformers.AutoConfig)

    def tokenizer(self) -> transformers.PreTrainedTokenizerBase:
        return self._read(transformers.AutoTokenizer)

    def skeleton(self) -> transformers.PreTrainedModel:
        """The model without its weights."""
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(
                self.config(), trust_remote_code=self.trust_remote_code
            )

    def load(self, dtype: torch.dtype, **options: Any) -> transformers.PreTrainedModel:
        """The model in `dtype`, on the CPU unless `options` of `from_pretrained` say otherwise."""
        transformers.utils.logging.disable_progress_bar()
        return self._read(transformers.AutoModelForCausalLM, dtype=dtype, **options).eval()

    def _read(self, kind: type, **options):
        try:
            return kind.from_pretrained(
                self.source, trust_remote_code=self.trust_remote_code, **options
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ModelError(
                f"the model {self.name!r} cannot be loaded: {_in_a_line(error)}"
            ) from error


def check_adapters(base: Base, adapters: Sequence[Path], empty: nn.Module) -> list[str]:
    """Find adapters of another base before any weight is loaded; a sentence about each that does
    not say by a hash that it is this one.

    Shapes are compared on `empty`, the base's skeleton, and the names of the bases by their last
    part, so that a model's folder may have been moved; an adapter of a quantised base has another
    name. Raises ModelError naming both bases.
    """
    doubts = []
    for adapter in adapters:
        check_adapter(adapter, empty, base.name, embeddings=True)
        plain_lora(peft.LoraConfig.from_pretrained(str(adapter)), adapter)
        if check_base(adapter, base.source):
            continue
        settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        trained_on = settings.get("base_model_name_or_path")
        if trained_on_quantised(adapter, trained_on):
            doubts.append(
                f"The adapter {adapter.name} was trained on {trained_on!r}, which is quantised: no "
                f"hash can say whether {base.name!r} is what it was made of; the shapes fit."
            )
        elif same_name(trained_on, base.name):
            doubts.append(
                f"The adapter {adapter.name} does not say by a hash which base it was trained on; "
                "its name and shapes fit this one."
            )
        else:
            raise ModelError(
                f"the adapter at {adapter} was trained on {trained_on!r}, not on {base.name!r}; "
                "give the base that it was trained on."
            )
    return doubts


def with_adapters(model: nn.Module, adapters: Sequence[Path]) -> peft.PeftModel:
    """The model with all the adapters active: their updates are added."""
    names = ["default", *(f"stacked_{i}" for i in range(1, len(adapters)))]
    folder = adapters[0]
    try:
        adapted = peft.PeftModel.from_pretrained(model, str(folder))
        for name, folder in zip(names[1:], adapters[1:], strict=True):
            adapted.load_adapter(str(folder), adapter_name=name)
        adapted.base_model.set_adapter(names)
    except (RuntimeError, ValueError, KeyError, TypeError, SafetensorError, OSError) as error:
        raise ModelError(
            f"the adapter at {folder} cannot be loaded: {_in_a_line(error)}"
        ) from error
    return adapted.eval()


def untie(model: transformers.PreTrainedModel) -> bool:
    """Part tied embeddings of which an adapter changes one; whether that was needed.

    Merging into a shared matrix would move the other one, too, which was trained as it was. Two
    that an adapter changes alike (PEFT's `ensure_weight_tying`) are parted, too, so that the
    update is not added twice.
    """
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    adapted = [isinstance(layer, BaseTunerLayer) for layer in layers]
    inner = [x.get_base_layer() if a else x for x, a in zip(layers, adapted, strict=True)]
    if not any(adapted) or None in inner or inner[0].weight is not inner[1].weight:
        return False
    inner[1].weight = nn.Parameter(inner[0].weight.detach().clone(), requires_grad=False)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
    return True


def short_name(name: str) -> str:
    """The last part of a hub id or a path, which names what is merged."""
    return str(name).rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1]


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
