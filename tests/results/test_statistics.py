"""Intervals against values worked out by hand and against SciPy's own paired t test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rlkit.results.statistics import (
    PairedInterval,
    interval_text,
    mean_interval,
    paired_differences,
    paired_interval,
)


def test_interval_of_one_to_four_by_hand() -> None:
    # mean 2.5, s² = (2.25 + 0.25 + 0.25 + 2.25) / 3 = 5/3, t(0.975, 3) = 3.182446 (tables)
    interval = mean_interval([1, 2, 3, 4])
    half = 3.1824463053 * math.sqrt(5 / 3) / 2
    assert interval.n == 4 and interval.mean == 2.5
    assert interval.low == pytest.approx(2.5 - half, abs=1e-9)
    assert interval.high == pytest.approx(2.5 + half, abs=1e-9)


def test_missing_values_are_left_out() -> None:
    assert mean_interval([1, None, 2, float("nan"), 3, 4]) == mean_interval([1, 2, 3, 4])


def test_fewer_than_two_values_have_no_interval() -> None:
    assert mean_interval([]) == (0, None, None, None)
    assert mean_interval([0.5]) == (1, 0.5, None, None)


def test_equal_values_have_an_interval_of_width_zero() -> None:
    assert mean_interval([0.25] * 5) == (5, 0.25, 0.25, 0.25)


def test_paired_interval_by_hand() -> None:
    # differences 0.1, 0.3, 0.2: mean 0.2, s = 0.1, t(0.975, 2) = 4.302653, √3 = 1.7320508
    a = {"q1": 0.6, "q2": 0.8, "q3": 0.4, "only a": 9.0}
    b = {"q3": 0.2, "q1": 0.5, "q2": 0.5, "only b": 9.0}
    interval = paired_interval(a, b)
    half = 4.3026527299 * 0.1 / math.sqrt(3)
    assert interval.n == 3 and interval.non_zero == 3
    assert interval.mean == pytest.approx(0.2, abs=1e-12)
    assert (interval.low, interval.high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-9)


def test_paired_interval_agrees_with_scipys_paired_t_test() -> None:
    random = np.random.default_rng(3)
    a = {f"q{i}": v for i, v in enumerate(random.normal(size=40))}
    b = {f"q{i}": v for i, v in enumerate(random.normal(size=40))}
    expected = stats.ttest_rel(list(a.values()), list(b.values())).confidence_interval(0.95)
    interval = paired_interval(a, b)
    assert (interval.low, interval.high) == pytest.approx(tuple(expected), abs=1e-12)


def test_differences_leave_out_unpaired_and_missing_questions() -> None:
    a = {"q1": 1.0, "q2": float("nan"), "q3": None, "q4": 2.0}
    assert paired_differences(a, {"q1": 0.5, "q2": 1.0, "q3": 1.0}) == {"q1": 0.5}


def test_zero_differences_are_counted_apart() -> None:
    a = {"q1": 0.1 + 0.2, "q2": 0.5, "q3": 1.0}
    interval = paired_interval(a, {"q1": 0.3, "q2": 0.5, "q3": 0.0})
    assert (interval.n, interval.non_zero) == (3, 1)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (PairedInterval(30, 0.2, 0.1, 0.3, 19), "too few to say"),
        (PairedInterval(30, 0.2, 0.1, 0.3, 20), "higher"),
        (PairedInterval(30, -0.2, -0.3, -0.1, 20), "lower"),
        (PairedInterval(30, 0.1, -0.1, 0.3, 25), "no clear difference"),
        (PairedInterval(1, 0.2, None, None, 1), "too few to say"),
    ],
)
def test_verdict_of_a_difference(interval: PairedInterval, verdict: str) -> None:
    assert interval.verdict == verdict


def test_interval_as_text_carries_n_and_the_sign_of_differences() -> None:
    assert interval_text(PairedInterval(34, 0.114, 0.02, 0.2, 21)) == "+0.11 [+0.02, +0.20], n = 34"
    assert interval_text(PairedInterval(3, -0.001, -0.2, 0.2, 2)) == "+0.00 [-0.20, +0.20], n = 3"
    assert interval_text(mean_interval([0.5])) == "0.50 (no interval with n = 1)"
    assert interval_text(mean_interval([])) == "no value, n = 0"
