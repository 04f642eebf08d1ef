"""Where a model is saved: tried before anything is loaded, and left to one process at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import huggingface_hub

from rlkit.errors import ModelError, RunError
from rlkit.files import remove_leftovers


@contextmanager
def place_for(output: Path, needed: int = 0) -> Iterator[None]:
    """Nobody else saves a model as `output` meanwhile, and what killed ones left there is gone.
    Where the body fails, no folder that was made for it stays.

    Raises RunError where `output` exists or is being made, where nothing can be written, or where
    less than `needed` bytes are free.
    """
    if os.path.lexists(output):
        what = "exists already" if output.exists() else "is a link that leads nowhere"
        raise RunError(f"{output} {what} and is never overwritten; move it away.")
    made = [p for p in (output.parent, *output.parent.parents) if not p.exists()]
    try:
        _try(output, needed)
        with _alone(output) as alone:
            if not alone:
                raise RunError(f"another process is saving {output} just now; wait for it.")
            yield
    except BaseException:
        for folder in made:
            _remove_empty(folder)
        raise


def tidy(output: Path) -> None:
    """Remove what processes that were killed left of `output`, unless one is saving it now."""
    if output.parent.is_dir() and any(output.parent.glob(f".{output.name}.*")):
        with _alone(output):
            pass


def check_shard_size(size: str | int) -> None:
    """Raise ModelError for a `max_shard_size` that nothing could be saved with."""
    try:
        if not str(size).lstrip().startswith("-"):
            huggingface_hub.split_torch_state_dict_into_shards({}, max_shard_size=size)
            return
    except ValueError:
        pass
    raise ModelError(f"max_shard_size is {size!r}; give a number and a unit, such as 5GB or 500MB.")


def _try(output: Path, needed: int) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}."):
            free = shutil.disk_usage(output.parent).free
    except OSError as error:
        raise RunError(
            f"nothing can be written as {output} ({error.strerror}); name another folder for it."
        ) from error
    if free < needed:
        raise RunError(
            f"{output} needs {needed / 1e9:.2g} GB and {free / 1e9:.2g} GB are free there; free "
            "space, or name another folder for it."
        )


@contextmanager
def _alone(output: Path) -> Iterator[bool]:
    """Whether this process alone saves `output`; if so, leftovers are removed."""
    path = output.parent / f".{output.name}.lock"
    lock = filelock.FileLock(path, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        yield False
        return
    try:
        remove_leftovers(output)
        yield True
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # somebody put something there
        pass
