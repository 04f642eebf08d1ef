"""Stored actions under other losses: the same gradient where two losses are the same, the trainer's
own gradient for the run's own loss, and token counts worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlkit.errors import ConfigError, DataError, RunError
from rlkit.practice.task import Score
from rlkit.training import replay
from rlkit.training.advantages import token_advantages
from rlkit.training.checkpointing import read_checkpoint
from rlkit.training.grpo import AVERAGES
from rlkit.training.loop import train
from rlkit.training.replay import compare_loss_types, token_weights
from rlkit.training.rollout import Group
from rlkit.training.sampling import SampledActions
from rlkit.training.stored import stored_groups
from tests.training.conftest import (
    LetterTask,
    tiny_base,
    tiny_config,
    tiny_trainer,
    with_lora,
)

SPANS = {"clue_spans": [[0, 3], [3, 6]], "clue_values": [1.0, 0.5]}


class ClueTask(LetterTask):
    """Every completion has two clues in its first six characters."""

    def score(self, state, completions):
        scores = super().score(state, completions)
        worth = [[s.reward, s.reward / (k + 2)] for k, s in enumerate(scores)]
        return [
            Score(s.reward, SPANS | {"clue_values": values})
            for s, values in zip(scores, worth, strict=True)
        ]


def trained(tmp_path, reward=lambda k, text: k + len(text) / 8, ends=tuple(range(64)), **grpo):
    """A run of three steps whose adapter moves at the end of the second and of the third. A
    quarter of the vocabulary ends an action, so that lengths differ; rewards differ, too."""
    config = tiny_config(tmp_path, **grpo)
    config = config.with_overrides("training.num_epochs=1", "training.keep_last=9")
    # wide embeddings, so that the adapter can move the logits of a random model at all
    model = with_lora(tiny_base(initializer_range=0.4), spread=0.0)
    trainer = tiny_trainer(config, LetterTask(reward=reward), model)
    trainer.ends = ends
    train(trainer)
    return trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    return trained(tmp_path_factory.mktemp("replay"), max_new_tokens=6)


def compared(trainer, **options):
    return compare_loss_types(
        trainer.run, trainer.task, trainer.model, trainer.tokenizer, **options
    )


def test_the_run_s_own_loss_is_the_first_row_and_like_itself(run):
    table = compared(run)
    assert list(table.index) == list(AVERAGES)  # grpo, the run's own, is the table's first, too
    own = table.loc["grpo"]
    assert own["cosine"] == pytest.approx(1, abs=1e-12) and own["norm_ratio"] == 1.0
    assert table["cosine"].between(-1 - 1e-9, 1 + 1e-9).all()


def test_under_the_adapter_that_sampled_them_nothing_is_clipped(run):
    """Checkpoint 1 has the untrained adapter: the optimiser moves at step 2."""
    table = compared(run, steps=[1, 2], checkpoint=1)
    assert (table[["clip_low", "clip_high"]] == 0).all(axis=None)
    rows = run.run.read_rollouts().query("step < 3 and advantage != 0")
    assert (table["effective_tokens"] == rows["token_ids"].map(len).sum()).all()
    # every ratio is 1: the weights of cispo's tokens, -A, are those of dapo's
    assert compared(run, steps=[1, 2], checkpoint=1, loss_types=["dapo", "cispo"]).loc[
        ["dapo", "cispo"], "norm_ratio"
    ].nunique() == 1  # fmt: skip


def test_cispo_is_dapo_where_every_ratio_is_1(tmp_path):
    trainer = trained(tmp_path, loss_type="dapo")
    table = compared(trainer, steps=[1, 2], checkpoint=1)
    assert table.index[0] == "dapo"
    assert table.loc["cispo", "cosine"] == pytest.approx(1, abs=1e-9)
    assert table.loc["cispo", "norm_ratio"] == pytest.approx(1, abs=1e-6)


def test_dr_grpo_points_where_dapo_points(tmp_path):
    """Both sum over tokens; they divide by tokens, and by actions times the maximum length."""
    trainer = trained(tmp_path, loss_type="dapo")
    table = compared(trainer, steps=[1, 2], checkpoint=1)
    row, tokens = table.loc["dr_grpo"], table.loc["dapo", "tokens"]
    lengths = trainer.run.read_rollouts().query("step < 3")["token_ids"].map(len)
    assert tokens == lengths.sum() < 8 * len(lengths)
    assert row["cosine"] == pytest.approx(1, abs=1e-12)
    assert row["norm_ratio"] == pytest.approx(tokens / (len(lengths) * 8), rel=1e-9)


def test_grpo_and_dapo_are_one_where_lengths_are_equal_and_only_there(tmp_path):
    equal, unequal = trained(tmp_path / "a", ends=()), trained(tmp_path / "b")
    same, other = (compared(t, loss_types=["dapo"]).loc["dapo", "cosine"] for t in (equal, unequal))
    assert same == pytest.approx(1, abs=1e-9) and other < 0.999


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "gspo"])
def test_the_gradient_is_the_one_that_the_trainer_had(tmp_path, loss_type):
    """Checkpoint 1 keeps what step 1 left for the optimiser: an undivided gradient."""
    trainer = trained(tmp_path, loss_type=loss_type, kl_penalty=0.1)
    pending = read_checkpoint(trainer.run.checkpoints_folder / "checkpoint-1").pending
    kept = torch.cat([t.flatten() for n, t in sorted(pending.items()) if "gradient/" in n])
    sums, settings = {"own": replay._Sum()}, trainer.settings
    (group,) = stored_groups(
        trainer.run.read_rollouts(1), trainer.task, trainer.tokenizer, trainer.config
    )
    advantages = token_advantages([group], settings, trainer.tokenizer)
    with replay._adapter_of(trainer.run, trainer.model, 1):
        replay._add_group(
            sums, {"own": settings}, {"own": advantages[0]}, trainer.model, group, 1.0
        )
    names = sorted(f"gradient/{name}" for name in trainer.parameters)
    ours = dict(
        zip((f"gradient/{n}" for n in trainer.parameters), sums["own"].gradient, strict=True)
    )
    torch.testing.assert_close(torch.cat([ours[n].flatten() for n in names]), kept)
    assert kept.abs().max() > 0


def test_under_a_later_adapter_ratios_move_and_clipping_shows(run):
    table = compared(run, steps=[1, 2], loss_types=["grpo", "gspo", {"clip_epsilon": 1e-4}])
    tight = table.loc["grpo, clip_epsilon=0.0001"]
    assert tight["clip_low"] > 0.1 and tight["clip_high"] > 0.1 and tight["cosine"] < 0.999
    # every advantage differs from 0, so that what is not held is effective
    held = (table["clip_low"] + table["clip_high"]) * table["tokens"]
    assert (table["effective_tokens"] == (table["tokens"] - held).round()).all()


def test_the_model_s_own_adapter_comes_back(run):
    before = {name: p.detach().clone() for name, p in run.parameters.items()}
    compared(run, checkpoint=1, loss_types=[])
    assert all(torch.equal(p, before[name]) for name, p in run.parameters.items())
    assert all(p.grad is None for p in run.parameters.values())
    newest = compared(run, loss_types=[])
    assert newest.equals(compared(run, checkpoint=None, loss_types=[]))
    assert not newest.equals(compared(run, checkpoint=1, loss_types=[]))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("credit", ["action", "clue"])
def test_groups_are_rebuilt_as_they_were_trained_on(tmp_path, scale, credit):
    config = tiny_config(tmp_path, scale_rewards=scale, credit=credit)
    trainer = tiny_trainer(config, ClueTask(), with_lora(tiny_base()))
    trainer.training_step(trainer.task.states("train")[:2])
    trainer.write_rollouts()
    actions = trainer.run.read_rollouts(1)
    groups = stored_groups(actions, trainer.task, trainer.tokenizer, config)
    advantages = token_advantages(groups, trainer.settings, trainer.tokenizer)
    for group, given, was in zip(groups, advantages, trainer.last_groups, strict=True):
        assert group.prompt == was.prompt and group.rewards == was.rewards
        longest = int(was.sampled.mask.sum(1).max())
        for name in ("tokens", "mask", "logprobs"):
            ours, theirs = getattr(group.sampled, name), getattr(was.sampled, name)[:, :longest]
            assert torch.equal(ours[group.sampled.mask], theirs[group.sampled.mask])
        real = group.sampled.mask
        np.testing.assert_array_equal(given[real], was.advantages[:, :longest][real])
        assert torch.equal(group.old_logp[real].float(), was.old_logp[:, :longest][real])
        assert torch.equal(group.ref_logp[real].float(), was.ref_logp[:, :longest][real])


def two_actions() -> Group:
    """Lengths 3 and 2; advantages 1 and -1; ratios [1.5, 0.5, 1] and [0.5, 1.5] against 0."""
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    sampled = SampledActions(tokens, mask, torch.zeros(2, 3), torch.tensor([True, True]))
    state = SimpleNamespace(state_id="s", question_id="q")
    group = Group(state, 0, [1], sampled, ["", ""], [Score(1.0, {}), Score(-1.0, {})])
    group.old_logp, group.ref_logp = torch.zeros(2, 3), torch.full((2, 3), 0.3)
    return group


RATIOS = torch.tensor([[1.5, 0.5, 1.0], [0.5, 1.5, 1.0]]).double()
ADVANTAGES = np.array([[1.0] * 3, [-1.0] * 3])


@pytest.mark.parametrize(
    ("loss_type", "effective", "weights"),
    [
        # 1.5 with A > 0 and 0.5 with A < 0 are held; d(-r A) = -r A, over the action's length
        ("grpo", 3, [[0, -0.5 / 3, -1 / 3], [0, 1.5 / 2, 0]]),
        ("dapo", 3, [[0, -0.5, -1], [0, 1.5, 0]]),
        # the weight is -min(r, 1.2) A and never 0
        ("cispo", 5, [[-1.2, -0.5, -1], [0.5, 1.2, 0]]),
        # geometric means 0.75^(1/3) = 0.909 and 0.75^(1/2) = 0.866: neither action is held; a
        # token has the n-th part of its action's derivative, and the action the mean over n
        ("gspo", 5, [[-(0.75 ** (1 / 3)) / 3] * 3, [0.75 ** (1 / 2) / 2] * 2 + [0]]),
    ],
)
def test_token_weights_worked_out_by_hand(tmp_path, loss_type, effective, weights):
    settings = tiny_config(tmp_path, loss_type=loss_type, kl_penalty=0.0).grpo
    found = token_weights(RATIOS.log(), two_actions(), ADVANTAGES, settings)
    assert found.effective == effective
    torch.testing.assert_close(
        found.weights, torch.tensor(weights, dtype=torch.float64), atol=1e-9, rtol=0
    )


def test_the_kl_makes_no_token_effective(tmp_path):
    """Without a difference of rewards only the KL pulls: 2 beta (logp - ref) a token, dapo."""
    settings = tiny_config(tmp_path, loss_type="dapo", kl_penalty=0.5).grpo
    found = token_weights(RATIOS.log(), two_actions(), np.zeros((2, 3)), settings)
    assert found.effective == 0
    assert float(found.weights[0, 0]) == pytest.approx(math.log(1.5) - 0.3)


def test_an_action_held_as_a_whole_loses_all_of_its_tokens(tmp_path):
    """gspo: with e 0.1 the second action's 0.866 lies below 0.9, and its A below 0."""
    settings = tiny_config(tmp_path, loss_type="gspo", clip_epsilon=0.1, kl_penalty=0.0).grpo
    assert token_weights(RATIOS.log(), two_actions(), ADVANTAGES, settings).effective == 3


