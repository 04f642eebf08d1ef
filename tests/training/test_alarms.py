"""Alarms on curves made by hand: each begins where it should, is said once, and never on a
healthy run; a resumed run says what the uninterrupted one says."""

from __future__ import annotations

import json
import re

import pytest

from rlkit.config import RunConfig
from rlkit.training import alarms
from rlkit.training.loop import train
from tests.training.conftest import LetterTask, tiny_config, tiny_trainer

HEALTHY = {
    "reward": 1.0, "frac_groups_flat": 0.0, "kl": 0.02, "entropy": 0.8, "grad_norm": 0.3,
    "learning_rate": 1e-4, "completions/clipped_ratio": 0.2, "distinct_clue_ratio": 0.95,
    "grounded_clue_ratio": 0.8, "invalid_share": 0.1, "unjudged_share": 0.0,
}  # fmt: skip
# as noisy as real runs were, with one group a step: factors of the usual value, one after another
NOISE = (1.0, 0.5, 1.4, 0.3, 1.9, 0.8, 1.1)


def healthy(steps: int) -> list[dict]:
    """Noisy rows of a run whose KL rises and whose entropy falls to a half; the optimiser moves at
    every second step, and two of five steps are flat."""
    rows = [{"step": 0, "epoch": 0.0, "eval/reward": 1.0}]
    for step in range(1, steps + 1):
        wobble = NOISE[step % len(NOISE)]
        row = HEALTHY | {"step": step, "frac_groups_flat": float(step % 5 < 2)}
        row["kl"] = 0.0 if step < 3 else 0.002 * step * wobble
        row["entropy"] = 0.8 * wobble * (1 - step / (2 * steps))
        row["completions/clipped_ratio"] = 0.4 * wobble
        row["grounded_clue_ratio"] = 0.6 + 0.2 * wobble
        if step % 2:
            row["grad_norm"] = row["learning_rate"] = None
        rows.append(row)
    return rows


def raised(rows: list[dict]) -> list[tuple[int, str]]:
    """(step, first words) of every alarm that begins, line by line."""
    return [
        (row["step"], text.split(":")[0])
        for i, row in enumerate(rows)
        for text in alarms.begun(rows[: i + 1])
    ]


def steady(steps: int, start: int = 1, **changes) -> list[dict]:
    return [HEALTHY | {"step": start + i} | changes for i in range(steps)]


def test_a_healthy_run_raises_nothing():
    assert raised(healthy(60)) == []


# name of the alarm, what goes wrong after 20 good steps, first words, step at which it is said
CASES = {
    "flat": ({"frac_groups_flat": 1.0}, "all groups are equal", 28),  # the eighth in a row
    # mean of ten: (10 - n) 0.2 + n 1.0 >= 9, so n = 9
    "cut": ({"completions/clipped_ratio": 1.0}, "nearly everything is cut at the limit", 29),
    "still, no gradient": ({"grad_norm": 0.0}, "the adapter does not change", 28),
    "still, no rate": ({"learning_rate": 0.0}, "the adapter does not change", 28),
    "kl": ({"kl": 0.4}, "the KL jumps", 22),  # the median of three: two of them
    # mean of ten: (10 - n) 0.8 + n 0.01 < 2, so n = 8
    "entropy": ({"entropy": 0.01}, "the entropy collapses", 28),
    # mean of ten: (10 - n) 0.95 + n 0.3 < 0.75 x 9.5 = 7.125, so n = 4
    "repeats": ({"distinct_clue_ratio": 0.3}, "the clues repeat", 24),
    # mean of ten: (10 - n) 0.8 + n 0.1 < 0.6 x 8 = 4.8, so n = 5
    "leaves": ({"grounded_clue_ratio": 0.1}, "the clues leave the state", 25),
    # mean of ten: (10 - n) 0.1 + n 0.8 > 5, so n = 6
    "invalid": ({"invalid_share": 0.8}, "most actions are invalid", 26),
    "unjudged": ({"unjudged_share": 0.8}, "most actions could not be judged", 27),  # n 0.8 > 5
    "all unjudged": ({"unjudged_share": 0.95}, "most actions could not be judged", 23),
}


