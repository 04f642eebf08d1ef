"""Whether the numbers of two evaluations can be paired or averaged; why not, with the values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlkit.results.evaluation import Evaluation
from rlkit.results.story import tuned_policy
from rlkit.section import shown

_MOST = 3  # reasons that a sentence names
_MISSING = object()


def scale(evaluation: Evaluation) -> dict[str, Any]:
    """By name, what must be equal for two runs' values of the primary metric to mean the same."""
    primary, facts = evaluation.primary, evaluation.facts
    title, unit, judged, share = evaluation.metrics[primary]
    found = {
        "split": facts.get("split"),
        "known": facts.get("known"),
        "the metric": primary,
        "its title": title,
        "its unit": unit,
        "that it must be judged": judged,
        "that it is 0 or 1": share,
    }
    worth = facts.get("reward_values") if primary.startswith("reward") else None
    return found | {f"reward.{name}": value for name, value in (worth or {}).items()}


def why_unlike(ours: Evaluation, theirs: Evaluation) -> str:
    """Why the tuned policy of one evaluation cannot be paired with that of another, "" where it
    can: either has none, the metric or what counts for it differs, or the states do."""
    for which, evaluation in (("it", ours), ("the first run", theirs)):
        if tuned_policy(evaluation) is None:
            return f"{which} has no tuned policy, only {', '.join(evaluation.policies) or 'none'}"
    return unequal(scale(ours), scale(theirs)) or _other_states(ours, theirs)


def unequal(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """`split is 'dev', not 'eval'`, of what is not the same in both; "" where all is."""
    said = [
        f"{name} is {_value(ours, name)}, not {_value(theirs, name)}"
        for name in dict.fromkeys([*ours, *theirs])
        if ours.get(name, _MISSING) != theirs.get(name, _MISSING)
    ]
    more = [f"and {len(said) - _MOST} more"] if len(said) > _MOST else []
    return "; ".join(said[:_MOST] + more)


def _value(values: Mapping[str, Any], name: str) -> str:
    return shown(values[name]) if name in values else "not there"


def _other_states(ours: Evaluation, theirs: Evaluation) -> str:
    """States that only one has, or that showed something else; how hard they were for whoever
    recorded them is no part of it."""
    a, b = (
        {s["state_id"]: s | {"recorded_discovery": None} for s in evaluation.states}
        for evaluation in (ours, theirs)
    )
    if alone := [name for name in (*a, *b) if (name in a) != (name in b)]:
        shared = len(a.keys() & b.keys())
        return (
            f"other states: it has {len(a)} and the first run {len(b)}, of which {shared} are the "
            f"same; {shown(alone[0])} is in one alone"
        )
    changed = [name for name in a if a[name] != b[name]]
    if not changed:
        return ""
    first = changed[0]
    return (
        f"other states: {len(changed)} of {len(a)} showed something else; in {shown(first)} "
        f"{unequal(a[first], b[first])}"
    )
