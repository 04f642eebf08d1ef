"""How often the 95 % intervals of paired differences hold the true mean, in simulations.

    python benchmarks/coverage.py

draws differences by question from the distributions of `GENERATORS`, whose means are known, and
counts the intervals that hold it: Student's t, BCa, and the one of both that
`rlkit.results.statistics.paired_interval` takes. All simulations of one n share their resamples,
as they do there, where the resampling has one seed: so a cell's resampled means are one product
of matrices. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy import special, stats

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # so that it runs from anywhere, as a script
    sys.path[0] = str(ROOT)

from benchmarks.publish import parse_to_keep, publish  # noqa: E402
from rlkit.results.bootstrap import RESAMPLES, SEED  # noqa: E402
from rlkit.results.statistics import BCA_FROM, ENOUGH_NON_ZERO, SKEWED  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "coverage.json"
SIZES = (30, 100, 300)
CHUNK = 500  # simulations whose resampled means are in memory at once
RATES = np.array([1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 1])  # differences of discovery rates


class Generator(NamedTuple):
    """A distribution of differences: `draw(random, shape)`, its true mean, and its kind."""

    kind: str  # "two-sided" or "skewed"
    words: str
    mean: float
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def rates(zeros: float, positive: float) -> tuple[float, Callable]:
    """Mean and draw of differences that are 0 with probability `zeros`, else one of `RATES`, with
    a plus in the share `positive` of cases."""

    def draw(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        signs = np.where(random.random(shape) < positive, 1.0, -1.0)
        return (random.random(shape) >= zeros) * signs * random.choice(RATES, shape)

    return (1 - zeros) * (2 * positive - 1) * float(RATES.mean()), draw


def rewards(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return (random.random(shape) >= 0.5) * random.normal(0.4, 1.5, shape)


def rare(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return (random.random(shape) >= 0.95) * random.lognormal(0.0, 0.5, shape)


def lognormal(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.lognormal(0.0, 1.0, shape)


GENERATORS = {
    "even": Generator("two-sided", "70 % zeros, else ± a rate, both signs alike", *rates(0.7, 0.5)),
    "gain": Generator("two-sided", "70 % zeros, else ± a rate, 70 % of them +", *rates(0.7, 0.7)),
    "sparse": Generator(
        "two-sided", "85 % zeros, else ± a rate, 70 % of them +", *rates(0.85, 0.7)
    ),
    "reward": Generator("two-sided", "50 % zeros, else normal (0.4, 1.5)", 0.2, rewards),
    "one-sided": Generator("skewed", "70 % zeros, else + a rate", *rates(0.7, 1.0)),
    "fewer": Generator("skewed", "90 % zeros, else + a rate", *rates(0.9, 1.0)),
    "rare": Generator("skewed", "95 % zeros, else + a rate", *rates(0.95, 1.0)),
    "rare, long": Generator(
        "skewed", "95 % zeros, else lognormal (0, 0.5)", 0.05 * math.exp(0.125), rare
    ),
    "lognormal": Generator("skewed", "lognormal (0, 1)", math.exp(0.5), lognormal),
}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    began = time.process_time()
    cells = [cell(name, n, options) for n in SIZES for name in GENERATORS]
    result = {
        "benchmark": "coverage",
        "date": time.strftime("%Y-%m-%d"),
        "simulations": options.simulations,
        "seed": options.seed,
        "resamples": RESAMPLES,
        "cpu_s": round(time.process_time() - began, 1),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "cells": cells,
    }
    publish(result, as_text(result), options.output)
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--simulations", type=int, default=10_000, metavar="N", help="a cell")
    parser.add_argument("--seed", type=int, default=7)
    return parse_to_keep(parser, arguments, RESULT)


def cell(name: str, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """Coverage of one distribution at one n, and how often a caution stands beside the interval."""
    generator = GENERATORS[name]
    random = np.random.default_rng([options.seed, n, list(GENERATORS).index(name)])
    samples = np.sort(generator.draw(random, (options.simulations, n)), axis=1)  # (S, n)
    ends = {"t": t_intervals(samples), "bca": bca_intervals(samples)}  # of (S,)
    skewness = np.zeros(len(samples))
    spread = np.ptp(samples, axis=1) > 0
    skewness[spread] = stats.skew(samples[spread], axis=1)
    skewed = abs(skewness) >= SKEWED * math.sqrt(n)
    resampled = skewed & (n >= BCA_FROM)
    low, high = (np.where(resampled, *pair) for pair in zip(ends["bca"], ends["t"], strict=True))
    few = (samples != 0).sum(axis=1) < ENOUGH_NON_ZERO
    held = (low <= generator.mean) & (generator.mean <= high)
    return {
        "differences": name,
        "kind": generator.kind,
        "n": n,
        "coverage": float(held.mean()),
        "coverage_enough": float(held[~few].mean()) if (~few).mean() >= 0.05 else None,
        "bca_taken": float(resampled.mean()),
        **{
            f"coverage_{method}": float(np.mean((a <= generator.mean) & (generator.mean <= b)))
            for method, (a, b) in ends.items()
        },
        **{f"width_{method}": float(np.mean(b - a)) for method, (a, b) in ends.items()},
        "truth_above": float(np.mean(high < generator.mean)),
        "truth_below": float(np.mean(low > generator.mean)),
        "too_few": float(few.mean()),
        "skewed": float((skewed & ~few).mean()),
    }


def t_intervals(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both ends for each row of `samples` (S, n)."""
    n, means = samples.shape[1], samples.mean(axis=1)
    half = stats.t.ppf(0.975, n - 1) * samples.std(axis=1, ddof=1) / math.sqrt(n)
    return means - half, means + half


