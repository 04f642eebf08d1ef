"""Several runs side by side, for the report: what differs in them and in what came of them, their
curves over each other, and, where they differ by their seed only, the difference over the seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from rlkit.config import RunConfig
from rlkit.results import plots, report_plots
from rlkit.results.alike import scale, unequal, why_unlike
from rlkit.results.evaluation import Evaluation
from rlkit.results.report_facts import NOT_CHOICES
from rlkit.results.report_page import picture
from rlkit.results.statistics import (
    PairedInterval,
    SeedsInterval,
    holm,
    interval_text,
    seeds_interval,
)
from rlkit.results.story import ending, tuned_policy

Runs = Sequence[dict[str, Any]]  # of `report._content`
_DATA = ("git.commit", "data_fingerprint", "corpus_fingerprint", "device", "known", "split")
_OVERLAID = (
    "reward", "discovery_rate", "accuracy", "kl", "entropy", "completions/mean_length",
    "frac_reward_zero_std",
)  # fmt: skip
# What runs that differ by their seed only may differ in besides. `run.MAY_CHANGE` is another list:
# how long a run goes on and how it is evaluated may change between two openings, but such runs are
# not the same experiment.
_FREE = (
    *NOT_CHOICES, "seed", "training.resume", "model.vllm_base_url", "executor.served_url",
    "rollout.base_url", "rollout.adapters_path", "rollout.timeout",
    "rollout.gpu_memory_utilization",
    "evaluation.batch_size", "evaluation.cache",
)  # fmt: skip
_FREE_SECTIONS = ("monitoring.", "merge.", "tune.")
_NOTHING = PairedInterval(0, None, None, None, 0)


def side_by_side(runs: Runs) -> dict[str, Any]:
    """All that the template shows of several runs together."""
    evaluated = [run for run in runs if run["evaluation"]]
    policies = dict.fromkeys(p for run in evaluated for p in run["evaluation"].policies)
    primary = {run["evaluation"].primary for run in evaluated}
    alike = _by_settings(evaluated)
    seeds = _told([found for same in alike for found in _over_seeds(same)])
    return {
        "parameters": differing(runs),
        "policies": list(policies),
        "names": {name: text for run in evaluated for name, text in run["names"].items()},
        "same_metric": len(primary) == 1,
        "evaluated": evaluated,
        "differences": _differences(evaluated),
        "between": _between(evaluated),
        "unlike": [why for run in evaluated[1:] if (why := _why_unpaired(run, evaluated[0]))],
        "seeds": seeds,
        "not_averaged": _not_averaged(alike),
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
    pairs = [(run, compare(run["evaluation"], evaluated[0]["evaluation"])) for run in evaluated[1:]]
    rows = [
        {"run": run, "first": evaluated[0], "interval": found}
        for run, found in pairs
        if found is not None
    ]
    return _with_holm(rows)


def _why_unpaired(run: dict[str, Any], first: dict[str, Any]) -> str:
    """A sentence about a run that cannot be compared with the first one, else ""."""
    why = why_unlike(run["evaluation"], first["evaluation"])
    return why and f"{run['name']} cannot be compared with {first['name']}: {why}."


def compare(ours: Evaluation, theirs: Evaluation) -> PairedInterval | None:
    """The tuned policy of one evaluation minus that of another in the primary metric, by question,
    over the states that count under both; None where they are unlike (`alike.why_unlike`)."""
    if why_unlike(ours, theirs):
        return None
    tuned, metric = [tuned_policy(e) for e in (ours, theirs)], ours.primary
    columns = [*dict.fromkeys(("state_id", "question_id", "reward", metric))]
    frames = [
        e.frame.loc[e.frame["policy"] == policy, columns].assign(policy=name)
        for e, policy, name in zip((ours, theirs), tuned, ("ours", "theirs"), strict=True)
    ]
    return replace(ours, frame=pd.concat(frames)).difference("ours", "theirs", metric)


def _with_holm(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    adjusted = holm([row["interval"].p for row in rows])
    return [row | {"holm": p} for row, p in zip(rows, adjusted, strict=True)]


def _by_settings(evaluated: Runs) -> list[list[dict[str, Any]]]:
    """The runs, parted into those that differ by nothing but their seed, and what never touches a
    run's numbers; how they were in fact evaluated counts too."""
    parted: dict[str, list[dict[str, Any]]] = {}
    for run in evaluated:
        key = json.dumps(_settings(run), sort_keys=True, default=str)
        parted.setdefault(key, []).append(run)
    return list(parted.values())


def _settings(run: dict[str, Any]) -> dict[str, Any]:
    values = {row.key: row.default for row in RunConfig.describe()} | run["parameters"]
    fixed = {k: v for k, v in values.items() if k not in _FREE and not k.startswith(_FREE_SECTIONS)}
    return fixed | {f"{name} (as evaluated)": v for name, v in scale(run["evaluation"]).items()}


