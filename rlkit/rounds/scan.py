"""A scan of recorded rounds: from the index where it still holds, read anew where it does not."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic_core import from_json

from rlkit.rounds.index import clock_of, current_record, opened_files, read_index, write_index
from rlkit.rounds.readers import read_all
from rlkit.rounds.records import Recording

INDEX_FROM = 1000  # files that were read; for fewer, no index is written


def scan(root: Path, names: Sequence[str], processes: int | None = None) -> list[Recording]:
    """What is recorded of the questions in these folders below `root`, in their order."""
    kept, clock = read_index(root), clock_of(root)
    found = [_from_index(root, name, kept) for name in names]
    changed = [at for at, recording in enumerate(found) if recording is None]
    lines = read_all(root, [names[at] for at in changed], clock, processes)
    opened = 0
    for at, line in zip(changed, lines, strict=True):
        record = from_json(line)
        found[at] = Recording.of(record)
        kept.pop(names[at], None)
        if record["stamps"] is not None and _is_plain(names[at]):
            kept[names[at]] = line
            opened += sum(len(opened_files(files)) for _, files, _ in record["runs"])
    if opened >= INDEX_FROM:
        write_index(root, {name: kept[name] for name in names if name in kept})
    return found


def _from_index(root: Path, name: str, kept: dict[str, bytes]) -> Recording | None:
    """None where the index does not have the question as it is."""
    record = current_record(f"{root}/{name}", kept[name]) if name in kept else None
    return None if record is None else Recording.of(record)


def _is_plain(name: str) -> bool:
    """Other names are no ids, so that nothing is a sample, and might break a line of the index."""
    return name.isascii() and name.isprintable()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Many objects are made here and none in a circle: looking for circles doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
