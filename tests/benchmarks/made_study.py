"""Evaluations made up for the tests of the study's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlkit.practice.reward import COUNT_KEYS
from rlkit.results.evaluation import Evaluation

STATES = {"q1/1": "q1", "q1/2": "q1", "q2/1": "q2", "q3/1": "q3"}  # state: question


def action(state: str, discovery: float, **changes: Any) -> dict[str, Any]:
    """One action's row: `discovery` found, of two documents read one IMPORTANT where it is > 0."""
    counts = dict.fromkeys(COUNT_KEYS, 0) | {"important_new": int(discovery > 0)}
    row = {
        "state_id": state, "question_id": state[:2], "completion": "", "reward": discovery,
        "reward_without_seen": discovery, "important_rate": 0.5 * (discovery > 0),
        "discovery_rate": discovery, "n_clues": 2, "invalid": 0, "hops": 2, "round": 2,
        "unjudged": 0, "documents_read": 2, "clues": ["a", "b"], "documents": [],
        "distinct_clue_ratio": 1.0,
    }  # fmt: skip
    return row | counts | changes


def write(
    output: Path, name: str, policies: dict[str, Any], states: dict[str, str] = STATES
) -> None:
    """`rows/<name>.json`: by policy {state: (greedy, [samples])}, or {state: greedy},
    each a discovery; a greedy one may be a dict of it and of other columns."""
    rows, samples = [], []
    for policy, values in policies.items():
        for state, of in values.items():
            greedy, drawn = of if isinstance(of, tuple) else (of, [])
            changes = greedy if isinstance(greedy, dict) else {"discovery": greedy}
            rows.append({"policy": policy, **action(state, **changes)})
            samples += [
                {"policy": policy, "sample": i, **action(state, one)} for i, one in enumerate(drawn)
            ]
    kept = [
        {"state_id": s, "question_id": q, "question": q, "subgoal": "",
         "round": int(s[-1]) + 1, "hops": 2, "n_seen": 4, "n_missing": 1, "missing": ["d"]}
        for s, q in states.items()
    ]  # fmt: skip
    Evaluation.of(rows, kept, {"split": "eval", "left_out": 3}, samples).save(
        output / "rows" / f"{name}.json"
    )
