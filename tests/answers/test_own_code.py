"""The sign of a user's function: alike in every process, another where the function is edited."""

from __future__ import annotations

import functools

import pytest

from rlkit.answers.own_code import code_digest


def paid(amount):
    def reward(completions, **columns):
        return [amount for _ in completions]

    return reward


def typed(text: str):
    """A function without a file, as one typed into a prompt is."""
    place: dict = {}
    exec(text, place)
    return place["f"]


class Paying:
    def __init__(self, amount: float) -> None:
        self.amount, self.seen = amount, []

    def __call__(self, completions, **columns):
        self.seen += completions
        return [self.amount for _ in completions]

    def method(self, completions):
        return [self.amount]


def scaled(completions, by=1.0):
    return [by for _ in completions]


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (paid(0.5), paid(0.5), paid(0.25)),
        (typed("f = lambda c: [1.0]"), typed("f = lambda c: [1.0]"), typed("f = lambda c: [2.0]")),
        (typed("def f(c):\n return sum(c)"), typed("def f(c):\n  return sum(c)"),
         typed("def f(c):\n return max(c)")),
        (Paying(1.0), Paying(1.0), Paying(2.0)),
        (Paying(1.0).method, Paying(1.0).method, Paying(2.0).method),
        (functools.partial(scaled, by=2.0), functools.partial(scaled, by=2.0), scaled),
        (len, len, max),
    ],
)  # fmt: skip
def test_an_edit_changes_the_sign_and_nothing_else_does(one, same, other):
    assert code_digest(one) == code_digest(same) != code_digest(other)


def test_what_a_function_collects_while_it_works_changes_nothing():
    asked: list[str] = []

    def collecting(completions, **columns):
        asked.extend(completions)
        return [0.0 for _ in completions]

    paying, before = Paying(1.0), code_digest(collecting)
    signs = code_digest(paying)
    collecting(["a"])
    paying(["a"])
    assert (code_digest(collecting), code_digest(paying)) == (before, signs)


def test_a_function_that_closes_over_itself_has_a_sign():
    def again(completions, depth=0):
        return [0.0] if depth else again(completions, 1)

    assert code_digest(again) == code_digest(again)
