"""How the training went, for the report: learning curves, health, and habits over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rlkit.results import plots
from rlkit.results.report_habits import HABITS
from rlkit.results.report_page import picture
from rlkit.training.alarms import WINDOW, said

LEARNING = ("reward", "discovery_rate", "accuracy", "format", "important_rate")
HEALTH = tuple(name for name in plots.CURVES if name not in (*LEARNING, *HABITS))


def training(metrics: Sequence[dict[str, Any]], actions: pd.DataFrame) -> dict[str, Any] | None:
    """All that the template shows of a training, `actions` as `habits_over_steps` gives them; None
    where no step is recorded."""
    frame = pd.DataFrame(metrics)
    if "step" not in frame:
        return None
    return {
        "curves": _curves(frame, LEARNING),
        "health": _curves(frame, HEALTH),
        "table": [row for name in HEALTH if (row := _table_row(frame, name))],
        "window": WINDOW,
        "habits": _curves(actions, HABITS),
        "actions": int(actions["actions"].sum()) if len(actions) else 0,
        "alarms": said(metrics),
    }


def _curves(frame: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, str]]:
    """One picture a metric, so that a phone can stack them; none for one that is 0 throughout."""
    kept = [c for c in columns if c in frame and frame[c].notna().any() and frame[c].any()]
    return [
        picture(lambda c=column: plots.learning_curves(frame, [c]), _curve_text(frame, column))
        for column in kept
    ]


def _curve_text(frame: pd.DataFrame, column: str) -> str:
    values = frame[column].dropna()
    title, unit, _ = plots.CURVES[column]
    ends = f"{values.iloc[0]:.3g} at the first step, {values.iloc[-1]:.3g} at the last"
    return f"{title}, {unit}: {ends}, n = {len(values)} steps."


def _table_row(frame: pd.DataFrame, column: str) -> dict[str, Any] | None:
    values = frame[column].dropna() if column in frame else pd.Series(dtype=float)
    if values.empty:
        return None
    title, unit, _ = plots.CURVES[column]
    first, last = values.iloc[:WINDOW].mean(), values.iloc[-WINDOW:].mean()
    ends = {"lowest": values.min(), "highest": values.max()}
    return {"title": title, "unit": unit, "first": first, "last": last, "n": len(values), **ends}
