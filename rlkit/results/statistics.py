"""Means with intervals, and paired differences by question, never by round.

Rounds of one question are not independent, so the caller averages within a question first and
hands over one value per question. With n values, sample standard deviation s and
t = the 97.5 % quantile of Student's t with n - 1 degrees of freedom, the 95 % interval is
`mean ± t · s / √n` (Student 1908, "The probable error of a mean", Biometrika 6). With fewer than
two values, or where all are the same, no interval exists: `low` and `high` are None, the mean
stands alone, and `caution` says why. What can only lie between two bounds has an interval between
them, see `mean_interval`.

Where at least 100 paired differences are strongly skewed, their interval is the bootstrap's
(bootstrap.py), otherwise it is Student's. In simulations neither alone covers as well: for
differences of both signs, many of them 0, t does and BCa is too short; where few questions differ,
and all in one direction, BCa does. `benchmarks/coverage.py` measures it, and docs/results.md has
the table. Where both speak, an effect is claimed only where interval and p agree.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from rlkit.results.bootstrap import CONFIDENCE, bca, smallest_effect

ENOUGH_NON_ZERO = 20  # with fewer non-zero paired differences no effect is claimed
_NOTHING = 5e-5  # smaller differences are shown as 0
BCA_FROM = 100  # questions; below, always Student's t
ALPHA = 0.05  # with a p-value above, no difference is claimed
SKEWED = 0.2  # |skewness| / √n of strong skewness (Cochran 1977, "Sampling techniques", 2.15)
_ZERO = 1e-9  # rewards are rounded to 1e-6; anything smaller is the noise of averaging
Bounds = tuple[float, float]
FREE, SHARE, COUNT = (-math.inf, math.inf), (0.0, 1.0), (0.0, math.inf)  # where values can lie


class Interval(NamedTuple):
    """A mean over `n` questions and its confidence interval; both ends are None where there is
    none, and `caution` says why."""

    n: int
    mean: float | None
    low: float | None
    high: float | None

    @property
    def caution(self) -> str:
        """Why there is a mean and no interval, or ""."""
        return no_interval(self.n) if self.mean is not None and self.low is None else ""


class PairedInterval(NamedTuple):
    """The mean difference a - b over the `n` questions that both have, and its interval."""

    n: int
    mean: float | None
    low: float | None
    high: float | None
    non_zero: int  # questions on which a and b differ
    p: float | None = None  # two-sided, of no difference on average
    method: str = "t"  # or "bca", or "mcnemar": p is the exact test's, the interval as without it
    smallest_effect: float | None = None  # that this n shows with power 0.8, see bootstrap.py
    skewness: float | None = None  # of the differences; 0 is symmetric

    @property
    def enough(self) -> bool:
        """Whether enough questions differ for an effect to be claimed at all."""
        return self.non_zero >= ENOUGH_NON_ZERO

    @property
    def leaves_out_zero(self) -> bool:
        """Whether there is an interval, and all of it lies on one side of 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def verdict(self) -> str:
        """`too few to say`, `higher`, `lower`, or `no clear difference`: both the interval and p
        must speak for one that is claimed."""
        if not self.enough or self.mean is None:
            return "too few to say"
        # where all differences are the same, and not 0, there is p alone
        if not (self.leaves_out_zero or self.low is None) or (self.p or 0.0) > ALPHA:
            return "no clear difference"
        return "higher" if self.mean > 0 else "lower"

    @property
    def caution(self) -> str:
        """One sentence that a reader should have beside the interval, or ""."""
        if not self.enough:
            return (
                f"Too few to say: {self.non_zero} of {self.n} questions differ, and an effect is "
                f"claimed only where at least {ENOUGH_NON_ZERO} do."
            )
        if self.low is None:
            return (
                f"All {self.n} differences are the same, so an interval says nothing; p is the "
                "sign test's."
            )
        if self.leaves_out_zero and self.verdict == "no clear difference":
            exact = " (McNemar's exact test)" if self.method == "mcnemar" else ""
            return (
                f"The interval leaves 0 out, but p is {self.p:.3g}{exact}, so no difference is "
                "claimed."
            )
        if strongly_skewed(self.skewness or 0.0, self.n):
            return (
                f"The differences are strongly skewed ({self.skewness:+.1f} with n = {self.n}): "
                "such intervals miss the true mean in up to 22 % of simulations, not 5 %."
            )
        return ""


def claimed(interval: PairedInterval, adjusted: float | None = None) -> str:
    """The verdict, as far as the p-value that is adjusted for several comparisons lets one claim
    it."""
    if interval.verdict in ("higher", "lower") and (adjusted or 0.0) > ALPHA:
        return "no clear difference (Holm)"
    return interval.verdict


