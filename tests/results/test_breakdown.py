"""Means by hops, round and difficulty, and of samples, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rlkit.errors import DataError
from rlkit.results.breakdown import difficulty
from rlkit.results.evaluation import METRICS, Evaluation


def state(name: str, hops: int, recorded: float | None = None) -> dict[str, Any]:
    return {
        "state_id": name, "question_id": name[0], "hops": hops, "round": int(name[1]),
        "n_missing": 1, "recorded_discovery": recorded,
    }  # fmt: skip


def row(policy: str, name: str, reward: float | None, discovery: float, **more: Any) -> dict:
    values = dict.fromkeys(METRICS, 0.0) | {"reward": reward, "discovery_rate": discovery}
    return {"policy": policy, "state_id": name, "question_id": name[0], **values, **more}


STATES = (
    state("a1", 2, 0.0), state("a2", 2, 0.0), state("b1", 2, 1.0), state("c1", 4, 0.5),
    state("d1", 4),
)  # fmt: skip


def evaluated(samples: Sequence[dict] = ()) -> Evaluation:
    rows = [row("p", "a1", 1, 0.2), row("p", "a2", 1, 0.6), row("p", "b1", 1, 1.0)]
    rows += [row("p", "c1", None, 1.0), row("p", "d1", 3, 0.5)]
    return Evaluation.of(rows, STATES, {}, samples)


def test_by_hops_a_question_counts_once_and_unjudged_actions_count_nowhere() -> None:
    found = evaluated().by("hops").set_index("hops")
    # 2 hops: a is (0.2 + 0.6) / 2 = 0.4, b is 1: mean 0.7; Student's half width, which is
    # t(0.975, 1) · 0.3√2 / √2 = 3.8, leaves 0 to 1
    assert found.loc[2, ["mean", "n_questions", "n_states"]].tolist() == pytest.approx([0.7, 2, 3])
    assert 0 < found.loc[2, "low"] < 0.4 and 0.99 < found.loc[2, "high"] <= 1
    assert found["caution"].tolist() == ["", "no interval with n = 1"]
    # 4 hops: c could not be judged
    assert found.loc[4, ["mean", "n_questions", "n_states"]].tolist() == [0.5, 1, 1]
    assert set(found["metric"]) == {"discovery_rate"}


def test_by_round_a_question_stands_in_every_round_that_it_has() -> None:
    found = evaluated().by("round", "reward").set_index("round")
    assert found.loc[1, ["mean", "n_questions"]].tolist() == pytest.approx([5 / 3, 3])
    assert found.loc[2, ["mean", "n_questions"]].tolist() == [1, 1]


def test_difficulty_is_what_the_recorded_rounds_found() -> None:
    assert difficulty(STATES) == {"a": "hard", "b": "easy", "c": "middle"}  # d has no record
    found = evaluated().by("difficulty")
    assert found["difficulty"].tolist() == ["easy", "middle", "hard"]
    assert found.set_index("difficulty").loc["hard", "mean"] == pytest.approx(0.4)
    assert found.set_index("difficulty").loc["middle", "n_questions"] == 0


def test_unknown_columns_and_metrics_are_named() -> None:
    with pytest.raises(DataError, match="no 'hopps'; choose one of difficulty, state_id"):
        evaluated().by("hopps")
    with pytest.raises(DataError, match="'speed' is no metric"):
        evaluated().by("hops", "speed")


def test_columns_that_hold_lists_are_refused_and_not_offered() -> None:
    states = [{**one, "missing": ["d1"]} for one in STATES]
    evaluation = Evaluation.of([row("p", "a1", 1, 0.2)], states, {})
    with pytest.raises(DataError, match="cannot be grouped by 'missing'; choose one of") as told:
        evaluation.by("missing")
    assert "n_missing" in str(told.value) and ", missing" not in str(told.value)


def test_mean_and_best_of_k_are_of_a_states_samples_then_of_a_questions_states() -> None:
    drawn = {"a1": (1, 3), "a2": (2, 2), "b1": (0, None)}
    samples = [
        row("p", name, reward, 0.5, sample=i, completion="")
        for name, rewards in drawn.items()
        for i, reward in enumerate(rewards)
    ]
    table = evaluated(samples).summary().set_index("metric")
    # mean: a (2 + 2) / 2 = 2, b 0; best: a (3 + 2) / 2 = 2.5, b 0, whose second was unjudged
    assert table.loc["reward (mean of 2)", "mean"] == 1.0
    assert table.loc["reward (best of 2)", "mean"] == 1.25
    counts = ["n_questions", "n_states", "unjudged_actions"]
    assert table.loc["reward (best of 2)", counts].tolist() == [2, 3, 1]
    assert table.loc["discovery_rate (best of 2)", "mean"] == 0.5
    assert table.loc["reward", "mean"] == pytest.approx((1 + 1 + 3) / 3)  # greedy, as without


def test_without_samples_the_summary_is_that_of_the_greedy_actions() -> None:
    assert evaluated().summary()["metric"].tolist() == list(METRICS)
