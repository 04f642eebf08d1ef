"""Training ends on dev, on an alarm, or with its processor time; flat states come up less often."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from rlkit.errors import ConfigError
from rlkit.training.loop import train
from rlkit.training.schedule import state_order
from rlkit.training.stopping import flat_states, is_flat, reason
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


def test_a_metric_that_the_task_lacks_is_no_judge_of_the_best(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.best=discovery_rate")
    with pytest.raises(ConfigError, match="choose one of reward, kl"):
        train(tiny_trainer(config))


@pytest.mark.parametrize(
    ("rewards", "flat"), [([1.0, 1.0, None], True), ([1.0, None], True), ([1.0, 2.0], False)]
)
def test_flat_is_a_group_without_two_different_rewards(rewards, flat):
    assert is_flat(rewards) is flat


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


def test_what_was_flat_stands_in_the_metrics_and_a_resumed_run_reads_it(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.flat_share=0")
    flat = lambda k, text: 0.0  # noqa: E731
    trainer = tiny_trainer(config, LetterTask(reward=flat))
    train(trainer)
    assert flat_states(trainer.run.read_metrics()) == {f"s{i}" for i in range(6)}
