"""Figures carry titles, units and n; the same figure gives the same bytes; nothing stays open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from rlkit.results import plots, report_plots
from rlkit.results.evaluate import REWARD_PARTS, Evaluation

METRICS = pd.DataFrame(
    {"step": [1, 2, 3, 4], "reward": [1.0, 2.0, 3.0, 6.0], "kl": [0.0, 0.1, None, 0.3],
     "eval/reward": [None, None, None, 2.5], "grad_norm": [None] * 4}
)  # fmt: skip


def titles(figure: Any) -> list[str]:
    return [ax.get_title() for ax in figure.axes if ax.get_title()]


def test_learning_curves_show_points_moving_mean_and_dev_states() -> None:
    figure = plots.learning_curves(METRICS, window=2)
    assert titles(figure) == ["Reward (n = 4 steps)", "KL to the reference (k3) (n = 3 steps)"]
    raw, mean, dev = figure.axes[0].get_lines()
    assert list(raw.get_ydata()) == [1, 2, 3, 6]
    assert list(mean.get_ydata()) == [1, 1.5, 2.5, 4.5]  # the mean of the last two
    assert (list(dev.get_xdata()), list(dev.get_ydata())) == ([4], [2.5])
    assert figure.axes[0].get_ylabel() == "per action"


def test_a_run_without_metrics_gives_a_figure_that_says_so() -> None:
    figure = plots.learning_curves(pd.DataFrame({"step": []}))
    assert figure.axes[0].texts[0].get_text() == "no metrics yet"


def test_discovery_chart_has_policies_intervals_and_n(toy_evaluation: Evaluation) -> None:
    figure = plots.metric_by_policy(toy_evaluation)
    assert titles(figure) == ["Discovery rate by policy (n = 32 questions)"]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["raw question", "untouched model", "warm start", "tuned Executor", "oracle"]
    interval = toy_evaluation.interval("tuned", "discovery_rate")
    drawn = [list(line.get_xdata()) for line in figure.axes[0].get_lines()]
    assert [interval.low, interval.high] in drawn and [interval.mean] in drawn


def test_components_add_up_to_the_reward(toy_evaluation: Evaluation) -> None:
    bars = plots.reward_components(toy_evaluation).axes[0].patches
    widths = sum(bars[part * 5 + 3].get_width() for part in range(len(REWARD_PARTS)))
    reward = toy_evaluation.interval("tuned", "reward").mean
    assert widths == pytest.approx(reward, abs=1e-9)


def test_components_fall_back_to_numbers_of_documents(toy_evaluation: Evaluation) -> None:
    figure = plots.reward_components(replace(toy_evaluation, facts={}))
    assert figure.axes[0].get_xlabel() == "documents per action"
    frame = toy_evaluation.frame.drop(columns=list(REWARD_PARTS))
    bare = plots.reward_components(replace(toy_evaluation, frame=frame))
    assert bare.axes[0].texts[0].get_text() == "no counts of documents"


def test_where_policies_have_other_numbers_of_questions_n_is_a_range(
    toy_evaluation: Evaluation,
) -> None:
    """Of 36 questions 4 have nothing missing, in round 2 further 8; q1 is unjudged under one."""
    frame = toy_evaluation.frame.copy()
    frame.loc[(frame["policy"] == "tuned") & (frame["question_id"] == "q1"), "reward"] = None
    evaluation = replace(toy_evaluation, frame=frame)
    assert titles(plots.metric_by_policy(evaluation)) == [
        "Discovery rate by policy (n = 31 to 32 questions)"
    ]
    (title,) = titles(plots.reward_components(evaluation))
    assert title == "What the reward is made of (n = 35 to 36 questions)"
    (title,) = titles(plots.reward_components(toy_evaluation))
    assert title == "What the reward is made of (n = 36 questions)"
    ticks = report_plots.metric_by(evaluation, "round").axes[0].get_xticklabels()
    assert [t.get_text() for t in ticks] == ["1\nn = 31 to 32", "2\nn = 23 to 24"]
    table = report_plots.group_table(evaluation, "round")
    assert [table.loc["tuned Executor", r].rpartition(", ")[2] for r in (1, 2)] == [
        "n = 31", "n = 23",
    ]  # fmt: skip
    assert table.loc["oracle", 1] == "1.00 [0.89, 1.00], n = 32"
    nothing = replace(toy_evaluation, states=())
    assert report_plots.group_table(nothing, "round").empty


def test_differences_are_sorted_and_their_mean_is_drawn(toy_evaluation: Evaluation) -> None:
    figure = plots.question_differences(toy_evaluation, "tuned", "untouched")
    heights = [bar.get_height() for bar in figure.axes[0].patches][:32]
    assert heights == sorted(heights) and len(heights) == 32
    assert "n = 32 questions, 25 differ" in titles(figure)[0]
    nobody = plots.question_differences(toy_evaluation, "tuned", "somebody else")
    assert "no question" in nobody.axes[0].texts[0].get_text()


def test_svg_is_the_same_each_time_and_has_a_dark_version() -> None:
    images = []
    for _ in range(2):
        with plots.style():
            images.append(plots.svg(plots.learning_curves(METRICS, ["reward"])))
    assert images[0] == images[1]
    dark = plots.darkened(images[0])
    assert plots.INK.encode() in images[0] and plots.INK.encode() not in dark


def test_no_figure_stays_open() -> None:
    plots.learning_curves(METRICS)
    assert plt.get_fignums() == []
