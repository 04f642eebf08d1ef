"""Which base model it was, as two hashes: one of the settings that shape what it computes, one of
a sample of its weights. Training writes them beside an adapter, merging compares them, so that an
adapter does not end up in a base of the same name and shapes that it was never trained on.

Weights are hashed as they round to bfloat16: copies of one model in bfloat16, float16 and float32
have one hash. What a folder holds is read, not a loaded model, which may be in 4 bits.
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

from rlkit.errors import ModelError
from rlkit.files import read_object, write_json
from rlkit.training.models import resolve_base_model

FILE = "base.json"
_WORDS = {"config": "its settings differ", "weights": "its weights differ"}
_SETTINGS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
    "rope_theta", "rope_parameters", "sliding_window", "tie_word_embeddings",
)  # fmt: skip
_SAMPLE = 256  # values of each tensor, from its middle


def base_fingerprint(base_path: str | Path) -> dict[str, str | None]:
    """{config, weights}: SHA-256 of each; None where a part cannot be read without loading the
    model (weights that are no safetensors, a hub id that is not in the cache).

    Raises ModelError where `resolve_base_model` does.
    """
    folder = _folder(resolve_base_model(base_path))
    if folder is None:
        return {"config": None, "weights": None}
    files = sorted({*folder.glob("*.json"), *folder.glob("*.safetensors")})
    return dict(_fingerprint(folder, tuple((f.name, f.stat().st_mtime_ns) for f in files)))


def record_base(folder: str | Path, base_path: str | Path) -> None:
    """Write `base.json` into an adapter's folder: which base it is being trained on. Where the base
    cannot be found any more, nothing is written: a checkpoint is worth more."""
    try:
        found = base_fingerprint(base_path)
    except ModelError:
        return
    write_json(Path(folder) / FILE, {"schema": 1, "name": str(base_path), **found})


def check_base(adapter: str | Path, base_path: str | Path) -> bool:
    """Whether the adapter's folder says which base it was trained on, and it is this one; False
    where nothing is known.

    Raises ModelError naming both where it was another one.
    """
    path = Path(adapter) / FILE
    if not path.is_file():
        return False
    recorded, found = read_object(path), base_fingerprint(base_path)
    both = [part for part in _WORDS if recorded.get(part) and found[part]]
    differing = [_WORDS[part] for part in both if recorded[part] != found[part]]
    if differing:
        raise ModelError(
            f"the adapter at {adapter} was trained on {recorded.get('name')!r}, and "
            f"{str(base_path)!r} is another model ({' and '.join(differing)}, by the hashes in "
            f"{FILE}); give the base that it was trained on."
        )
    return "weights" in both


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
    except ModelError:  # a folder that is gone: its name is all there is to compare
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


@lru_cache(maxsize=8)
def _fingerprint(folder: Path, stamps: tuple) -> dict[str, str | None]:
    return {"config": _settings_hash(folder), "weights": _weights_hash(folder)}


def _settings_hash(folder: Path) -> str:
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        values = config.get_text_config().to_dict()
    except (ValueError, KeyError, OSError):  # a model that brings its own code
        values = read_object(folder / "config.json")
    shown = {name: values.get(name) for name in _SETTINGS}
    return hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).hexdigest()


def _weights_hash(folder: Path) -> str | None:
    index = folder / "model.safetensors.index.json"
    names = (
        sorted(set(read_object(index)["weight_map"].values()))
        if index.is_file()
        else ["model.safetensors"]
    )
    samples: dict[str, bytes] = {}
    try:
        for name in names:
            with safe_open(str(folder / Path(name).name), framework="pt") as file:
                samples |= {key: _sample(file.get_slice(key)) for key in file.keys()}
    except (OSError, SafetensorError):
        return None
    whole = hashlib.sha256()
    for key in sorted(samples):
        whole.update(key.encode() + b"\0" + samples[key] + b"\0")
    return whole.hexdigest()


def _sample(tensor: Any) -> bytes:
    """Its shape and some values from the middle of its middle row."""
    shape = tensor.get_shape()
    if not shape:
        return b"()"
    start = max(0, (shape[-1] - _SAMPLE) // 2)
    middle = tuple(slice(n // 2, n // 2 + 1) for n in shape[:-1])
    values = tensor[(*middle, slice(start, start + _SAMPLE))].flatten()
    if values.is_floating_point():
        values = values.to(torch.bfloat16).view(torch.int16)
    return repr(tuple(shape)).encode() + values.contiguous().view(torch.uint8).numpy().tobytes()
