"""Figures of the stages: titles, units and n are on them."""

from __future__ import annotations

import pandas as pd

from rlkit.results import stage_plots


def test_prompt_lengths_show_each_part_and_the_limit() -> None:
    figure = stage_plots.prompt_lengths({"train": [10, 20, 30], "dev": [20], "eval": []}, 40)
    ax = figure.axes[0]
    assert ax.get_title() == "Prompt lengths (n = 4 states)" and ax.get_xlabel() == "tokens"
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["train (3)", "dev (1)", "eval (0)", "executor.max_prompt_tokens (40)"]


def test_recorded_discovery_has_a_bar_and_n_a_round() -> None:
    ax = stage_plots.recorded_discovery({1: (0.5, 8), 2: (0.25, 6)}).axes[0]
    assert [bar.get_height() for bar in ax.patches] == [0.5, 0.25]
    assert [text.get_text() for text in ax.texts] == ["n = 8", "n = 6"]


def test_the_warm_starts_loss_is_drawn_by_update() -> None:
    rows = [{"update": 1, "loss": 3.0}, {"update": 2, "loss": 1.5}]
    ax = stage_plots.sft_loss(rows).axes[0]
    assert list(ax.get_lines()[0].get_ydata()) == [3.0, 1.5]
    assert ax.get_title() == "Loss of the warm start (n = 2 updates)"


def test_update_sizes_have_a_line_a_module() -> None:
    sizes = pd.DataFrame(
        {"layer": [0, 1, 0, 1], "module": ["k", "k", "q", "q"], "size": [1.0, 2.0, 3.0, 4.0]}
    )
    ax = stage_plots.update_sizes(sizes).axes[0]
    assert [line.get_label() for line in ax.get_lines()] == ["k", "q"]
    assert list(ax.get_lines()[1].get_ydata()) == [3.0, 4.0]
    assert ax.get_title() == "Size of the update (n = 4 matrices)"
