"""A measurement in a process of its own: starting it, its memory, and where its time goes.

Children are started as `python -m <module> <job as JSON>` from the repository's root and answer
with one JSON line, the last of their output.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def run_child(module: str, job: dict[str, Any], threads: int) -> dict[str, Any]:
    """Run `module` in a fresh process with so many threads; returns what it answers.

    Raises RuntimeError with the end of its output where it fails.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(job)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(f"{module} ended with code {done.returncode}:\n{tail}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def answer_job(measure: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """A child's main: do the job named on the command line, print the answer as one line."""
    result = measure(json.loads(sys.argv[1]))
    print(flush=True)
    print(json.dumps(result), flush=True)


def memory_mib(field: str = "VmRSS") -> float:
    """Resident memory of this process in MiB: now (VmRSS), or its peak so far (VmHWM).

    The kernel's own count for this process; `ru_maxrss`, which a child inherits from the process
    that started it, is the fallback where there is no /proc.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def wait_for(device: str) -> None:
    """Let the device finish what it was given: on CUDA a call returns before its work is done."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def device_mib(device: str, peak: bool = False) -> float:
    """What the model's device holds for this process in MiB, now or at its peak: resident memory
    on a CPU; on CUDA what torch's tensors take, without CUDA's own context."""
    if device == "cpu":
        return memory_mib("VmHWM" if peak else "VmRSS")
    import torch

    return (torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()) / 2**20


class Stopwatch:
    """Started when made; reads the seconds on the clock and on the processor. On one thread the
    two agree, unless something else had the processor, or the device is another one."""

    def __init__(self, device: str = "cpu") -> None:
        wait_for(device)
        self._device = device
        self._start, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        wait_for(self._device)
        return {
            "steps": time.perf_counter() - self._start,
            "steps_cpu": time.process_time() - self._cpu,
        }


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows with the same keys as one list a key."""
    return {name: [row[name] for row in rows] for name in rows[0]}


class Phases:
    """Seconds a named phase took; time inside an inner phase is not counted to the outer one."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._stack: list[str] = []
        self._since = 0.0

    @property
    def current(self) -> str | None:
        return self._stack[-1] if self._stack else None

    def begin(self, name: str) -> None:
        self._account()
        self._stack.append(name)

    def end(self) -> None:
        self._account()
        self._stack.pop()

    def _account(self) -> None:
        wait_for(self._device)
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken

    def wrap(self, owner: Any, name: str, phase: Callable[[], str]) -> None:
        """From now on `owner.name` counts its calls to the phase that `phase()` names."""
        original = getattr(owner, name)

        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.begin(phase())
            try:
                return original(*args, **kwargs)
            finally:
                self.end()

        setattr(owner, name, timed)


@contextmanager
def common_phases(phases: Phases) -> Iterator[None]:
    """Count backward and the optimiser's move, which both trainers call alike."""
    import torch

    kept = torch.Tensor.backward, torch.optim.AdamW.step
    phases.wrap(torch.Tensor, "backward", lambda: "backward")
    phases.wrap(torch.optim.AdamW, "step", lambda: "update")
    try:
        yield
    finally:
        torch.Tensor.backward, torch.optim.AdamW.step = kept


def log_prob_phase() -> str:
    """The pass that computes log-probabilities right now."""
    import torch

    return "policy forward" if torch.is_grad_enabled() else "reference"