@pytest.mark.parametrize("name", CASES)
def test_an_alarm_is_said_once_when_it_begins(name):
    wrong, words, step = CASES[name]
    assert raised(steady(20) + steady(40, 21, **wrong)) == [(step, words)]


@pytest.mark.parametrize("name", CASES)
def test_an_alarm_that_ceased_is_said_again(name):
    wrong, words, step = CASES[name]
    rows = steady(20) + steady(10, 21, **wrong) + steady(40, 31) + steady(10, 71, **wrong)
    assert [text for _, text in raised(rows)] == [words, words]


def test_an_alarm_that_flickers_is_said_once():
    """One group that differs after every eight that do not is one trouble, not three."""
    rows = [HEALTHY | {"step": i, "frac_groups_flat": float(i % 9 > 0)} for i in range(1, 28)]
    held = [row["step"] for i, row in enumerate(rows) if alarms.holding(rows[: i + 1])]
    assert held == [8, 17, 26]
    assert raised(rows) == [(8, "all groups are equal")]


def test_flat_groups_alone_are_no_adapter_that_does_not_change():
    """Without an advantage a gradient of 0 is what there should be."""
    rows = steady(20) + steady(7, 21, grad_norm=0.0, frac_groups_flat=1.0)
    assert raised(rows) == []


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_groups_without_two_rewards_are_not_equal_but_unjudged(share):
    """Raising the temperature would not help."""
    rows = steady(12, frac_groups_flat=None, unjudged_share=share)
    assert raised(rows) == [(3, "most actions could not be judged")]
    assert "python -m rlkit check-judge" in alarms.begun(rows[:3])[0]
    half = steady(12, frac_groups_flat=1.0, unjudged_share=0.25)
    assert raised(half) == [(8, "all groups are equal")]


def test_steps_without_a_judged_group_are_passed_over():
    """Neither do they make eight in a row, nor do they break them."""
    rows = [HEALTHY | {"step": i, "frac_groups_flat": None if i % 2 else 1.0} for i in range(1, 20)]
    assert raised(rows) == [(16, "all groups are equal")]


@pytest.mark.parametrize(("by_rewards", "flat"), [(1.0, 0.0), (0.0, 1.0)])
def test_equal_are_groups_that_teach_nothing_whatever_their_rewards(by_rewards, flat):
    """Equal rewards teach with `advantage: best` and `credit: clue`, and unequal ones may not."""
    rows = steady(12, frac_reward_zero_std=by_rewards, frac_groups_flat=flat)
    assert raised(rows) == ([(8, "all groups are equal")] if flat else [])
    still = steady(12, frac_reward_zero_std=by_rewards, frac_groups_flat=flat, grad_norm=0.0)
    assert ("the adapter does not change" in [text for _, text in raised(still)]) is not bool(flat)


def test_lines_of_before_tell_by_their_rewards_what_was_flat():
    def old(**changes):
        rows = steady(12, frac_reward_zero_std=1.0, **changes)
        return [{k: v for k, v in row.items() if k != "frac_groups_flat"} for row in rows]

    assert raised(old()) == [(8, "all groups are equal")]
    assert raised(old(unjudged_share=0.5)) == []  # their groups count as equal there, and are not
    rows = old()[:4] + steady(12, 5, frac_groups_flat=1.0)  # a run that goes on
    assert raised(rows) == [(8, "all groups are equal")]


def test_an_accumulation_counts_as_moved_by_all_of_its_steps():
    """Four moves of two steps each; the groups differed in the first of the two only."""
    rows = []
    for step in range(1, 9):
        row = HEALTHY | {"step": step, "grad_norm": None, "learning_rate": None}
        if step % 2 == 0:
            row |= {"frac_groups_flat": 1.0, "grad_norm": 0.0, "learning_rate": 1e-4}
        rows.append(row)
    assert raised(rows) == [(8, "the adapter does not change")]