def no_interval(n: int) -> str:
    """Why a mean of n >= 1 values has no interval."""
    if n < 2:
        return f"no interval with n = {n}"
    return f"all {n} values are the same; an interval says nothing"


def mean_interval(values: Iterable[float | None], bounds: Bounds = FREE) -> Interval:
    """Mean and 95 % interval of one value per question, each between the `bounds` (`SHARE`: 0 and
    1; `COUNT`: from 0; `FREE`: anywhere); what is None, NaN or infinite is left out.

    Shares that are all 0 or 1 have the exact interval (`share_interval`): of all distributions on
    [0, 1] with one mean that of 0 and 1 varies most. Anything else has Student's t; where that
    leaves [0, 1], a share has the interval of Korn and Graubard 1998, "Confidence intervals for
    proportions with small expected number of positive counts estimated from survey data", Survey
    Methodology 24: Clopper and Pearson's for n* = mean (1 - mean) / (s² / n) · (z / t)², the trials
    that would vary as much. In simulations of 14 distributions (rare, clustered, beta; n = 10, 24,
    100) both together cover the mean in 90 to 100 %, t alone in 87 to 100 %, and in 68 and 59 %
    where n = 24 and one value in 40 is ten times the other non-zero ones. A count's interval is
    cut at 0.

    n = 0 gives (0, None, None, None); n = 1 and equal values have no interval, unless it is exact.
    """
    kept = np.array([v for v in values if v is not None and math.isfinite(v)], dtype=np.float64)
    n = len(kept)
    if n == 0:
        return Interval(0, None, None, None)
    if bounds == SHARE and set(kept) <= set(SHARE):
        return share_interval(kept)
    mean = float(kept.mean())
    if n == 1 or np.ptp(kept) <= _ZERO:
        return Interval(n, mean, None, None)
    t, error = _quantile(n), float(kept.std(ddof=1)) / math.sqrt(n)
    low, high = mean - t * error, mean + t * error
    if bounds == SHARE and (low < 0 or high > 1):
        trials = mean * (1 - mean) / error**2 * (special.ndtri(0.5 + CONFIDENCE / 2) / t) ** 2
        low, high = _exact(mean * trials, trials)
    return Interval(n, mean, max(low, bounds[0]), high)


def share_interval(values: Iterable[float | None]) -> Interval:
    """Mean of values that are 0 or 1, one per question, with the exact interval of a share
    (Clopper and Pearson 1934, "The use of confidence or fiducial limits", Biometrika 26)."""
    kept = [v for v in values if v is not None and math.isfinite(v)]
    if not kept:
        return Interval(0, None, None, None)
    right = round(sum(kept))
    return Interval(len(kept), right / len(kept), *_exact(right, len(kept)))


def _exact(right: float, n: float) -> tuple[float, float]:
    """Clopper and Pearson's interval of `right` in n, which need not be whole."""
    tail = 0.5 - CONFIDENCE / 2
    low = special.betaincinv(right, n - right + 1, tail) if right > 0 else 0.0
    high = special.betaincinv(right + 1, n - right, 1 - tail) if right < n else 1.0
    return float(low), float(high)


def _quantile(n: int) -> float:
    """The 97.5 % quantile of Student's t for n values."""
    return float(special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2))


def paired_interval(
    a: Mapping[str, float | None],
    b: Mapping[str, float | None],
    share: bool = False,
    most: float = math.inf,
) -> PairedInterval:
    """The 95 % interval of the mean difference a - b, paired by question, and its p-value.

    `a` and `b` map a question's id to its value; questions that only one has, or whose value is
    None, NaN or infinite in either, are left out. Interval and p are Student's t, or those of
    `bca` where at least `BCA_FROM` differences are strongly skewed. Where all differences are the
    same, there is no interval and p is the sign test's: 2 / 2ⁿ, or 1 where they are all 0.
    `share`: where all values are 0 or 1, p is that of `share_test`. `most`: no difference can be
    larger (shares differ by 1 at most), and the interval is cut there.
    """
    found = _interval_of(np.array([*paired_differences(a, b).values()], dtype=np.float64))
    if found.low is not None:
        found = found._replace(low=max(found.low, -most), high=min(found.high, most))
    exact = share_test(a, b) if share else None
    return found if exact is None else found._replace(p=exact, method="mcnemar")


