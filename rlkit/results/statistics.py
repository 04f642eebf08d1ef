"""Means with intervals, and paired differences: Student's t over questions, never over rounds.

Rounds of one question are not independent, so the caller averages within a question first and
hands over one value per question. With n values, sample standard deviation s and
t = the 97.5 % quantile of Student's t with n - 1 degrees of freedom, the 95 % interval is
`mean ± t · s / √n` (Student 1908, "The probable error of a mean", Biometrika 6). With fewer than
two values no interval exists: `low` and `high` are None and the mean stands alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
ENOUGH_NON_ZERO = 20  # with fewer non-zero paired differences no effect is claimed
_ZERO = 1e-9  # rewards are rounded to 1e-6; anything smaller is the noise of averaging


class Interval(NamedTuple):
    """A mean over `n` questions and its confidence interval (both ends None where n < 2)."""

    n: int
    mean: float | None
    low: float | None
    high: float | None


class PairedInterval(NamedTuple):
    """The mean difference a - b over the `n` questions that both have, and its interval."""

    n: int
    mean: float | None
    low: float | None
    high: float | None
    non_zero: int  # questions on which a and b differ

    @property
    def enough(self) -> bool:
        """Whether enough questions differ for an effect to be claimed at all."""
        return self.non_zero >= ENOUGH_NON_ZERO

    @property
    def verdict(self) -> str:
        """`too few to say`, `higher`, `lower`, or `no clear difference`."""
        if not self.enough or self.low is None or self.high is None:
            return "too few to say"
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "no clear difference"


def mean_interval(values: Iterable[float | None]) -> Interval:
    """Mean and Student's t interval of one value per question; None and NaN are left out.

    n = 0 gives (0, None, None, None); n = 1 gives the value without an interval. Equal values
    have an interval of width 0.
    """
    kept = np.array([v for v in values if v is not None and not math.isnan(v)], dtype=np.float64)
    n = len(kept)
    if n == 0:
        return Interval(0, None, None, None)
    mean = float(kept.mean())
    if n == 1:
        return Interval(1, mean, None, None)
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1) * kept.std(ddof=1) / math.sqrt(n))
    return Interval(n, mean, mean - half, mean + half)


def share_interval(values: Iterable[float | None]) -> Interval:
    """Mean of values that are 0 or 1, one per question, with the exact interval of a share
    (Clopper and Pearson 1934, "The use of confidence or fiducial limits", Biometrika 26)."""
    kept = [v for v in values if v is not None and not math.isnan(v)]
    if not kept:
        return Interval(0, None, None, None)
    right = round(sum(kept))
    low, high = stats.binomtest(right, len(kept)).proportion_ci(CONFIDENCE, method="exact")
    return Interval(len(kept), right / len(kept), float(low), float(high))


def paired_interval(a: Mapping[str, float], b: Mapping[str, float]) -> PairedInterval:
    """Student's t interval of the differences a - b, paired by question.

    `a` and `b` map a question's id to its value; questions that only one has, or whose value is
    None or NaN in either, are left out.
    """
    differences = paired_differences(a, b)
    interval = mean_interval(differences.values())
    return PairedInterval(*interval, non_zero=sum(abs(d) > _ZERO for d in differences.values()))


def paired_differences(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """a - b for each question that both have a value for, in the order of `a`."""
    pairs = {question: (a[question], b[question]) for question in a.keys() if question in b}
    return {
        question: float(left - right)
        for question, (left, right) in pairs.items()
        if left is not None and right is not None and not math.isnan(left - right)
    }


def interval_text(interval: Interval | PairedInterval) -> str:
    """`0.41 [0.30, 0.52], n = 34`; differences carry their sign; says where no interval exists."""
    spec = "+.2f" if isinstance(interval, PairedInterval) else ".2f"
    if interval.mean is None:
        return "no value, n = 0"
    mean = format(round(interval.mean, 2) + 0.0, spec)
    if interval.low is None or interval.high is None:
        return f"{mean} (no interval with n = {interval.n})"
    low, high = (format(round(end, 2) + 0.0, spec) for end in (interval.low, interval.high))
    return f"{mean} [{low}, {high}], n = {interval.n}"
