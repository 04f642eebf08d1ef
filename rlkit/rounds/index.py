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
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pydantic
from pydantic_core import from_json

from rlkit.files import write_bytes
from rlkit.rounds import stamps

NAME = ".scan-index"  # in the folder of the rounds; a name with a dot is no question
GRAIN = 2_000_000_000  # ns; the coarsest clock in use, FAT's
_SOURCES = ("state.py", "reading.py", "records.py", "index.py", "stamps.py")


def clock_of(root: Path) -> int | None:
    """The time of the folder's file system in ns; None where nothing can be written there."""
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def is_settled(status: os.stat_result, clock: int) -> bool:
    """Whether any later change to the file gives it another stamp."""
    return max(status.st_mtime_ns, status.st_ctime_ns) + GRAIN <= clock


def line_of(name: str, record: bytes) -> bytes:
    return b"%b\t%b" % (name.encode(), record)


def record_in(line: bytes) -> dict[str, Any]:
    return from_json(line[line.index(b"\t") + 1 :])


def read_index(root: Path) -> dict[str, bytes]:
    """The lines by question; empty where there is no index, where it is damaged, or where another
    version of this code wrote it."""
    try:
        content = (root / NAME).read_bytes()
        start = content.find(b"\n") + 1
        if content[:start] != _head(memoryview(content)[start:]):
            return {}
    except OSError:
        return {}
    lines = content.split(b"\n")[1:]
    return {line[: line.index(b"\t")].decode(): line for line in lines if line}


def write_index(root: Path, lines: Iterable[bytes]) -> None:
    """Keep the lines, or nothing where the folder takes no file: the next scan then reads all."""
    body = b"\n".join(lines)
    try:
        write_bytes(root / NAME, _head(body) + body)
    except OSError:
        return


def are_current(root: Path, lines: Sequence[bytes]) -> list[bool]:
    """`stamps.is_current` of each line, as another process sees it; as this one does where that one
    gives no answer."""
    if not lines:
        return []
    command = [sys.executable, "-I", "-S", stamps.__file__, str(root)]
    pipe, answer = subprocess.PIPE, b""
    try:
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as child:
            child.stdin.write(b"\n".join(lines))
            child.stdin.close()
            answer = child.stdout.read().strip()
    except OSError:
        pass
    if len(answer) == len(lines):
        return [flag == ord("1") for flag in answer]
    names = (line[: line.index(b"\t")].decode() for line in lines)
    return [
        stamps.is_current(f"{root}/{name}", record_in(line))
        for name, line in zip(names, lines, strict=True)
    ]


def _head(body: bytes | memoryview) -> bytes:
    """Names the code that makes records and the library that checks them, and what follows."""
    code = hashlib.sha256(pydantic.VERSION.encode())
    for name in _SOURCES:
        code.update(Path(__file__).with_name(name).read_bytes())
    return f"rlkit scan {code.hexdigest()} {hashlib.sha256(body).hexdigest()}\n".encode()
