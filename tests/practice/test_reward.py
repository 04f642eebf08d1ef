"""Rewards and advantages against values worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlkit.errors import ConfigError, DataError
from rlkit.practice.reward import DocumentResult, RewardCalculator, compute_group_advantages

VALUES = {
    "important_new": 2.5,
    "important_seen": 0.3,
    "local_new": 0.3,
    "local_seen": 0.1,
    "discard_new": 0.0,
    "discard_seen": -0.1,
    "invalid": 4 * 5 * -0.1 - 0.1,
}


@pytest.fixture
def calculator() -> RewardCalculator:
    return RewardCalculator(VALUES, max_clues=4, top_k=5)


def documents(verdicts: dict[str, str | None]) -> list[DocumentResult]:
    return [DocumentResult(d, d, v, True, 1, "clue") for d, v in verdicts.items()]


def test_two_new_important_one_seen_local_one_new_discard_is_5_1_in_any_order_and_repetition(
    calculator: RewardCalculator,
) -> None:
    found = documents({"a": "IMPORTANT", "b": "IMPORTANT", "c": "LOCAL", "d": "DISCARD"})
    for order in itertools.permutations(found):
        reward = calculator.compute_reward([*order, *order[:2]], seen_docids={"c", "z"})
        assert reward.total == 5.1
        assert reward.without_seen == 5.0
        assert not reward.invalid
    assert reward.counts == {
        "important_new": 2,
        "important_seen": 0,
        "local_new": 0,
        "local_seen": 1,
        "discard_new": 1,
        "discard_seen": 0,
    }


def test_equal_sets_have_bitwise_equal_rewards(calculator: RewardCalculator) -> None:
    found = documents({f"d{n}": ("LOCAL", "DISCARD", "IMPORTANT")[n % 3] for n in range(9)})
    seen = {"d0", "d1", "d2", "d6"}
    draw = np.random.default_rng(7)
    totals = {
        calculator.compute_reward([found[i] for i in draw.permutation(9)], seen).total
        for _ in range(50)
    }
    # seen: LOCAL d0, d6, DISCARD d1, IMPORTANT d2; new: LOCAL d3, DISCARD d4 d7, IMPORTANT d5 d8
    assert totals == {round(2 * 0.1 - 0.1 + 0.3 + 0.3 + 2 * 2.5, 6)}


def test_no_document_is_invalid_and_worse_than_the_worst_valid_action(
    calculator: RewardCalculator,
) -> None:
    invalid = calculator.compute_reward([], {"a"})
    worst = calculator.compute_reward(
        documents({f"d{n}": "DISCARD" for n in range(20)}), {f"d{n}" for n in range(20)}
    )
    assert invalid.invalid and invalid.total == invalid.without_seen == pytest.approx(-2.1)
    assert worst.total == -2.0 and not worst.invalid
    assert invalid.total < worst.total


def test_an_unjudged_document_adds_nothing_and_all_unjudged_is_none(
    calculator: RewardCalculator,
) -> None:
    some = calculator.compute_reward(documents({"a": "IMPORTANT", "b": None}), set())
    assert (some.total, some.unjudged) == (2.5, 1)
    none = calculator.compute_reward(documents({"a": None, "b": None}), set())
    assert (none.total, none.without_seen, none.unjudged, none.invalid) == (None, None, 2, False)


def test_plain_mappings_are_taken_too(calculator: RewardCalculator) -> None:
    assert calculator.compute_reward([{"docid": "a", "verdict": "LOCAL"}], ()).total == 0.3


def test_an_unknown_verdict_is_an_error_and_no_low_reward(calculator: RewardCalculator) -> None:
    with pytest.raises(DataError, match="'important'.*allowed are IMPORTANT, LOCAL, DISCARD"):
        calculator.compute_reward(documents({"a": "important"}), ())


def test_invalid_must_lie_below_every_valid_action() -> None:
    with pytest.raises(ConfigError, match=r"reward.invalid is -2, but a valid action can score -2"):
        RewardCalculator(VALUES | {"invalid": -2.0}, 4, 5)
    with pytest.raises(ConfigError, match="reward.invalid has no value"):
        RewardCalculator(VALUES | {"invalid": None}, 4, 5)
    RewardCalculator(VALUES | {"discard_seen": 0.0, "invalid": -0.1}, 4, 5)


def seen_and_new(documents, state) -> float:
    """A reward of one's own: 1 for each new IMPORTANT document, .25 for each seen one."""
    return sum(1.0 if d.new else 0.25 for d in documents if d.verdict == "IMPORTANT")


def test_a_reward_of_one_s_own_is_given_each_document_once() -> None:
    own = RewardCalculator({**VALUES, "invalid": -1.0}, 4, 5, seen_and_new)
    found = documents({"a": None, "b": "IMPORTANT"})
    judged_later = documents({"a": "IMPORTANT"})
    reward = own.compute_reward([*found, *judged_later, *found], seen_docids=())
    assert (reward.total, reward.counts["important_new"], reward.unjudged) == (2.0, 2, 0)


def test_an_action_with_only_seen_documents_may_be_paid_through_them_alone() -> None:
    own = RewardCalculator({**VALUES, "invalid": 0.0}, 4, 5, seen_and_new)
    seen = [DocumentResult("a", "a", "IMPORTANT", False, 1, "clue")]
    reward = own.compute_reward(seen, seen_docids={"a"})
    assert (reward.total, reward.without_seen) == (0.25, 0.0)
    with pytest.raises(DataError, match=r"gave 0 for 1 documents, and an invalid action is paid 0"):
        own.compute_reward(documents({"b": "DISCARD"}), seen_docids=())


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 0], [1.7320508, -0.5773503, -0.5773503, -0.5773503]),
        ([0.5, 0, None, 1], [0, -1.2247449, 0, 1.2247449]),
        ([None, 3.0], [0, 0]),
        ([None, None], [0, 0]),
        ([], []),
    ],
)
def test_advantages_worked_out_by_hand(rewards: list, expected: list) -> None:
    advantages = compute_group_advantages(rewards)
    assert advantages.dtype == np.float64
    np.testing.assert_allclose(advantages, expected, rtol=0, atol=1e-6)


def test_equal_rewards_have_advantages_of_exactly_zero(calculator: RewardCalculator) -> None:
    rewards = np.full(7, 0.95, dtype=np.float32)
    assert calculator.compute_group_advantages(list(rewards)).tolist() == [0.0] * 7
    assert calculator.compute_group_advantages(rewards).tolist() == [0.0] * 7


def test_a_reward_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(DataError, match="finite"):
        compute_group_advantages([1.0, float("nan")])
