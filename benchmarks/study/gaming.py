"""Can reward values be gamed? Fixed ways to write clues, with no model, scored with several values.

    python benchmarks/study/gaming.py --params params/study/base.yaml --set data.corpus_path=...

Each strategy writes one action for every dev state that misses something. Beside what it finds
(discovery) stands what it would be paid with the default reward values, with those of
params/important-first.yaml, and with the study's. A set of values is gamed where a strategy that
finds less is paid more. `gamer` has no scruples: for each state it takes, of all actions made of
the state's own texts, the one that is paid most without finding anything that is missing.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from benchmarks.machine import machine  # noqa: E402
from benchmarks.publish import publish  # noqa: E402
from rlkit.agents.clues import format_clues  # noqa: E402
from rlkit.agents.executor import (  # noqa: E402
    OraclePolicy,
    RawQuestionPolicy,
    ScriptedPolicy,
    fit_clue,
)
from rlkit.agents.names import names_in  # noqa: E402
from rlkit.config import RunConfig  # noqa: E402
from rlkit.practice.reward import COUNT_KEYS, RewardCalculator  # noqa: E402
from rlkit.practice.task import build_task  # noqa: E402
from rlkit.run import Run  # noqa: E402

VALUES = {"default": {}, "important first": ROOT / "params" / "important-first.yaml", "study": None}
BROAD = ("film directed by", "American actress born", "king son of", "born in London",
    "United States national", "member of the family")  # fmt: skip
MOST_CANDIDATES = 14  # clues that the gamer combines


def strategies(config: RunConfig, corpus: Any) -> dict[str, Callable[[Any], list[str] | str]]:
    """By name: state -> clues, or the text of an action."""
    n = config.search.max_clues
    raw, scripted = RawQuestionPolicy("bare"), ScriptedPolicy(n, config.seed, "bare")
    oracle = OraclePolicy(corpus, n, "bare")
    return {
        "raw question, one clue": raw.write,
        "scripted: names that were not found yet": scripted.write,
        "titles of documents that were found": lambda state: _titles(state)[:n],
        "found titles that are IMPORTANT": lambda state: _titles(state, "IMPORTANT")[:n],
        "broad clues": lambda state: list(BROAD[:n]),
        "question, and two found titles": lambda state: [state.question, *_titles(state)[: n - 1]],
        "scripted, last clue a found title": lambda state: [
            *_clues(scripted.write(state))[: n - 1],
            *_titles(state, "IMPORTANT")[:1],
        ],
        "oracle: titles of what is missing": oracle.write,
    }


def scored(task: Any, config: RunConfig) -> list[dict[str, Any]]:
    """One row a (dev state, strategy): discovery, documents, and the reward by each of VALUES."""
    values, states = calculators(config), task.states("dev")
    written = strategies(config, task.env.orchestrator.corpus)
    rows = []
    for state in states:
        place = {"state": state.state_id, "question": state.question_id}
        found = {
            name: _scored(task, state, write(state), values) for name, write in written.items()
        }
        found |= {
            f"gamer, of the values: {n}": row for n, row in gamed(task, state, values).items()
        }
        rows += [{**place, "strategy": name, **row} for name, row in found.items()]
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a strategy: means over questions of discovery, documents and rewards."""
    frame = pd.DataFrame(rows).drop(columns="state")
    order = list(dict.fromkeys(frame["strategy"]))
    by_question = frame.groupby(["strategy", "question"]).mean()
    return by_question.groupby("strategy").mean().loc[order]