def bca_intervals(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both ends for each row of `samples` (S, n); rows of equal values have width 0."""
    n = samples.shape[1]
    drawn = np.random.default_rng(SEED).integers(0, n, (RESAMPLES, n))
    counts = np.zeros((RESAMPLES, n))  # how often each place was drawn
    np.add.at(counts, (np.arange(RESAMPLES)[:, None], drawn), 1.0)
    ends = [_bca(samples[i : i + CHUNK], counts) for i in range(0, len(samples), CHUNK)]
    low, high = (np.concatenate(column) for column in zip(*ends, strict=True))
    return low, high


def _bca(samples: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    means = np.round(samples.mean(axis=1), 12)[:, None]  # (S, 1)
    resampled = np.sort(np.round(samples @ counts.T / samples.shape[1], 12), axis=1)  # (S, B)
    below = ((resampled < means).mean(axis=1) + (resampled <= means).mean(axis=1)) / 2
    bias = special.ndtri(below)
    off = samples - means
    with np.errstate(invalid="ignore"):  # 0 / 0 where all values are equal
        acceleration = (off**3).sum(axis=1) / (6 * (off**2).sum(axis=1) ** 1.5)
    ends = []
    for quantile in (0.025, 0.975):
        z = bias + special.ndtri(quantile)
        place = special.ndtr(bias + z / (1 - acceleration * z)) * (RESAMPLES - 1)
        ends.append(_at(resampled, np.where(np.isnan(place), 0.0, place)))
    return ends[0], ends[1]


def _at(rows: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The value of each sorted row at a place between two whole numbers."""
    before = np.floor(place).astype(int)
    left, right = (
        np.take_along_axis(rows, np.minimum(i, rows.shape[1] - 1)[:, None], axis=1)[:, 0]
        for i in (before, before + 1)
    )
    return left + (place - before) * (right - left)


def as_text(result: dict[str, Any]) -> str:
    """The table: a row a cell, in percent."""
    lines = [
        f"{result['simulations']} simulations a cell, seed {result['seed']}, "
        f"{result['resamples']} resamples; percent of the 95 % intervals that hold the true mean",
        "",
        f"{'differences':<12}{'kind':<11}{'n':>4}{'t':>7}{'BCa':>7}{'taken':>7}{'(BCa in':>9}"
        f"{'enough':>8}{'above':>7}{'below':>7}{'too few':>9}{'skewed':>8}",
    ]
    for c in result["cells"]:
        enough = c["coverage_enough"]
        percent = {k: 100 * v for k, v in c.items() if isinstance(v, float)}
        lines.append(
            f"{c['differences']:<12}{c['kind']:<11}{c['n']:>4}{percent['coverage_t']:>7.1f}"
            f"{percent['coverage_bca']:>7.1f}{percent['coverage']:>7.1f}"
            f"{percent['bca_taken']:>8.0f})"
            f"{'-' if enough is None else format(100 * enough, '.1f'):>8}"
            f"{percent['truth_above']:>7.1f}{percent['truth_below']:>7.1f}"
            f"{percent['too_few']:>9.1f}{percent['skewed']:>8.1f}"
        )
    lines += ["", *(f"{name}: {g.words}" for name, g in GENERATORS.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
