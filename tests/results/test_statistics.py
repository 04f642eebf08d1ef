"""Intervals and tests against values worked out by hand and against independent computations."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy import integrate, stats

from rlkit.results.bootstrap import bca, smallest_effect
from rlkit.results.statistics import (
    COUNT,
    FREE,
    SHARE,
    PairedInterval,
    holm,
    interval_text,
    mean_interval,
    paired_differences,
    paired_interval,
    seeds_interval,
    share_test,
)


def paired(values) -> PairedInterval:
    """The interval of these differences."""
    a = {f"q{i}": float(v) for i, v in enumerate(values)}
    return paired_interval(a, dict.fromkeys(a, 0.0))


def test_interval_of_one_to_four_by_hand() -> None:
    # mean 2.5, s² = (2.25 + 0.25 + 0.25 + 2.25) / 3 = 5/3, t(0.975, 3) = 3.182446 (tables)
    interval = mean_interval([1, 2, 3, 4])
    half = 3.1824463053 * math.sqrt(5 / 3) / 2
    assert interval.n == 4 and interval.mean == 2.5
    assert interval.low == pytest.approx(2.5 - half, abs=1e-9)
    assert interval.high == pytest.approx(2.5 + half, abs=1e-9)


def test_missing_and_infinite_values_are_left_out() -> None:
    assert mean_interval([1, None, 2, float("nan"), 3, math.inf, 4]) == mean_interval([1, 2, 3, 4])


def test_fewer_than_two_values_have_no_interval() -> None:
    assert mean_interval([]) == (0, None, None, None)
    assert mean_interval([0.5]) == (1, 0.5, None, None)


def test_equal_values_have_no_interval_and_say_so() -> None:
    said = "all 5 values are the same; an interval says nothing"
    for bounds in (FREE, SHARE, COUNT):
        found = mean_interval([0.25] * 5, bounds)
        assert found == (5, 0.25, None, None) and found.caution == said
    assert interval_text(found) == f"0.25 ({said})"
    assert mean_interval([0.1 + 0.2, 0.3]).low is None  # the noise of averaging is no difference
    assert mean_interval([1, 2]).caution == mean_interval([]).caution == ""


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_shares_that_are_all_0_or_all_1_have_the_exact_interval(value: float) -> None:
    """None of 24: the share p under which (1 - p)^24 is .025."""
    found, end = mean_interval([value] * 24, SHARE), 1 - 0.025 ** (1 / 24)
    ends = (0.0, end) if value == 0 else (1 - end, 1.0)
    assert (found.low, found.high) == pytest.approx(ends, abs=1e-12) and found.caution == ""
    assert mean_interval([value] * 24).low is None  # 24 equal rewards say nothing


def test_a_share_near_its_bound_stays_within_it_with_korn_and_graubards_interval() -> None:
    """Nine 0 and one .5: m = .05, s² / 10 = .225 / 90 = .0025, so that .0475 / .0025 = 19 trials
    vary as much, less by (1.959964 / t(.975, 9))² = (1.959964 / 2.262157)². The ends of the beta
    distributions with these trials are integrated."""
    found = mean_interval([0.0] * 9 + [0.5], SHARE)
    trials = 19 * (1.959963985 / 2.262157163) ** 2
    right = 0.05 * trials

    def below(x: float, a: float, b: float) -> float:
        whole, part = (integrate.quad(lambda p: p ** (a - 1) * (1 - p) ** (b - 1), 0, end)[0]
                       for end in (1, x))  # fmt: skip
        return part / whole

    assert below(found.low, right, trials - right + 1) == pytest.approx(0.025, abs=1e-6)
    assert below(found.high, right + 1, trials - right) == pytest.approx(0.975, abs=1e-6)
    mirrored = mean_interval([1.0] * 9 + [0.5], SHARE)
    assert mirrored[2:] == pytest.approx((1 - found.high, 1 - found.low), abs=1e-9)
    assert mean_interval([0.0] * 9 + [0.5]).low < 0 < found.low < 0.05 < found.high < 1


def test_bounds_change_nothing_where_students_interval_lies_within_them() -> None:
    values = [0.2, 0.4, 0.6, 0.5]
    assert mean_interval(values) == mean_interval(values, SHARE) == mean_interval(values, COUNT)


def test_a_counts_interval_is_cut_at_0() -> None:
    free, cut = (mean_interval([0, 0, 0, 3], bounds) for bounds in (FREE, COUNT))
    assert free.low < 0 and cut == free._replace(low=0.0)


def test_a_share_near_its_bound_covers_its_mean() -> None:
    """A question's three states are each found with its own chance, .05 on average."""
    random = np.random.default_rng(7)
    drawn = random.binomial(3, random.beta(0.2, 3.8, (1000, 24))) / 3
    held = {
        bounds: np.mean([
            i.low is not None and i.low <= 0.05 <= i.high
            for i in (mean_interval(row, bounds) for row in drawn)
        ])
        for bounds in (FREE, SHARE)
    }  # fmt: skip
    assert held[FREE] < 0.91 and held[SHARE] >= 0.95


