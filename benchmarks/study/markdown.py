"""The study's result as Markdown tables, for docs/results.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.study.rows import MEASURES, POLICIES
from rlkit.results.statistics import signed

PAIR_NAMES = {name: row.title for name, row in POLICIES.items()}
CAUTION = (
    "\\* With a caution: fewer than 20 questions differ (too few to say), or the differences are "
    "strongly skewed (such intervals miss the true mean more often than 5 %); study.json has the "
    "words."
)
HONEST = ("n_clues", *MEASURES)
HONEST_NAMES = {"n_clues": "clues an action", **MEASURES}


def markdown(result: Mapping[str, Any]) -> str:
    """All tables of what there is: of test, else of dev."""
    split = "test" if result["policies"]["test"] else "dev"
    policies = result["policies"][split]
    blocks = [f"### {split.capitalize()}: {_sizes(result['states'].get(split, {}))}"]
    if policies:
        blocks += [_policies(policies), _differences(result["differences"], split), CAUTION]
        blocks.append(f"Beside the discovery (sampled, {split}):\n\n{_honest(policies)}")
    if result["without shared gold"].get(split):
        blocks.append(_without_shared_gold(result["without shared gold"], split))
    if result["test by round"]:
        blocks.append("Test, by the round of the state:\n\n" + _by_round(result["test by round"]))
    if result["controls"]:
        blocks.append("What the trainings had:\n\n" + _controls(result["controls"]))
    if result["teams"]["policies"]:
        blocks.append("Teams over whole questions:\n\n" + _teams(result["teams"]))
    if result["hotpotqa"]["policies"]:
        blocks.append("HotpotQA, never trained on:\n\n" + _hotpotqa(result["hotpotqa"]))
    targets = (f"- **{row['target']}**: {row['said']}" for row in result["targets"])
    blocks.append("Targets:\n\n" + "\n".join(targets))
    if result["ablations"]:
        blocks.append(
            "Ablations (exploratory, dev; intervals are over questions, of one training each):\n\n"
            + _ablations(result["ablations"])
        )
    return "\n\n".join(blocks) + "\n"


def _sizes(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in states.items()) or "not run yet"


def _policies(policies: Mapping[str, Any]) -> str:
    header = ("policy", "discovery, sampled", "each seed", "greedy", "invalid", "documents read")
    rows = []
    for row in policies.values():
        main, greedy = row["discovery_rate"], row.get("discovery_rate (greedy)")
        seeds = " ".join(_share(mean) for mean in main.get("seeds", {}).values())
        rows.append((row["title"], _interval(main), seeds, _mean(greedy, 3),
            _mean(row.get("invalid"), 2), _mean(row.get("documents_read"), 1)))  # fmt: skip
    return _table(header, rows)


def _differences(differences: Sequence[Mapping[str, Any]], split: str) -> str:
    header = ("difference", "measured as", "sampled", "each seed", "greedy")
    greedy = {_what(row): row for row in differences if row["how"] == "greedy"}
    rows = []
    for row in differences:
        if row["split"] == split and row["how"] == "sampled":
            pair = f"{PAIR_NAMES[row['policy']]} minus {PAIR_NAMES[row['baseline']]}"
            seeds = " ".join(signed(mean) for mean in row["seeds"].values())
            name = row["metric"].replace("discovery_rate", "discovery")
            name = MEASURES.get(name, name)
            other = greedy.get(_what(row))
            rows.append((pair, name, _difference(row), seeds, _difference(other) if other else ""))
    return _table(header, rows)


def _what(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[key] for key in ("split", "policy", "baseline", "metric"))


def _honest(policies: Mapping[str, Any]) -> str:
    rows = [
        (row["title"], *(_mean(row.get(name), 2) for name in HONEST)) for row in policies.values()
    ]
    return _table(("policy", *(HONEST_NAMES[name] for name in HONEST)), rows)


def _without_shared_gold(found: Mapping[str, Any], split: str) -> str:
    count = next(iter(found.values()))
    return (
        f"{count} questions outside of train share a gold document with one in it. Without those "
        f"of {split}, GRPO minus warm start is {_difference(found[split])} "
        f"(n = {found[split]['n']})."
    )


def _by_round(found: Mapping[str, Any]) -> str:
    rows = []
    for number, part in found.items():
        sizes = f"{number}: {part['states']} states, {part['questions']} questions"
        for name, row in part["policies"].items():
            greedy = row.get("discovery_rate (greedy)")
            cells = (_interval(row["discovery_rate"]), _mean(greedy, 3))
            rows.append((sizes, PAIR_NAMES[name], *cells))
        by_how = {(row["baseline"], row["how"]): row for row in part["differences"]}
        for (baseline, how), row in by_how.items():
            if how == "sampled":
                other = by_how.get((baseline, "greedy"))
                what = f"{PAIR_NAMES[row['policy']]} minus {PAIR_NAMES[baseline]}"
                rows.append((sizes, what, _difference(row), _difference(other) if other else ""))
    return _table(("round", "policy", "discovery, sampled", "greedy"), rows)


def _controls(found: Mapping[str, Any]) -> str:
    rows = ((name, f"{of['minutes']:.0f}", of["steps"], of["on dev"]) for name, of in found.items())
    header = ("training", "minutes of processor", "steps or updates", "evaluations on dev")
    return _table(header, rows)


def _teams(found: Mapping[str, Any]) -> str:
    rounds = [*next(iter(found["policies"].values()))["after round"]]
    after = [f"after round {number}" for number in rounds]
    header = ("team", "discovery", "each seed", *after, "documents read", "tuned minus it")
    rows = []
    for name, team in found["policies"].items():
        seeds = " ".join(_share(mean) for mean in team["discovery"].get("seeds", {}).values())
        minus = found["tuned minus"].get(name)
        rows.append((team["title"], _interval(team["discovery"]), seeds,
            *(_share(team["after round"][number]) for number in rounds),
            _mean(team["documents_read"], 1), _difference(minus) if minus else ""))  # fmt: skip
    return _table(header, rows)


def _hotpotqa(found: Mapping[str, Any]) -> str:
    header = ("states", "policy", "discovery", "each seed", "greedy", "documents read",
        "tuned minus it", "greedy", "n")  # fmt: skip
    rows = []
    for which, policies in found["policies"].items():
        minus = found["tuned minus"][which]
        for name, row in policies.items():
            main, greedy = row["discovery"], row["discovery (greedy)"]
            seeds = " ".join(_share(mean) for mean in main["seeds"].values())
            against = [minus.get(f"{name}{how}") for how in ("", " (greedy)")]
            rows.append((which, row["title"], _interval(main), seeds, _mean(greedy, 3),
                _mean(row["documents_read"], 1),
                *(_difference(of) if of else "" for of in against), main["n"]))  # fmt: skip
    return _table(header, rows)


def _ablations(rows: Sequence[Mapping[str, Any]]) -> str:
    found = []
    for row in rows:
        against = ""
        if row.get("minus reference") is not None:
            against = _difference({**row, "mean": row["minus reference"]})
        found.append((row["ablation"], row["steps"], f"{row['discovery']:.3f}", against, row["n"]))
    return _table(("ablation", "steps", "discovery", "minus reference", "n"), found)


def _interval(found: Mapping[str, Any]) -> str:
    text = f"{found['mean']:.3f}"
    return text if found["low"] is None else f"{text} [{found['low']:.3f}, {found['high']:.3f}]"


def _difference(found: Mapping[str, Any]) -> str:
    """With a star where the interval carries a caution."""
    star = "\\*" if found.get("caution") else ""
    if found["low"] is None:
        return f"{signed(found['mean'])}{star}"
    return f"{signed(found['mean'])} [{signed(found['low'])}, {signed(found['high'])}]{star}"


def _mean(found: Mapping[str, Any] | None, digits: int) -> str:
    return f"{found['mean']:.{digits}f}" if found else ""


def _share(value: float) -> str:
    return f"{value:.3f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
