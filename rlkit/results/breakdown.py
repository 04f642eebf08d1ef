"""An evaluation in parts: by number of hops, by round, by how hard a question's evaluated states
were for whoever recorded it; and what several sampled actions a state come to, on average and at
best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rlkit.errors import DataError
from rlkit.practice.reward import COUNT_KEYS
from rlkit.results.statistics import COUNT, FREE, SHARE, Bounds, Interval, mean_interval

COLUMNS = ("hops", "round", "difficulty")
DIFFICULTIES = ("easy", "middle", "hard")
_STATISTICS = {"mean": "mean", "best": "max"}
_COUNTS = {
    *COUNT_KEYS, "n_clues", "clue_length", "length", "documents_read", "rounds", "rounds_needed",
    "failed_rounds",
}  # fmt: skip


def bounds_of(name: str, unit: str) -> Bounds:
    """Between what a column's values lie, for `mean_interval`: where its unit is a share, from 0
    to 1; of what is counted, from 0; else anywhere, as a reward may."""
    return SHARE if unit.startswith("share") else COUNT if name in _COUNTS else FREE


def columns_of(interval: Interval) -> dict[str, Any]:
    """The columns of a row that shows an interval."""
    n, *ends = interval
    named = dict(zip(("mean", "low", "high"), ends, strict=True))
    return named | {"n_questions": n, "caution": interval.caution}


def difficulty(states: Sequence[dict[str, Any]]) -> dict[str, str]:
    """By question: `hard` where its recorded rounds found none of the documents that were missing
    in these states, `easy` where they found all, else `middle`. It is the mean recorded discovery
    of the evaluated states, which may be fewer than the question has (`evaluation.max_states`), by
    which `data.split: hard_first` sorts; a question without a record is left out."""
    rates: dict[str, list[float]] = {}
    for state in states:
        if (rate := state.get("recorded_discovery")) is not None:
            rates.setdefault(state["question_id"], []).append(rate)
    means = {question: sum(found) / len(found) for question, found in rates.items()}
    return {q: "hard" if m == 0 else "easy" if m == 1 else "middle" for q, m in means.items()}


def by(evaluation: Any, column: str, metric: str | None = None) -> pd.DataFrame:
    """One row a policy and group: policy, metric, the column, mean, low, high, n_questions,
    caution, n_states. The mean is over questions, each one's being over its states in the group.

    `column` is `difficulty` or a column of the states (`hops`, `round`, `n_missing`, ...) that
    holds no lists; `metric` the primary one where none is named. Raises DataError for another
    column or metric.
    """
    metric = metric or evaluation.primary
    if metric not in evaluation.metrics:
        raise DataError(
            f"{metric!r} is no metric of this evaluation; it has {', '.join(evaluation.metrics)}."
        )
    group, rows = _groups(evaluation.states, column), []
    bounds = evaluation.bounds(metric)
    for policy in evaluation.policies:
        judged = evaluation.judged_rows(policy, metric)
        judged = judged.assign(group=judged["state_id"].map(group))
        for value in _order(set(group.values())):
            found = judged[judged["group"] == value]
            interval = mean_interval(_of_questions(found, metric), bounds)
            row = {"policy": policy, "metric": metric, column: value}
            rows.append(row | columns_of(interval) | {"n_states": len(found)})
    names = ["policy", "metric", column, *columns_of(mean_interval([])), "n_states"]
    return pd.DataFrame(rows, columns=names)


def _groups(states: Sequence[dict[str, Any]], column: str) -> dict[str, Any]:
    """The value of the column by state, where it has one."""
    if column == "difficulty":
        known = difficulty(states)
        found = {s["state_id"]: known.get(s["question_id"]) for s in states}
    else:
        lists = {name for s in states for name, value in s.items() if isinstance(value, list)}
        allowed = [name for name in (states[0] if states else [column]) if name not in lists]
        if column not in allowed:
            what = "cannot be grouped by" if column in lists else "have no"
            names = ", ".join(["difficulty", *allowed])
            raise DataError(f"the states {what} {column!r}; choose one of {names}.")
        found = {s["state_id"]: s[column] for s in states}
    return {state: value for state, value in found.items() if value is not None}


def _order(values: set[Any]) -> list[Any]:
    if values <= set(DIFFICULTIES):
        return [name for name in DIFFICULTIES if name in values]
    return sorted(values, key=lambda value: (str(type(value)), value))


def _of_questions(rows: pd.DataFrame, metric: str) -> list[float]:
    return rows.groupby("question_id")[metric].mean().tolist()


def sampled_rows(evaluation: Any) -> list[dict[str, Any]]:
    """Rows as those of `Evaluation.summary`, of the policies that sampled: `reward (mean of 4)`,
    `reward (best of 4)`, and the same of the primary metric. Best is the highest value of a
    state's samples, the mean their average; samples without a value count nowhere."""
    rows = []
    for policy, samples in evaluation.samples.groupby("policy", sort=False):
        k = samples.groupby("state_id").size().max()
        unjudged = int(samples["reward"].isna().sum())
        for metric in dict.fromkeys(["reward", evaluation.primary]):
            kept = samples[samples[metric].notna()]
            if evaluation.metrics[metric].judged:
                kept = kept[kept["reward"].notna()]
            for name, how in _STATISTICS.items():
                states = kept.groupby(["question_id", "state_id"])[metric].agg(how).reset_index()
                found = mean_interval(_of_questions(states, metric), evaluation.bounds(metric))
                row = {"policy": policy, "metric": f"{metric} ({name} of {k})"}
                counts = {"n_states": len(states), "unjudged_actions": unjudged}
                rows.append(row | columns_of(found) | counts)
    return rows
