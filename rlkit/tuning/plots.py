"""Figures of a tuning study, from its table of trials (`Study.table()`): the objective trial by
trial, which parameters matter, and which of their values go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlkit.results.plots import BLUE, GREEN, GREY, ORANGE, label_axes, new_figure


def study_history(table: pd.DataFrame, objective: str, best: str = "max") -> Figure:
    """The objective of every trial, and the best so far; `best` is `max` or `min`."""
    figure, (ax,) = new_figure(6.4, 3.2)
    complete, pruned = (_valued(table, state) for state in ("complete", "pruned"))
    failed = table[table["state"] == "failed"]
    label_axes(ax, f"{objective} of each trial (n = {len(complete)} complete)", "trial")
    ax.set_ylabel(f"{objective} on dev", fontsize=8)
    if complete.empty:
        _say(ax, "no trial is complete yet")
        return figure
    ax.plot(complete["trial"], complete["value"], "o", color=BLUE, label="complete")
    if len(pruned):
        ax.plot(pruned["trial"], pruned["value"], "x", color=GREY, label="pruned, last value")
    so_far = getattr(complete["value"], f"cum{best}")()
    ax.step(complete["trial"], so_far, where="post", color=ORANGE, label="best so far")
    for trial in failed["trial"]:
        ax.axvline(trial, color=GREY, linestyle=":", linewidth=1)
    if len(failed):
        ax.plot([], [], ":", color=GREY, label=f"failed ({len(failed)})")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(fontsize=7)
    return figure


def parameter_importance(shares: Mapping[str, float], n: int) -> Figure:
    """How much of the objective's differences each parameter explains; `n` complete trials."""
    figure, (ax,) = new_figure(5.6, 0.8 + 0.4 * max(3, len(shares)))
    label_axes(ax, f"Importance of the parameters (PED-ANOVA, n = {n} trials)", "share")
    if not shares:
        _say(ax, "too few different results to tell (at least 4 complete trials)")
        return figure
    names = list(shares)[::-1]
    bars = ax.barh(names, [shares[name] for name in names], color=GREEN, height=0.6)
    ax.bar_label(bars, fmt="%.2f", fontsize=7, padding=3)
    ax.set_xlim(0, 1.1)
    ax.tick_params(labelsize=8)
    return figure


def parallel_coordinates(table: pd.DataFrame, keys: Sequence[str], objective: str) -> Figure:
    """One line a complete trial through its parameters to its objective; dark is high."""
    figure, (ax,) = new_figure(7.2, 3.4)
    rows = _valued(table, "complete")
    label_axes(ax, f"Parameters and {objective} (n = {len(rows)} trials)", "")
    if len(rows) < 2:
        _say(ax, "fewer than two trials are complete")
        return figure
    columns = [*keys, "value"]
    heights = np.array([_scaled(rows[column]) for column in columns])
    colours = matplotlib.colormaps["viridis_r"]
    for column in np.argsort(heights[-1]):  # the best on top
        ax.plot(heights[:, column], color=colours(heights[-1, column]), linewidth=1.4)
    for place, column in enumerate(columns):
        _ends(ax, place, rows[column])
    ax.set_xticks(range(len(columns)), [*keys, objective], fontsize=8)
    ax.set_yticks([])
    ax.set_ylim(-0.12, 1.12)
    return figure


def _valued(table: pd.DataFrame, state: str) -> pd.DataFrame:
    return table[(table["state"] == state) & table["value"].notna()]


def _scaled(values: pd.Series) -> np.ndarray:
    """Values on 0 to 1: numbers by size (by logarithm over more than a factor of 20), others in
    the order of their names."""
    if not pd.api.types.is_numeric_dtype(values) or values.dtype == bool:
        names = sorted(set(values.map(str)))
        numbers = values.map(str).map(names.index).to_numpy(float)
    else:
        numbers = values.to_numpy(float)
        if numbers.min() > 0 and numbers.max() / numbers.min() > 20:
            numbers = np.log(numbers)
    span = numbers.max() - numbers.min()
    return (numbers - numbers.min()) / span if span else np.full(len(numbers), 0.5)


def _ends(ax: Axes, place: int, values: pd.Series) -> None:
    """The lowest and the highest value, written at the ends of an axis."""
    ax.axvline(place, color=GREY, linewidth=0.8)
    heights = _scaled(values)
    for height, at in ((heights.min(), heights.argmin()), (heights.max(), heights.argmax())):
        value = values.iloc[at]
        text = f"{value:.3g}" if isinstance(value, (int, float, np.number)) else str(value)[:20]
        over = height > 0.5
        ax.annotate(
            text, (place, height), (0, 4 if over else -4), textcoords="offset points",
            ha="center", va="bottom" if over else "top", fontsize=7,
        )  # fmt: skip


def _say(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