@pytest.mark.parametrize(("every", "step"), [(1, 8), (3, 9), (8, 24)])
def test_the_first_moves_alone_are_no_adapter_that_does_not_change(every, step):
    """Eight steps at least and three moves at least, whatever the accumulation; step 0 is none."""
    rows = [{"step": 0, "epoch": 0.0, "eval/reward": 1.0}]
    for number in range(1, 31):
        moves = {"grad_norm": 0.0} if number % every == 0 else {"grad_norm": None}
        rows.append(HEALTHY | {"step": number} | moves)
    assert raised(rows) == [(step, "the adapter does not change")]


def test_one_spike_of_the_kl_is_no_jump():
    """k3 has a heavy tail: a single rare token makes a step of it."""
    assert raised(steady(20) + steady(1, 21, kl=1e6) + steady(20, 22)) == []


def test_a_kl_that_is_high_all_along_is_no_jump():
    assert raised(steady(40, kl=2.0)) == []


def test_clues_that_never_were_in_the_state_cannot_leave_it():
    rows = steady(20, grounded_clue_ratio=0.1) + steady(20, 21, grounded_clue_ratio=0.0)
    assert raised(rows) == []


def test_clues_that_repeat_from_the_start_are_said():
    assert raised(steady(30, distinct_clue_ratio=0.4)) == [(10, "the clues repeat")]


def test_a_task_without_clues_has_the_other_alarms():
    rows = [{"step": i, "reward": 1.0, "frac_groups_flat": 1.0} for i in range(1, 12)]
    assert raised(rows) == [(8, "all groups are equal")]


def test_a_sentence_says_what_was_seen_and_what_to_do():
    rows = steady(10, **{"completions/clipped_ratio": 0.95})
    assert alarms.begun(rows) == [
        "nearly everything is cut at the limit: 95% of the actions of the last 10 steps did not "
        "end by themselves; raise grpo.max_new_tokens, or ask for shorter answers."
    ]


def flat_run(folder, log=None):
    config = tiny_config(folder).with_overrides("training.num_epochs=3", "grpo.max_new_tokens=2")
    trainer = tiny_trainer(config, LetterTask(reward=lambda k, text: 1.0))
    trainer.log = (log if log is not None else []).append
    return trainer


def test_a_run_says_its_alarms_in_the_log_and_in_its_metrics(tmp_path):
    log: list[str] = []
    trainer = flat_run(tmp_path, log)
    assert train(trainer) == "finished"
    said = alarms.said(trainer.run.read_metrics())
    assert [step for step, text in said if text.startswith("all groups are equal")] == [8]
    spoken = [line for line in log if line.startswith("alarm")]
    assert spoken == [f"alarm at step {step}: {text}" for step, text in said]


@pytest.mark.parametrize("stop", [7, 8, 9])
def test_a_resumed_run_says_what_the_uninterrupted_one_says(tmp_path, stop):
    """Stopped before the step of an alarm, at it, and after it."""
    whole = flat_run(tmp_path / "whole")
    train(whole)

    def killed(metrics):
        if metrics["step"] == stop:
            raise KeyboardInterrupt

    first = flat_run(tmp_path / "resumed")
    with pytest.raises(KeyboardInterrupt):
        train(first, progress=killed)
    again = flat_run(tmp_path / "resumed")
    train(again)
    lines = [t.run.metrics_path.read_text().splitlines() for t in (whole, again)]
    kept = [[json.loads(line).get("alarms") for line in part] for part in lines]
    assert kept[0] == kept[1] and any(kept[0])


def test_every_alarm_is_explained_in_the_docs_and_may_end_training(root):
    text = (root / "docs" / "formats.md").read_text(encoding="utf-8")
    table = text.split("### Alarms")[1].split("###")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(alarms.ALARMS)
    choices = RunConfig().with_overrides(f"training.stop_on=[{', '.join(alarms.ALARMS)}]")
    assert choices.training.stop_on == list(alarms.ALARMS)


def test_the_list_of_a_run_s_alarms_is_text():
    rows = steady(3) + [{"step": 4, "alarms": ["one", "two"]}, {"step": 5, "alarms": None}]
    assert alarms.listed(rows) == "step 4: one\nstep 4: two"
    assert alarms.listed(steady(3)) == "no alarm was raised"
