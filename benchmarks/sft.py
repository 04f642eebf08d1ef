"""An update of SFT of this package, one by one and packed, beside TRL's SFTTrainer.

    python benchmarks/sft.py --models smollm2 debug

Prints a table and one JSON line; with the defaults the result is kept in
benchmarks/results/sft.json. benchmarks/README.md says what is compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from benchmarks.machine import machine, versions  # noqa: E402
from benchmarks.measure import run_child  # noqa: E402
from benchmarks.workload import SMOLLM2, prepare_model  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "sft.json"
OURS = ("ours one by one", "ours packed")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--models", nargs="+", default=[SMOLLM2, "debug"], help="debug, or as grpo_step.py's")
    add("--lengths", nargs=2, type=int, default=[110, 50], help="mean tokens: prompt, completion")
    add("--batch-size", type=int, default=8, help="examples an update")
    add("--micro-batches", nargs="+", type=int, default=[8, 2], help="TRL's, each tried")
    add("--updates", type=int, default=2, help="counted updates a process")
    add("--warm-up", type=int, default=1, help="updates before, which are not counted")
    add("--rounds", type=int, default=1, help="processes of each side, taking turns")
    add("--seed", type=int, default=7, help="of the rows; round r takes seed + r")
    add("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: compare(name, Path(folder), options) for name in options.models}
    result = {
        "benchmark": "sft",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "versions": versions(),
        "threads": 1,
        **{k: v for k, v in vars(options).items() if k not in ("models", "output")},
        "models": found,
    }
    print("\n\n".join(text(name, sides) for name, sides in found.items()))
    print(json.dumps(result))
    defaults = vars(parser.parse_args([]))
    output = options.output or (RESULT if vars(options) == defaults else None)
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def compare(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Every side's figures: medians over the counted updates of all rounds, and ratios."""
    model = _folder_of(name, folder)
    jobs = {side: {"side": side, "micro_batch": 0} for side in OURS}
    for size in options.micro_batches:
        jobs[f"TRL, micro-batches of {size}"] = {"side": "trl", "micro_batch": size}
    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in jobs}
    for turn in range(options.rounds):
        for side, job in jobs.items():
            job = {**job, "model": str(model), **vars(options), "seed": options.seed + turn}
            job.pop("output")
            answers[side].append(run_child("benchmarks.sft_sides", job, threads=1))
            print(f"{name}: {side}, round {turn + 1}", file=sys.stderr, flush=True)
    sides = {side: _figures(found) for side, found in answers.items()}
    best = min(s["cpu_s"] for side, s in sides.items() if side not in OURS)
    for figures in sides.values():
        figures["times_faster_than_trl"] = best / figures["cpu_s"]
    return sides


def _figures(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    seconds = [s for answer in answers for s in answer["steps"]]
    return {
        "n": len(seconds),
        "median_s": median(seconds),
        "range_s": [min(seconds), max(seconds)],
        "cpu_s": median(s for answer in answers for s in answer["steps_cpu"]),
        "peak_mib": max(answer["peak_mib"] for answer in answers),
        "first_losses": [answer["first_loss"] for answer in answers],
    }


def _folder_of(name: str, folder: Path) -> Path:
    if name == "debug":
        from rlkit.training.models import resolve_base_model

        return Path(resolve_base_model(name))
    return prepare_model(name, folder)


def text(name: str, sides: dict[str, Any]) -> str:
    """The table of one model; ratios are of processor time, against TRL's fastest."""
    head = ("side", "seconds", "range", "processor s", "times TRL's best", "peak MiB", "first loss")
    lines = [f"{name}: one update", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for side, f in sides.items():
        low, high = f["range_s"]
        cells = (
            side, f"{f['median_s']:.3g} (n {f['n']})", f"{low:.3g} to {high:.3g}",
            f"{f['cpu_s']:.3g}", f"{f['times_faster_than_trl']:.2f}", f"{f['peak_mib']:.0f}",
            " / ".join(f"{loss:.5f}" for loss in f["first_losses"]),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
