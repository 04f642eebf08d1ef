"""Calibration of confidences: values worked out by hand, or counted pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rlkit.results.calibration import calibration, calibration_error, reliability_plot


def answers(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and answers that are right with just that probability."""
    random = np.random.default_rng(seed)
    confidences = random.random(n)
    return confidences, (random.random(n) < confidences).astype(float)


def test_the_error_is_the_mean_distance_of_the_bins():
    """Two bins: .1, .3 with one right of two, .8, 1 with one right of two, in any order."""
    found = calibration([0.8, 0.1, 1.0, 0.3], [0, 1, 1, 0], bins=2)
    assert found.ece == pytest.approx((abs(0.2 - 0.5) + abs(0.9 - 0.5)) / 2)
    assert [(b.n, b.right) for b in found.bins] == [(2, 0.5), (2, 0.5)]
    assert [b.confidence for b in found.bins] == pytest.approx([0.2, 0.9])


def test_the_brier_score_and_that_of_a_constant():
    found = calibration([0.5, 1.0, 0.0, 0.8], [1, 1, 1, 0], bins=2)
    assert found.brier == pytest.approx((0.25 + 0 + 1 + 0.64) / 4)
    assert found.brier_of_constant == pytest.approx(0.75 * 0.25)


def test_auroc_counts_pairs_and_a_tie_is_half():
    c, r = [0.9, 0.4, 0.4, 0.1], [1, 1, 0, 0]
    pairs = [(0.9, 0.4), (0.9, 0.1), (0.4, 0.4), (0.4, 0.1)]
    wanted = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])
    assert calibration(c, r, bins=2).auroc == pytest.approx(wanted) == 0.875


def test_a_bin_has_wilsons_interval():
    """0 of 10 at 95 %: z² / (n + z²) is its upper end."""
    found = calibration(np.linspace(0, 1, 20), [0] * 10 + [1] * 10, bins=2)
    z2 = stats.norm.ppf(0.975) ** 2
    assert (found.bins[0].low, found.bins[0].high) == pytest.approx((0, z2 / (10 + z2)), abs=1e-9)


def test_where_all_are_right_nothing_is_ranked():
    found = calibration([0.5] * 10, [1] * 10)
    assert (found.auroc, found.auroc_interval) == (None, None) and found.brier_of_constant == 0


def test_a_perfect_confidence_looks_like_one_and_a_shifted_one_does_not():
    c, r = answers(400)
    perfect, shifted = calibration(c, r), calibration(np.sqrt(c), r)
    assert perfect.p_calibrated > 0.05 and perfect.ece == pytest.approx(
        perfect.ece_if_calibrated, abs=0.03
    )
    assert shifted.p_calibrated < 0.01 and shifted.ece > 2 * shifted.ece_if_calibrated
    assert shifted.auroc == perfect.auroc  # the order is the same


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """sqrt(c) of answers right with probability c: the true error is E[sqrt(c) - c] = 1/6, the true
    area of c and sqrt(c) alike is 5/6. 30 draws of n 200, 95 % intervals."""
    held = []
    for seed in range(30):
        c, r = answers(200, seed)
        found = calibration(np.sqrt(c), r)
        ends = found.ece_interval, found.auroc_interval
        held.append([low <= x <= high for (low, high), x in zip(ends, (1 / 6, 5 / 6), strict=True)])
    assert (np.mean(held, 0) > 0.85).all(), np.mean(held, 0)


def test_many_resamples_at_once_are_each_what_it_is_alone():
    c, r = (
        np.stack([answers(37, s)[0] for s in (1, 2)]),
        np.stack([answers(37, s)[1] for s in (1, 2)]),
    )
    alone = [float(calibration_error(c[i], r[i])) for i in (0, 1)]
    assert calibration_error(c, r).tolist() == pytest.approx(alone)


def test_lists_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="give one each"):
        calibration([0.5] * 10, [1] * 9)
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        calibration([1.5] * 10, [1] * 10)
    with pytest.raises(ValueError, match="right \\(1\\) or wrong"):
        calibration([0.5] * 10, [0.5] * 10)


def test_the_plot_has_a_panel_each_with_n_and_intervals():
    found = calibration(*answers(200))
    figure = reliability_plot({"greedy": found, "sampled": found})
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["greedy (n = 200)", "sampled (n = 200)"]
    bars = figure.axes[0].containers[0]
    assert bars.has_yerr and len(bars.lines[0].get_xdata()) == len(found.bins) == 10
    assert "n = 20" in figure.axes[0].get_xlabel()
