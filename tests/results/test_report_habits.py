"""Habits against rows counted by hand; what hacks a reward shows in the table and in the report."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from rlkit.results.report_habits import habit_intervals, habit_table, habits, habits_over_steps

ROWS = pd.DataFrame(
    {
        "clues": [["abcd", "ab"], ["abc"], []],
        "n_clues": [2, 1, 0],
        "distinct_clue_ratio": [0.5, 1.0, None],
        "documents_read": [3, 0, 0],
        "invalid": [0, 0, 1],
        "important_new": [1, 0, 0],
        "local_new": [2, 0, 0],
    }
)


def test_habits_are_what_their_table_says() -> None:
    found = habits(ROWS).to_dict("list")
    assert found["clue_length"][:2] == [3.0, 3.0] and isnan(found["clue_length"][2])
    assert found["repeated_clues"][:2] == [0.5, 0.0] and isnan(found["repeated_clues"][2])
    assert found["only_seen"] == [0.0, 1.0, 0.0]  # an invalid action brought nothing at all
    assert found["local_share"][0] == pytest.approx(2 / 3) and isnan(found["local_share"][1])
    assert "wrong_reward" not in found


def test_the_reward_of_wrong_answers_leaves_right_ones_out() -> None:
    found = habits(pd.DataFrame({"accuracy": [1, 0, 0], "reward": [1.2, 0.2, 0.0]}))
    assert isnan(found["wrong_reward"][0]) and found["wrong_reward"].mean() == pytest.approx(0.1)


def test_steps_are_in_order_and_hold_the_means_of_their_actions(tmp_path: Path) -> None:
    for step in (10, 2):
        ROWS.assign(n_clues=[step, step, step]).to_parquet(tmp_path / f"step-{step}.parquet")
    found = habits_over_steps(tmp_path)
    assert found["step"].tolist() == [2, 10] and found["actions"].tolist() == [3, 3]
    assert found["n_clues"].tolist() == [2.0, 10.0]
    assert found["only_seen"].tolist() == pytest.approx([1 / 3] * 2)
    assert habits_over_steps(tmp_path / "nowhere").empty


def test_columns_that_no_habit_needs_are_never_read(tmp_path: Path) -> None:
    path = tmp_path / "step-1.parquet"
    ROWS.assign(completion=["long", "longer", "longest"]).to_parquet(path, compression=None)
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    (column,) = [c for c in columns if c.path_in_schema == "completion"]
    start, size = column.dictionary_page_offset, column.total_compressed_size
    content = path.read_bytes()
    path.write_bytes(content[:start] + b"\xff" * size + content[start + size :])
    with pytest.raises(OSError):
        pd.read_parquet(path)
    assert habits_over_steps(tmp_path)["n_clues"].tolist() == [1.0]


def test_each_policy_has_its_mean_over_questions_with_interval(toy_evaluation) -> None:
    found = habit_intervals(toy_evaluation)["n_clues"]
    assert found == {p: toy_evaluation.interval(p, "n_clues") for p in toy_evaluation.policies}
    table = habit_table(toy_evaluation)
    assert "n = 36" in table.loc["tuned Executor", "Clues (per action)"]
