"""The benchmark of coverage, small: its intervals are the package's, its true means are true."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from benchmarks import coverage
from rlkit.results.bootstrap import bca
from rlkit.results.statistics import paired_interval


@pytest.mark.parametrize("name", coverage.GENERATORS)
def test_the_stated_mean_is_the_mean_of_what_is_drawn(name: str) -> None:
    generator = coverage.GENERATORS[name]
    drawn = generator.draw(np.random.default_rng(1), (100, 4000))
    error = drawn.std() / np.sqrt(drawn.size)
    assert abs(drawn.mean() - generator.mean) < 4 * error


@pytest.mark.parametrize("name", ["sparse", "rare", "lognormal"])
def test_a_row_has_the_intervals_that_the_package_gives(name: str) -> None:
    samples = coverage.GENERATORS[name].draw(np.random.default_rng(2), (3, 120))
    samples = np.sort(samples, axis=1)
    ours = np.transpose([coverage.t_intervals(samples), coverage.bca_intervals(samples)], (2, 0, 1))
    for row, (t, resampled) in zip(samples, ours, strict=True):
        values = {str(i): v for i, v in enumerate(row)}
        taken = paired_interval(values, dict.fromkeys(values, 0.0))
        assert resampled == pytest.approx(bca(tuple(row))[:2], abs=1e-9)
        expected = resampled if taken.method == "bca" else t
        assert (taken.low, taken.high) == pytest.approx(tuple(expected), abs=1e-9)


def test_equal_values_have_an_interval_of_width_zero() -> None:
    ends = coverage.bca_intervals(np.full((1, 30), 0.25))
    assert [float(end[0]) for end in ends] == [0.25, 0.25]


def test_what_misses_is_counted_on_its_side() -> None:
    cell = coverage.cell("rare", 30, argparse.Namespace(simulations=200, seed=3))
    assert cell["coverage"] + cell["truth_above"] + cell["truth_below"] == pytest.approx(1)
    assert cell["truth_above"] > 0.1  # .95³⁰ = 21 % of the samples are all zeros
    assert cell["too_few"] == 1 and cell["skewed"] == 0 and cell["bca_taken"] == 0


def test_the_kept_result_covers_where_it_must_and_has_enough_simulations() -> None:
    kept = json.loads(coverage.RESULT.read_text(encoding="utf-8"))
    assert kept["simulations"] >= 5000
    cells = {(c["differences"], c["n"]): c for c in kept["cells"]}
    assert cells.keys() == {(name, n) for name in coverage.GENERATORS for n in coverage.SIZES}
    two_sided = {key for key, c in cells.items() if c["kind"] == "two-sided"}
    outside = {key for key in two_sided if not 0.93 <= cells[key]["coverage"] <= 0.97}
    assert outside == {("sparse", 30)} and cells["sparse", 30]["too_few"] > 0.99
    assert "lognormal (0, 1)" in coverage.as_text(kept)
