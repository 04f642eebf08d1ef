"""Training ends on dev, on an alarm, or with its processor time; flat states come up less often."""

from __future__ import annotations

import signal
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from rlkit.errors import ConfigError
from rlkit.practice.task import Score
from rlkit.training.advantages import token_advantages
from rlkit.training.loop import train
from rlkit.training.models import byte_tokenizer
from rlkit.training.rollout import Group
from rlkit.training.sampling import SampledActions
from rlkit.training.schedule import state_order
from rlkit.training.stopping import flat_states, reason
from tests.training.conftest import LetterState, LetterTask, tiny_config, tiny_trainer


def section(**changes):
    values = {"patience": None, "stop_on": [], "cpu_minutes": None, "best": "reward"}
    return SimpleNamespace(**values | changes)


def on_dev(*values):
    return [{"step": i, "eval/reward": value} for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "over"),
    [((9, 1, 2), False), ((9, 2, 1, 1), True), ((9, 2, 1, 3), False), ((9, 2, 2, 2), True)],
)
def test_dev_ends_training_after_the_patience_and_step_0_does_not_count(values, over):
    assert bool(reason(on_dev(*values), section(patience=2))) is over
    assert not reason(on_dev(*values), section())


def test_an_alarm_ends_training_only_where_it_is_named():
    rows = [{"step": i, "entropy": 1.0 if i < 10 else 0.1} for i in range(1, 31)]
    assert "entropy collapses" in reason(rows, section(stop_on=["repeats", "entropy"]))
    assert not reason(rows, section(stop_on=["repeats"]))


def test_processor_time_is_added_up_over_the_steps():
    rows = [{"step": i, "cpu_time": 30.0} for i in range(1, 5)]
    assert reason(rows, section(cpu_minutes=2)) == "2.0 minutes of processor time are spent"
    assert not reason(rows[:3], section(cpu_minutes=2))


