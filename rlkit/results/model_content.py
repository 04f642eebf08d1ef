"""What a model is, as a hash of its content, so that it is recognised wherever its folder lies:
every small file (configuration, tokenizer, template) whole, and of each tensor its shape and a
sample of its bytes, since hashing eight billion weights would take longer than an evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

from rlkit.errors import ModelError

_SAMPLES, _BYTES = 32, 1024  # of each tensor: so many places, so long each
_BLOCKS = 256  # places of a file of weights that is no safetensors file
_WEIGHTS = (".safetensors", ".bin")
_TEXTS = (".json", ".jinja", ".txt", ".model", ".py")
_NOT_THE_MODEL = {  # what else lies in its folder: of training, of merging
    "optimizer.safetensors", "pending.safetensors", "trainer_state.json", "merge.json",
    "certificate.json",
}  # fmt: skip


def model_content(folder: str | Path) -> str:
    """SHA-256 (hex) over a model's folder, see above.

    Raises ModelError where it holds no model.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"there is no model at {folder}: config.json is missing; check the path.")
    return _content(folder, _stamp(folder))


def adapter_content(folder: str | Path) -> str:
    """SHA-256 (hex) over an adapter: its settings and its weights, whole.

    Raises ModelError where it lacks one of them.
    """
    digest = hashlib.sha256()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        file = Path(folder) / name
        if not file.is_file():
            raise ModelError(f"there is no adapter at {folder}: {name} is missing; check the path.")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def weights_sum(folder: str | Path) -> str:
    """SHA-256 (hex) of an adapter's file of weights, as a merge's certificate has it; of a whole
    model `model_content`.

    Raises ModelError where it is neither.
    """
    file = Path(folder) / "adapter_model.safetensors"
    if not file.is_file():
        return model_content(folder)
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_model_folder(folder: str | Path) -> bool:
    """Whether a folder holds a whole model that needs nothing else, such as a merged one; a
    checkpoint of all weights belongs to its run and does not count."""
    folder = Path(folder)
    others = ("adapter_config.json", "trainer_state.json")
    return (folder / "config.json").is_file() and not any((folder / n).exists() for n in others)


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of change of each file that counts."""
    files = (f for f in folder.iterdir() if f.suffix in (*_WEIGHTS, *_TEXTS))
    kept = sorted(f for f in files if f.name not in _NOT_THE_MODEL and f.is_file())
    return tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in kept)


@cache
def _content(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, size, _ in stamp:
        digest.update(f"{name} {size}\n".encode())
        with open(folder / name, "rb") as file:
            if not name.endswith(_WEIGHTS):
                digest.update(hashlib.file_digest(file, "sha256").digest())
                continue
            for start, length in _places(file, size, name):
                file.seek(start)
                digest.update(file.read(length))
    return digest.hexdigest()


def _places(file: BinaryIO, size: int, name: str) -> Iterator[tuple[int, int]]:
    """(start, length) of the header of a safetensors file and of some bytes of each tensor; of
    other files, of places that lie evenly."""
    header = int.from_bytes(file.read(8), "little") if name.endswith(".safetensors") else size
    if 8 + header >= size:  # another format, or damaged: loading it will say so
        yield from ((size * i // _BLOCKS, _BYTES) for i in range(_BLOCKS))
        return
    try:
        tensors = json.loads(file.read(header))
        spans = [t["data_offsets"] for key, t in tensors.items() if key != "__metadata__"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file.name} is damaged ({error}); get the model anew.") from error
    yield 0, 8 + header
    for begin, end in spans:
        for i in range(_SAMPLES):
            yield 8 + header + begin + (end - begin) * i // _SAMPLES, min(_BYTES, end - begin)