def groups(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """What a group would learn whose actions are a state's strategies, the oracle left out: one row
    a set of values, shares of the states. `noise`: all find the same and are paid differently, so
    that the group's advantages, which are scaled to one spread, are of something else alone.
    `wrong first`: the best paid is none of those that find most."""
    frame = pd.DataFrame(rows)
    frame = frame[~frame["strategy"].str.startswith("oracle")]
    found = []
    for name in VALUES:
        row = {"noise": 0, "wrong first": 0, "n": 0}
        for _, group in frame.groupby("state"):
            most, paid = group["discovery"].max(), group[name]
            row["n"] += 1
            row["noise"] += group["discovery"].nunique() == 1 and paid.nunique() > 1
            row["wrong first"] += group.loc[paid == paid.max(), "discovery"].max() < most
        found.append({"values": name, **row})
    return pd.DataFrame(found).set_index("values")


def calculators(config: RunConfig) -> dict[str, RewardCalculator]:
    """The sets of reward values, with this study's search."""
    search, found = config.search, {}
    for name, of in VALUES.items():
        values = config.reward if of is None else RunConfig.load(of or None).reward
        values = values.model_dump(exclude={"invalid"})
        whole = RunConfig.from_sections(search=search.model_dump(), reward=values).reward
        found[name] = RewardCalculator(whole, search.max_clues, search.top_k)
    return found


def gamed(
    task: Any, state: Any, values: Mapping[str, RewardCalculator]
) -> dict[str, dict[str, float]]:
    """By each set of values, the best-paid action without a missing document, of all sets of the
    state's own clues; where every one finds something, the best-paid of them."""
    candidates = list(dict.fromkeys(_candidates(state)))[:MOST_CANDIDATES]
    sizes = range(1, task.env.max_clues + 1)
    sets = [clues for size in sizes for clues in itertools.combinations(candidates, size)]
    scores = task.score(state, [format_clues(clues, "bare") for clues in sets])
    actions = [_measures(score, values) for score in scores]
    useless = [row for row in actions if row["discovery"] == 0.0] or actions
    return {name: max(useless, key=lambda row, n=name: row[n]) for name in values}


def _candidates(state: Any) -> list[str]:
    texts = [row.text for row in state.context_table] or [r.summary for r in state.document_table]
    names = [name for text in texts for name in names_in(text)]
    return [*_titles(state), fit_clue(state.question), *names, *BROAD]


def _titles(state: Any, verdict: str | None = None) -> list[str]:
    rows = [r for r in state.document_table if verdict in (None, r.verdict)]
    return [fit_clue(row.title or row.docid) for row in rows] or [fit_clue(state.question)]


def _clues(text: str) -> list[str]:
    return [part.partition("</clue>")[0] for part in text.split("<clue>")[1:]]


def _scored(
    task: Any, state: Any, action: Sequence[str] | str, values: Mapping[str, RewardCalculator]
) -> dict[str, float]:
    text = action if isinstance(action, str) else format_clues(action, "bare")
    return _measures(task.score(state, [text])[0], values)


def _measures(score: Any, values: Mapping[str, RewardCalculator]) -> dict[str, float]:
    found = score.components
    counts = {key: found[key] for key in COUNT_KEYS}
    brought = sum(counts.values())
    seen = sum(count for key, count in counts.items() if key.endswith("_seen"))
    return {
        "discovery": found["discovery_rate"],
        "read": found["documents_read"],
        "seen": seen / brought if brought else 0.0,
        "new LOCAL": counts["local_new"],
        **{n: c.invalid if found["invalid"] else c.of_counts(counts) for n, c in values.items()},
    }


def inversions(rows: pd.DataFrame, name: str) -> list[tuple[str, str]]:
    """(paid more, finds more): pairs of strategies that some values put the wrong way round."""
    return [
        (a, b)
        for a, b in itertools.permutations(rows.index, 2)
        if rows.loc[a, "discovery"] < rows.loc[b, "discovery"] - 1e-9
        and rows.loc[a, name] > rows.loc[b, name] + 1e-9
    ]


def most_without_finding(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By set of values: the highest reward in any state of an action that finds nothing missing;
    one new IMPORTANT document alone is paid `important_new`."""
    useless = [row for row in rows if row["discovery"] == 0.0]
    return {name: max((row[name] for row in useless), default=0.0) for name in VALUES}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--params", type=Path, default=ROOT / "params" / "study" / "base.yaml")
    parser.add_argument("--set", nargs="+", action="extend", default=[], dest="changes")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "study-gaming.json"
    )
    options = parser.parse_args(arguments)
    config = RunConfig.load(options.params, ["run_name=study-gaming", *options.changes])
    task = build_task(config, Run.open(config))
    actions = scored(task, config)
    rows, learnt = table(actions), groups(actions)
    wrong = {name: inversions(rows, name) for name in VALUES}
    result = {
        "benchmark": "study-gaming",
        "command": "python benchmarks/study/gaming.py --params params/study/base.yaml --set ...",
        "dev": {
            "states": len(task.states("dev")),
            "questions": len({state.question_id for state in task.states("dev")}),
        },
        "seed": config.seed,
        "values": {name: c.values for name, c in calculators(config).items()},
        "strategies": rows.round(4).to_dict("index"),
        "wrong way round": wrong,
        "groups": learnt.to_dict("index"),
        "most without finding": most_without_finding(actions),
        "machine": machine(),
    }
    text = f"{rows.round(3).to_string()}\n\n{learnt.to_string()}"
    text += f"\nmost without finding: {most_without_finding(actions)}"
    for name, pairs in wrong.items():
        text += f"\n\n{name}: {len(pairs)} pairs the wrong way round"
        text += "".join(f"\n  {a!r} is paid more than {b!r}" for a, b in pairs)
    publish(result, text, options.output)


if __name__ == "__main__":
    main()