def test_an_early_end_is_an_end_also_for_the_next_call(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.patience=1", "training.num_epochs=30")
    task = LetterTask(reward=lambda k, text: 0.0)  # dev never rises
    assert train(tiny_trainer(config, task)) == "finished"
    again = tiny_trainer(config, task)
    assert train(again) == "finished"
    assert again.run.status()["step"] == again.progress.step == 6  # two epochs of three steps


def ended_early(folder):
    """A run whose first step of six, of two that make an update, spends all processor time."""
    config = tiny_config(folder).with_overrides("training.cpu_minutes=1e-9")
    trainer = tiny_trainer(config, LetterTask(reward=lambda k, text: float(k)))
    log: list[str] = []
    trainer.log = log.append
    return trainer, log


def test_an_early_end_is_a_last_step_what_waits_is_applied_and_dev_is_evaluated(tmp_path):
    trainer, log = ended_early(tmp_path)
    before = {name: p.detach().clone() for name, p in trainer.parameters.items()}
    assert train(trainer) == "finished"
    zero, first = trainer.run.read_metrics()
    assert log[-1].startswith("ended after step 1: 0.0 minutes of processor time are spent")
    assert first["grad_norm"] > 0 and first["learning_rate"] == 1e-2
    assert set(first) > set(zero) - {"alarms"} and first["eval/states"] == 2.0
    assert (trainer.progress.moves, trainer.progress.denominator) == (1, 0.0)
    assert any(not torch.equal(p, before[name]) for name, p in trainer.parameters.items())
    assert trainer.progress.best_step == 1
    status = trainer.run.status()
    assert (status["state"], status["step"]) == ("finished", 1)
    again, _ = ended_early(tmp_path)
    assert train(again) == "finished"
    assert (again.progress.moves, again.progress.best_step) == (1, 1)  # nothing is applied twice
    assert all(torch.equal(p, trainer.parameters[name]) for name, p in again.parameters.items())
    assert len(again.run.read_metrics()) == 2


def test_a_run_that_is_killed_at_its_early_end_ends_there_again(tmp_path):
    """The line was written, the checkpoint was not: the step is done anew, with the same end."""
    whole, _ = ended_early(tmp_path / "whole")
    train(whole)
    first, _ = ended_early(tmp_path / "killed")

    def killed(metrics):
        if metrics["step"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(first, progress=killed)
    again, _ = ended_early(tmp_path / "killed")
    assert train(again) == "finished"
    assert all(torch.equal(p, whole.parameters[name]) for name, p in again.parameters.items())
    rows = [t.run.read_metrics()[-1] for t in (whole, again)]
    assert rows[0]["eval/reward"] == rows[1]["eval/reward"] and len(again.run.read_metrics()) == 2


def test_an_interrupt_during_the_step_that_ends_training_leaves_a_finished_run(
    tmp_path, monkeypatch
):
    trainer, _ = ended_early(tmp_path)
    step = trainer.training_step

    def interrupted(*given):
        signal.raise_signal(signal.SIGINT)
        return step(*given)

    monkeypatch.setattr(trainer, "training_step", interrupted)
    assert train(trainer) == "finished" and trainer.run.status()["state"] == "finished"


def test_an_alarm_that_ends_training_ends_it_with_an_evaluation(tmp_path):
    config = tiny_config(tmp_path).with_overrides(
        "training.stop_on=[flat]", "training.num_epochs=9", "evaluation.epoch_states=1"
    )
    trainer = tiny_trainer(config, LetterTask(reward=lambda k, text: 1.0))
    train(trainer)
    rows = trainer.run.read_metrics()
    assert [row["step"] for row in rows if "eval/reward" in row] == [0, 3, 6, 8]
    assert trainer.progress.moves == 4


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"max_steps": 2}, "raise training.max_steps, or take another run_name"),
        ({"num_epochs": 1}, "raise training.num_epochs, or take"),
        ({"num_epochs": 1, "max_steps": 3}, "raise training.num_epochs and training.max_steps, or"),
        ({"cpu_minutes": 1e-9}, "what ended it may not change within a run; take another run_name"),
    ],
)
def test_a_finished_run_says_what_would_let_it_go_on(tmp_path, changes, advice):
    values = [f"training.{name}={value}" for name, value in changes.items()]
    config, log = tiny_config(tmp_path).with_overrides(*values), []
    train(tiny_trainer(config))
    again = tiny_trainer(config)
    again.log = log.append
    assert train(again) == "finished" and advice in log[-1]


def test_metrics_are_read_once_however_many_steps_there_are(tmp_path, monkeypatch):
    config = tiny_config(tmp_path).with_overrides(
        "training.flat_share=0.5", "training.patience=9", "evaluation.epoch_states=1"
    )
    trainer, read = tiny_trainer(config), []
    file = trainer.run.read_metrics
    monkeypatch.setattr(trainer.run, "read_metrics", lambda: read.append(1) or file())
    assert train(trainer) == "finished" and trainer.progress.step == 6
    assert len(read) == 1
    assert trainer.run.metrics_so_far() == file()  # in memory stands what a resumed run reads