def test_a_difference_of_shares_has_its_interval_within_1() -> None:
    a, b = {i: 1.0 for i in range(10)}, {i: float(i == 0) * 0.9 for i in range(10)}
    free, cut = paired_interval(a, b), paired_interval(a, b, most=1.0)
    assert free.high > 1 and cut == free._replace(high=1.0)


def test_equal_differences_have_no_interval_and_the_sign_tests_p() -> None:
    found = paired([0.5] * 24)
    assert found[:6] == (24, 0.5, None, None, 24, 2 / 2**24)
    assert found.verdict == "higher" and "All 24 differences are the same" in found.caution
    assert paired([-0.5] * 24).verdict == "lower"
    assert paired([0.5] * 4).verdict == "too few to say"
    assert paired([0.0] * 24)[:6] == (24, 0.0, None, None, 0, 1.0)
    assert paired([0.0] * 24).verdict == "too few to say"
    assert interval_text(found) == "+0.50 (all 24 values are the same; an interval says nothing)"


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
    expected = stats.ttest_rel(list(a.values()), list(b.values()))
    interval = paired_interval(a, b)
    ends = tuple(expected.confidence_interval(0.95))
    assert (interval.low, interval.high) == pytest.approx(ends, abs=1e-12)
    assert interval.p == pytest.approx(expected.pvalue) and interval.method == "t"


def test_differences_leave_out_unpaired_and_missing_questions() -> None:
    a = {"q1": 1.0, "q2": float("nan"), "q3": None, "q4": 2.0, "q5": math.inf}
    b = {"q1": 0.5, "q2": 1.0, "q3": 1.0, "q5": math.inf}
    assert paired_differences(a, b) == {"q1": 0.5}


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
        (PairedInterval(30, 0.2, 0.1, 0.3, 20, 0.05), "higher"),
        (PairedInterval(30, 0.2, 0.1, 0.3, 20, 0.051), "no clear difference"),
        (PairedInterval(30, -0.2, -0.3, -0.1, 20, 0.06), "no clear difference"),
    ],
)
def test_verdict_of_a_difference(interval: PairedInterval, verdict: str) -> None:
    assert interval.verdict == verdict


def test_interval_as_text_carries_n_and_the_sign_of_differences() -> None:
    assert interval_text(PairedInterval(34, 0.114, 0.02, 0.2, 21)) == "+0.11 [+0.02, +0.20], n = 34"
    assert interval_text(PairedInterval(3, -0.001, -0.2, 0.2, 2)) == "-0.001 [-0.20, +0.20], n = 3"
    assert interval_text(mean_interval([0.5])) == "0.50 (no interval with n = 1)"
    assert interval_text(mean_interval([])) == "no value, n = 0"


