"""The processes of one training: who they are, how they add up, and how they end together.

    torchrun --nproc_per_node 2 -m rlkit train --params F      (accelerate launch: the same)

A step is one batch on every process; rank r takes the r-th contiguous part of it. Gradients of sums
and their denominators are added up locally and, when the optimiser moves, over the ranks: every
rank makes the same move. Rank 0 ("main") alone writes into the run's folder; the others read it, so
that several machines need a file system that all of them see. What is gathered is pickled, between
the processes of this one job only.

A process that fails leaves its reason in the job's own store (torchrun's), where the others find
it. When it is gone, torchrun ends the rest with SIGTERM, which a thread of the main rank answers:
also while the rank waits in a collective, it writes the reason into the run's status and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlkit.errors import ConfigError, RlkitError

COLLECTIVE_TIMEOUT = timedelta(hours=2)  # a process that is alive and answers no longer
REASON_SECONDS = 3.0  # how long the reason of one that ended is waited for
BUCKET = 2**28  # numbers summed by one collective (1 GiB in float32)
NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_ENDED = "another process of the job ended, or the job was ended from outside"


class JobError(RlkitError):
    """Another process of this job failed; `rank` says which one, where that is known."""

    def __init__(self, reason: str, rank: int | None = None) -> None:
        super().__init__(reason if rank is None else f"rank {rank} failed: {reason}")
        self.reason, self.rank = reason, rank


class Ranks:
    """This process among `size` ones. All methods but `part` are collective: every rank calls
    them, in the same order. In a process of its own they give back what they are given."""

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, device: str = "", store: Any = None
    ) -> None:
        self.rank, self.size, self.local_rank, self.device = rank, size, local_rank, device
        self.on_failure: Callable[[JobError], None] = lambda error: None  # what main does last
        self._store, self._turns, self._last = store, 0, threading.Lock()

    is_main = property(lambda self: self.rank == 0)
    alone = property(lambda self: self.size == 1)

    def part(self, count: int) -> range:
        """Which of `count` items are this rank's: contiguous parts, as even as they can be."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum_(self, tensors: Mapping[str, Tensor]) -> None:
        """Add up each tensor over the ranks, in place and in float32 or wider; the names and
        shapes are the same on all of them."""
        if self.alone:
            return
        for part in _buckets(list(tensors.values())):
            flat = torch.cat([t.detach().reshape(-1).to(_wide(part)) for t in part])
            self._call(dist.all_reduce, flat)
            for tensor, summed in zip(part, flat.split([t.numel() for t in part]), strict=True):
                tensor.detach().copy_(summed.view_as(tensor))

    def copy_(self, tensors: Mapping[str, Tensor]) -> None:
        """Give every rank main's tensors, in place."""
        if not self.alone:
            for tensor in tensors.values():
                self._call(dist.broadcast, tensor.detach(), 0)

    def total(self, value: float) -> float:
        """The sum over the ranks, in float64."""
        return float(sum(self.gather_all(value)))

    def any(self, flag: bool) -> bool:
        """Whether it holds on one of the ranks."""
        return any(self.gather_all(bool(flag)))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value in the order of ranks, on main; elsewhere nothing ([])."""
        if self.alone:
            return [value]
        found: list[Any] | None = [None] * self.size if self.is_main else None
        self._call(dist.gather_object, value, found, 0)
        return found or []

    def gather_all(self, value: Any) -> list[Any]:
        """Every rank's value in the order of ranks, on all of them."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        self._call(dist.all_gather_object, found, value)
        return found

    def broadcast(self, value: Any) -> Any:
        """Main's value, on all of them."""
        if self.alone:
            return value
        found = [value]
        self._call(dist.broadcast_object_list, found, 0)
        return found[0]

    def barrier(self) -> None:
        """Wait for all the others."""
        self.gather_all(None)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main rank does the body while the others wait, however long it takes; then they do
        it, and find what it wrote."""
        self._turns += 1
        if not self.is_main:
            self._wait_for(f"turn/{self._turns}")
        yield
        if self.is_main and not self.alone:
            self._store.set(f"turn/{self._turns}", "done")

    def _wait_for(self, name: str) -> None:
        while not self._call(self._store.check, [name]):
            if found := self._failure(0.0):
                raise found
            time.sleep(0.1)

    def _call(self, collective: Callable[..., Any], *arguments: Any) -> Any:
        """Raises JobError where another process is gone, with its reason if it left one."""
        try:
            return collective(*arguments)
        except RuntimeError as error:  # gloo's "connection closed", nccl's and the store's own
            said = re.sub(r"^\[\S+\] ?", "", str(error).strip()).splitlines()[0]
            said = said.split(". ")[0][:120]
            raise self._failure(REASON_SECONDS) or JobError(f"{_ENDED} ({said})") from error

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Where others' code calls collectives (a divided model's does): what breaks off because
        another process is gone is told as that process' failure, if it left a reason."""
        try:
            yield
        except RuntimeError as error:
            found = None if self.alone else self._failure(REASON_SECONDS)
            if found is None:
                raise
            raise found from error

    def report(self, error: BaseException) -> bool:
        """Leave the reason why this process fails to the others, of whom main says it; whether that
        could be done. Call it while the error is handled."""
        if self.alone or isinstance(error, JobError):
            return True
        reason = f"{type(error).__name__}: {error}"[:500]
        if isinstance(error, KeyboardInterrupt):
            reason = "it was interrupted"
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        with contextlib.suppress(OSError):  # for torchrun's own summary
            get_error_handler().record_exception(error)
        try:
            said = json.dumps({"rank": self.rank, "reason": reason})
            self._store.compare_set("failed", "", said)  # the first reason stays
        except (RuntimeError, OSError):
            return False
        return True

    def _failure(self, seconds: float) -> JobError | None:
        """What a process that failed left; None where nothing comes within so many seconds."""
        until = time.monotonic() + seconds
        with contextlib.suppress(RuntimeError):  # the store can be gone, too
            while True:
                if self._store.check(["failed"]):
                    found = json.loads(self._store.get("failed"))
                    return JobError(found["reason"], found["rank"])
                if time.monotonic() >= until:
                    return None
                time.sleep(0.05)
        return None

    def _end(self) -> None:
        """The job is ended from outside: do what is done last, and go."""
        error = self._failure(REASON_SECONDS) or JobError(_ENDED)
        if self.ends_with(error):
            with contextlib.suppress(Exception):
                print(f"error: {error}", file=sys.stderr, flush=True)
            os._exit(128 + signal.SIGTERM)

    def ends_with(self, error: BaseException) -> bool:
        """Whether the thread that calls is the one that ends this process: of the main thread and
        that which answers SIGTERM, the first. Where another process failed, it does `on_failure`.
        """
        first = self._last.acquire(blocking=False)
        if first and isinstance(error, JobError):
            with contextlib.suppress(Exception):
                self.on_failure(error)
        return first