def test_a_group_that_teaches_nothing_has_no_direction(tmp_path):
    trainer = trained(tmp_path, lambda k, text: 1.0, kl_penalty=0.0)
    table = compared(trainer)
    assert (table["effective_tokens"] == 0).all() and table["cosine"].isna().all()
    assert (table["tokens"] > 0).all()


def test_what_is_not_there_is_said(run, tmp_path):
    with pytest.raises(RunError, match="no checkpoint 77; there are: 1, 2, 3"):
        compared(run, checkpoint=77)
    with pytest.raises(RunError, match="no actions of step 9"):
        compared(run, steps=[9])
    with pytest.raises(ConfigError, match="loss_type"):
        compared(run, loss_types=["ppo"])
    fresh = tiny_trainer(tiny_config(tmp_path))
    with pytest.raises(RunError, match="holds no actions yet; train first"):
        compared(fresh)


def test_another_task_is_refused(run):
    options = (run.model, run.tokenizer)
    with pytest.raises(DataError, match="is not among the task's training states"):
        compare_loss_types(run.run, LetterTask(count=0), *options)
    longer = LetterTask()
    longer.prompt = lambda state: [{"role": "user", "content": "something else"}]
    with pytest.raises(DataError, match="give the task, the tokenizer and the token counter"):
        compare_loss_types(run.run, longer, *options)


def test_a_reference_that_was_never_computed_is_not_made_up(tmp_path):
    trainer = trained(tmp_path, kl_penalty=0.0)
    with pytest.raises(ConfigError, match="kept no reference log-probabilities"):
        compared(trainer, loss_types=[{"kl_penalty": 0.1}])
