"""A folder that is made once from something long, and then only read: whole, or made anew.

It appears under its name when it is complete; several processes that want it wait for the one
that makes it; what a killed maker left behind, the next one removes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import filelock

from rlkit.errors import DataError
from rlkit.files import new_folder, read_json, remove_leftovers, write_json

Loaded = TypeVar("Loaded")
_SIZES = "sizes.json"  # of every other file, in bytes
_DAMAGE = (DataError, OSError, ValueError, KeyError, AttributeError, TypeError)


def kept(folder: Path, load: Callable[[Path], Loaded], write: Callable[[Path], None]) -> Loaded:
    """What `load` reads from `folder`; where that is missing or damaged, `write` fills it first.

    The folder's name must say what it was made from, so that it is never out of date. `load` may
    raise whatever a damaged file brings about (OSError, ValueError, KeyError, ...).
    """
    found = _whole(folder, load)
    if found is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.parent / f".{folder.name}.lock"
    with filelock.FileLock(lock):
        try:
            found = _whole(folder, load)  # another process was first
            if found is None:
                _make(folder, write)
                found = load(folder)
        finally:
            lock.unlink(missing_ok=True)  # held: who waits for it sees that it is gone
    return found


def _make(folder: Path, write: Callable[[Path], None]) -> None:
    remove_leftovers(folder)
    shutil.rmtree(folder, ignore_errors=True)  # damaged
    with new_folder(folder) as temporary:
        write(temporary)
        sizes = {file.name: file.stat().st_size for file in temporary.iterdir()}
        write_json(temporary / _SIZES, sizes)


def _whole(folder: Path, load: Callable[[Path], Loaded]) -> Loaded | None:
    if not folder.is_dir():
        return None
    try:
        sizes = read_json(folder / _SIZES)
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        return load(folder)
    except _DAMAGE:
        return None
