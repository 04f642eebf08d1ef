"""Of one sample of differences: the bootstrap's interval, and the effect it could have shown."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special, stats

CONFIDENCE = 0.95
POWER = 0.8  # with which `smallest_effect` would be found
RESAMPLES = 9999
SEED = 7  # of the resampling: the same values always have the same interval


@lru_cache(maxsize=512)
def bca(values: tuple[float, ...]) -> tuple[float, float, float]:
    """Low, high and two-sided p-value of the mean, from the bias-corrected and accelerated
    bootstrap (Efron 1987, "Better bootstrap confidence intervals", JASA 82).

    p is the smallest level at which the interval would leave out 0, so that both always agree;
    it cannot be much smaller than 1 / `RESAMPLES`.
    """
    sample = np.array(values)
    mean = _mean(sample, axis=0)
    found = stats.bootstrap(
        (sample,),
        _mean,
        n_resamples=RESAMPLES,
        batch=max(1, 2_000_000 // len(sample)),
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(SEED),
    )
    means, off = found.bootstrap_distribution, sample - mean
    bias = special.ndtri(_share_below(means, mean))
    acceleration = (off**3).sum() / (6 * (off**2).sum() ** 1.5)
    at_zero = np.clip(_share_below(means, 0.0), 0.5 / RESAMPLES, 1 - 0.5 / RESAMPLES)
    z = special.ndtri(at_zero) - bias
    z = z / (1 + acceleration * z) - bias  # the interval's formula, solved for its level
    low, high = found.confidence_interval
    return float(low), float(high), float(2 * special.ndtr(-abs(z)))


def _mean(sample: np.ndarray, axis: int) -> np.ndarray:
    """Rounded, so that equal means are equal whatever the order in which they were summed."""
    return np.round(np.mean(sample, axis=axis), 12)


def _share_below(means: np.ndarray, value: float) -> float:
    return float(np.mean(means < value) + np.mean(means <= value)) / 2


def smallest_effect(n: int, deviation: float) -> float:
    """The smallest true mean difference that a two-sided t test at the 5 % level finds with
    power 0.8, given n >= 2 differences of this standard deviation: from the noncentral t
    distribution (Cohen 1988, "Statistical power analysis for the behavioral sciences", chapter
    2). A finding with the wrong sign, less likely than 1e-5, does not count."""
    critical = stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)
    return float(special.nctdtrinc(n - 1, 1 - POWER, critical)) * deviation / math.sqrt(n)