@contextmanager
def joined(device: str = "auto") -> Iterator[Ranks]:
    """This process among those that torchrun, or accelerate, started with it; in a process that
    was started by itself, one rank and no process group. `device` is `model.device`.

    Raises ConfigError where the launcher's variables are incomplete, or where there are more
    processes than devices.
    """
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size == 1:
        yield Ranks()
        return
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {size}, and {' and '.join(missing)} is not set; start the processes "
            "with torchrun or accelerate launch, or unset WORLD_SIZE."
        )
    ranks = _join(size, device)
    try:
        with _answering_sigterm(ranks):
            yield ranks
            ranks.barrier()  # main may be writing still, and the connections end with a process
    except BaseException as error:
        left = ranks.report(error)
        if ranks.is_main and not ranks.ends_with(error):
            threading.Event().wait()  # until the thread that was first has ended this process
        if not ranks.is_main and left and isinstance(error, (RlkitError, KeyboardInterrupt)):
            raise SystemExit(2) from error  # main says it
        raise  # and keep the connections: their end tells the others that this process is gone
    dist.destroy_process_group()


def _join(size: int, device: str) -> Ranks:
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    where = device_of(local_rank, device)
    if where != "cpu":
        torch.cuda.set_device(local_rank)
    if not dist.is_initialized():
        backend = "gloo" if where == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(minutes=2))
    started = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Ranks(rank, size, local_rank, where, dist.PrefixStore(f"rlkit/{started}", store))


def device_of(local_rank: int, device: str = "auto") -> str:
    """Where a rank computes: `cpu`, or the GPU of its number on this machine."""
    if asked_device(device) == "cpu" or not torch.cuda.is_available():
        return "cpu"
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or local_rank + 1)
    if processes > torch.cuda.device_count():
        raise ConfigError(
            f"{processes} processes are started on this machine and torch sees "
            f"{torch.cuda.device_count()} GPUs; start one process a GPU, or set model.device to "
            "cpu."
        )
    return f"cuda:{local_rank}"


def asked_device(device: str = "auto") -> str:
    """`model.device`; where it is auto and accelerate was told to take the CPU, `cpu`."""
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1", "yes")
    return "cpu" if on_cpu and device == "auto" else device


@contextmanager
def _answering_sigterm(ranks: Ranks) -> Iterator[None]:
    """On main, SIGTERM reaches a thread at once, wherever the main thread is."""
    if not ranks.is_main or threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        while byte := os.read(reading, 1):
            if byte[0] == signal.SIGTERM:
                ranks._end()
        os.close(reading)

    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        os.close(writing)


def _wide(tensors: list[Tensor]) -> torch.dtype:
    wide = torch.float32
    for tensor in tensors:
        wide = torch.promote_types(wide, tensor.dtype)
    return wide


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in their order, in parts of at most BUCKET numbers (or of one tensor)."""
    part: list[Tensor] = []
    for tensor in tensors:
        if part and sum(t.numel() for t in part) + tensor.numel() > BUCKET:
            yield part
            part = []
        part.append(tensor)
    if part:
        yield part
