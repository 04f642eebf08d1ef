"""GRPO's formulas against values worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlkit.config import RunConfig
from rlkit.errors import DataError
from rlkit.practice.task import Score
from rlkit.training.advantages import token_advantages
from rlkit.training.credit import clue_advantages, clue_of_tokens
from rlkit.training.grpo import (
    AVERAGES,
    KL_ESTIMATORS,
    best_action_advantages,
    group_advantages,
    group_loss,
    k3,
)
from rlkit.training.models import byte_tokenizer
from rlkit.training.rollout import Group
from rlkit.training.sampling import SampledActions

SETTINGS = dict(
    clip_epsilon=0.2,
    clip_epsilon_high=None,
    kl_penalty=0.0,
    kl_estimator="squared",
    loss_type="grpo",
    importance_level="token",
    max_new_tokens=8,
)


def settings(**changes):
    return SimpleNamespace(**{**SETTINGS, **changes})


def loss_of(logp, old, advantages, mask, ref=None, **changes):
    return group_loss(
        torch.as_tensor(logp, dtype=torch.float64),
        torch.as_tensor(old, dtype=torch.float64),
        None if ref is None else torch.as_tensor(ref, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64).reshape(len(advantages), -1),
        torch.as_tensor(mask),
        settings(**changes),
    )


@pytest.mark.parametrize("loss_type, expected", [("grpo", 0.0), ("dapo", 0.6), ("dr_grpo", 0.375)])
def test_lengths_2_and_8_at_ratio_1_average_as_the_paper_says(loss_type, expected):
    mask = torch.arange(8) < torch.tensor([[2], [8]])
    logp = torch.full((2, 8), -1.5)
    loss = loss_of(logp, logp, [1.0, -1.0], mask, loss_type=loss_type)
    assert float(loss.total) / loss.denominator == pytest.approx(expected, abs=1e-12)


def test_bnpo_is_the_token_mean_of_its_group():
    mask = torch.arange(8) < torch.tensor([[2], [8]])
    logp = torch.zeros(2, 8)
    loss = loss_of(logp, logp, [1.0, -1.0], mask, loss_type="bnpo")
    assert (float(loss.total), loss.denominator) == (pytest.approx(0.6), 1.0)


@pytest.mark.parametrize(
    "ratio, advantage, expected",
    [(1.5, 1.0, -1.2), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (1.1, 2.0, -2.2)],
)
def test_the_ratio_is_clipped_where_clipping_lowers_the_objective(ratio, advantage, expected):
    loss = loss_of([[np.log(ratio)]], [[0.0]], [advantage], [[True]])
    assert float(loss.total) == pytest.approx(expected)


def test_clipping_may_be_asymmetric():
    loss = loss_of([[np.log(1.5)]], [[0.0]], [1.0], [[True]], clip_epsilon_high=0.28)
    assert float(loss.total) == pytest.approx(-1.28)
    assert loss.stats == {"tokens": 1.0, "clipped_low": 0.0, "clipped_high": 1.0}


def test_gspo_has_one_ratio_the_geometric_mean_of_the_action():
    logp = [[np.log(1.3), np.log(1.1)]]
    loss = loss_of(
        logp, [[0.0, 0.0]], [1.0], [[True, True]], loss_type="gspo", importance_level="sequence"
    )
    assert float(loss.total) == pytest.approx(-np.sqrt(1.3 * 1.1))


def test_cispo_weighs_the_log_probability_by_a_clipped_constant():
    logp = torch.tensor([[np.log(1.5)]], dtype=torch.float64, requires_grad=True)
    old = torch.zeros(1, 1, dtype=torch.float64)
    loss = group_loss(
        logp, old, None, torch.tensor([[2.0]]), torch.tensor([[True]]), settings(loss_type="cispo")
    )
    loss.total.backward()
    assert float(loss.total.detach()) == pytest.approx(-1.2 * 2.0 * np.log(1.5))
    assert float(logp.grad) == pytest.approx(-1.2 * 2.0)


def test_cispo_counts_a_capped_weight_of_either_sign_and_none_below():
    logp = np.log([[1.5, 1.5, 0.5, 0.5]])
    advantages = [[1.0, -1.0, 1.0, -1.0]]
    for loss_type, below, above in (("grpo", 1, 1), ("cispo", 0, 2)):
        stats = group_loss(
            torch.as_tensor(logp), torch.zeros(1, 4, dtype=torch.float64), None,
            torch.tensor(advantages), torch.ones(1, 4, dtype=torch.bool),
            settings(loss_type=loss_type),
        ).stats  # fmt: skip
        assert (stats["clipped_low"], stats["clipped_high"]) == (below, above)


@pytest.mark.parametrize("of, like", [("gspo", "grpo"), ("cispo", "dapo")])
def test_on_the_first_pass_the_gradient_of_one_loss_is_that_of_another(of, like):
    mask = torch.arange(6) < torch.tensor([[2], [6], [3]])
    values, reference = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.manual_seed(7))
    gradients = []
    for name in (of, like):
        logp = values.clone().requires_grad_()
        changes = {"loss_type": name, "kl_penalty": 0.1}
        changes |= {"importance_level": "sequence"} if name == "gspo" else {}
        advantages = torch.tensor([[1.0], [-2.0], [1.0]])
        loss = group_loss(logp, values, reference, advantages, mask, settings(**changes))
        (loss.total / loss.denominator).backward()
        gradients.append(logp.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-15)
    assert gradients[0][mask].abs().min() > 0


def test_kl_estimators_at_a_difference_of_one_half():
    difference = torch.tensor(0.5, dtype=torch.float64)
    values = {name: float(kl(difference)) for name, kl in KL_ESTIMATORS.items()}
    assert values == pytest.approx({"squared": 0.25, "k2": 0.125, "k3": np.exp(0.5) - 1.5})


def test_kl_is_added_with_its_weight():
    loss = loss_of([[0.0]], [[0.0]], [0.0], [[True]], ref=[[0.5]], kl_penalty=0.1)
    assert float(loss.total) == pytest.approx(0.025)


@pytest.mark.parametrize("loss_type", AVERAGES)
def test_masked_positions_may_hold_anything_and_gradients_stay_finite(loss_type):
    logp = torch.tensor([[-1.0, float("nan"), float("-inf")]], requires_grad=True)
    old = torch.tensor([[-1.2, float("inf"), float("nan")]])
    ref = torch.tensor([[-0.9, float("nan"), float("nan")]])
    mask = torch.tensor([[True, False, False]])
    loss = group_loss(
        logp, old, ref, torch.tensor([[1.0]]), mask,
        settings(loss_type=loss_type, kl_penalty=0.1, kl_estimator="k3"),
    )  # fmt: skip
    loss.total.backward()
    assert torch.isfinite(loss.total) and torch.isfinite(logp.grad).all()
    assert logp.grad[0, 1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_a_reference_100_nats_away_gives_a_finite_loss_and_gradient(estimator):
    logp = torch.tensor([[-101.0]], requires_grad=True)
    loss = group_loss(
        logp, torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), torch.tensor([[1.0]]),
        torch.tensor([[True]]), settings(kl_penalty=0.01, kl_estimator=estimator),
    )  # fmt: skip
    loss.total.backward()
    assert torch.isfinite(loss.total) and torch.isfinite(logp.grad).all()


@pytest.mark.parametrize("loss_type", AVERAGES)
def test_an_empty_mask_gives_zero_with_a_zero_gradient(loss_type):
    logp = torch.zeros(2, 3, requires_grad=True)
    loss = group_loss(
        logp, torch.zeros(2, 3), None, torch.ones(2, 1), torch.zeros(2, 3, dtype=torch.bool),
        settings(loss_type=loss_type),
    )  # fmt: skip
    loss.total.backward()
    assert float(loss.total.detach()) == 0.0 and loss.denominator == 0.0
    assert logp.grad.tolist() == [[0.0] * 3] * 2


def test_k3_is_never_negative():
    assert (k3(torch.linspace(-30, 30, 601)) >= 0).all()


def test_advantages_are_scaled_by_group_by_batch_or_not():
    groups = [[1.0, 3.0], [0.0, None, 4.0]]
    assert [a.tolist() for a in group_advantages(groups, "none")] == [[-1, 1], [-2, 0, 2]]
    spread = np.std([1, 3, 0, 4])
    for given, centred in zip(
        group_advantages(groups, "batch"), [[-1, 1], [-2, 0, 2]], strict=True
    ):
        np.testing.assert_allclose(given, np.array(centred) / (spread + 1e-8))
    for given, unit in zip(group_advantages(groups, "group"), [[-1, 1], [-1, 0, 1]], strict=True):
        np.testing.assert_allclose(given, unit, atol=1e-7)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_not_finite_is_refused_at_every_scale(scale, wrong):
    with pytest.raises(DataError, match="each must be a finite number, or None"):
        group_advantages([[0.0, 1.0], [2.0, wrong]], scale)


def test_clue_credit_on_a_three_clue_action_by_hand():
    # Action 0 has clues worth 3, 1, 0.5 from each on; action 1 has one clue, worth 1.
    owners = np.array([[0, -1, 1, 2], [0, 0, -1, -1]])
    result = clue_advantages(np.array([0.7, -0.7]), [[3.0, 1.0, 0.5], [1.0]], owners)
    # Clue 0: values 3 and 1 -> +1 and -1. Clues 1 and 2 have no company -> 0. Else the action's.
    np.testing.assert_allclose(result, [[1.0, 0.7, 0.0, 0.0], [-1.0, -1.0, -0.7, -0.7]], atol=1e-7)


def clue_group(rewards, values):
    """A group whose actions are one clue of one letter each."""
    scores = [
        Score(reward, {"clue_spans": [[0, 1]], "clue_values": [value]})
        for reward, value in zip(rewards, values, strict=True)
    ]
    tokens = torch.full((len(scores), 1), byte_tokenizer().encode("a")[0])
    ones = torch.ones(len(scores), 1, dtype=torch.bool)
    sampled = SampledActions(tokens, ones, torch.zeros(len(scores), 1), ones[:, 0])
    return Group(None, 0, [], sampled, ["a"] * len(scores), scores)


@pytest.mark.parametrize("scale, divisor", [("none", 1.0), ("batch", np.std([0, 8, 1, 3]) + 1e-8)])
def test_clues_are_scaled_as_their_actions_are(scale, divisor):
    """Rewards 0, 8 | 1, 3 and clue values 1, 5 | 2, 3: means 3 and 2.5."""
    groups = [clue_group([0.0, 8.0], [1.0, 5.0]), clue_group([1.0, 3.0], [2.0, 3.0])]
    asked = SimpleNamespace(scale_rewards=scale, credit="clue", advantage="group")
    found = token_advantages(groups, asked, byte_tokenizer())
    np.testing.assert_allclose(found[0], np.array([[-2.0], [2.0]]) / divisor)
    np.testing.assert_allclose(found[1], np.array([[-0.5], [0.5]]) / divisor)


def test_where_all_rewards_of_a_batch_are_equal_clues_teach_nothing_either():
    """Four actions that found the same, one of them with its other clue: no scale to divide by."""
    asked = SimpleNamespace(scale_rewards="batch", credit="clue", advantage="group")
    groups = [clue_group([2.5] * 4, [0.0, 2.5, 0.0, 0.0])]
    assert not token_advantages(groups, asked, byte_tokenizer())[0].any()


def test_clues_are_divided_by_their_own_spread_where_actions_are():
    asked = SimpleNamespace(scale_rewards="group", credit="clue", advantage="group")
    found = token_advantages([clue_group([0.0, 8.0], [1.0, 5.0])], asked, byte_tokenizer())
    np.testing.assert_allclose(found[0], [[-1.0], [1.0]], atol=1e-7)


def test_tokens_belong_to_the_clue_whose_text_they_touch():
    pieces = ["<clue>", "Al", "ba</", "clue>", "\n<clue>B", "</clue>"]
    text = "".join(pieces)
    spans = [(6, 10), (text.index("B"), text.index("B") + 1)]
    assert clue_of_tokens(pieces, spans) == [-1, 0, 0, -1, 1, -1]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([0.0, 2.5, None, 2.5], [0, 1, 0, 0]), ([0.0, -0.1], [0, 0]), ([None, None], [0, 0]),
     ([2.5, 2.5], [1, 0]), ([0.3, 5.0, 2.5], [0, 1, 0])],
)  # fmt: skip
def test_rejection_sampling_learns_the_first_of_the_best_actions_that_found_something(
    rewards, expected
):
    assert best_action_advantages(rewards).tolist() == expected


def test_on_the_first_pass_its_gradient_is_that_of_the_best_actions_likelihood():
    logp = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], dtype=torch.float64, requires_grad=True)
    advantages = torch.from_numpy(best_action_advantages([0.0, 2.5]))[:, None].expand(2, 2)
    settings = RunConfig.from_sections(grpo={"loss_type": "dr_grpo", "kl_penalty": 0}).grpo
    mask = torch.ones(2, 2, dtype=torch.bool)
    loss = group_loss(logp, logp.detach(), None, advantages, mask, settings)
    (gradient,) = torch.autograd.grad(loss.total, logp)
    assert gradient[0].tolist() == [0, 0]
    assert gradient[1, 0] == gradient[1, 1] < 0
