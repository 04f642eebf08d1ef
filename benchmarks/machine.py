"""The machine that a result was measured on: what it is, and how fast it multiplies and moves.

Rates are the best of some tries on the model's own shapes, in the workload's dtype, in a process
with the benchmark's threads. A child of grpo_step.py.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.limit import Rates, Shape, rows_used
from benchmarks.measure import Stopwatch, answer_job
from benchmarks.workload import Workload

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
COPIED = 2**26  # floats of the bandwidth test: 256 MiB, far more than any cache
LONGEST = 3.0  # seconds for the tries of one product
AT_ONCE = {"cpu": 1, "cuda": 20}  # calls timed together, so that the wait for a GPU weighs little


def machine() -> dict[str, Any]:
    """Processor, cores and the vector units that matter here; no names of hosts or folders."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    values = {name.strip(): value.strip() for name, value in found.items()}
    flags = values.get("flags", "").split()
    return {
        "cpu": values.get("model name", platform.processor() or platform.machine()),
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in flags],
    }


def versions() -> dict[str, str]:
    names = ("torch", "transformers", "peft", "trl")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Matrix rates by kind and rows, and bandwidth, for `workload` and `model` (a folder)."""
    import torch

    work, tries = Workload(**job["workload"]), job["tries"]
    shape, dtype = Shape.of(job["model"]), getattr(torch, work.dtype)
    rate = partial(matrix_rate, dtype=dtype, tries=tries, device=work.device)
    matrices = {"layer": shape.linears, "head": [(shape.hidden, shape.vocabulary)]}
    return {
        "matrix": [
            {"matrices": kind, "rows": rows, "gflops": rate(sizes, rows) / 1e9}
            for kind, sizes in matrices.items()
            for rows in rows_used(work)[kind]
        ],
        "bandwidth_gbs": bandwidth(tries, work.device) / 1e9,
    }


def faster(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """The higher one of every rate in two answers of `measure`: noise only ever slows down."""
    pairs = zip(a["matrix"], b["matrix"], strict=True)
    return {
        "matrix": [max(pair, key=lambda row: row["gflops"]) for pair in pairs],
        "bandwidth_gbs": max(a["bandwidth_gbs"], b["bandwidth_gbs"]),
    }


def rates_from(measured: dict[str, Any]) -> Rates:
    """What `measure` answered, as limit.py takes it."""
    matrix = {(row["matrices"], row["rows"]): row["gflops"] * 1e9 for row in measured["matrix"]}
    return Rates(matrix, measured["bandwidth_gbs"] * 1e9)


def matrix_rate(
    sizes: Sequence[tuple[int, int]], rows: int, dtype: Any, tries: int, device: str = "cpu"
) -> float:
    """Operations a second of `rows` rows through one matrix after the other, each at its best."""
    import torch

    spent = 0.0
    for (inputs, outputs), count in Counter(sizes).items():
        x = torch.randn(rows, inputs, device=device).to(dtype)
        weight = torch.randn(outputs, inputs, device=device).to(dtype)
        spent += count * _best(
            lambda x=x, w=weight: torch.nn.functional.linear(x, w), tries, device
        )
    return sum(2 * rows * n * m for n, m in sizes) / spent


def bandwidth(tries: int, device: str = "cpu") -> float:
    """Bytes a second, of reading or of copying (which moves twice), whichever is faster."""
    import torch

    source = torch.ones(COPIED, device=device)
    target = torch.empty_like(source)
    size = source.numel() * source.element_size()
    copying = 2 * size / _best(lambda: target.copy_(source), min(tries, 10), device)
    return max(copying, size / _best(source.sum, min(tries, 10), device))


def _best(call: Callable[[], Any], tries: int, device: str = "cpu") -> float:
    """The shortest of some calls in seconds; of fewer where they take too long, but of three."""
    taken: list[float] = []
    while len(taken) < tries and (sum(taken) < LONGEST or len(taken) < 3):
        start = Stopwatch(device)
        for _ in range(AT_ONCE[device]):
            call()
        taken.append(start.read()["steps"] / AT_ONCE[device])
    return min(taken)


if __name__ == "__main__":
    answer_job(measure)
