"""Reads many questions in several processes. They are plain child processes that get names and
answer with records, each a line of JSON: nothing is forked or pickled, no script is imported again,
so that it is the same in a notebook, in a test, and beside threads; they end with their pipes.

    python -m rlkit.rounds.readers ROOT CLOCK
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pydantic_core import to_json

from rlkit.rounds.records import read_recording

CHUNK = 32  # questions that a process is asked for at a time
POOL_FROM = 1000  # questions; for fewer, starting processes costs more than it saves
MOST = 8  # processes


def available_processes() -> int:
    """The cores that this process may use, shared with the other ranks of its machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(MOST, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


def read_all(
    root: Path, names: Sequence[str], clock: int | None, processes: int | None = None
) -> Iterator[bytes]:
    """The record of each question as a line of JSON, in the order of the names.

    `processes` is how many read; None: by the cores, and this one alone where there is little to
    read. Where one ends or cannot start, this process does its work.
    """
    if processes is None:
        processes = available_processes() if len(names) >= POOL_FROM else 1
    if processes == 1 or not sys.executable:
        yield from (_line(root, name, clock) for name in names)
        return
    pool = _Pool(root, clock, processes)
    try:
        yield from pool.read(names)
    finally:
        pool.close()


def _line(root: Path, name: str, clock: int | None) -> bytes:
    return to_json(read_recording(root / name, clock))


class _Pool:
    """Child processes, and a thread for each that waits for its answers."""

    def __init__(self, root: Path, clock: int | None, processes: int) -> None:
        self.root, self.clock, self.is_closed = root, clock, False
        self.threads = ThreadPoolExecutor(processes)
        self.children: list[subprocess.Popen[bytes]] = []
        self.idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        for _ in range(processes):
            self.idle.put(self._start())

    def _start(self) -> subprocess.Popen[bytes] | None:
        command = [sys.executable, "-P", "-m", __name__, str(self.root), json.dumps(self.clock)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
        pipe = subprocess.PIPE
        try:
            child = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment
            )
        except OSError:  # no memory, or too many processes
            return None
        self.children.append(child)
        return child

    def read(self, names: Sequence[str]) -> Iterator[bytes]:
        chunks = [names[at : at + CHUNK] for at in range(0, len(names), CHUNK)]
        for lines in self.threads.map(self._ask, chunks):
            yield from lines

    def _ask(self, names: Sequence[str]) -> list[bytes]:
        child = self.idle.get()
        try:
            lines = _answers(child, names) if child else []
        finally:
            self.idle.put(child)
        if len(lines) < len(names) and not self.is_closed:
            lines = [_line(self.root, name, self.clock) for name in names]
        return lines

    def close(self) -> None:
        """End the processes, also in the middle of their work."""
        self.is_closed = True
        for child in self.children:
            child.kill()
        self.threads.shutdown(cancel_futures=True)
        for child in self.children:
            child.wait()
            with suppress(OSError):  # of what it could no longer be told
                child.stdin.close()
            child.stdout.close()


def _answers(child: subprocess.Popen[bytes], names: Sequence[str]) -> list[bytes]:
    """A line for each name; fewer where the process has ended."""
    try:
        child.stdin.write(json.dumps(names).encode() + b"\n")
        child.stdin.flush()
    except OSError:
        return []
    lines = (child.stdout.readline() for _ in names)
    return [line.removesuffix(b"\n") for line in lines if line.endswith(b"\n")]


def main(root: str, clock: str) -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks ends this process
    gc.freeze()
    gc.disable()
    for request in sys.stdin.buffer:
        for name in json.loads(request):
            sys.stdout.buffer.write(_line(Path(root), name, json.loads(clock)) + b"\n")
        sys.stdout.buffer.flush()
        gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
