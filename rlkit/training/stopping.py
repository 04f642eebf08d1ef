"""When a training ends early, and which states teach nothing at present. Both are functions of the
lines of `metrics.jsonl`, which a resumed run cuts to its checkpoint, so that it decides as the
uninterrupted one did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlkit.training import alarms

Row = Mapping[str, Any]


def reason(rows: Sequence[Row], training: Any) -> str:
    """Why training should end after these lines; empty where it should go on.

    `training` is the params section: `patience` epochs without a better evaluation on dev than one
    before them (step 0 is none), an alarm of `stop_on`, or `cpu_minutes` of processor time.
    """
    spent = sum(row.get("cpu_time") or 0.0 for row in rows) / 60
    if training.cpu_minutes is not None and spent >= training.cpu_minutes:
        return f"{spent:.1f} minutes of processor time are spent"
    name = f"eval/{training.best}"
    values = [row[name] for row in rows if row.get("step") and row.get(name) is not None]
    if training.patience and values:
        waited = len(values) - 1 - values.index(max(values))
        if waited >= training.patience:
            return f"{training.best} on dev was {max(values):.3g} {waited} evaluations ago"
    if training.stop_on:
        holding = alarms.holding(rows)
        return next((holding[name] for name in training.stop_on if name in holding), "")
    return ""


def flat_states(rows: Sequence[Row]) -> frozenset[str]:
    """The ids of the states whose last group with two rewards or more was flat (`Group.flat`), by
    the lines' `groups_flat`."""
    last: dict[str, bool] = {}
    for row in rows:
        last |= row.get("groups_flat") or {}
    return frozenset(state_id for state_id, flat in last.items() if flat)
