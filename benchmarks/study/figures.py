"""The study's two plots: dev discovery against training time, and test discovery by policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from benchmarks.study.rows import POLICIES, Point, curve
from rlkit.results.plots import BLUE, GREEN, GREY, INK, ORANGE, PINK

RUNS = {  # what is drawn against time: folder, title, colour
    "study-grpo-{}": ("GRPO", BLUE),
    "study-sft-continued-{}": ("SFT continued", ORANGE),
    "study-rejection-{}": ("rejection sampling", GREEN),
    "study-trl-{}": ("TRL's GRPO", PINK),
}
LINES = ("-", "--", ":", "-.")  # a seed each
COLOURS = {"grpo": BLUE, "sft_continued": ORANGE, "rejection": GREEN}


def draw(output: Path, result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the plots of what there is; the paths of those that were written."""
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in (
        ("study-quality-time.png", quality_time(output, result["seeds"])),
        ("study-test.png", discovery_by_policy(result["policies"]["test"])),
    ):
        if figure is not None:
            figure.savefig(folder / name, dpi=110, metadata={"Software": None})
            plt.close(figure)
            written.append(folder / name)
    return written


def quality_time(output: Path, seeds: Sequence[int]) -> Figure | None:
    """Greedy dev discovery against the processor time of the training; one line a seed."""
    curves = [
        (title, colour, seed, points)
        for run, (title, colour) in RUNS.items()
        for seed in seeds
        if len(points := _from_warm_start(output, run, seed)) > 1
    ]
    if not curves:
        return None
    figure, axes = plt.subplots(figsize=(8.6, 4.2), layout="constrained")
    for title, colour, seed, points in curves:
        axes.plot(
            [p.processor for p in points], [p.discovery for p in points], color=colour,
            marker=".", linewidth=1.4, alpha=0.85, label=f"{title}, seed {seed}",
            linestyle=LINES[list(seeds).index(seed) % len(LINES)],
        )  # fmt: skip
    axes.set_xlabel("training, minutes of processor time (evaluations apart)")
    axes.set_ylabel("discovery rate on dev, greedy\n(mean over states)")
    axes.set_title("What the time buys, each seed from its own warm start (dev)", fontsize=11)
    _finish(axes)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _from_warm_start(output: Path, run: str, seed: int) -> list[Point]:
    """A run's curve; SFT, which is not evaluated before its first update, begins where the seed's
    GRPO did."""
    points = curve(output / run.format(seed))
    start = [p for p in curve(output / f"study-grpo-{seed}") if p.step == 0]
    return start + points if points and points[0].step else points


def discovery_by_policy(policies: Mapping[str, Any]) -> Figure | None:
    """Discovery on test, mean of the samples, with 95 % intervals by question; dots are seeds, a
    hollow diamond is the greedy value of a policy that is sampled from."""
    shown = [(name, policies[name]) for name in POLICIES if name in policies]
    if not shown:
        return None
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.45 * len(shown)), layout="constrained")
    for place, (name, row) in enumerate(reversed(shown)):
        found, colour = row["discovery_rate"], COLOURS.get(name, GREY)
        mean, low, high = (found[k] for k in ("mean", "low", "high"))
        axes.barh(place, mean, color=colour, height=0.62, alpha=0.85)
        if low is not None:
            axes.plot([low, high], [place, place], color=INK, linewidth=1.3)
        seeds = list(found.get("seeds", {}).values())
        axes.plot(seeds, [place - 0.2] * len(seeds), ".", color=INK, markersize=4)
        greedy = (row.get("discovery_rate (greedy)") or found)["mean"]
        if abs(greedy - mean) > 1e-9:
            axes.plot(greedy, place, "D", color=INK, markersize=5, fillstyle="none")
        end = max(mean, high or mean)
        if end - 0.02 < greedy < end + 0.1:  # where the number would stand
            end = max(end, greedy)
        axes.text(end + 0.016, place, f"{mean:.2f}", va="center", fontsize=9)
    axes.set_yticks(range(len(shown)), [row["title"] for _, row in reversed(shown)])
    axes.set_xlim(0, 1.08)
    axes.set_title("line: 95 % interval by question; dots: seeds; diamond: greedy", fontsize=10)
    count = max(row["discovery_rate"]["n"] for _, row in shown)
    axes.set_xlabel(f"discovery on test, mean of a state's samples, n = {count} questions")
    _finish(axes)
    return figure


def _finish(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#e5e7ea", linewidth=0.7)
    axes.set_axisbelow(True)
