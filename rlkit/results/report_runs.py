"""Several runs side by side, for the report: what differs in them and in what came of them, their
curves over each other, and, where they differ by their seed only, the difference over the seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rlkit.config import RunConfig
from rlkit.results import plots, report_plots
from rlkit.results.evaluation import Evaluation
from rlkit.results.report_facts import NOT_CHOICES
from rlkit.results.report_page import picture
from rlkit.results.statistics import (
    PairedInterval,
    SeedsInterval,
    holm,
    interval_text,
    paired_interval,
    seeds_interval,
)
from rlkit.results.story import tuned_policy
from rlkit.run import MAY_CHANGE

Runs = Sequence[dict[str, Any]]  # of `report._content`
_DATA = ("git.commit", "data_fingerprint", "corpus_fingerprint", "device", "known", "split")
_OVERLAID = (
    "reward", "discovery_rate", "accuracy", "kl", "entropy", "completions/mean_length",
    "frac_reward_zero_std",
)  # fmt: skip


def side_by_side(runs: Runs) -> dict[str, Any]:
    """All that the template shows of several runs together."""
    evaluated = [run for run in runs if run["evaluation"]]
    policies = dict.fromkeys(p for run in evaluated for p in run["evaluation"].policies)
    primary = {run["evaluation"].primary for run in evaluated}
    seeds = [found for same in _by_settings(evaluated) for found in _over_seeds(same)]
    return {
        "parameters": differing(runs),
        "policies": list(policies),
        "names": {name: text for run in evaluated for name, text in run["names"].items()},
        "same_metric": len(primary) == 1,
        "evaluated": evaluated,
        "differences": _differences(evaluated),
        "between": _between(evaluated),
        "seeds": seeds,
        "curves": [p for column in _OVERLAID if (p := _overlaid(runs, column))],
    }


def differing(runs: Runs) -> dict[str, list[Any]]:
    """{parameter or fact of the lineage: its value in each run} of those that are not the same."""
    defaults = {row.key: row.default for row in RunConfig.describe()}
    known = {key for run in runs for key in run["parameters"]} - {*NOT_CHOICES}
    rows = {k: [run["parameters"].get(k, defaults.get(k)) for run in runs] for k in sorted(known)}
    rows |= {k: [(run["lineage"] or {}).get(k) for run in runs] for k in _DATA}
    return {key: values for key, values in rows.items() if any(v != values[0] for v in values)}


def _differences(evaluated: Runs) -> list[dict[str, Any]]:
    """Tuned minus each baseline in each run, in its primary metric, with Holm's p over them all."""
    rows = []
    for run in evaluated:
        evaluation = run["evaluation"]
        for a, b in evaluation.pairs():
            if a == tuned_policy(evaluation):
                title = evaluation.metrics[evaluation.primary].title
                found = evaluation.difference(a, b, evaluation.primary)
                rows.append({"run": run, "policies": (a, b), "title": title, "interval": found})
    return _with_holm(rows)


def _between(evaluated: Runs) -> list[dict[str, Any]]:
    """The tuned policy of each run minus that of the first, where both met the same states."""
    rows = []
    for run in evaluated[1:]:
        pair = (evaluated[0]["evaluation"], run["evaluation"])
        found = compare(pair[1], pair[0])
        if found is not None:
            rows.append({"run": run, "first": evaluated[0], "interval": found})
    return _with_holm(rows)


def compare(ours: Evaluation, theirs: Evaluation) -> PairedInterval | None:
    """The tuned policy of one evaluation minus that of another in the primary metric, by question,
    over the states that count under both; None where the states or the metric differ."""
    a, b = tuned_policy(ours), tuned_policy(theirs)
    ids = [{state["state_id"] for state in e.states} for e in (ours, theirs)]
    if None in (a, b) or ids[0] != ids[1] or ours.primary != theirs.primary:
        return None
    rows = [e.judged_rows(name, e.primary) for e, name in ((ours, a), (theirs, b))]
    both = set(rows[0]["state_id"]) & set(rows[1]["state_id"])
    kept = (r[r["state_id"].isin(both)].groupby("question_id")[ours.primary].mean() for r in rows)
    return paired_interval(*(means.to_dict() for means in kept))


def _with_holm(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    adjusted = holm([row["interval"].p for row in rows])
    return [row | {"holm": p} for row, p in zip(rows, adjusted, strict=True)]


def _by_settings(evaluated: Runs) -> list[list[dict[str, Any]]]:
    """The runs, parted into those that differ by nothing but their seed, and what never touches a
    run's numbers."""
    defaults = {row.key: row.default for row in RunConfig.describe()}
    free = (*NOT_CHOICES, "seed", *MAY_CHANGE)
    parted: dict[str, list[dict[str, Any]]] = {}
    for run in evaluated:
        values = defaults | run["parameters"]
        settled = {k: v for k, v in values.items() if not k.startswith(free)}
        parted.setdefault(json.dumps(settled, sort_keys=True, default=str), []).append(run)
    return list(parted.values())


def _over_seeds(same: Runs) -> list[dict[str, Any]]:
    """Tuned minus each baseline, averaged over the seeds; none with fewer than two of them."""
    by_seed = {run["parameters"].get("seed", RunConfig().seed): run for run in same}
    seeds = dict(sorted(by_seed.items()))
    if len(seeds) < 2:
        return []
    first = next(iter(seeds.values()))["evaluation"]
    tuned = tuned_policy(first)
    shared = [p for p in first.pairs() if all(p in r["evaluation"].pairs() for r in same)]
    return [_averaged(seeds, pair) for pair in shared if pair[0] == tuned]


def _averaged(seeds: dict[Any, dict[str, Any]], pair: tuple[str, str]) -> dict[str, Any]:
    first = next(iter(seeds.values()))
    metric = first["evaluation"].primary
    found = seeds_interval({s: r["evaluation"].paired(*pair, metric) for s, r in seeds.items()})
    a, b = (first["names"].get(name, name) for name in pair)
    title = f"{first['evaluation'].metrics[metric].title}, {a} minus {b}"
    return {
        "title": title,
        "interval": found,
        "runs": [run["name"] for run in seeds.values()],
        "sentence": _seeds_sentence(title, found),
        "picture": picture(
            lambda: report_plots.forest(_named(found), title, "difference"),
            f"{title}: {interval_text(found)}, averaged over {len(seeds)} seeds.",
        ),
    }


def _named(found: SeedsInterval) -> dict[str, PairedInterval]:
    each = {f"seed {seed}": interval for seed, interval in found.per_seed.items()}
    return {**each, "averaged": found.averaged}


def _seeds_sentence(title: str, found: SeedsInterval) -> str:
    each = ", ".join(f"{i.mean:+.2f} with seed {s}" for s, i in found.per_seed.items() if i.n)
    verdict = found.averaged.caution or f"The verdict is: {found.averaged.verdict}."
    return (
        f"{title}, averaged over {len(found.per_seed)} seeds: {interval_text(found)} questions "
        f"that all of them have ({each}). {verdict}"
    )


def _overlaid(runs: Runs, column: str) -> dict[str, str] | None:
    frames = {run["name"]: pd.DataFrame(run["rows"]) for run in runs}
    frames = {n: f for n, f in frames.items() if column in f and f[column].notna().any()}
    if len(frames) < 2:
        return None
    title, unit, _ = plots.CURVES[column]
    last = "; ".join(f"{n} ends at {f[column].dropna().iloc[-1]:.3g}" for n, f in frames.items())
    return picture(
        lambda: report_plots.overlaid_curves(frames, column), f"{title}, {unit}, by run: {last}."
    )
