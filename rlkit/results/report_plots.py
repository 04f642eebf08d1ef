"""Figures that set things side by side: a metric by hop count or round, the curves of several runs,
and intervals one below the other.

    metric_by(evaluation, "hops")
    overlaid_curves({"run1": run1.metrics, "run2": run2.metrics}, "reward")
    forest({"seed 7": interval, "seed 8": interval}, "Discovery rate, tuned minus untouched")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rlkit.results.evaluation import Evaluation, records
from rlkit.results.plots import (
    BLUE,
    CURVES,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    label_axes,
    n_text,
    new_figure,
)
from rlkit.results.statistics import Interval, PairedInterval, SeedsInterval, interval_text

# columns that an evaluation is told by, in words
GROUPS = {"hops": "number of hops", "round": "round", "difficulty": "recorded difficulty"}
_COLOURS, _MARKS = (GREY, ORANGE, SKY, BLUE, GREEN, PINK), "osD^vP"


def by_group(evaluation: Evaluation, column: str) -> dict[Any, dict[str, Interval]]:
    """{value of `column`: {policy: Interval}} of the primary metric, see `Evaluation.by`."""
    found: dict[Any, dict[str, Interval]] = {}
    for row in records(evaluation.by(column)):
        interval = Interval(row["n_questions"], row["mean"], row["low"], row["high"])
        found.setdefault(row[column], {})[row["policy"]] = interval
    return found


def group_table(evaluation: Evaluation, column: str) -> pd.DataFrame:
    """`by_group` to read: a row a policy, a column a value, each cell with interval and n."""
    groups, names = by_group(evaluation, column), evaluation.names
    return pd.DataFrame(
        {
            value: {names.get(policy, policy): interval_text(i) for policy, i in row.items()}
            for value, row in groups.items()
        }
    ).rename_axis(columns=column)


def metric_by(evaluation: Evaluation, column: str) -> Figure:
    """The primary metric of each policy by one of `GROUPS`: means with 95 % intervals."""
    found = by_group(evaluation, column)
    title, unit, *_ = evaluation.metrics[evaluation.primary]
    policies, values = evaluation.policies, [*found]
    figure, (ax,) = new_figure(5.2, 3.4)
    for place, policy in enumerate(policies):
        shift = (place - (len(policies) - 1) / 2) * 0.7 / len(policies)
        known = [(x, found[value][policy]) for x, value in enumerate(values)]
        _points(ax, [(x + shift, i) for x, i in known], place, evaluation.names.get(policy, policy))
    labels = [f"{value}\n{n_text(i.n for i in found[value].values())}" for value in values]
    ax.set_xticks(range(len(values)), labels)
    label_axes(
        ax, f"{title} by {GROUPS.get(column, column)}", "n: questions · lines: 95 % intervals"
    )
    ax.set_ylabel(unit, fontsize=8)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7)
    return figure


def _points(ax: Any, points: list[tuple[float, Interval]], place: int, label: str) -> None:
    colour = _COLOURS[place % len(_COLOURS)]
    for x, interval in points:
        if interval.low is not None:
            ax.plot([x, x], [interval.low, interval.high], color=colour, linewidth=1.6)
    known = [(x, i.mean) for x, i in points if i.mean is not None]
    if known:
        ax.plot(*zip(*known, strict=True), _MARKS[place % len(_MARKS)], color=colour, label=label)


def overlaid_curves(
    runs: Mapping[str, pd.DataFrame], column: str, *, window: int | None = None
) -> Figure:
    """One metric of several runs over the steps: a moving mean a run, and its raw points, pale.

    `window` is the moving mean's width in steps (default: a tenth of each run, at least 3).
    """
    title, unit, _ = CURVES[column]
    figure, (ax,) = new_figure(5.2, 3.4)
    for place, (name, metrics) in enumerate(runs.items()):
        if column not in metrics or not metrics[column].notna().any():
            continue
        rows = metrics[metrics[column].notna()]
        colour = (BLUE, ORANGE, GREEN, PINK, SKY, GREY)[place % 6]
        width = window or max(3, round(len(rows) / 10))
        smooth = rows[column].rolling(width, min_periods=1).mean()
        ax.plot(rows["step"], rows[column], ".", color=colour, alpha=0.3, markersize=3,
                rasterized=len(rows) > 300)  # fmt: skip
        ax.plot(rows["step"], smooth, "-" if place < 6 else "--", color=colour, linewidth=1.6,
                label=f"{name} (n = {len(rows)} steps, mean of {width})")  # fmt: skip
    label_axes(ax, title, "step")
    ax.set_ylabel(unit, fontsize=8)
    figure.legend(loc="outside lower center", fontsize=7)
    return figure


def forest(
    intervals: Mapping[str, Interval | PairedInterval | SeedsInterval], title: str, unit: str = ""
) -> Figure:
    """Intervals one below the other, each with its name and n; a line at 0 for differences."""
    figure, (ax,) = new_figure(5.2, 1.3 + 0.42 * max(1, len(intervals)))
    for place, interval in enumerate(intervals.values()):
        if interval.low is not None:
            ax.plot([interval.low, interval.high], [place, place], color=BLUE, linewidth=2.2)
        if interval.mean is not None:
            ax.plot([interval.mean], [place], "D", color=BLUE, markersize=6)
    names = [f"{name} (n = {interval.n})" for name, interval in intervals.items()]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    if not all(isinstance(interval, Interval) for interval in intervals.values()):
        ax.axvline(0, color=GREY, linewidth=0.8)
    label_axes(ax, title, f"{unit} · diamond: mean · line: 95 % interval".removeprefix(" · "))
    return figure
