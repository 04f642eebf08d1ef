"""Whether an adapter's folder fits a base model, and holds all that its own settings promise."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import peft
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key
from safetensors import SafetensorError, safe_open
from torch import nn

from rlkit.errors import DataError, ModelError
from rlkit.training.checkpointing import check_sums

_PREFIX = "base_model.model."
_MATRIX = re.compile(r"\.lora_(?:embedding_)?([AB])(?:\.weight)?$")
_INSIDE = re.compile(r"\.base_layer\b|\.lora_\w+(\..*)?$")  # of a layer that is adapted already


def check_adapter(
    adapter: str | Path, base: nn.Module, base_path: str, *, embeddings: bool = False
) -> None:
    """Make sure that an adapter folder is there, was trained on this base, and holds exactly the
    tensors that its own settings make of it: PEFT leaves a missing B at 0, and drops what is
    adapted besides. `embeddings`: they may be adapted, too.

    Raises ModelError naming both bases, or the tensor that does not fit, is missing, or has no
    place.
    """
    folder = Path(adapter)
    config, weights = adapter_files(adapter)
    check_weights(folder)
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        trained_on = settings.get("base_model_name_or_path")
        if settings.get("peft_type") != "LORA":
            raise ValueError(f"its peft_type is {settings.get('peft_type')!r}, not 'LORA'")
        lora = peft.LoraConfig.from_pretrained(str(folder))
        with safe_open(str(weights), framework="pt") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
        wanted = _wanted(lora, base)
    except (ValueError, KeyError, TypeError, SafetensorError, OSError, AttributeError) as error:
        raise ModelError(
            f"the adapter at {folder} is damaged ({error}); use another checkpoint."
        ) from error
    if not shapes:
        raise ModelError(f"the adapter at {folder} holds no weights; use another checkpoint.")
    modules = dict(base.named_modules())
    for key, shape in shapes.items():
        if (found := _MATRIX.search(key)) is None:
            continue
        name, a_side = key[: found.start()].removeprefix(_PREFIX), found[1] == "A"
        module = modules.get(name)
        linear = hasattr(module, "in_features") or (embeddings and isinstance(module, nn.Embedding))
        if module is not None and not linear:
            raise ModelError(
                f"the adapter at {folder} also adapts {name}, which is no linear layer "
                f"({type(module).__name__}); give one that adapts linear layers only."
            )
        size = _sizes(module)[0 if a_side else 1]
        given = shape[-1 if a_side else 0] if shape else None
        if size != given:
            raise ModelError(
                f"the adapter at {folder} was trained on {trained_on!r} and does not fit "
                f"{base_path!r} ({name}: {given} against {size}); use its own base."
            )
    _check_whole(folder, shapes, wanted, base_path, () if beyond_lora(lora) else _states(base))


def _check_whole(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, tuple[int, ...]],
    base_path: str,
    others: Collection[str],
) -> None:
    """`wanted` are the tensors that there must be, with their shapes; besides them there may be
    those that `others` names; anything where it is empty."""
    missing = [key for key in wanted if key not in shapes]
    if missing:
        raise ModelError(
            f"the adapter at {folder} lacks {len(missing)} of the {len(wanted)} tensors that its "
            f"settings make on {base_path!r}, first {missing[0]}; use another checkpoint, or its "
            "own base."
        )
    besides = [key for key in shapes if key not in wanted] if others else []
    homeless = [k for k in besides if _INSIDE.sub("", k.removeprefix(_PREFIX)) not in others]
    if homeless:
        raise ModelError(
            f"the adapter at {folder} holds {homeless[0]}, which has no place by its own "
            "adapter_config.json and would be left out; use another checkpoint."
        )
    ranks = [key for key, shape in wanted.items() if shapes[key] != shape]
    if ranks:
        raise ModelError(
            f"the adapter at {folder} has the shape {shapes[ranks[0]]} for {ranks[0]}, and "
            f"{wanted[ranks[0]]} by its adapter_config.json; use another checkpoint."
        )


def _wanted(lora: peft.LoraConfig, base: nn.Module) -> dict[str, tuple[int, ...]]:
    """The matrices that PEFT makes of an adapter's settings: {key in its file: shape}."""
    found = {}
    for name, module in _targets(lora, base).items():
        rank = lora.rank_pattern.get(get_pattern_key(lora.rank_pattern.keys(), name), lora.r)
        kinds = "lora_{}.weight" if hasattr(module, "in_features") else "lora_embedding_{}"
        inner, outer = _sizes(module)
        for side, shape in (("A", (rank, inner)), ("B", (outer, rank))):
            found[f"{_PREFIX}{name}.{kinds.format(side)}"] = shape
    return found


def _targets(lora: peft.LoraConfig, base: nn.Module) -> dict[str, nn.Module]:
    """The base's modules that an adapter of these settings changes; adapters that are on it
    already are passed over."""
    layers = {n: m for n, m in base.named_modules() if n and not _INSIDE.search(n)}
    ends = base.get_input_embeddings(), base.get_output_embeddings()
    if str(lora.target_modules).lower() == "all-linear":
        return {n: m for n, m in layers.items() if hasattr(m, "in_features") and m is not ends[1]}
    found = {n: m for n, m in layers.items() if check_target_module_exists(lora, n)}
    if getattr(lora, "ensure_weight_tying", False) and any(m in ends for m in found.values()):
        found |= {n: m for n, m in layers.items() if m in ends}
    return {n: getattr(m, "get_base_layer", lambda m=m: m)() for n, m in found.items()}


def _sizes(module: nn.Module | None) -> tuple[int | None, int | None]:
    """What an adapter's A reads and its B writes, of a linear layer or an embedding."""
    names = ("in_features", "out_features")
    if module is not None and not hasattr(module, "in_features"):
        names = ("num_embeddings", "embedding_dim")
    return tuple(getattr(module, name, None) for name in names)


def _states(base: nn.Module) -> set[str]:
    """The base's own tensors, which an adapter's file may hold once more (`save_embedding_layers`):
    PEFT puts them in their place."""
    return {_INSIDE.sub("", name) for name, _ in base.named_parameters(remove_duplicate=False)}


def beyond_lora(lora: peft.LoraConfig) -> list[str]:
    """The settings by which an adapter is more than matrices added to matrices."""
    more = ("use_dora", "modules_to_save", "lora_bias", "trainable_token_indices",
            "target_parameters", "layer_replication", "use_qalora", "kasa_config",
            "alora_invocation_tokens", "use_bdlora", "monteclora_config")  # fmt: skip
    odd = [name for name in more if getattr(lora, name, None)]
    return [*odd, "bias"] if lora.bias != "none" else odd


def check_weights(folder: Path) -> None:
    """Raise ModelError where a checkpoint's weights are not those that training wrote."""
    try:
        check_sums(folder, whole=False)
    except DataError as error:
        raise ModelError(str(error)) from error


def adapter_files(adapter: str | Path) -> tuple[Path, Path]:
    """Its configuration and its weights; raises ModelError where one is missing."""
    folder = Path(adapter)
    files = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    for file in files:
        if not file.is_file():
            raise ModelError(
                f"there is no adapter at {folder}: {file.name} is missing; check the path."
            )
    return files