def by_hand_bca(values: list[float], resamples: int) -> tuple[float, float]:
    """Efron's BCa for the mean in plain Python: jackknife, bias, quantiles of the resamples."""
    random, normal, n = np.random.default_rng(99), NormalDist(), len(values)
    mean = sum(values) / n
    means = sorted(random.choice(values, (resamples, n)).mean(axis=1).tolist())
    bias = normal.inv_cdf(sum(m < mean for m in means) / resamples)
    left_out = [(sum(values) - v) / (n - 1) for v in values]
    off = [sum(left_out) / n - j for j in left_out]
    acceleration = sum(o**3 for o in off) / (6 * sum(o**2 for o in off) ** 1.5)
    z = [bias + normal.inv_cdf(quantile) for quantile in (0.025, 0.975)]
    levels = [normal.cdf(bias + v / (1 - acceleration * v)) for v in z]
    return tuple(means[int(level * resamples)] for level in levels)


def test_many_skewed_differences_have_the_bca_interval() -> None:
    values = np.random.default_rng(5).lognormal(size=120) * (np.arange(120) % 4 == 0)
    interval = paired(values)
    assert interval.method == "bca"
    low, high = by_hand_bca(list(values), 20_000)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=0.03)
    assert interval.high - interval.mean > interval.mean - interval.low  # the long tail's side


def test_many_differences_of_both_signs_have_students_interval() -> None:
    values = np.random.default_rng(5).choice([0, 0, 0, 0.5, -0.25], 300)
    assert paired(values).method == "t"
    assert paired(values)[:4] == mean_interval(sorted(values))


def test_the_bootstrap_gives_the_same_values_the_same_interval_in_any_order() -> None:
    values = [*np.random.default_rng(6).lognormal(size=30), *[0.0] * 90]
    first = paired(values)
    bca.cache_clear()
    assert first.method == "bca" and first == paired(values[::-1])


def test_bca_leaves_out_zero_exactly_where_p_is_below_five_percent() -> None:
    random, left_out = np.random.default_rng(8), []
    for shift in np.linspace(-0.1, 0.7, 17):
        low, high, p = bca(tuple(random.exponential(size=100) - 1 + shift))
        left_out.append(low > 0 or high < 0)
        assert left_out[-1] == (p < 0.05)
    assert {*left_out} == {True, False}


def test_the_p_value_of_bca_is_about_students_where_nothing_is_skewed() -> None:
    values = np.random.default_rng(9).normal(0.15, 1, 400)
    assert bca(tuple(values))[2] == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.005)


@pytest.mark.parametrize("n", [2, 5, 34, 300])
def test_the_smallest_effect_has_power_eighty_percent(n: int) -> None:
    # P(|T| > t) with T = (Z + √n δ) / S, integrated over S = √(χ² / (n - 1)), for σ = 2
    shift = math.sqrt(n) * smallest_effect(n, 2.0) / 2
    t, spread = stats.t.ppf(0.975, n - 1), stats.chi(n - 1, scale=1 / math.sqrt(n - 1))

    def found(s: float) -> float:
        return spread.pdf(s) * (stats.norm.sf(t * s - shift) + stats.norm.cdf(-t * s - shift))

    power, _ = integrate.quad(found, 0, spread.ppf(1 - 1e-12), limit=200)
    assert power == pytest.approx(0.8, abs=1e-4)


def test_the_smallest_effect_by_published_tables_and_in_the_interval() -> None:
    # half a standard deviation needs 34 pairs for power 0.8 (Faul et al. 2007, G*Power 3)
    assert smallest_effect(34, 1.0) < 0.5 < smallest_effect(33, 1.0)
    values = np.random.default_rng(1).normal(size=50)
    assert paired(values).smallest_effect == smallest_effect(50, float(np.std(values, ddof=1)))


def test_differences_without_spread_or_without_a_second_one() -> None:
    assert paired([]) == (0, None, None, None, 0, None, "t", None, None)
    assert paired([0.5]) == (1, 0.5, None, None, 1, None, "t", None, None)
    assert paired([0.0] * 30) == (30, 0, None, None, 0, 1.0, "t", None, None)
    assert paired([0.25] * 200)[:6] == (200, 0.25, None, None, 200, 2 / 2**200)
    assert paired([0.1 + 0.2 - 0.3, 0.0]).p == 1.0  # noise of rounding is no spread


