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
from collections.abc import Mapping
from pathlib import Path

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
    body = _body(lines)
    try:
        write_bytes(root / NAME, b"%b\n%b" % (_head(body), body))
    except OSError:
        return


def are_current(root: Path, lines: Mapping[str, bytes]) -> list[bool]:
    """`stamps.is_current` of each line, as another process sees it; as this one does where that one
    gives no answer."""
    if not lines:
        return []
    command = [sys.executable, "-I", "-S", stamps.__file__, str(root)]
    pipe, answer = subprocess.PIPE, b""
    try:
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as child:
            child.stdin.write(_body(lines))
            child.stdin.close()
            answer = child.stdout.read().strip()
    except OSError:
        pass
    if len(answer) == len(lines):
        return [flag == ord("1") for flag in answer]
    return [stamps.is_current(f"{root}/{name}", from_json(lines[name])) for name in lines]


def _body(lines: Mapping[str, bytes]) -> bytes:
    return b"\n".join(name.encode() + b"\t" + line for name, line in lines.items())


def _head(body: bytes) -> bytes:
    """Names the code that makes records and the library that checks them, and what follows."""
    code = hashlib.sha256(pydantic.VERSION.encode())
    for name in _SOURCES:
        code.update(Path(__file__).with_name(name).read_bytes())
    return f"rlkit scan {code.hexdigest()} {hashlib.sha256(body).hexdigest()}".encode()
