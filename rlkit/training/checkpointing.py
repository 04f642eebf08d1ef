"""Checkpoints of a training run: PEFT's own adapter files, and all else that a resumed run needs
to be the same run. Everything is JSON or safetensors; nothing is pickled.

    lora_checkpoints/checkpoint-<step>/
      adapter_config.json  adapter_model.safetensors     PEFT's own; loadable without us
      optimizer.safetensors                              AdamW's moments and step counts
      pending.safetensors                                gradients (and groups) of an update that
                                                         is not finished
      trainer_state.json                                 step, visits, denominators, checksums
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlkit.errors import DataError, RunError
from rlkit.files import new_folder, read_json, write_json

STATE_FILE = "trainer_state.json"
PREFIX = "checkpoint-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read back whole."""

    folder: Path
    state: dict[str, Any]
    optimizer: dict[str, Tensor]
    pending: dict[str, Tensor]


def arithmetic(device: torch.device) -> dict[str, Any]:
    """What must be equal for a resumed run to be bitwise the run that was not interrupted."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "processor": _processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def write_checkpoint(
    folder: Path,
    save_adapter: Callable[[Path], Any],
    state: Mapping[str, Any],
    optimizer: Mapping[str, Tensor],
    pending: Mapping[str, Tensor],
) -> Path:
    """Write a checkpoint so that it appears whole; an older one of the same step gives way, and
    comes back where the new one cannot be written."""
    stale = _set_aside(folder)
    if folder.exists():
        shutil.rmtree(stale, ignore_errors=True)
        folder.rename(stale)
    try:
        _write(folder, save_adapter, state, optimizer, pending)
    except BaseException:
        _bring_back(folder)
        raise
    shutil.rmtree(stale, ignore_errors=True)
    return folder


def _write(
    folder: Path,
    save_adapter: Callable[[Path], Any],
    state: Mapping[str, Any],
    optimizer: Mapping[str, Tensor],
    pending: Mapping[str, Tensor],
) -> None:
    with new_folder(folder) as temporary:
        save_adapter(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
        save_file(dict(optimizer), temporary / "optimizer.safetensors")
        save_file(dict(pending), temporary / "pending.safetensors")
        sums = {f.name: _sha256(f) for f in sorted(temporary.iterdir()) if f.is_file()}
        write_json(temporary / STATE_FILE, {"schema": 1, **state, "sha256": sums})


def _set_aside(folder: Path) -> Path:
    """Where a checkpoint waits while another one of its step is written."""
    return folder.with_name(f".old-{folder.name}")


def _bring_back(folder: Path) -> None:
    if _set_aside(folder).is_dir() and not folder.exists():
        _set_aside(folder).rename(folder)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint back; raises DataError where a file is missing or was changed."""
    state = read_json(folder / STATE_FILE)
    if not isinstance(state, dict) or not isinstance(state.get("sha256"), dict):
        raise DataError(f"{folder / STATE_FILE} is not a checkpoint's state; remove the folder.")
    for name, expected in state["sha256"].items():
        file = folder / Path(name).name
        if not file.is_file() or _sha256(file) != expected:
            raise DataError(
                f"{file} is missing or damaged; remove the folder or use another checkpoint."
            )
    return Checkpoint(
        folder,
        state,
        load_file(folder / "optimizer.safetensors"),
        load_file(folder / "pending.safetensors"),
    )


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in order."""
    names = [path.name.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*") if path.is_dir()]
    return sorted(int(name) for name in names if name.isdigit())


def newest_checkpoint(folder: Path, log: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are passed over, and that is said.

    Raises RunError where there are checkpoints and none of them is whole.
    """
    steps = checkpoint_steps(folder)
    for step in reversed(steps):
        try:
            return read_checkpoint(folder / f"{PREFIX}{step}")
        except DataError as error:
            log(f"checkpoint {step} is passed over: {error}")
    if steps:
        raise RunError(
            f"{folder} holds {len(steps)} checkpoints and none is whole; move the run's folder "
            "away to start anew."
        )
    return None


def tidy_checkpoints(folder: Path) -> None:
    """Bring back what a killed process had set aside, and remove what it left half done. For
    whoever holds the run's lock."""
    for aside in folder.glob(f".old-{PREFIX}*"):
        _bring_back(folder / aside.name.removeprefix(".old-"))
    for left in [*folder.glob(f".old-{PREFIX}*"), *folder.glob(f".{PREFIX}*")]:
        shutil.rmtree(left)


def prune_checkpoints(folder: Path, keep_last: int, keep: set[int]) -> None:
    """Remove all but the last `keep_last` checkpoints and those of the steps in `keep`."""
    for step in checkpoint_steps(folder)[:-keep_last]:
        if step not in keep:
            gone = folder / f".{PREFIX}{step}.gone"
            (folder / f"{PREFIX}{step}").rename(gone)  # so that nobody meets half of it
            shutil.rmtree(gone)


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, Tensor]:
    """The optimiser's state as named tensors; `names` in the order of its parameters."""
    tensors = {}
    for name, parameter in zip(names, optimizer.param_groups[0]["params"], strict=True):
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = torch.as_tensor(value).detach().cpu().contiguous().clone()
    return tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
) -> None:
    """Put tensors of `optimizer_tensors` in the place of whatever the optimiser holds."""
    optimizer.state.clear()
    for key, value in tensors.items():
        kind, name = key.split("/", 1)
        parameter = parameters[name]
        device = "cpu" if kind == "step" else parameter.device
        optimizer.state[parameter][kind] = value.to(device)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
