"""The index of a folder of recorded rounds: what the last scan made of each question, and a stamp
of every file that it opened. It is believed only where the same run folders are listed and every
stamp is still the same, so each scan lists all folders and looks at every file's status.

A stamp is size, time of change of content and of status, and inode. It tells files apart that were
written to, replaced or copied, also where somebody sets their time back; only a file that changes
twice within a tick of the file system's clock can keep it. So stamps count only of files that had
been left alone for GRAIN when the scan began, by the clock of their own file system.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pydantic
from pydantic_core import from_json

from rlkit.files import write_bytes
from rlkit.rounds.writer import META_NAME, round_name, run_names

NAME = ".scan-index"  # in the folder of the rounds; a name with a dot is no question
GRAIN = 2_000_000_000  # ns; the coarsest clock in use, FAT's
_SOURCES = ("state.py", "reading.py", "records.py", "index.py", "writer.py")


def clock_of(root: Path) -> int | None:
    """The time of the folder's file system in ns; None where nothing can be written there."""
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def stamp_of(file: str | Path | os.stat_result) -> tuple[int, ...]:
    """(size, mtime, ctime, inode) of a file; of one that the system does not show, its errno, as a
    negative number."""
    try:
        status = file if isinstance(file, os.stat_result) else os.stat(file)
    except OSError as error:
        return (-(error.errno or 0),)
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def is_settled(status: os.stat_result, clock: int) -> bool:
    """Whether any later change to the file gives it another stamp."""
    return max(status.st_mtime_ns, status.st_ctime_ns) + GRAIN <= clock


@lru_cache
def _usual_names(count: int) -> tuple[str, ...]:
    return (META_NAME, *(round_name(number) for number in range(count - 1)))


def short_names(names: Sequence[str]) -> int | list[str]:
    """The files that were opened in a run, or only how many where they have the usual names."""
    return len(names) if _usual_names(len(names)) == tuple(names) else list(names)


def opened_files(names: int | Sequence[str]) -> Sequence[str]:
    """What `short_names` was given."""
    return _usual_names(names) if isinstance(names, int) else names


def current_record(folder: str, line: bytes) -> dict[str, Any] | None:
    """The record in a line of the index, if the question's files are still those it was made of."""
    record = from_json(line)
    stamps, runs = record["stamps"], record["runs"]
    if stamps is None or run_names(folder) != [run[0] for run in runs]:
        return None
    found: list[int] = []
    for name, files, _ in runs:
        for file in opened_files(files):
            found += stamp_of(f"{folder}/{name}/{file}")
    return record if found == stamps else None


def read_index(root: Path) -> dict[str, bytes]:
    """The lines by question; empty where there is no index, where it is damaged, or where another
    version of this code wrote it."""
    try:
        head, _, body = (root / NAME).read_bytes().partition(b"\n")
        if head != _head(body):
            return {}
    except OSError:
        return {}
    pairs = (line.partition(b"\t") for line in body.split(b"\n") if line)
    return {name.decode(): line for name, _, line in pairs}


def write_index(root: Path, lines: Mapping[str, bytes]) -> None:
    """Keep the lines, or nothing where the folder takes no file: the next scan then reads all."""
    body = b"\n".join(name.encode() + b"\t" + line for name, line in lines.items())
    try:
        write_bytes(root / NAME, b"%b\n%b" % (_head(body), body))
    except OSError:
        return


def _head(body: bytes) -> bytes:
    """Names the code that makes records and the library that checks them, and what follows."""
    code = hashlib.sha256(pydantic.VERSION.encode())
    for name in _SOURCES:
        code.update(Path(__file__).with_name(name).read_bytes())
    return f"rlkit scan {code.hexdigest()} {hashlib.sha256(body).hexdigest()}".encode()
