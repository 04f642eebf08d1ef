"""An evaluation, as the report shows it: policies, paired differences, hops and rounds, what the
reward is made of, habits, and cases."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rlkit.results import plots, report_plots
from rlkit.results.breakdown import sampled_rows
from rlkit.results.evaluation import PRIMARY, REWARD_PARTS, Evaluation, records
from rlkit.results.report_habits import habit_intervals
from rlkit.results.report_page import picture
from rlkit.results.statistics import Interval, interval_text
from rlkit.results.story import headline, known_text, pick_cases, tuned_policy

_CASES = 2  # wins, and as many losses
_NOT_PARTS = ("hops", "round", "unjudged", "documents_read")


def results(evaluation: Evaluation) -> dict[str, Any]:
    """All that the template shows of an evaluation."""
    primary, policies = evaluation.primary, evaluation.policies
    title, search = evaluation.metrics[primary].title, primary == PRIMARY
    found = {name: evaluation.interval(name, primary) for name in policies}
    return {
        "title": title,
        "search": search,
        "headline": headline(evaluation),
        "known": known_text(evaluation),
        "table": [_policy_row(evaluation, policy) for policy in policies],
        "primary": picture(
            lambda: plots.metric_by_policy(evaluation),
            f"{title} by policy, mean and 95 % interval: "
            + "; ".join(f"{name} {interval_text(i)}" for name, i in found.items()),
        ),
        "components": search
        and picture(
            lambda: plots.reward_components(evaluation),
            "What each policy's reward is made of; the table below has the numbers of documents.",
        ),
        "parts": reward_parts(evaluation),
        "habits": habit_intervals(evaluation),
        "groups": [g for column in report_plots.GROUPS if (g := _group(evaluation, column))],
        "differences": differences(evaluation),
        "samples": samples(evaluation),
        "sorted": [_sorted_picture(evaluation, a, b) for a, b in evaluation.pairs()[:2]],
        "questions": _questions(evaluation),
        "cases": pick_cases(evaluation, _CASES),
    }


def differences(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One row a pair of policies with its cautions, and a cell for each metric: the difference and
    Holm's p as `evaluation.json` has them."""
    adjusted = records(evaluation.differences()[["p_holm"]])
    rows, place = [], iter(adjusted)
    for a, b in evaluation.pairs():
        cells, cautions = [], []
        for name, metric in evaluation.metrics.items():
            found = evaluation.difference(a, b, name)
            cells.append((found, next(place)["p_holm"]))
            if found.caution and found.enough:  # that too few differ stands in the cell
                cautions.append(f"{metric.title}: {found.caution}")
        rows.append({"policy": a, "baseline": b, "cells": cells, "cautions": cautions})
    return rows


def samples(evaluation: Evaluation) -> dict[str, dict[str, Interval]]:
    """{policy: {`reward (best of 4)`, ...: Interval}} of the policies that were sampled from."""
    found: dict[str, dict[str, Interval]] = {}
    for row in sampled_rows(evaluation):
        interval = Interval(row["n_questions"], row["mean"], row["low"], row["high"])
        found.setdefault(row["policy"], {})[row["metric"]] = interval
    return found


def reward_parts(evaluation: Evaluation) -> dict[str, dict[str, Interval]]:
    """{part: {policy: mean over questions}}: documents of each kind, or, for a task without
    documents, the numbers that its rows have beside the metrics."""
    frame = evaluation.frame
    parts = [part for part in REWARD_PARTS if part in frame]
    if not parts:
        other = [c for c in frame if c not in (*evaluation.metrics, *_NOT_PARTS)]
        parts = [c for c in other if pd.api.types.is_numeric_dtype(frame[c].infer_objects())]
    return {
        part: {p: plots.part_interval(evaluation, p, part) for p in evaluation.policies}
        for part in parts
    }


def _group(evaluation: Evaluation, column: str) -> dict[str, Any] | None:
    """The primary metric by one of `report_plots.GROUPS`; None where there is but one value."""
    found = report_plots.by_group(evaluation, column)
    if len(found) < 2:
        return None
    title, noun = evaluation.metrics[evaluation.primary].title, report_plots.GROUPS[column]
    return {
        "noun": noun,
        "table": {value: [*intervals.values()] for value, intervals in found.items()},
        "picture": picture(
            lambda: report_plots.metric_by(evaluation, column),
            f"{title} of each policy by {noun}; the table beside it has the numbers.",
        ),
    }


def _questions(evaluation: Evaluation) -> dict[str, Any] | None:
    """The headline's pair, question by question, sorted by the difference."""
    tuned, pairs = tuned_policy(evaluation), evaluation.pairs()
    pair = next((pair for pair in pairs if pair[0] == tuned), None)
    if pair is None:
        return None
    ours, theirs = evaluation.paired(*pair, evaluation.primary)
    texts = {state["question_id"]: state.get("question") or "" for state in evaluation.states}
    rows = [(ours[q] - theirs[q], q, texts.get(q, "")[:160], theirs[q], ours[q]) for q in ours]
    return {"pair": pair, "rows": sorted(rows)}


def _sorted_picture(evaluation: Evaluation, a: str, b: str) -> dict[str, str]:
    text = interval_text(evaluation.difference(a, b, evaluation.primary))
    title = evaluation.metrics[evaluation.primary].title.lower()
    return picture(
        lambda: plots.question_differences(evaluation, a, b),
        f"Difference of the {title} of each question, {a} minus {b}, sorted: mean {text}.",
    )


def _policy_row(evaluation: Evaluation, policy: str) -> dict[str, Any]:
    rows = evaluation.frame[evaluation.frame["policy"] == policy]
    return {
        "policy": policy,
        "intervals": [evaluation.interval(policy, metric) for metric in evaluation.metrics],
        "n_states": len(rows),
        "unjudged": int(rows["reward"].isna().sum()),
    }