def test_cautions_name_what_is_too_few_and_what_is_skewed() -> None:
    few = paired([0.0] * 15 + [0.5] * 9)
    assert few.caution.startswith("Too few to say: 9 of 24 questions differ")
    values = [0.0] * 130 + [0.1] * 19 + [9.0]
    skewed = paired(values)
    assert f"skewed ({stats.skew(values):+.1f} with n = 150)" in skewed.caution
    assert paired([0.5, -0.5] * 15).caution == ""


def test_holm_by_hand() -> None:
    # sorted .01, .02, .03, .2 times 4, 3, 2, 1: .04, .06, .06, .2; None is not counted
    assert holm([0.03, None, 0.01, 0.2, 0.02]) == pytest.approx([0.06, None, 0.04, 0.2, 0.06])
    # never decreasing, never above 1: .02 · 3, max(.06, .025 · 2), max(.06, .9)
    assert holm([0.9, 0.02, 0.025]) == pytest.approx([0.9, 0.06, 0.06])
    assert holm([0.7, 0.6]) == [1.0, 1.0] and holm([]) == [] and holm([None]) == [None]


def test_mcnemars_exact_test_by_hand() -> None:
    # a alone is right 5 times, b alone once: P(at most 1 of 6) · 2 = 2 · (1 + 6) / 64
    a, b = [1] * 5 + [0] + [1, 0] * 10, [0] * 5 + [1] + [1, 0] * 10
    one, two = (dict(enumerate(map(float, values))) for values in (a, b))
    assert share_test(one, two) == pytest.approx(14 / 64) == share_test(two, one)
    assert share_test(one, one) == 1.0
    assert share_test({}, one) is None and share_test({0: 0.5}, {0: 1.0}) is None


def test_a_share_is_not_called_higher_where_the_exact_test_speaks_against_it() -> None:
    # 17 of 300 better, 7 worse: 2 · P(at most 7 of 24) = 2 · 536155 / 2^24; Student's p is .041
    a = {i: float(i < 17) for i in range(300)}
    b = {i: float(17 <= i < 24) for i in range(300)}
    student, exact = paired_interval(a, b), paired_interval(a, b, share=True)
    assert student.p < 0.05 and student.low > 0 and student.verdict == "higher"
    assert (exact.p, exact.method) == (pytest.approx(2 * 536155 / 2**24), "mcnemar")
    assert exact[1:4] == student[1:4] and exact.verdict == "no clear difference"
    assert exact.caution == (
        "The interval leaves 0 out, but p is 0.0639 (McNemar's exact test), so no difference is "
        "claimed."
    )
    halves = {i: v / 2 for i, v in a.items()}  # no share of single answers: there is no exact test
    assert paired_interval(halves, b, share=True) == paired_interval(halves, b)


def test_seeds_are_averaged_within_a_question_before_the_interval() -> None:
    none = {"q1": 0.0, "q2": 0.0, "q3": 0.0, "q4": 0.0}
    seeds = {
        1: ({"q1": 0.2, "q2": 0.4, "q3": 0.0, "q4": 9.0}, none),
        2: ({"q1": 0.0, "q2": 0.2, "q3": 0.6}, none),
    }
    found = seeds_interval(seeds)  # q1 0.1, q2 0.3, q3 0.3; q4 has no second seed
    assert found.averaged[:4] == pytest.approx(mean_interval([0.1, 0.3, 0.3]))
    assert (found.n, found.mean, found.low, found.high) == found.averaged[:4]
    assert found.averaged.verdict == "too few to say"
    assert found.per_seed == {seed: paired_interval(*pair) for seed, pair in seeds.items()}
    assert interval_text(found) == "+0.23 [-0.05, +0.52], n = 3"
    assert seeds_interval({}).averaged[:4] == (0, None, None, None)