def _not_averaged(alike: Sequence[Runs]) -> list[str]:
    """Why runs are not averaged over their seeds with the first one: other parameters, another
    evaluation, or no pair of policies that all of them have."""
    said = []
    for same in alike[1:]:
        names = ", ".join(run["name"] for run in same)
        why = unequal(_settings(same[0]), _settings(alike[0][0]))
        verb = "is" if len(same) == 1 else "are"
        said.append(f"{names} {verb} not averaged with {alike[0][0]['name']}: {why}.")
    for same in alike:
        if len(same) > 1 and not _tuned_pairs(same):
            policies = "; ".join(
                f"{run['name']} has {', '.join(run['evaluation'].policies) or 'none'}"
                for run in same
            )
            said.append(f"No tuned policy and baseline stand in all of these runs: {policies}.")
    return said


def _tuned_pairs(same: Runs) -> list[tuple[str, str]]:
    """The pairs of the first run's tuned policy and a baseline that all of the runs have."""
    first = same[0]["evaluation"]
    return [
        pair
        for pair in first.pairs()
        if pair[0] == tuned_policy(first) and all(pair in r["evaluation"].pairs() for r in same)
    ]


def _over_seeds(same: Runs) -> list[dict[str, Any]]:
    """Tuned minus each baseline, averaged over the seeds; none of a single run. Where a seed comes
    twice, the runs are shown and that is said in place of the average."""
    if len(same) < 2:
        return []
    seeds = [run["parameters"].get("seed", RunConfig().seed) for run in same]
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    labels = [f"{s} ({r['name']})" if twice else s for s, r in zip(seeds, same, strict=True)]
    order = sorted(range(len(same)), key=lambda place: (seeds[place], place))
    by_seed = {labels[place]: same[place] for place in order}
    pairs = _tuned_pairs([same[place] for place in order])
    return [_averaged(by_seed, pair, twice) for pair in pairs]


def _averaged(
    by_seed: dict[Any, dict[str, Any]], pair: tuple[str, str], twice: Sequence[int]
) -> dict[str, Any]:
    first = next(iter(by_seed.values()))
    metric = first["evaluation"].primary
    share = first["evaluation"].metrics[metric].share
    values = {seed: run["evaluation"].paired(*pair, metric) for seed, run in by_seed.items()}
    most = first["evaluation"].largest_difference(metric)
    found = seeds_interval(values, share=share, most=most)
    a, b = (first["names"].get(name, name) for name in pair)
    return {
        "title": f"{first['evaluation'].metrics[metric].title}, {a} minus {b}",
        "interval": found._replace(averaged=_NOTHING) if twice else found,
        "runs": [run["name"] for run in by_seed.values()],
        "twice": twice,
    }


def _told(averages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With sentence and picture of each, and Holm's p over them all."""
    adjusted = holm([row["interval"].averaged.p for row in averages])
    compared, told = sum(p is not None for p in adjusted), []
    for row, p in zip(averages, adjusted, strict=True):
        title, found, twice = (row[key] for key in ("title", "interval", "twice"))
        sentence = (
            _twice_sentence(title, twice, found)
            if twice
            else _seeds_sentence(title, found, p, compared)
        )
        shown = partial(report_plots.forest, _named(found), title, "difference")
        said = {"holm": p, "sentence": sentence, "picture": picture(shown, sentence)}
        told.append(row | said | {"title": f"{title} (not averaged)" if twice else title})
    return told


def _named(found: SeedsInterval) -> dict[str, PairedInterval]:
    each = {f"seed {seed}": interval for seed, interval in found.per_seed.items()}
    return {**each, "averaged": found.averaged} if found.averaged.n else each


def _twice_sentence(title: str, twice: Sequence[int], found: SeedsInterval) -> str:
    seeds = " and ".join(f"seed {seed}" for seed in twice)
    verb = "comes" if len(twice) == 1 else "come"
    return (
        f"{title}: not averaged over the seeds, since {seeds} {verb} more than once with the same "
        f"parameters ({', '.join(found.per_seed)}); name one run a seed."
    )


def _seeds_sentence(title: str, found: SeedsInterval, adjusted: float | None, compared: int) -> str:
    each = ", ".join(f"{i.mean:+.2f} with seed {s}" for s, i in found.per_seed.items() if i.n)
    return (
        f"{title}, averaged over {len(found.per_seed)} seeds: {interval_text(found)} questions "
        f"that all of them have ({each}). {ending(found.averaged, adjusted or 0.0, compared)}"
    )


def _overlaid(runs: Runs, column: str) -> dict[str, str] | None:
    frames = {run["name"]: pd.DataFrame(run["steps"]) for run in runs}
    frames = {n: f for n, f in frames.items() if column in f and f[column].notna().any()}
    if len(frames) < 2:
        return None
    title, unit, _ = plots.CURVES[column]
    last = "; ".join(f"{n} ends at {f[column].dropna().iloc[-1]:.3g}" for n, f in frames.items())
    return picture(
        lambda: report_plots.overlaid_curves(frames, column), f"{title}, {unit}, by run: {last}."
    )
