"""Confidence: values worked out by hand."""

from __future__ import annotations

import math

import pytest

from rlkit.deploy.confidence import confidence


def test_confidence_is_the_geometric_mean_of_the_probabilities():
    assert confidence([math.log(0.5), math.log(0.125)]) == pytest.approx(0.25)
    assert confidence([math.log(0.9)] * 7) == pytest.approx(0.9)


def test_a_certain_answer_has_confidence_one_and_rounding_lifts_none_above():
    assert confidence([0.0, 0.0]) == 1.0
    assert confidence([1e-9]) == 1.0


def test_an_impossible_token_takes_it_to_zero():
    assert confidence([0.0, -math.inf]) == 0.0


def test_an_answer_without_tokens_has_none():
    with pytest.raises(ValueError, match="without tokens"):
        confidence([])