def _interval_of(differences: np.ndarray) -> PairedInterval:
    differences = np.sort(differences)
    n, mean, low, high = mean_interval(differences)
    non_zero = int((abs(differences) > _ZERO).sum())
    if n < 2:
        return PairedInterval(n, mean, low, high, non_zero)
    if low is None:
        return PairedInterval(n, mean, low, high, non_zero, min(1.0, 2.0 ** (1 - non_zero)))
    skewness = float(stats.skew(differences))
    method, p = "t", float(stats.ttest_1samp(differences, 0.0).pvalue)
    if n >= BCA_FROM and strongly_skewed(skewness, n):
        method, (low, high, p) = "bca", bca(tuple(differences))
    effect = smallest_effect(n, float(differences.std(ddof=1)))
    return PairedInterval(n, mean, low, high, non_zero, p, method, effect, skewness)


def strongly_skewed(skewness: float, n: int) -> bool:
    return abs(skewness) >= SKEWED * math.sqrt(n)


def paired_differences(
    a: Mapping[str, float | None], b: Mapping[str, float | None]
) -> dict[str, float]:
    """a - b for each question that both have a finite value for, in the order of `a`."""
    pairs = {question: (a[question], b[question]) for question in a.keys() if question in b}
    return {
        question: float(left - right)
        for question, (left, right) in pairs.items()
        if left is not None and right is not None and math.isfinite(left - right)
    }


class SeedsInterval(NamedTuple):
    """The mean difference over questions, each question's being its average over several seeds.

    The interval is about other questions, not other seeds: how much seeds differ is seen in
    `per_seed`, each one's own paired interval.
    """

    averaged: PairedInterval  # over the questions that every seed has
    per_seed: dict[Hashable, PairedInterval]

    @property
    def n(self) -> int:
        return self.averaged.n

    @property
    def mean(self) -> float | None:
        return self.averaged.mean

    @property
    def low(self) -> float | None:
        return self.averaged.low

    @property
    def high(self) -> float | None:
        return self.averaged.high


def seeds_interval(
    by_seed: Mapping[Hashable, tuple[Mapping, Mapping]],
    *,
    share: bool = False,
    most: float = math.inf,
) -> SeedsInterval:
    """The interval of several seeds' differences a - b together: `by_seed` maps a seed to its a
    and b, see `paired_interval`; `share` is for the seeds' own intervals."""
    differences = [paired_differences(a, b) for a, b in by_seed.values()]
    shared = [q for q in differences[0] if all(q in d for d in differences)] if differences else []
    average = {q: math.fsum(d[q] for d in differences) / len(differences) for q in shared}
    per_seed = {seed: paired_interval(a, b, share, most) for seed, (a, b) in by_seed.items()}
    together = paired_interval(average, dict.fromkeys(average, 0.0), most=most)
    return SeedsInterval(together, per_seed)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values, adjusted for being several (Holm 1979, "A simple sequentially rejective
    multiple test procedure", Scandinavian Journal of Statistics 6); None stays None, uncounted."""
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None and not math.isnan(p))
    adjusted, largest = [None] * len(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = adjusted[i] = min(1.0, max(largest, (len(order) - rank) * p))
    return adjusted


def share_test(a: Mapping[str, float | None], b: Mapping[str, float | None]) -> float | None:
    """Two-sided p-value of McNemar's exact test for values that are 0 or 1, paired by question
    (McNemar 1947, Psychometrika 12): of the questions that differ, a is as often right as b.

    1 where none differ; None where nothing is paired or a value is neither 0 nor 1.
    """
    differences = [*paired_differences(a, b)]
    if not differences or not {v for q in differences for v in (a[q], b[q])} <= {0, 1}:
        return None
    won, lost = (sum(s * (a[q] - b[q]) > 0 for q in differences) for s in (1, -1))
    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0


def interval_text(interval: Interval | PairedInterval | SeedsInterval) -> str:
    """`0.41 [0.30, 0.52], n = 34`; differences carry their sign; says where no interval exists."""
    if interval.mean is None:
        return "no value, n = 0"
    shown = _rounded if isinstance(interval, Interval) else signed
    mean = shown(interval.mean)
    if interval.low is None or interval.high is None:
        return f"{mean} ({no_interval(interval.n)})"
    return f"{mean} [{shown(interval.low)}, {shown(interval.high)}], n = {interval.n}"


def signed(value: float) -> str:
    """A difference with its sign and two digits, or with the first one that is not 0: on which
    side of 0 an interval ends must not be lost."""
    if _NOTHING < abs(value) < 0.005:
        return f"{value:+.1g}"
    return format(round(value, 2) + 0.0, "+.2f")


def _rounded(value: float) -> str:
    return format(round(value, 2) + 0.0, ".2f")
