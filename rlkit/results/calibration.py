"""Whether a confidence can be believed: as a ranking of answers, and as a probability.

    found = calibration(confidences, right)      # two lists, one value an answer
    reliability_plot({"greedy": found})

Ranking is the area under the ROC curve: how often a right answer has more confidence than a wrong
one. As a probability of being right it is judged by the Brier score (Brier 1950, Monthly Weather
Review 78), beside that of a constant that knows the share of right answers, and by the expected
calibration error: the mean distance of confidence and share of right answers over bins of equally
many answers (Nguyen and O'Connor 2015, arXiv 1508.05154). That error is above 0 even for a perfect
confidence, since shares are noisy; `ece_if_calibrated` says how large it would be at this n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from rlkit.results.bootstrap import CONFIDENCE
from rlkit.results.plots import BLUE, GREY, label_axes, new_figure

BINS = 10
RESAMPLES = 2000
SEED = 7  # of resampling and simulating: the same answers always have the same figures


class Bin(NamedTuple):
    """Answers of similar confidence: their number, mean confidence, share that is right, and its
    95 % interval (Wilson 1927, "Probable inference", JASA 22)."""

    n: int
    confidence: float
    right: float
    low: float
    high: float


@dataclass(frozen=True)
class Calibration:
    """The figures of n answers; `auroc` and `auroc_interval` are None where all are right, or all
    wrong."""

    n: int
    right: float  # share of answers
    confidence: float  # mean
    ece: float
    ece_interval: tuple[float, float]  # bootstrap over answers, 95 %
    ece_if_calibrated: float  # mean of simulations
    p_calibrated: float  # share of these simulations with at least this ece
    brier: float
    brier_of_constant: float
    auroc: float | None
    auroc_interval: tuple[float, float] | None
    bins: tuple[Bin, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"bins": [found._asdict() for found in self.bins]}


def calibration(
    confidences: Sequence[float], right: Sequence[bool | float], bins: int = BINS
) -> Calibration:
    """Of answers with a confidence in [0, 1] each, that are right (1) or wrong (0).

    Raises ValueError where the lists differ in length, hold fewer answers than bins, or values out
    of range.
    """
    c, r = np.asarray(confidences, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if c.shape != r.shape or c.ndim != 1 or len(c) < bins:
        raise ValueError(
            f"{c.shape} confidences of {r.shape} answers; give one each, of {bins} answers or more."
        )
    if not (((c >= 0) & (c <= 1)).all() and ((r == 0) | (r == 1)).all()):
        raise ValueError("confidences lie in [0, 1], and an answer is right (1) or wrong (0).")
    error = float(calibration_error(c, r, bins=bins))
    simulated = calibration_error(*_perfect(c), bins=bins)
    return Calibration(
        n=len(c),
        right=float(r.mean()),
        confidence=float(c.mean()),
        ece=error,
        ece_interval=_error_interval(c, r, bins),
        ece_if_calibrated=float(simulated.mean()),
        p_calibrated=float((simulated >= error).mean()),
        brier=float(((c - r) ** 2).mean()),
        brier_of_constant=float(r.var()),
        **_ranking(c[r == 1], c[r == 0]),
        bins=tuple(_bin(c[rows], r[rows]) for rows in np.array_split(_order(c), bins)),
    )


def calibration_error(
    confidences: np.ndarray, right: np.ndarray, axis: int = -1, bins: int = BINS
) -> np.ndarray:
    """The expected calibration error along the last axis, (..., n) and (..., n): the answers in
    order of confidence are cut into bins of equally many."""
    order = _order(confidences)
    gap = np.take_along_axis(confidences, order, -1) - np.take_along_axis(right, order, -1)
    return sum(abs(part.sum(-1)) for part in np.array_split(gap, bins, -1)) / gap.shape[-1]


def reliability_plot(found: Mapping[str, Calibration]) -> Figure:
    """One panel each: the share of right answers by confidence, with 95 % intervals; on the dashed
    line a confidence is a probability."""
    across = min(3, len(found))
    down = -(-len(found) // across)
    figure, axes = new_figure(2.9 * across, 2.8 * down, down, across)
    for ax in axes[len(found) :]:
        ax.set_axis_off()
    for ax, (name, one) in zip(axes, found.items(), strict=False):
        x, y = [b.confidence for b in one.bins], [b.right for b in one.bins]
        ends = [[b.right - b.low for b in one.bins], [b.high - b.right for b in one.bins]]
        ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1)
        ax.errorbar(x, y, np.maximum(ends, 0), fmt="o", color=BLUE, markersize=4, linewidth=1)
        ax.set_xlim(np.floor(10 * min(x)) / 10 - 0.02, 1.02)
        ax.set_ylim(-0.03, 1.03)
        label_axes(ax, f"{name} (n = {one.n})", f"confidence ({len(x)} bins, n = {one.bins[0].n})")
        ax.set_ylabel("share right", fontsize=8)
        area = "none" if one.auroc is None else f"{one.auroc:.2f}"
        ax.text(0.04, 0.94, f"ECE {one.ece:.2f}\nAUROC {area}", transform=ax.transAxes, fontsize=7,
                va="top")  # fmt: skip
    return figure


def _order(confidences: np.ndarray) -> np.ndarray:
    return np.argsort(confidences, axis=-1, kind="stable")


def _bin(confidences: np.ndarray, right: np.ndarray) -> Bin:
    n, k = len(right), int(right.sum())
    low, high = stats.binomtest(k, n).proportion_ci(CONFIDENCE, method="wilson")
    return Bin(n, float(confidences.mean()), k / n, float(low), float(high))


def _perfect(confidences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """These confidences, and answers that are right with just that probability: (R, n) each."""
    draws = np.random.default_rng(SEED).random((RESAMPLES, len(confidences)))
    return np.broadcast_to(confidences, draws.shape), (draws < confidences).astype(float)


def _error_interval(c: np.ndarray, r: np.ndarray, bins: int) -> tuple[float, float]:
    """The basic bootstrap's: resampling raises the error by noise once more, about as much as noise
    raised the measured one, and the basic interval takes that off."""
    found = stats.bootstrap(
        (c, r),
        lambda x, y, axis: calibration_error(x, y, bins=bins),
        n_resamples=RESAMPLES,
        paired=True,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="basic",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return max(0.0, float(found.low)), max(0.0, float(found.high))


def _ranking(right: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """Area under the ROC curve (Mann and Whitney's U) and its percentile bootstrap interval."""
    if not (len(right) and len(wrong)):
        return {"auroc": None, "auroc_interval": None}

    def area(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        below = stats.rankdata(np.concatenate([a, b], axis), axis=axis)
        n = a.shape[axis]
        ranks = np.take(below, range(n), axis).sum(axis)
        return (ranks - n * (n + 1) / 2) / (n * b.shape[axis])

    value = float(area(right, wrong))
    if min(len(right), len(wrong)) < 2:
        return {"auroc": value, "auroc_interval": None}
    found = stats.bootstrap(
        (right, wrong),
        area,
        n_resamples=RESAMPLES,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return {"auroc": value, "auroc_interval": (float(found.low), float(found.high))}
