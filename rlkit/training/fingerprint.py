"""Which base model it was, as hashes: one of the settings that shape what it computes, two of
samples of its weights (`weights`: the middle of each tensor; `rows`, which older files lack: places
spread over each). Training writes them beside an adapter; whoever loads or merges it compares
them, so that it does not end up in a base of the same name and shapes that it was never trained on.

Weights are hashed as they round to bfloat16, those that float16 holds less exactly as 0: a model in
bfloat16 and its copies in float16 and float32 have one hash, and so do a float32 model and its
bfloat16 copy (a float16 copy of float32 weights was rounded otherwise, and has another one). What a
folder holds is read, not a loaded model, which may be in 4 bits. Quantised weights have no hash.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlkit.errors import ModelError, RlkitError
from rlkit.files import read_object, write_json
from rlkit.training.models import resolve_base_model

FILE = "base.json"
SCHEMA = 2  # 1 hashed otherwise: nothing is known of an adapter that has it
_WORDS = {
    "config": "its settings differ",
    "weights": "its weights differ",
    "rows": "some of its weights differ",
}
_SETTINGS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
    "rope_theta", "rope_parameters", "sliding_window", "tie_word_embeddings",
)  # fmt: skip
_QUANTISED = "quantization_config"
_SAMPLE = 256  # values of a row
_ROWS = 32  # of each matrix
_LEAST = 2.0**-14  # below it float16 has fewer digits than bfloat16
_UNREADABLE = (RlkitError, OSError, KeyError, ValueError, TypeError, AttributeError)


def base_fingerprint(base_path: str | Path) -> dict[str, str | None]:
    """{config, weights, rows}: SHA-256 of each; None where a part cannot be read without loading
    the model (weights that are quantised or no safetensors, a hub id that is not in the cache).

    Raises ModelError where `resolve_base_model` does, and DataError where a file is damaged.
    """
    folder = _folder(resolve_base_model(base_path))
    if folder is None:
        return dict.fromkeys(_WORDS)
    files = sorted({*folder.glob("*.json"), *folder.glob("*.safetensors")})
    return dict(_fingerprint(folder, tuple((f.name, f.stat().st_mtime_ns) for f in files)))


def base_record(base_path: str | Path) -> dict[str, Any] | None:
    """What `base.json` says of a base model; None where it cannot be read, since a model that can
    be trained, and its checkpoints, are worth more."""
    try:
        found = base_fingerprint(base_path)
        return {
            "schema": SCHEMA,
            "name": str(base_path),
            **found,
            "quantised": _is_quantised(base_path),
        }
    except _UNREADABLE:
        return None


def record_base(folder: str | Path, base_path: str | Path) -> None:
    """Write `base.json` into the folder of an adapter of that base; nothing where the base cannot
    be read."""
    record = base_record(base_path)
    if record is not None:
        write_json(Path(folder) / FILE, record)


def check_base(
    adapter: str | Path, base_path: str | Path, found: dict[str, Any] | None = None
) -> bool:
    """Whether the adapter's folder says which base it was trained on, and it is this one; False
    where nothing is known. `found`: the base's record of when it was loaded, else made now.

    Raises ModelError naming both where it was another one.
    """
    recorded = _recorded(adapter)
    found = recorded and (found or base_record(base_path))
    if not found:
        return False
    both = [part for part in _WORDS if recorded.get(part) and found.get(part)]
    differing = [_WORDS[part] for part in both if recorded[part] != found[part]]
    if differing:
        raise ModelError(
            f"the adapter at {adapter} was trained on {recorded.get('name')!r}, and "
            f"{str(base_path)!r} is another model ({' and '.join(differing)}, by the hashes in "
            f"{FILE}); give the base that it was trained on."
        )
    return "weights" in both


def trained_on_quantised(adapter: str | Path, trained_on: str | None) -> bool:
    """Whether an adapter was trained on a base that is stored quantised, as its `base.json` says,
    or as the model of the name `trained_on` is where it is here."""
    recorded = _recorded(adapter)
    if "quantised" in recorded:
        return recorded["quantised"] is True
    try:
        return bool(trained_on) and _is_quantised(trained_on)
    except _UNREADABLE:
        return False


def same_name(trained_on: str | None, base: str) -> bool:
    """Whether the base that an adapter names is this one, as far as names tell: their last parts
    are the same (a model's folder may have been moved), or both lead to one folder. An adapter that
    names none contradicts nothing."""
    if not trained_on:
        return True
    last = [re.split(r"[/\\]", name.rstrip("/\\"))[-1].casefold() for name in (trained_on, base)]
    if last[0] == last[1]:
        return True
    try:
        first, second = (_folder(resolve_base_model(name)) for name in (trained_on, base))
    except (ModelError, OSError):  # gone, or impossible: the name is all there is to compare
        return False
    return None not in (first, second) and first.resolve() == second.resolve()


def _folder(source: str) -> Path | None:
    """The folder of a model, or of a hub id's files in the cache."""
    if Path(source).is_dir():
        return Path(source)
    try:
        return Path(
            transformers.utils.cached_file(source, "config.json", local_files_only=True)
        ).parent
    except (OSError, ValueError):  # not there, or no hub id
        return None


def _recorded(adapter: str | Path) -> dict[str, Any]:
    """An adapter's `base.json`; nothing where it is missing, damaged or of another schema."""
    try:
        recorded = read_object(Path(adapter) / FILE)
    except _UNREADABLE:
        return {}
    return recorded if recorded.get("schema") == SCHEMA else {}


def _is_quantised(base_path: str | Path) -> bool:
    folder = _folder(resolve_base_model(base_path))
    return folder is not None and bool(read_object(folder / "config.json").get(_QUANTISED))


@lru_cache(maxsize=8)
def _fingerprint(folder: Path, stamps: tuple) -> dict[str, str | None]:
    stored = read_object(folder / "config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        values = config.get_text_config().to_dict()
    except (ValueError, KeyError, OSError):  # a model that brings its own code
        values = stored
    shown = {name: values.get(name) for name in _SETTINGS}
    settings = hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).hexdigest()
    tied = bool(values.get("tie_word_embeddings"))
    quantised = stored.get(_QUANTISED)
    weights, rows = (None, None) if quantised else _weights_hashes(folder, tied)
    return {"config": settings, "weights": weights, "rows": rows}


def _weights_hashes(folder: Path, tied: bool) -> tuple[str | None, str | None]:
    """`weights` and `rows`, of all tensors but an `lm_head.weight` that is the embeddings once
    more: whether a file holds that is up to who saved it."""
    index = folder / "model.safetensors.index.json"
    names = (
        sorted(set(read_object(index)["weight_map"].values()))
        if index.is_file()
        else ["model.safetensors"]
    )
    samples: dict[str, tuple[bytes, bytes]] = {}
    try:
        for name in names:
            with safe_open(str(folder / Path(name).name), framework="pt") as file:
                for key in file.keys():
                    tensor = file.get_tensor(key)  # mapped: only what is looked at is read
                    samples[key] = _bytes(tensor, _middle(tensor)), _bytes(tensor, _spread(tensor))
    except (OSError, SafetensorError):
        return None, None
    hashes = hashlib.sha256(), hashlib.sha256()
    for key in sorted(samples):
        if not (tied and key.endswith("lm_head.weight")):
            for whole, sample in zip(hashes, samples[key], strict=True):
                whole.update(key.encode() + b"\0" + sample + b"\0")
    return hashes[0].hexdigest(), hashes[1].hexdigest()


def _middle(tensor: Tensor) -> Tensor:
    """Some values from the middle of its middle row."""
    start = max(0, (tensor.shape[-1] - _SAMPLE) // 2) if tensor.ndim else 0
    row = tensor[tuple(n // 2 for n in tensor.shape[:-1])]
    return row[start : start + _SAMPLE] if tensor.ndim else row


def _spread(tensor: Tensor) -> Tensor:
    """Values of rows that lie evenly over it, from the first to the last, each further along than
    the one before; of a vector, as many."""
    width = _SAMPLE if tensor.ndim > 1 else _SAMPLE * _ROWS
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim else tensor.reshape(1, 1)
    places = torch.linspace(0, len(rows) - 1, min(_ROWS, len(rows)), dtype=torch.float64)
    starts = torch.linspace(0, max(0, rows.shape[1] - width), len(places), dtype=torch.float64)
    pairs = zip(places.round().long().tolist(), starts.long().tolist(), strict=True)
    return torch.cat([rows[place, start : start + width] for place, start in pairs])


def _bytes(tensor: Tensor, values: Tensor) -> bytes:
    """A tensor's shape and values of it, as they round to bfloat16."""
    if not tensor.ndim:
        return b"()"
    if values.is_floating_point():
        values = values.to(torch.bfloat16)
        values = values.masked_fill(values.abs() < _LEAST, 0).view(torch.int16)
    return (
        repr(tuple(tensor.shape)).encode() + values.contiguous().view(torch.uint8).numpy().tobytes()
    )
