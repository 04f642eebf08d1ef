"""Habits that raise a reward without finding more, so that a report shows reward hacking.

| habit | what it is |
|---|---|
| n_clues | distinct clues of an action |
| repeated_clues | share of an action's written clues that repeat another |
| clue_length | characters of a clue, mean of an action |
| only_seen | 1 where an action brought documents back, and every one of them was seen before |
| local_share | of an action's new relevant documents, the share that is LOCAL and not IMPORTANT |
| wrong_reward | task `answers`: the reward of an answer that is wrong |

The same columns are made of an evaluation's rows and of the rollouts of training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from rlkit.results.actions import read_step
from rlkit.results.breakdown import bounds_of
from rlkit.results.evaluation import Evaluation
from rlkit.results.plots import CURVES
from rlkit.results.statistics import Interval, interval_text, mean_interval

HABITS = (
    "n_clues", "repeated_clues", "clue_length", "only_seen", "local_share", "wrong_reward",
)  # fmt: skip
_NEEDED = (
    "n_clues", "distinct_clue_ratio", "clues", "documents_read", "invalid", "important_new",
    "local_new", "accuracy", "reward",
)  # fmt: skip


def habits(rows: pd.DataFrame) -> pd.DataFrame:
    """The habits of each action that its columns allow; NaN where one has no meaning."""
    found = pd.DataFrame(index=rows.index)
    has = set(rows.columns).issuperset
    if has({"n_clues"}):
        found["n_clues"] = _numbers(rows, "n_clues")
    if has({"distinct_clue_ratio"}):
        found["repeated_clues"] = 1 - _numbers(rows, "distinct_clue_ratio")
    if has({"clues"}):
        found["clue_length"] = [np.mean([*map(len, c)]) if len(c) else np.nan for c in rows.clues]
    if has({"documents_read", "invalid"}):
        valid = _numbers(rows, "invalid").fillna(0) == 0
        found["only_seen"] = (valid & (_numbers(rows, "documents_read") == 0)).astype(float)
    if has({"local_new", "important_new"}):
        local, important = (_numbers(rows, name) for name in ("local_new", "important_new"))
        relevant = local + important
        found["local_share"] = (local / relevant).where(relevant > 0)
    if has({"accuracy", "reward"}):
        found["wrong_reward"] = _numbers(rows, "reward").where(_numbers(rows, "accuracy") == 0)
    return found


def habit_table(evaluation: Evaluation) -> pd.DataFrame:
    """One row a policy, one column a habit that any policy's rows show: mean, 95 % interval, n."""
    found = habit_intervals(evaluation)
    names = {policy: evaluation.names.get(policy, policy) for policy in evaluation.policies}
    return pd.DataFrame(
        {
            f"{CURVES[habit][0]} ({CURVES[habit][1]})": {
                names[policy]: interval_text(interval) for policy, interval in row.items()
            }
            for habit, row in found.items()
        }
    )


def habit_intervals(evaluation: Evaluation) -> dict[str, dict[str, Interval]]:
    """{habit: {policy: mean over questions}}, averaged within a question first."""
    parts = {p: evaluation.frame[evaluation.frame["policy"] == p] for p in evaluation.policies}
    found = {p: habits(rows) for p, rows in parts.items()}
    return {
        habit: {p: _by_question(kept, parts[p]["question_id"], habit) for p, kept in found.items()}
        for habit in HABITS
        if any(habit in kept and kept[habit].notna().any() for kept in found.values())
    }


def _by_question(kept: pd.DataFrame, questions: pd.Series, habit: str) -> Interval:
    values = kept[habit].groupby(questions).mean() if habit in kept else []
    return mean_interval(values, bounds_of(habit, CURVES[habit][1]))


def habits_over_steps(rollouts: str | Path) -> pd.DataFrame:
    """One row a step of `rollouts/step-*.parquet`: `step`, `actions` and the mean of each habit.

    Raises DataError where a file is damaged.
    """
    rows = []
    for path in Path(rollouts).glob("step-*.parquet"):
        number = path.stem.removeprefix("step-")
        if number.isdigit():
            table = read_step(path, _NEEDED.__contains__)
            kept = habits(table.to_pandas())
            rows.append({"step": int(number), "actions": table.num_rows, **kept.mean().to_dict()})
    return pd.DataFrame(sorted(rows, key=lambda row: row["step"]))


def _numbers(rows: pd.DataFrame, name: str) -> pd.Series:
    return pd.to_numeric(rows[name], errors="coerce").astype("float64")
