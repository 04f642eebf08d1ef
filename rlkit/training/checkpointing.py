"""Checkpoints of a training run: PEFT's own adapter files (where all weights are trained, those of
a model folder), and all else that a resumed run needs to be the same run. Everything is JSON or
safetensors; nothing is pickled.

    lora_checkpoints/checkpoint-<step>/
      adapter_config.json  adapter_model.safetensors     PEFT's own; loadable without us
      optimizer.safetensors                              AdamW's moments and step counts
      pending.safetensors                                gradients (and groups) of an update that
                                                         is not finished
      trainer_state.json                                 step, visits, denominators, checksums
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlkit.errors import DataError, RunError
from rlkit.files import new_folder, read_json, write_json

STATE_FILE = "trainer_state.json"
FILES = ("optimizer.safetensors", "pending.safetensors", STATE_FILE)  # besides the adapter's
PREFIX = "checkpoint-"
SCHEMA = 2  # from 2 on, the state file has a checksum too


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
        **{name: metadata.version(name) for name in ("transformers", "peft", "numpy")},
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
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
    comes back where the new one cannot be written. Damaged ones of later steps, which the run
    passed over when it was resumed, are set aside as `checkpoint-<step>.damaged`, so that they
    are not counted among the last ones.

    Raises OSError naming the folder where the system refuses a write, such as on a full disk.
    """
    _set_damaged_aside(folder)
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
        for name, tensors in zip(FILES[:2], (optimizer, pending), strict=True):
            save_file(dict(tensors), temporary / name)
        sums = {f.name: _sha256(f) for f in sorted(temporary.iterdir()) if f.is_file()}
        whole = {"schema": SCHEMA, **state, "sha256": sums}
        sums[STATE_FILE] = _sha256_of_state(whole)
        write_json(temporary / STATE_FILE, whole)


def _set_aside(folder: Path) -> Path:
    """Where a checkpoint waits while another one of its step is written."""
    return folder.with_name(f".old-{folder.name}")


def _set_damaged_aside(folder: Path) -> None:
    written = int(folder.name.removeprefix(PREFIX))
    for step in checkpoint_steps(folder.parent):
        later = folder.with_name(f"{PREFIX}{step}")
        if step > written and not _is_whole(later):
            aside = later.with_name(f"{later.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            later.rename(aside)


def _is_whole(folder: Path) -> bool:
    try:
        _whole_state(folder)
    except DataError:
        return False
    return True


def _bring_back(folder: Path) -> None:
    if _set_aside(folder).is_dir() and not folder.exists():
        _set_aside(folder).rename(folder)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint back; raises DataError where a file is missing or was changed."""
    state = _whole_state(folder)
    optimizer, pending = (load_file(folder / name) for name in FILES[:2])
    return Checkpoint(folder, state, _in_memory(optimizer), _in_memory(pending))


def check_sums(folder: Path, *, whole: bool = True) -> bool:
    """Whether a folder has the checksums of a checkpoint, and they hold; False where it has none
    that this version knows. Not `whole`: the weights alone, without what a resumed run needs.

    Raises DataError where a file is missing or was changed.
    """
    file = folder / STATE_FILE
    if not file.exists():
        return False
    state = read_json(file)
    if not isinstance(state, dict) or state.get("schema") in (None, SCHEMA):
        _whole_state(folder, () if whole else FILES[:2])
        return True
    return False


def _whole_state(folder: Path, besides: Sequence[str] = ()) -> dict[str, Any]:
    """What the state file says, once every file of the checkpoint, `besides` these, has the sum
    that it had."""
    state = read_json(folder / STATE_FILE)
    if not isinstance(state, dict) or not isinstance(state.get("sha256"), dict):
        raise DataError(f"{folder / STATE_FILE} is not a checkpoint's state; remove the folder.")
    if state.get("schema") != SCHEMA:
        raise DataError(
            f"{folder / STATE_FILE} is of schema {state.get('schema')!r}, this version reads "
            f"{SCHEMA}; go on with the version that wrote it, or use another checkpoint."
        )
    files = sorted({*state["sha256"], *FILES} - {*besides})
    for name in (STATE_FILE, *files):  # first what names the others
        if _sum_now(folder / Path(name).name, state) != state["sha256"].get(name):
            raise DataError(
                f"{folder / Path(name).name} is missing or damaged; remove the folder or use "
                "another checkpoint."
            )
    return state


def _sum_now(file: Path, state: Mapping[str, Any]) -> str | None:
    """The SHA-256 of a checkpoint's file as it is now, None where it cannot be read."""
    if file.name == STATE_FILE:
        return _sha256_of_state(state)
    try:
        return _sha256(file)
    except OSError:
        return None


def _sha256_of_state(state: Mapping[str, Any]) -> str:
    """Of all that the state file says but this sum itself."""
    sums = {name: value for name, value in state["sha256"].items() if name != STATE_FILE}
    text = json.dumps({**state, "sha256": sums}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _in_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that are aligned as torch's own, and not bound to a file that may be removed."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in order."""
    names = [path.name.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*") if path.is_dir()]
    return sorted(int(name) for name in names if name.isdigit())


def newest_checkpoint(folder: Path, log: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are passed over, and that is said. None
    where there is no checkpoint at all.

    Raises RunError where there are checkpoints and none of them is whole: to begin anew would
    throw away the metrics and rollouts of all the steps before, and nobody asked for that.
    """
    return _newest(folder, read_checkpoint, log)


def newest_folder(folder: Path, log: Callable[[str], None] = print) -> Path | None:
    """The folder of `newest_checkpoint`, checked alike, without its tensors in memory."""
    found = _newest(folder, _with_state, log)
    return found[0] if found else None


def best_folder(folder: Path, log: Callable[[str], None] = print) -> Path | None:
    """The folder of the checkpoint with the best reward on dev; None without any checkpoint.

    Raises RunError where none is known as the best, since nothing was measured on dev, and
    DataError where it is damaged.
    """
    newest = _newest(folder, _with_state, log)
    if newest is None:
        return None
    best = newest[1].get("best_step")
    if best is None:
        raise RunError(
            f"{folder} knows no best checkpoint, since nothing was measured on dev; take newest, "
            "or name a checkpoint's folder."
        )
    return _with_state(folder / f"{PREFIX}{best}")[0]


def _with_state(folder: Path) -> tuple[Path, dict[str, Any]]:
    return folder, _whole_state(folder)


def _newest(folder: Path, read: Callable[[Path], Any], log: Callable[[str], None]) -> Any:
    steps = checkpoint_steps(folder)
    for step in reversed(steps):
        try:
            return read(folder / f"{PREFIX}{step}")
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


def whole_state(optimizer: torch.optim.Optimizer) -> Mapping[nn.Parameter, dict[str, Any]]:
    """The optimiser's state, gathered where it is divided (zero.py): collective."""
    return optimizer.gather() if hasattr(optimizer, "gather") else optimizer.state


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: list[str], state: Mapping | None = None
) -> dict[str, Tensor]:
    """The optimiser's state (or its `whole_state`) as named tensors; `names` in the order of its
    parameters."""
    tensors, state = {}, optimizer.state if state is None else state
    for name, parameter in zip(names, optimizer.param_groups[0]["params"], strict=True):
        for key, value in state.get(parameter, {}).items():
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
    if hasattr(optimizer, "scatter"):
        optimizer.scatter()


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
