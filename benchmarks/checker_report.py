"""What checker.py measured, as text."""

from __future__ import annotations

import argparse
import platform
import time
from importlib import metadata
from typing import Any

from benchmarks.machine import machine

LIMIT = 1.25  # times the ideal


def header(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "checker",
        "date": time.strftime("%Y-%m-%d"),
        "documents": options.documents,
        "concurrency": options.concurrency,
        "answer_s": options.seconds,
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "openai": metadata.version("openai"),
        },
    }


def as_text(result: dict[str, Any]) -> str:
    """The table: both sides with their ratio to the ideal, the second and the killed pass."""
    ideal, ours, peer = result["ideal_s"], result["ours"], result["peer"]
    second, killed = result["second_pass"], result["killed_pass"]
    lines = [
        f"{result['documents']} documents, one a request, {result['concurrency']} at once, "
        f"{result['answer_s'] * 1000:.0f} ms an answer: ideal {ideal:.2f} s",
        "",
        f"{'':<28}{'median s':>10}{'ideal':>8}{'cpu s':>9}   n",
    ]
    for name, side in (("checker, with cache", ours), ("plain loop, no cache", peer)):
        ratio = side["median_s"] / ideal
        times = f"{side['median_s']:>10.3f}{ratio:>7.2f}x{side['median_cpu_s']:>9.3f}"
        lines.append(f"{name:<28}{times}{len(side['seconds']):>4}")
    within = "within" if ours["median_s"] <= LIMIT * ideal else "NOT within"
    lines += [
        "",
        f"checker / plain loop: {ours['median_s'] / peer['median_s']:.2f}; {within} {LIMIT} times "
        f"the ideal; the probe before it takes {result['probe_s']:.2f} s",
        f"second pass: {second['seconds']:.3f} s, {second['requests']} requests",
        f"killed after {killed['asked_before']} requests with {killed['kept']} verdicts kept, then "
        f"continued: {killed['asked_in_all']} requests in all, {killed['asked_twice']} asked twice "
        f"(under way when it was killed: at most {result['concurrency']})",
    ]
    return "\n".join(lines)
