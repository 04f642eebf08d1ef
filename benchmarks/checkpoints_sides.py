"""One scan of recorded rounds in a process of its own: a child of checkpoints.py."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

from benchmarks.measure import Stopwatch, answer_job, memory_mib
from rlkit.rounds.checkpoints import RLCheckpointLoader


def plain_loop(root: Path, keep: bool) -> int:
    """What one writes oneself: json.loads a file, the state before each SEARCH round of at least
    two clues; no checks, no known documents, no cap. Returns the number of samples."""
    samples, count = [], 0
    for run in sorted(root.glob("*/run_*")):
        meta = json.loads((run / "meta.json").read_text(encoding="utf-8"))
        before = json.loads((run / "round_000.json").read_text(encoding="utf-8"))
        for ref in meta["rounds"]:
            after = json.loads((run / ref["checkpoint"]).read_text(encoding="utf-8"))
            if ref["strategy"] == "SEARCH" and len(ref["clues"]) >= 2:
                count += 1
                if keep:
                    samples.append((meta["question"], before, ref["clues"], after["results"]))
            before = after
    return count


def scan(root: Path, processes: int | None) -> int:
    loader = RLCheckpointLoader(root, processes=processes)
    loader.load_data()
    assert not loader.damaged
    return len(loader.extract_training_samples())


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds on the clock and on all processors, and the peak of memory in MiB, for `side`: this
    process's, above what it had when it began, and the largest child's (all of it)."""
    root, before = Path(job["root"]), memory_mib()
    watch = Stopwatch()
    if job["side"] == "plain":
        samples = plain_loop(root, job["keep"])
    else:
        samples = scan(root, job["processes"])
    taken = watch.read()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "samples": samples,
        "seconds": taken["steps"],
        "cpu": taken["steps_cpu"] + children.ru_utime + children.ru_stime,
        "before_mib": before,
        "added_mib": memory_mib("VmHWM") - before,
        "child_mib": children.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    answer_job(measure)
