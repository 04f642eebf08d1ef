"""HotpotQA, which nothing was trained on: what each policy finds there, and tuned minus the others,
over all rounds and over those of the study's kind, that is from the second on."""

from __future__ import annotations

from typing import Any

from benchmarks.study.rows import Rows, Values, averaged, by_question
from rlkit.results.statistics import COUNT, SHARE, SeedsInterval, mean_interval, seeds_interval

# In these evaluations the warm start is a checkpoint that stands there by its folder's name.
POLICIES = {
    "raw_question": "raw question, down its ranking",
    "adapter": "warm start",
    "tuned": "warm start + GRPO",
    "oracle": "oracle clues",
}
FROM_ROUND = {"all rounds": 1, "round 2 and later": 2}


def hotpotqa_figures(rows: Rows) -> dict[str, Any]:
    """By `FROM_ROUND`: each policy's discovery (sampled and greedy) and documents read, means over
    questions of the seed-averaged values."""
    found: dict[str, Any] = {}
    for which, first in FROM_ROUND.items():
        for policy, title in POLICIES.items():
            sampled = _by_seed(rows, policy, "discovery_rate", first)
            if sampled:
                greedy = _by_seed(rows, policy, "discovery_rate", first, greedy=True)
                read = _by_seed(rows, policy, "documents_read", first)
                found.setdefault(which, {})[policy] = {
                    "title": title,
                    "discovery": _mean(sampled, SHARE),
                    "discovery (greedy)": _mean(greedy, SHARE),
                    "documents_read": _mean(read, COUNT),
                }
    return found


def hotpotqa_difference(
    rows: Rows, which: str, other: str, greedy: bool = False, metric: str = "discovery_rate"
) -> SeedsInterval | None:
    """Tuned minus another policy's `metric`; None where no seed has both."""
    first = FROM_ROUND[which]
    a, b = (_by_seed(rows, p, metric, first, greedy) for p in ("tuned", other))
    pairs = {seed: (a[seed], b[seed]) for seed in a if seed in b}
    return seeds_interval(pairs) if pairs else None


def _by_seed(
    rows: Rows, policy: str, metric: str, first: int, greedy: bool = False
) -> dict[int, Values]:
    found = {}
    for seed in rows.seeds:
        evaluation = rows.evaluation("hotpotqa", str(seed))
        actions = rows.actions("hotpotqa", str(seed), policy, greedy)
        if evaluation is not None and actions is not None:
            kept = {s["state_id"] for s in evaluation.states if s["round"] >= first}
            found[seed] = by_question(actions[actions["state_id"].isin(kept)], metric)
    return found


def _mean(by_seed: dict[int, Values], bounds: Any) -> dict[str, Any]:
    n, mean, low, high = mean_interval(averaged(by_seed).values(), bounds)
    seeds = {str(seed): sum(of.values()) / len(of) for seed, of in by_seed.items() if of}
    return {"mean": mean, "low": low, "high": high, "n": n, "seeds": seeds}
