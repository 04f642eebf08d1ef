"""Truncated importance weights of groups that other weights, or another program, sampled."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch

from rlkit.training.grouping import Grouping
from rlkit.training.grpo import group_loss, importance_weights
from rlkit.training.rollout import group_from_tensors, group_tensors
from rlkit.training.stored import stored_groups
from tests.training.conftest import in_float64, tiny_base, tiny_config, tiny_trainer, with_lora
from tests.training.test_grpo import settings

RATIO = "sampling/importance_sampling_ratio"


def logs(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_a_token_s_weight_is_its_ratio_of_probabilities_at_most_the_cap():
    policy, sampled = logs([0.5, 0.25, 0.8]), logs([0.1, 0.5, 0.4])
    mask = torch.ones(1, 3, dtype=torch.bool)
    found = importance_weights(policy, sampled, mask, "token", 2.0)
    torch.testing.assert_close(found, torch.tensor([[2.0, 0.5, 2.0]], dtype=torch.float64))


def test_an_action_s_weight_is_the_geometric_mean_of_its_tokens_ratios():
    """Ratios 8 and 1/2 of the tokens that count: sqrt(8 / 2) = 2; and 1/8, 2, 1: 4 ** (-1/3)."""
    policy, sampled = logs([0.8, 0.2, 0.9], [0.1, 0.8, 0.5]), logs([0.1, 0.4, 0.1], [0.8, 0.4, 0.5])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    found = importance_weights(policy, sampled, mask, "sequence", 3.0)
    expected = torch.tensor([[2.0] * 3, [4 ** (-1 / 3)] * 3], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    capped = importance_weights(policy, sampled, mask, "sequence", 1.5)
    torch.testing.assert_close(capped[:, 0], torch.tensor([1.5, 4 ** (-1 / 3)]).double())


def test_whatever_stands_behind_the_end_or_is_next_to_impossible_gives_finite_weights():
    policy = torch.tensor([[-1e4, 0.0, math.nan]])
    sampled = torch.tensor([[0.0, -9999.0, math.inf]])
    mask = torch.tensor([[True, True, False]])
    found = importance_weights(policy, sampled, mask, "token", 2.0)
    assert found[0, 1:].tolist() == [2.0, 1.0] and 0 < float(found[0, 0]) < 1e-8


def test_weights_multiply_the_policy_term_and_leave_the_kl():
    """-1/2 * min(1.5, 1.2) * 2 + 0.1 * 0.5 ** 2 = -1.175; its derivative is that of the KL alone,
    where clipping holds the token."""
    logp = torch.tensor([[math.log(1.5)]], dtype=torch.float64, requires_grad=True)
    loss = group_loss(
        logp, logs([1.0]), logp.detach() + 0.5, torch.tensor([[2.0]]), torch.tensor([[True]]),
        settings(kl_penalty=0.1), torch.tensor([[0.5]]),
    )  # fmt: skip
    loss.total.backward()
    assert float(loss.total.detach()) == pytest.approx(-1.2 + 0.025)
    assert float(logp.grad) == pytest.approx(-0.1)


@pytest.mark.parametrize("loss_type", ["dapo", "cispo", "gspo"])
def test_weighted_actions_of_another_distribution_have_the_policy_s_own_gradient(loss_type):
    """All of four one-token actions, each as often as the sampler q takes it: the gradient is that
    of the expected advantage under the policy, which autograd takes from its probabilities."""
    torch.manual_seed(0)
    logits = torch.randn(4, dtype=torch.float64, requires_grad=True)
    q = torch.randn(4, dtype=torch.float64).softmax(0)
    advantages = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    (expected,) = torch.autograd.grad(-(logits.softmax(0) * advantages).sum(), logits)
    logp, mask = logits.log_softmax(0)[:, None], torch.ones(4, 1, dtype=torch.bool)
    level = "sequence" if loss_type == "gspo" else "token"
    weights = importance_weights(logp, q.log()[:, None], mask, level, 1e6)
    asked = settings(loss_type=loss_type, importance_level=level)
    loss = group_loss(logp, logp, None, (q * advantages)[:, None], mask, asked, weights)
    (found,) = torch.autograd.grad(loss.total, logits)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def off_policy_trainer(tmp_path, monkeypatch, shift: float, flagged: bool = True, **grpo):
    """A trainer whose groups say that they were sampled with probabilities e^shift as high."""
    trainer = tiny_trainer(
        tiny_config(tmp_path, **{"kl_penalty": 0.0, "max_grad_norm": 1e6} | grpo),
        model=in_float64(with_lora(tiny_base())),
        run=False,
    )
    sample = Grouping.one

    def sampled(self, *arguments, **options):
        group = sample(self, *arguments, **options)
        group.sampled = replace(group.sampled, logprobs=group.sampled.logprobs + shift)
        group.off_policy = flagged
        return group

    monkeypatch.setattr(Grouping, "one", sampled)
    trainer.optimizer.step = lambda: None  # gradients are looked at, nothing moves
    return trainer


def gradient(trainer) -> torch.Tensor:
    trainer._update = lambda: {}  # they are summed, and stay
    trainer.training_step(trainer.task.states("train")[:1])
    return torch.cat([p.grad.flatten() for p in trainer.parameters.values()])


@pytest.mark.parametrize("loss_type", ["grpo", "gspo", "cispo"])
def test_an_off_policy_group_s_gradient_is_weighted_and_others_are_not(
    tmp_path, monkeypatch, loss_type
):
    plain = gradient(off_policy_trainer(tmp_path, monkeypatch, 0.0, False, loss_type=loss_type))
    for shift, flagged, factor in (
        (math.log(2), True, 0.5),
        (-math.log(1.5), True, 1.5),
        (-math.log(3), True, 2.0),  # the cap
        (math.log(2), False, 1.0),
    ):
        with monkeypatch.context() as patch:
            trainer = off_policy_trainer(tmp_path, patch, shift, flagged, loss_type=loss_type)
            found = gradient(trainer)
        error = (found - factor * plain).norm() / plain.norm()
        assert error < 1e-5  # sampled log-probabilities are float32


def test_the_mismatch_is_in_the_metrics(tmp_path, monkeypatch):
    trainer = off_policy_trainer(tmp_path, monkeypatch, -math.log(3))
    found = trainer.training_step(trainer.task.states("train")[:1])
    assert found["sampling_logp_difference"] == pytest.approx(math.log(3), rel=1e-5)
    assert found["sampling_logp_difference_max"] == pytest.approx(math.log(3), rel=1e-5)
    assert found[f"{RATIO}/min"] == found[f"{RATIO}/mean"] == found[f"{RATIO}/max"] == 2.0
    assert found[f"{RATIO}/truncated"] == 1.0
    assert found["sampling/effective_sample_size"] == pytest.approx(1.0)  # all ratios are 3
    assert "importance_weight" in trainer.last_groups[0].rows()[0]


def test_the_effective_sample_size_is_that_of_the_ratios_before_truncation(tmp_path, monkeypatch):
    """Of the M counted tokens the first has ratio 5, all others 1: (M + 4)^2 / (M (M + 24))."""
    trainer = off_policy_trainer(tmp_path, monkeypatch, 0.0)
    sample = Grouping.one

    def sampled(self, *arguments, **options):
        group = sample(self, *arguments, **options)
        group.sampled.logprobs[0, 0] -= math.log(5)
        return group

    monkeypatch.setattr(Grouping, "one", sampled)
    found = trainer.training_step(trainer.task.states("train")[:1])
    tokens = int(trainer.last_groups[0].sampled.mask.sum())
    expected = (tokens + 4) ** 2 / (tokens * (tokens + 24))
    assert found["sampling/effective_sample_size"] == pytest.approx(expected, rel=1e-5)
    assert found[f"{RATIO}/truncated"] == pytest.approx(1 / tokens)
    assert found[f"{RATIO}/max"] == 2.0


def test_with_the_trainer_s_own_sampling_there_are_no_weights(tmp_path):
    trainer = tiny_trainer(tiny_config(tmp_path), run=False)
    metrics = trainer.training_step(trainer.task.states("train")[:1])
    assert trainer.last_groups[0].weights is None
    assert not any(name.startswith("sampling/") for name in metrics)
    assert metrics["sampling_logp_difference_max"] >= metrics["sampling_logp_difference"] > 0
    assert "importance_weight" not in trainer.last_groups[0].rows()[0]


def test_later_passes_checkpoints_and_stored_actions_keep_the_first_pass_s_weights(
    tmp_path, monkeypatch
):
    trainer = off_policy_trainer(tmp_path, monkeypatch, math.log(2), num_iterations=2)
    trainer.training_step(trainer.task.states("train")[:1])
    (group,) = trainer.window
    before = group.weights.clone()
    assert before.allclose(torch.tensor(0.5).double(), rtol=1e-5)
    trainer._pass(group, first=False)
    assert torch.equal(group.weights, before)
    kept = {f"group/0/{name}": value for name, value in group_tensors(group).items()}
    back = group_from_tensors(group.state, kept, "group/0/", "cpu")
    assert torch.equal(back.weights, before)
    (stored,) = stored_groups(
        pd.DataFrame(group.rows()), trainer.task, trainer.tokenizer, trainer.config
    )
    assert torch.equal(stored.weights, torch.where(group.sampled.mask, before, 0.0))
