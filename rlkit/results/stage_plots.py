"""Figures of the stages around training, for notebooks: prompt lengths, recorded discovery by
round, the warm start's loss, and how much an adapter moved each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rlkit.results.plots import BLUE, GREY, ORANGE, SKY, label_axes, new_figure


def prompt_lengths(lengths: Mapping[str, Sequence[int]], limit: int | None) -> Figure:
    """Histogram of prompt lengths in tokens, one outline a part; the line is the limit."""
    figure, (ax,) = new_figure(6.4, 3.2)
    longest = max([limit or 1, *(max(values) for values in lengths.values() if values)])
    bins = range(0, longest + 2, max(1, longest // 40))
    for name, values in lengths.items():
        ax.hist(values, bins=bins, histtype="step", linewidth=1.6, label=f"{name} ({len(values)})")
    if limit is not None:
        ax.axvline(limit, color=GREY, linestyle="--", label=f"executor.max_prompt_tokens ({limit})")
    ax.legend(fontsize=7)
    n = sum(map(len, lengths.values()))
    label_axes(ax, f"Prompt lengths (n = {n} states)", "tokens")
    ax.set_ylabel("states", fontsize=8)
    return figure


def recorded_discovery(by_round: Mapping[int, tuple[float, int]]) -> Figure:
    """The share of the missing documents that recorded rounds found, by round, with n."""
    figure, (ax,) = new_figure(5.2, 3.0)
    rounds = list(by_round)
    rates = [rate for rate, _ in by_round.values()]
    bars = ax.bar(rounds, rates, color=BLUE, width=0.6)
    ax.bar_label(bars, [f"n = {n}" for _, n in by_round.values()], fontsize=7)
    ax.set_xticks(rounds)
    ax.set_ylim(0, 1)
    label_axes(ax, "Recorded discovery rate by round", "round (n: questions)")
    ax.set_ylabel("share of missing documents", fontsize=8)
    return figure


def sft_loss(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The warm start's loss, by update."""
    figure, (ax,) = new_figure(5.2, 3.0)
    ax.plot([r["update"] for r in rows], [r["loss"] for r in rows], ".-", color=BLUE)
    label_axes(ax, f"Loss of the warm start (n = {len(rows)} updates)", "update")
    ax.set_ylabel("nats per token", fontsize=8)
    ax.set_ylim(bottom=0)
    return figure


def update_sizes(sizes: pd.DataFrame) -> Figure:
    """How much an adapter adds to each matrix: columns `layer`, `module`, `size` (Frobenius)."""
    figure, (ax,) = new_figure(6.4, 3.2)
    colours = (BLUE, ORANGE, SKY, GREY)
    for place, (module, rows) in enumerate(sizes.groupby("module", sort=True)):
        ax.plot(rows["layer"], rows["size"], ".-", color=colours[place % 4], label=module)
    ax.legend(fontsize=7)
    ax.set_ylim(bottom=0)
    label_axes(ax, f"Size of the update (n = {len(sizes)} matrices)", "layer")
    ax.set_ylabel("Frobenius norm of (α/r)·BA", fontsize=8)
    return figure
