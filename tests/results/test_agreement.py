"""Shares, kappa and confusion counts, by hand."""

from __future__ import annotations

import pytest

from rlkit.results.agreement import cohens_kappa, confusion, share_of


def test_wilson_s_interval_of_nine_in_ten():
    # z = 1.959964: centre (0.9 + z²/20) / (1 + z²/10) = 0.78899, half z·√(0.009 + z²/400) / 1.38415
    found = share_of(9, 10)
    assert (found.count, found.n, found.share) == (9, 10, 0.9)
    assert found.low == pytest.approx(0.5958, abs=1e-4)
    assert found.high == pytest.approx(0.9821, abs=1e-4)
    assert str(found) == "0.90 [0.60, 0.98], 9 of 10"


def test_all_and_none_have_intervals_within_0_and_1_and_nothing_has_none():
    assert share_of(10, 10).high == 1.0 and share_of(10, 10).low == pytest.approx(0.7225, abs=1e-4)
    assert share_of(0, 10).low == 0.0 and share_of(0, 10).high == pytest.approx(0.2775, abs=1e-4)
    assert share_of(0, 0)[2:] == (None, None, None) and str(share_of(0, 0)) == "none, n = 0"


def test_cohen_s_kappa_of_the_textbook_table():
    # 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: p_o 0.7, p_e 0.5·0.6 + 0.5·0.4 = 0.5, kappa 0.4
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohens_kappa(pairs) == pytest.approx(0.4)
    assert cohens_kappa([(b, a) for a, b in pairs]) == pytest.approx(0.4)


def test_kappa_of_total_agreement_total_disagreement_and_of_one_label():
    assert cohens_kappa([("a", "a"), ("b", "b")]) == 1.0
    assert cohens_kappa([("a", "b"), ("b", "a")]) == -1.0
    assert cohens_kappa([("a", "b"), ("a", "b")]) == 0.0
    assert cohens_kappa([("a", "a")] * 5) is None and cohens_kappa([]) is None


def test_confusion_counts_every_pair_once():
    found = confusion([("a", "x"), ("a", "x"), ("b", "y")], ("a", "b", "c"), ("x", "y"))
    assert found == {"a": {"x": 2, "y": 0}, "b": {"x": 0, "y": 1}, "c": {"x": 0, "y": 0}}