def test_a_metric_that_the_task_lacks_is_no_judge_of_the_best(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.best=discovery_rate")
    with pytest.raises(ConfigError, match="choose one of reward, kl"):
        train(tiny_trainer(config))


def scored_group(rewards, **grpo):
    """Three actions of two clues, of one token each; the second token of the last is padding. The
    clues add 1 and 1, 2 and 0, 0 and 0, whatever the rewards are."""
    values, rows = [(2.0, 1.0), (2.0, 0.0), (0.0,)], ["ab", "ab", "a"]
    tokens = torch.tensor([[100, 101], [100, 101], [100, 0]])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    sampled = SampledActions(tokens, mask, torch.zeros(3, 2), torch.ones(3, dtype=torch.bool))
    scores = [
        Score(reward, {"clue_spans": [(j, j + 1) for j in range(len(row))], "clue_values": worth})
        for reward, row, worth in zip(rewards, rows, values, strict=True)
    ]
    group = Group(LetterState("s"), 0, [1], sampled, rows, scores)
    settings = {"advantage": "group", "credit": "action", "scale_rewards": "group"} | grpo
    (group.advantages,) = token_advantages([group], SimpleNamespace(**settings), byte_tokenizer())
    return group


@pytest.mark.parametrize(
    ("rewards", "grpo", "flat"),
    [
        ([1.0, 1.0, 1.0], {}, True),
        ([1.0, 2.0, 1.0], {}, False),
        ([1.0, 1.0, None], {}, True),
        ([1.0, None, None], {}, None),  # nobody knows what others would have got
        ([None, None, None], {}, None),
        # rejection sampling: the first of the best is imitated, if it is worth anything
        ([1.0, 1.0, 1.0], {"advantage": "best"}, False),
        ([0.0, -1.0, -2.0], {"advantage": "best"}, True),
        ([1.0, None, None], {"advantage": "best"}, False),
        ([0.0, None, None], {"advantage": "best"}, None),
        # the clues' values, 2, 2 and 0 of the first ones, differ where the rewards do not
        ([2.0, 2.0, 2.0], {"credit": "clue"}, False),
        ([2.0, 2.0, 2.0], {"credit": "clue", "scale_rewards": "batch"}, True),
    ],
)
def test_flat_is_a_group_without_any_advantage_and_unknown_is_one_without_two_rewards(
    rewards, grpo, flat
):
    assert scored_group(rewards, **grpo).flat is flat


def test_an_advantage_of_padding_teaches_nothing():
    group = scored_group([1.0, 1.0, 1.0])
    group.advantages[2, 1] = 1.0
    assert group.flat is True


def test_a_states_last_group_decides_whether_it_is_flat():
    rows = [{"groups_flat": {"a": True, "b": True}}, {"step": 2}, {"groups_flat": {"a": False}}]
    assert flat_states(rows) == {"b"}


def test_flat_states_come_up_as_often_as_their_share_says_and_others_take_their_place():
    states = [LetterState(f"s{i}") for i in range(10)]
    plain = state_order(states, 7, 0, 2000)
    order = state_order(states, 7, 0, 2000, {"s0", "s1"}, 0.25)
    seen = Counter(state.state_id for state in order)
    assert (seen["s0"] + seen["s1"]) / 400 == pytest.approx(0.25, abs=0.09)  # four deviations
    assert sum(seen.values()) == 2000
    others = [(a, b) for a, b in zip(plain, order, strict=True) if a.state_id not in ("s0", "s1")]
    assert all(a == b for a, b in others)
    assert order[50:60] == state_order(states, 7, 50, 10, {"s0", "s1"}, 0.25)  # from any place
    everyone = {state.state_id for state in states}
    assert state_order(states, 7, 0, 20, everyone, 0.0) == plain[:20]


@pytest.mark.parametrize(
    ("reward", "grpo", "share"),
    [
        (1.0, {}, 1.0),
        (1.0, {"advantage": "best"}, 0.0),
        (0.0, {"advantage": "best"}, 1.0),
        (None, {}, None),
    ],
)
def test_what_a_step_teaches_stands_in_its_metrics(tmp_path, reward, grpo, share):
    """Equal rewards above 0 teach rejection sampling; what was not judged is not known."""
    config = tiny_config(tmp_path, **grpo).with_overrides(
        "training.flat_share=0", "training.max_steps=1", "evaluation.epoch_states=1"
    )
    trainer = tiny_trainer(config, LetterTask(reward=lambda k, text: reward))
    train(trainer)
    (row,) = trainer.run.read_metrics()[1:]
    assert row["frac_groups_flat"] == share and row["frac_reward_zero_std"] == 1.0
    assert list(row["groups_flat"].values()) == ([] if share is None else [bool(share)])


def test_what_was_flat_stands_in_the_metrics_and_a_resumed_run_reads_it(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.flat_share=0")
    flat = lambda k, text: 0.0  # noqa: E731
    trainer = tiny_trainer(config, LetterTask(reward=flat))
    train(trainer)
    assert flat_states(trainer.run.read_metrics()) == {f"s{i}" for i in range(6)}
