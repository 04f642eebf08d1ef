"""The files of recorded rounds as they lie on the disk: what they are called, and whether they are
still those of an index. Only the standard library is imported, so that a process of its own can
look at half of many files and is there at once:

    python -I -S stamps.py ROOT < LINES  answers with 1 or 0 for each line of an index
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

RUN_NAME = re.compile(r"run_([0-9]{3,9})")
META_NAME = "meta.json"


def round_name(number: int) -> str:
    """The file of a round: `round_003.json`."""
    return f"round_{number:03d}.json"


def run_names(question_folder: str | os.PathLike[str]) -> list[str]:
    """The names of the folders `run_NNN` of one question, by number; empty where there is none."""
    try:
        found = [name for name in folder_names(question_folder) if RUN_NAME.fullmatch(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=run_number)


def run_number(name: str) -> int:
    return int(name.removeprefix("run_"))


def folder_names(folder: str | os.PathLike[str]) -> list[str]:
    """The names of the folders in a folder, and of links to folders, in no order."""
    with os.scandir(folder) as entries:
        return [
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            or (entry.is_symlink() and os.path.isdir(entry.path))
        ]


def stamp_of(file: str | os.PathLike[str] | os.stat_result) -> tuple[int, ...]:
    """(size, mtime, ctime, inode) of a file; of one that the system does not show, its errno, as a
    negative number."""
    try:
        status = file if isinstance(file, os.stat_result) else os.stat(file)
    except OSError as error:
        return (-(error.errno or 0),)
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@lru_cache
def _usual_names(count: int) -> tuple[str, ...]:
    return (META_NAME, *(round_name(number) for number in range(count - 1)))


def short_names(names: Sequence[str]) -> int | list[str]:
    """The files that were opened in a run, or only how many where they have the usual names."""
    return len(names) if _usual_names(len(names)) == tuple(names) else list(names)


def opened_files(names: int | Sequence[str]) -> Sequence[str]:
    """What `short_names` was given."""
    return _usual_names(names) if isinstance(names, int) else names


def is_current(folder: str, record: dict[str, Any]) -> bool:
    """Whether a question's files are still those that its record was made of."""
    stamps, runs = record["stamps"], record["runs"]
    if stamps is None or run_names(folder) != [run[0] for run in runs]:
        return False
    found: list[int] = []
    for name, files, _ in runs:
        for file in opened_files(files):
            found += stamp_of(f"{folder}/{name}/{file}")
    return found == stamps


def main(root: str) -> None:
    pairs = (line.partition(b"\t") for line in sys.stdin.buffer.read().split(b"\n"))
    answers = (is_current(f"{root}/{name.decode()}", json.loads(line)) for name, _, line in pairs)
    print("".join(str(int(answer)) for answer in answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
