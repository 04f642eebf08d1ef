"""An evaluation, as the report shows it: policies, paired differences, hops and rounds, what the
reward is made of, habits, and cases."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rlkit.results import plots, report_plots
from rlkit.results.evaluate import PRIMARY, REWARD_PARTS, Evaluation
from rlkit.results.report_habits import HABITS, habit_interval
from rlkit.results.report_page import picture
from rlkit.results.statistics import (
    Interval,
    PairedInterval,
    holm,
    interval_text,
    mean_interval,
    share_test,
)
from rlkit.results.story import headline, known_text, pick_cases, tuned_policy

_CASES = 2  # wins, and as many losses
_NOT_PARTS = ("hops", "round", "unjudged", "documents_read", "n_clues", "difficulty", "sample")


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
        "habits": _habits(evaluation),
        "groups": [g for column in report_plots.GROUPS if (g := _group(evaluation, column))],
        "differences": differences(evaluation),
        "sorted": [_sorted_picture(evaluation, a, b) for a, b in evaluation.pairs()[:2]],
        "questions": _questions(evaluation),
        "cases": pick_cases(evaluation, _CASES),
    }


def differences(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One row a pair of policies, with (interval, p, Holm's p) for each metric; the correction is
    for all of them together."""
    pairs = [(a, b, metric) for a, b in evaluation.pairs() for metric in evaluation.metrics]
    found = [evaluation.difference(*pair) for pair in pairs]
    ps = [_p(evaluation, *pair, i) for pair, i in zip(pairs, found, strict=True)]
    cells = [*zip(found, ps, holm(ps), strict=True)]
    across, rows = len(evaluation.metrics), []
    for place, (a, b) in enumerate(evaluation.pairs()):
        row = cells[place * across : (place + 1) * across]
        titles = [metric.title for metric in evaluation.metrics.values()]
        cautions = {f"{t}: {i.caution}" for t, (i, _, _) in zip(titles, row, strict=True)
                    if i.caution and i.enough}  # fmt: skip
        rows.append({"policy": a, "baseline": b, "cells": row, "cautions": sorted(cautions)})
    return rows


def _p(evaluation: Evaluation, a: str, b: str, metric: str, found: PairedInterval) -> float | None:
    """The exact test's p for shares, else that of the interval."""
    if evaluation.metrics[metric].share:
        exact = share_test(*evaluation.paired(a, b, metric))
        return found.p if exact is None else exact
    return found.p


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


def _habits(evaluation: Evaluation) -> dict[str, dict[str, Interval]]:
    """{habit: {policy: mean over questions}} of the habits that any policy's rows show."""
    rows = {h: {p: habit_interval(evaluation, p, h) for p in evaluation.policies} for h in HABITS}
    return {h: found for h, found in rows.items() if any(i.n for i in found.values())}


def _group(evaluation: Evaluation, column: str) -> dict[str, Any] | None:
    """The primary metric by hop count or round; None where there is but one."""
    found = report_plots.by_group(evaluation, column, evaluation.primary)
    if len(found) < 2:
        return None
    title, noun = evaluation.metrics[evaluation.primary].title, report_plots.GROUPS[column]
    return {
        "noun": noun,
        "table": {
            value: [i.get(p, mean_interval([])) for p in evaluation.policies]
            for value, i in found.items()
        },
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
