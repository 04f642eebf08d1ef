"""How fast recorded rounds are scanned and become training states, and in how much memory.

    python benchmarks/checkpoints.py --questions 10000

makes the rounds in a temporary folder (some 900 MB, removed afterwards) and lets a plain loop of
`json.loads`, our first scan by one process and by two, and our second scan, with its index, read
them in turn, each in a process of its own. Then memory: a tenth of the questions, and those with
texts four times as long. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # so that it runs from anywhere, as a script
    sys.path.insert(0, str(ROOT))

from benchmarks.machine import machine  # noqa: E402
from benchmarks.measure import run_child  # noqa: E402
from benchmarks.publish import parse_to_keep, publish  # noqa: E402
from benchmarks.recorded_rounds import ROUNDS, TEXT, make_rounds  # noqa: E402
from rlkit.rounds.index import GRAIN, NAME  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "checkpoints.json"
TARGET, FASTER = 2000, 10  # rounds a second; the second scan against the first
SIDES: dict[str, dict[str, Any]] = {
    "plain loop, keeps its samples": {"side": "plain", "keep": True},
    "plain loop, keeps nothing": {"side": "plain", "keep": False},
    "first scan, one process": {"side": "first", "processes": 1},
    "first scan, two processes": {"side": "first", "processes": 2},
    "second scan": {"side": "second", "processes": None},
}
LONGER = 4  # times the length of a text


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    few = max(1, options.questions // 10)
    with tempfile.TemporaryDirectory(prefix="rlkit-rounds-") as folder:
        rounds = {
            "all": made(Path(folder) / "all", options.questions, options.seed),
            "few": made(Path(folder) / "few", few, options.seed),
            "long": made(Path(folder) / "long", few, options.seed, LONGER * TEXT),
        }
        time.sleep(1.1 * GRAIN / 1e9)  # as rounds that were not recorded in this very moment
        passes = [take_turns(rounds["all"]["root"]) for _ in range(options.passes)]
        memory = {name: take_turns(rounds[name]["root"]) for name in ("few", "long")}
        index = Path(rounds["all"]["root"]) / NAME
        index_bytes = index.stat().st_size if index.exists() else 0  # few rounds have none
    result = {
        **header(options),
        "rounds": {name: row["rounds"] for name, row in rounds.items()},
        "round_bytes": {name: row["bytes"] for name, row in rounds.items()},
        "index_bytes": index_bytes,
        "sides": {name: summary([p[name] for p in passes], rounds["all"]) for name in SIDES},
        "memory": {
            name: {side: row["added_mib"] for side, row in rows.items()}
            for name, rows in memory.items()
        },
    }
    publish(result, as_text(result), options.output)
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--questions", type=int, default=10_000, metavar="N")
    parser.add_argument("--passes", type=int, default=3, help="of every side, in turn")
    parser.add_argument("--seed", type=int, default=7, metavar="N")
    return parse_to_keep(parser, arguments, RESULT)


def header(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "checkpoints",
        "command": f"python benchmarks/checkpoints.py --questions {options.questions}",
        "date": time.strftime("%Y-%m-%d"),
        "questions": options.questions,
        "passes": options.passes,
        "seed": options.seed,
        "load_before": os.getloadavg()[0],
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "pydantic": metadata.version("pydantic"),
        },
    }


def made(root: Path, questions: int, seed: int, words: int = TEXT) -> dict[str, Any]:
    size = make_rounds(root, questions, seed, words)
    return {"root": str(root), "rounds": questions * ROUNDS, "bytes": size}


def take_turns(root: str) -> dict[str, dict[str, Any]]:
    """Every side once; a first scan finds no index."""
    rows = {}
    for name, job in SIDES.items():
        if job["side"] == "first":
            (Path(root) / NAME).unlink(missing_ok=True)
        rows[name] = run_child("benchmarks.checkpoints_sides", {"root": root, **job}, threads=1)
    counts = {row["samples"] for row in rows.values()}
    assert len(counts) == 1, f"the sides find different samples: {counts}"
    return rows


def summary(rows: list[dict[str, Any]], made: dict[str, Any]) -> dict[str, Any]:
    seconds = [row["seconds"] for row in rows]
    median = statistics.median(seconds)
    return {
        "seconds": seconds,
        "cpu": [row["cpu"] for row in rows],
        "median_s": median,
        "rounds_a_second": made["rounds"] / median,
        "mb_a_second": made["bytes"] / median / 1e6,
        "added_mib": max(row["added_mib"] for row in rows),
        "child_mib": max(row["child_mib"] for row in rows),
        "samples": rows[0]["samples"],
    }


def as_text(result: dict[str, Any]) -> str:
    sides, memory = result["sides"], result["memory"]
    rounds, size = result["rounds"], result["round_bytes"]
    lines = [
        f"{result['questions']} questions, {rounds['all']} rounds of "
        f"{size['all'] / rounds['all'] / 1024:.1f} KB, {sides['second scan']['samples']} samples; "
        f"index {result['index_bytes'] / 1e6:.1f} MB; median of {result['passes']}",
        "",
        f"{'':<31}{'s':>8}{'cpu s':>8}{'rounds/s':>10}{'MB/s':>8}{'MiB':>8}{'few':>8}{'long':>8}",
    ]
    for name, side in sides.items():
        lines.append(
            f"{name:<31}{side['median_s']:>8.2f}{statistics.median(side['cpu']):>8.2f}"
            f"{side['rounds_a_second']:>10,.0f}{side['mb_a_second']:>8,.0f}"
            f"{side['added_mib']:>8.0f}{memory['few'][name]:>8.0f}{memory['long'][name]:>8.0f}"
        )
    first, alone = sides["first scan, two processes"], sides["first scan, one process"]
    second, plain = sides["second scan"], sides["plain loop, keeps its samples"]
    lines += [
        "",
        f"MiB: peak above what the process had before (a child of two processes: "
        f"{first['child_mib']:.0f} in all); few: {rounds['few']} rounds; long: as many of "
        f"{size['long'] / rounds['long'] / 1024:.0f} KB",
        f"two processes: {first['rounds_a_second']:,.0f} rounds a second (wanted {TARGET:,}), "
        f"{plain['median_s'] / first['median_s']:.1f} times the plain loop",
        f"second scan: {first['median_s'] / second['median_s']:.1f} times as fast as the first by "
        f"two processes, {alone['median_s'] / second['median_s']:.1f} times as by one (wanted "
        f"{FASTER})",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
