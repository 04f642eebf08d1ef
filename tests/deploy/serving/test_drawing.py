"""Tokens drawn from logits worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rlkit.deploy.serving.drawing import Rule, draw, nucleus

HALVES = torch.tensor([[0.5, 0.3, 0.2]]).log()


def test_greedy_takes_the_likeliest_and_reports_the_models_own_probability():
    (drawn,) = draw(HALVES + 7, [Rule(0.0, 1.0, 0.9, top=2)])
    assert drawn.token == 0 and math.exp(drawn.logprob) == pytest.approx(0.5)
    assert [token for token, _ in drawn.top] == [0, 1]
    assert [math.exp(value) for _, value in drawn.top] == pytest.approx([0.5, 0.3])


@pytest.mark.parametrize(("uniform", "token"), [(0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2)])
def test_a_uniform_number_inverts_the_distribution(uniform, token):
    assert draw(HALVES, [Rule(1.0, 1.0, uniform)])[0].token == token


def test_temperature_divides_the_logits_and_leaves_the_logprob_alone():
    # squares: .25, .09, .04 of .38, so that the first ends at .658
    cold = [draw(HALVES, [Rule(0.5, 1.0, u)])[0] for u in (0.65, 0.67)]
    assert [one.token for one in cold] == [0, 1]
    assert math.exp(cold[1].logprob) == pytest.approx(0.3)


def test_top_p_keeps_the_smallest_set_that_holds_it():
    kept = nucleus(HALVES.repeat(3, 1), torch.tensor([0.4, 0.6, 0.9])).isfinite()
    assert kept.tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert draw(HALVES, [Rule(1.0, 0.6, 0.999)])[0].token == 1


def test_a_neighbours_top_p_takes_no_token_from_a_row():
    # exp(-30) is 9.4e-14, which a sum in 32 bits does not see beside 1
    rows, last = torch.tensor([[0.0, -30.0]] * 2), 1 - 1e-14
    first, second = draw(rows, [Rule(1.0, 1.0, last), Rule(1.0, 0.9, last)])
    assert (first.token, second.token) == (1, 0)


def test_a_row_that_is_not_finite_costs_no_other():
    rows = torch.cat([HALVES, HALVES * torch.nan, HALVES])
    first, bad, last = draw(rows, [Rule(1.0, 1.0, 0.9), Rule(1.0, 1.0, 0.9), Rule(0.0, 1.0, 0.0)])
    assert first.token == 2 and bad is None and last.token == 0


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-4])
def test_the_coldest_draws_are_greedy_and_cost_nobody_his_own(temperature):
    rules = [Rule(temperature, 5e-324, 0.99), Rule(1.0, 1.0, 0.99)]
    cold, warm = draw(HALVES.repeat(2, 1) * 50, rules)
    assert cold.token == 0 and warm.token == 0
