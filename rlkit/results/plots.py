"""Figures of a run, each usable by itself in a notebook: titles, units, n and intervals on them.

    learning_curves(run.metrics)                       # raw points and a moving mean
    metric_by_policy(evaluation)                       # with 95 % intervals
    reward_components(evaluation)                      # what the reward is made of
    question_differences(evaluation, "tuned", "untouched")

The report draws inside `style()`, turns each figure into SVG with `svg(figure)`, which gives the
same bytes each time, and gets the version for dark pages from `darkened(svg)`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlkit.results.breakdown import bounds_of
from rlkit.results.evaluation import REWARD_PARTS, Evaluation
from rlkit.results.statistics import SHARE, Interval, mean_interval, paired_differences

# Okabe and Ito's palette, which people with colour-blindness can tell apart.
BLUE, ORANGE, GREEN, SKY, PINK, GREY = (
    "#0072b2", "#e69f00", "#009e73", "#56b4e9", "#cc79a7", "#8c8c8c",
)  # fmt: skip
_PALE_GREEN, _PALE_ORANGE = "#7fceb9", "#f2cf7f"
_PARTS = (GREEN, _PALE_GREEN, ORANGE, _PALE_ORANGE, GREY, PINK)
PART_COLOURS = dict(zip(REWARD_PARTS, _PARTS, strict=True))

# column of metrics.jsonl -> (title, unit, the evaluation's column on the dev states or None)
CURVES = {
    "reward": ("Reward", "per action", "eval/reward"),
    "discovery_rate": ("Discovery rate", "share of missing documents", "eval/discovery_rate"),
    "accuracy": ("Accuracy", "share of answers", "eval/accuracy"),
    "format": ("Answers in the wanted form", "share of answers", "eval/format"),
    "important_rate": ("Important rate", "share of documents read", None),
    "kl": ("KL to the reference (k3)", "nats per token", "eval/kl"),
    "entropy": ("Entropy", "nats per token", None),
    "completions/mean_length": ("Length of actions", "tokens", None),
    "completions/clipped_ratio": ("Actions cut at the limit", "share of actions", None),
    "frac_reward_zero_std": ("Groups with equal rewards", "share of groups", None),
    "reward_std": ("Spread of rewards in a group", "reward", None),
    "invalid_share": ("Invalid actions", "share of actions", None),
    "unjudged_share": ("Unjudged actions", "share of actions", None),
    "grad_norm": ("Gradient norm", "before clipping", None),
    "n_clues": ("Clues", "per action", None),  # from here: report_habits.py
    "repeated_clues": ("Repeated clues", "share of written clues", None),
    "clue_length": ("Length of a clue", "characters", None),
    "only_seen": ("Actions that bring only seen documents", "share of actions", None),
    "local_share": ("LOCAL instead of IMPORTANT", "share of new relevant documents", None),
    "wrong_reward": ("Reward of wrong answers", "per answer", None),
}
INK, FAINT = "#24292f", "#d0d7de"
_INK_KEYS = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")


@contextmanager
def style() -> Iterator[None]:
    """Draw for the report: transparent, in two inks that `darkened` knows."""
    settings = dict.fromkeys(_INK_KEYS, INK) | {
        "grid.color": FAINT,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.frameon": False,
        "font.size": 10.0,
        "font.family": "DejaVu Sans",  # ships with matplotlib: the same bytes on each machine
    }
    with matplotlib.rc_context(settings):
        yield


def darkened(image: bytes) -> bytes:
    """The same SVG for a dark page; drawing a second time would take seconds a report."""
    light_ink = image.replace(INK.encode(), b"#d8dee6")
    return light_ink.replace(FAINT.encode(), b"#4a525c")


def svg(figure: Figure) -> bytes:
    """The figure as SVG; the same figure gives the same bytes (no date, no random ids)."""
    with matplotlib.rc_context({"svg.hashsalt": "rlkit", "svg.fonttype": "path"}):
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def learning_curves(
    metrics: pd.DataFrame, columns: Sequence[str] | None = None, *, window: int | None = None
) -> Figure:
    """One panel a metric over the steps: raw points, moving mean, dev states at ends of epochs.

    `metrics` has a column `step`; `columns` are keys of CURVES (default: all that are there);
    `window` is the moving mean's width in steps (default: a tenth of the run, at least 3).
    """
    columns = [c for c in (columns or CURVES) if c in metrics and metrics[c].notna().any()]
    window = window or max(3, round(len(metrics) / 10))
    across = min(3, max(1, len(columns)))
    down = max(1, math.ceil(len(columns) / across))
    figure, axes = new_figure(4.6 * across, 2.9 * down, down, across)
    for ax, column in zip(axes, columns, strict=False):
        _curve(ax, metrics, column, window)
    for ax in axes[len(columns) :]:
        ax.set_axis_off()
    if not columns:
        _say(axes[0], "no metrics yet")
    return figure


def metric_by_policy(evaluation: Evaluation, metric: str | None = None) -> Figure:
    """A metric of each policy (default: the primary one, discovery rate or accuracy): mean over
    questions, 95 % interval, each question a dot."""
    names, metric = evaluation.policies, metric or evaluation.primary
    figure, (ax,) = new_figure(5.2, 1.4 + 0.55 * max(1, len(names)))
    counts = []
    for place, name in enumerate(names):
        values = sorted(evaluation.question_values(name, metric).values())
        interval = evaluation.interval(name, metric)
        counts.append(interval.n)
        _spread(ax, values, place)
        if interval.mean is not None:
            _interval_bar(ax, interval, place)
    ax.set_yticks(range(len(names)), [evaluation.names.get(name, name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    title, unit, *_ = evaluation.metrics[metric]
    share = evaluation.bounds(metric) == SHARE
    if share:
        ax.set_xlim(-0.04, 1.04)
    label_axes(ax, f"{title} by policy ({n_text(counts)} questions)", unit)
    kind = "exact where all are 0 or 1" if share else "Student's t"
    figure.supxlabel(f"dots: questions · diamond: mean · line: 95 % interval ({kind})", size=8)
    return figure


def reward_components(evaluation: Evaluation) -> Figure:
    """What each policy's reward is made of: mean reward per action from each kind of document.

    Means over questions. Where the evaluation does not know the reward values, the numbers of
    documents are drawn instead.
    """
    values = evaluation.facts.get("reward_values")
    names = [name for name in evaluation.policies if _has_parts(evaluation, name)]
    figure, (ax,) = new_figure(5.2, 1.9 + 0.5 * max(1, len(names)))
    right, left, counts = np.zeros(len(names)), np.zeros(len(names)), []
    for part in REWARD_PARTS:
        worth = values[part] if values else 1.0
        found = [part_interval(evaluation, name, part) for name in names]
        counts += [interval.n for interval in found]
        sizes = worth * np.array([interval.mean or 0.0 for interval in found])
        starts = np.where(sizes >= 0, right, left)
        ax.barh(
            range(len(names)), sizes, left=starts, height=0.62, color=PART_COLOURS[part],
            label=f"{part.replace('_', ', ')} ({worth:g})" if values else part.replace("_", ", "),
        )  # fmt: skip
        right, left = right + np.maximum(sizes, 0), left + np.minimum(sizes, 0)
    ax.set_yticks(range(len(names)), [evaluation.names.get(name, name) for name in names])
    ax.invert_yaxis()
    ax.axvline(0, color=GREY, linewidth=0.8)
    unit = "reward per action" if values else "documents per action"
    label_axes(ax, f"What the reward is made of ({n_text(counts)} questions)", unit)
    if names:
        figure.legend(loc="outside lower center", ncols=3, fontsize=7)
    else:
        _say(ax, "no counts of documents")
    return figure


def question_differences(
    evaluation: Evaluation, a: str, b: str, metric: str | None = None
) -> Figure:
    """The difference a - b of each question in a metric (default: the primary one), sorted, with
    the mean and its 95 % interval."""
    metric, names = metric or evaluation.primary, evaluation.names
    values = sorted(paired_differences(*evaluation.paired(a, b, metric)).values())
    interval = evaluation.difference(a, b, metric)
    figure, (ax,) = new_figure(5.2, 3.0)
    colours = [GREEN if value > 0 else PINK for value in values]
    ax.bar(range(1, len(values) + 1), values, color=colours, width=0.8)
    ax.axhline(0, color=GREY, linewidth=0.8)
    if interval.mean is None:
        _say(ax, "no question was answered by both")
    else:
        ax.axhline(interval.mean, color=BLUE, linewidth=1.2)
        if interval.low is not None:
            ax.axhspan(interval.low, interval.high, color=BLUE, alpha=0.18, linewidth=0)
    title = f"{evaluation.metrics[metric].title}: {names.get(a, a)} minus {names.get(b, b)}"
    counts = f"n = {interval.n} questions, {interval.non_zero} differ"
    label_axes(ax, f"{title}\n({counts})", "questions, sorted · blue: mean and 95 % interval")
    ax.set_ylabel("difference")
    return figure


def part_interval(evaluation: Evaluation, policy: str, part: str) -> Interval:
    """Documents of one kind per judged action: mean over questions, 95 % interval."""
    rows = evaluation.judged_rows(policy, "reward")
    values = rows[part].astype("float64").groupby(rows["question_id"]).mean()
    return mean_interval(values, bounds_of(part, "per action"))


def _has_parts(evaluation: Evaluation, policy: str) -> bool:
    frame = evaluation.frame
    if not set(REWARD_PARTS) <= set(frame.columns):
        return False
    return bool(frame.loc[frame["policy"] == policy, list(REWARD_PARTS)].notna().all(axis=None))


def n_text(counts: Iterable[int]) -> str:
    """`n = 32`, or `n = 20 to 32` where policies have different numbers of questions."""
    counts = [*counts] or [0]
    low, high = min(counts), max(counts)
    return f"n = {high}" if low == high else f"n = {low} to {high}"


def new_figure(width: float, height: float, down: int = 1, across: int = 1) -> tuple[Figure, list]:
    """A figure of that many inches and its axes, row by row; not kept open by pyplot."""
    figure, axes = plt.subplots(
        down, across, figsize=(width, height), layout="constrained", squeeze=False
    )
    plt.close(figure)
    return figure, list(axes.flat)


def _curve(ax: Axes, metrics: pd.DataFrame, column: str, window: int) -> None:
    title, unit, on_dev = CURVES[column]
    rows = metrics[metrics[column].notna()]
    smooth = rows[column].rolling(window, min_periods=1).mean()
    ax.plot(
        rows["step"], rows[column], ".", color=SKY, markersize=4, label="each step",
        rasterized=len(rows) > 300,  # or a long run's report would be many megabytes
    )  # fmt: skip
    ax.plot(rows["step"], smooth, color=BLUE, linewidth=1.6, label=f"mean of last {window} steps")
    if on_dev in metrics and metrics[on_dev].notna().any():
        dev = metrics[metrics[on_dev].notna()]
        n = f" (n = {dev['eval/states'].max():.0f})" if "eval/states" in dev else ""
        ax.plot(dev["step"], dev[on_dev], "D-", color=ORANGE, markersize=5, label=f"dev states{n}")
    ax.legend(fontsize=7)
    label_axes(ax, f"{title} (n = {len(rows)} steps)", "step")
    ax.set_ylabel(unit, fontsize=8)
    if unit.startswith("share"):
        ax.set_ylim(bottom=-0.05 * ax.get_ylim()[1])


def _spread(ax: Axes, values: Sequence[float], place: float) -> None:
    """Each question as a dot; equal values are stacked a little, so that their number shows."""
    heights, met = [], {}
    for value in values:
        met[round(value, 3)] = met.get(round(value, 3), 0) + 1
        heights.append(place + 0.28 - min(0.02 * met[round(value, 3)], 0.5))
    ax.plot(values, heights, ".", color=SKY, markersize=4, alpha=0.8)


def _interval_bar(ax: Axes, interval: Interval, place: float) -> None:
    if interval.low is not None:
        ax.plot([interval.low, interval.high], [place, place], color=BLUE, linewidth=2.2)
    ax.plot([interval.mean], [place], "D", color=BLUE, markersize=7)


def label_axes(ax: Axes, title: str, xlabel: str) -> None:
    """Title, label of the x axis, a grid behind the data, and no box."""
    ax.set_title(title, fontsize=10)
    ax.set_xlabel(xlabel, fontsize=8)
    ax.grid(True, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _say(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
