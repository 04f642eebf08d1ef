"""A scan of recorded rounds: from the index where it still holds, read anew where it does not."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pydantic_core import from_json

from rlkit.rounds.index import are_current, clock_of, line_of, read_index, record_in, write_index
from rlkit.rounds.readers import available_processes, read_all
from rlkit.rounds.records import Recording
from rlkit.rounds.stamps import is_current, opened_files

INDEX_FROM = 1000  # files that were read; for fewer, no index is written
HELP_FROM = 2000  # questions in the index; fewer are looked at without another process
OURS = 0.4  # of them; the other process takes the rest, since all that follows is done here


def scan(root: Path, names: Sequence[str], processes: int | None = None) -> list[Recording]:
    """What is recorded of the questions in these folders below `root`, in their order."""
    kept, clock = read_index(root), clock_of(root)
    found = _from_index(root, names, kept, processes or available_processes())
    changed = [at for at, recording in enumerate(found) if recording is None]
    lines = read_all(root, [names[at] for at in changed], clock, processes)
    opened = 0
    for at, line in zip(changed, lines, strict=True):
        record = from_json(line)
        found[at] = Recording.of(record)
        kept.pop(names[at], None)
        if record["stamps"] is not None and _is_plain(names[at]):
            kept[names[at]] = line_of(names[at], line)
            opened += sum(len(opened_files(files)) for _, files, _ in record["runs"])
    if opened >= INDEX_FROM:
        write_index(root, [kept[name] for name in names if name in kept])
    return found


def _from_index(
    root: Path, names: Sequence[str], kept: dict[str, bytes], processes: int
) -> list[Recording | None]:
    """None where the index does not have the question as it is."""
    known = [name for name in names if name in kept]
    helped = processes > 1 and len(known) >= HELP_FROM
    ours = int(OURS * len(known)) if helped else len(known)
    with ThreadPoolExecutor(1) as threads:  # which waits for the other process
        answers = threads.submit(are_current, root, [kept[name] for name in known[ours:]])
        found = {}
        for name in known[:ours]:
            record = record_in(kept[name])
            if is_current(f"{root}/{name}", record):
                found[name] = Recording.of(record)
        theirs = [(name, Recording.of(record_in(kept[name]))) for name in known[ours:]]
        found |= {
            name: recording
            for (name, recording), answer in zip(theirs, answers.result(), strict=True)
            if answer
        }
    return [found.get(name) for name in names]


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
