"""What readers asked of the study's rows after the test was opened: explanations, not targets.

    python benchmarks/study/further.py --out outputs/study [--data data]

All is computed from the kept rows, so that nothing opens the test again. Measures are those of the
table: means over the states of a question, then over questions and seeds, with intervals by
question. The data are for the script's other versions, which are played on dev alone.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from benchmarks.machine import machine  # noqa: E402
from benchmarks.publish import publish  # noqa: E402
from benchmarks.study.games import team_differences, teams_that_found_all  # noqa: E402
from benchmarks.study.hotpotqa import FROM_ROUND, hotpotqa_difference  # noqa: E402
from benchmarks.study.parts import PLAN, ROUNDS, parts  # noqa: E402
from benchmarks.study.rows import POLICIES, Rows, Values, averaged, by_question  # noqa: E402
from benchmarks.study.targets import plain_interval  # noqa: E402
from rlkit.agents.executor import ScriptedPolicy  # noqa: E402
from rlkit.agents.names import names_in  # noqa: E402
from rlkit.config import RunConfig  # noqa: E402
from rlkit.files import read_object  # noqa: E402
from rlkit.practice.environment import create_environment  # noqa: E402
from rlkit.results.statistics import (  # noqa: E402
    CONFIDENCE,
    SHARE,
    mean_interval,
    seeds_interval,
    signed,
)
from rlkit.rounds.checkpoints import RLCheckpointLoader  # noqa: E402
from rlkit.rounds.state import State  # noqa: E402
from rlkit.yaml_text import read_yaml  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "study-further.json"
DISCOVERY = "discovery_rate"
_BRACKETS = re.compile(r"\([^()]*\)")
_WORDS = re.compile(r"_|[^\W_]+")
_SLOTS = re.compile(r"_(?: _)+")
TRAINED = ("warm_start", "sft_continued", "rejection", "grpo")


def further(output: Path, data: Path | None, plan_path: Path = PLAN) -> dict[str, Any]:
    """All of it, as plain values; without `data` the script's other versions are left out."""
    plan, base = read_yaml(plan_path), next(iter(parts(plan_path).values())).base
    rows = Rows(output, plan["seeds"], RunConfig.load(base).search)
    states = {s.state_id: s for s in RLCheckpointLoader(
        output / ROUNDS / "rounds", 1, 10**6).extract_training_samples()}  # fmt: skip
    trained = read_object(output / f"study-sft-{plan['seeds'][0]}" / "splits.json")["questions"]
    questions = {state.question_id: state.question for state in states.values()}
    return {
        "benchmark": "study-further",
        "command": "python benchmarks/study/further.py --out OUT --data DATA",
        "seeds": plan["seeds"],
        "best of the samples": best_of_samples(rows),
        "first clues, greedy": first_clues(rows),
        "as many clues as the script, greedy": as_many_clues_as(rows, "scripted"),
        "as many clues as rejection sampling, greedy": as_many_clues_as(rows, "rejection"),
        "over trainings": over_trainings(rows),
        "rejection sampling minus the script": _less(rows, "rejection", "scripted"),
        "hops": by_hops(rows),
        "teams that found all": teams_that_found_all(rows),
        "HotpotQA, discovery per document": hotpotqa_per_document(rows),
        "wording": by_wording(rows, questions, trained["train"]),
        "LOCAL in the state": by_local(rows, states),
        **({} if data is None else of_data(rows, states, base, data)),
        "machine": machine(),
    }


def best_of_samples(rows: Rows) -> dict[str, Any]:
    """What the best of k samples of a state finds, in the mean: what a policy could find, where
    someone chose well. A sharper policy gains less from it. And the greedy action of GRPO minus
    the best of all samples of the warm start."""
    drawn = samples_of_a_state(rows)
    sizes = [k for k in (1, 2, 4, 8) if k < drawn] + [drawn]
    best = {k: {name: _best(rows, name, k) for name in TRAINED} for k in sizes}
    found: dict[str, Any] = {
        f"of {k}": {
            "policies": {name: _mean(of) for name, of in by_policy.items()},
            "grpo minus": _minus(by_policy),
        }
        for k, by_policy in best.items()
    }
    greedy, warm = rows.by_seed("test", "grpo", DISCOVERY, greedy=True), best[max(best)]
    found["grpo's greedy action minus the warm start's best"] = _minus(
        {"grpo": greedy, "warm_start": warm["warm_start"]}
    )["warm_start"]
    return found


def samples_of_a_state(rows: Rows) -> int:
    """How many samples each state has."""
    actions = _actions(rows, "warm_start", rows.seeds[0], greedy=False)
    return int(actions.groupby("state_id").size().min())


def _best(rows: Rows, name: str, k: int) -> dict[int, Values]:
    found = {}
    for seed in rows.seeds:
        actions = _actions(rows, name, seed, greedy=False)
        if actions is not None:
            of_state = actions.groupby(["question_id", "state_id"])[DISCOVERY]
            best = of_state.agg(lambda values: best_of(k, values.tolist())).reset_index()
            found[seed] = by_question(best.assign(reward=0.0), DISCOVERY)
    return found


def best_of(k: int, values: Sequence[float]) -> float:
    """The mean of the highest of k values over all ways to take k of these n: the i-th smallest is
    the highest of C(i - 1, k - 1) of the C(n, k)."""
    ways = [math.comb(i, k - 1) for i in range(len(values))]
    total = math.fsum(w * v for w, v in zip(ways, sorted(values), strict=True))
    return total / math.comb(len(values), k)


def first_clues(rows: Rows) -> dict[str, Any]:
    """Of the greedy action the documents that its first clues found, the reading limit being that
    of the whole action: does a policy find more because it writes more clues?"""
    found = {}
    for count in (1, 2, 3):
        values = {name: _cut(rows, name, lambda _, n=count: n) for name in TRAINED}
        means = {name: _mean(of) for name, of in values.items()}
        found[str(count)] = {"policies": means, "grpo minus": _minus(values)}
    return found


def _cut(
    rows: Rows, name: str, clues: Callable[[str], int], seeds: Sequence[int] | None = None
) -> dict[int, Values]:
    """By seed and question, what the first `clues(state_id)` clues of a policy's greedy actions
    found of what was missing."""
    found = {}
    for seed in rows.seeds if seeds is None else seeds:
        actions = _actions(rows, name, seed, greedy=True)
        if actions is not None:
            columns = (actions[c] for c in ("discovery_rate", "clue_values", "state_id"))
            shares = [
                found_by_first(clues(state), discovery, values)
                for discovery, values, state in zip(*columns, strict=True)
            ]
            found[seed] = by_question(actions.assign(discovery_rate=shares), DISCOVERY)
    return found


def found_by_first(count: int, discovery: float, clue_values: Sequence[float] | None) -> float:
    """The part of an action's discovery that its first `count` clues had found already.

    `clue_values[j]` is R(all) - R(clues before j); where only new gold documents pay, all of them
    alike, R is proportional to what was found.
    """
    values = [*(clue_values or ()), 0.0]
    if values[0] == 0:
        return 0.0
    return discovery * (values[0] - values[min(count, len(values) - 1)]) / values[0]


def as_many_clues_as(rows: Rows, other: str) -> dict[str, Any]:
    """GRPO's greedy action cut, in each state, to the number of clues that another policy wrote
    there greedily."""
    cut, others = {}, {}
    wrote_at_all: Counter[int] = Counter()
    for seed in rows.seeds:
        theirs = _actions(rows, other, seed, greedy=True)
        if theirs is None or _actions(rows, "grpo", seed, greedy=True) is None:
            continue
        wrote = theirs.set_index("state_id")["n_clues"].astype(int)
        wrote_at_all.update(wrote.tolist())
        others[seed] = by_question(theirs, DISCOVERY)
        cut[seed] = _cut(rows, "grpo", lambda state, of=wrote: int(of[state]), [seed])[seed]
    return {
        "actions by the other's number of clues": {
            str(number): wrote_at_all[number] for number in sorted(wrote_at_all)
        },
        "grpo, cut": _mean(cut),
        "minus the other": _minus({"grpo": cut, other: others}).get(other, {}),
    }


def over_trainings(rows: Rows) -> dict[str, Any]:
    """Intervals over the seeds' differences (Student's t with one degree of freedom fewer than
    there are seeds): about other trainings on these questions, where the table's are about other
    questions with these trainings."""
    found: dict[str, Any] = {}
    for other in TRAINED[:-1]:
        for how in ("sampled", "greedy"):
            a, b = (rows.by_seed("test", n, DISCOVERY, how == "greedy") for n in ("grpo", other))
            shared = [seed for seed in a if seed in b]
            if len(shared) > 1:
                by_seed = seeds_interval({seed: (a[seed], b[seed]) for seed in shared}).per_seed
                found.setdefault(other, {})[how] = _over_seeds(by_seed)
    by_team = {f"teams, {other}": of for other, of in team_differences(rows).items()}
    for how, greedy in (("sampled", False), ("greedy", True)):
        by_team[f"HotpotQA, warm start, {how}"] = hotpotqa_difference(
            rows, "all rounds", "adapter", greedy
        )
    for name, difference in by_team.items():
        if difference is not None and len(difference.per_seed) > 1:
            found[name] = _over_seeds(difference.per_seed)
    return found


def _over_seeds(by_seed: Mapping[Any, Any]) -> dict[str, float]:
    return _t_interval([one.mean for one in by_seed.values()])


def _t_interval(values: Sequence[float]) -> dict[str, float]:
    n, mean = len(values), math.fsum(values) / len(values)
    error = float(stats.sem(values)) * float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1))
    return {"n": n, "mean": mean, "low": mean - error, "high": mean + error}


def by_wording(rows: Rows, questions: Mapping[str, str], trained: Sequence[str]) -> dict[str, Any]:
    """Questions of the test whose wording, names taken out, some question of train has, and the
    others: GRPO minus the others."""
    known = {wording(questions[question]) for question in trained}
    tested = {s["question_id"] for s in rows.evaluation("test", f"sft-{rows.seeds[0]}").states}
    stands = {question for question in tested if wording(questions[question]) in known}
    return {
        "the wording stands in train": _gains(rows, stands),
        "it does not": _gains(rows, tested - stands),
    }


def by_hops(rows: Rows) -> dict[str, Any]:
    """Questions of two and of four hops apart."""
    tested = rows.evaluation("test", f"sft-{rows.seeds[0]}").states
    hops = {state["question_id"]: state["hops"] for state in tested}
    return {
        str(count): _gains(rows, {question for question, of in hops.items() if of == count})
        for count in sorted(set(hops.values()))
    }


def wording(question: str) -> str:
    """A question without its names, brackets, numbers and signs: `who is the mother of _`."""
    bare = _BRACKETS.sub(" ", question)
    for name in sorted(names_in(bare), key=len, reverse=True):
        bare = bare.replace(name, " _ ")
    words = [word for word in _WORDS.findall(bare.casefold()) if not any(map(str.isdigit, word))]
    return _SLOTS.sub("_", " ".join(words))


def by_local(rows: Rows, states: Mapping[str, State]) -> dict[str, Any]:
    """States of round 2 that show a LOCAL document beside the IMPORTANT ones, and the others.
    LOCAL means tied by a title to gold, which may be what is missing: does that give it away?"""
    tested = [s for s in rows.evaluation("test", f"sft-{rows.seeds[0]}").states if s["round"] == 2]
    shown = {s["state_id"] for s in tested if _shows_local(states[s["state_id"]])}
    others = {s["state_id"] for s in tested} - shown
    found = {}
    for how, kept in (("shown", shown), ("not shown", others)):
        values = {n: _of_states(rows, n, kept) for n in ("scripted", "warm_start", "grpo")}
        means = {name: _mean(of) for name, of in values.items()}
        found[how] = {"states": len(kept), **means, "grpo minus": _minus(values)}
    return found


def _shows_local(state: State) -> bool:
    return any(row.verdict == "LOCAL" for row in state.document_table)


def _of_states(rows: Rows, name: str, kept: set[str]) -> dict[int, Values]:
    return {
        seed: by_question(actions[actions["state_id"].isin(kept)], DISCOVERY)
        for seed in rows.seeds
        if (actions := _actions(rows, name, seed, greedy=False)) is not None
    }


def of_data(rows: Rows, states: Mapping[str, State], base: Path, data: Path) -> dict[str, Any]:
    """What needs the documents as well."""
    files = {
        f"{name}_path": str(data / "2wiki" / f"{name}.jsonl") for name in ("corpus", "questions")
    }
    config = RunConfig.load(base, [f"data.{name}={path}" for name, path in files.items()])
    env = create_environment(config)
    return {
        "titles in the state": missing_titles_shown(rows, states, env.orchestrator.corpus),
        "script on dev": script_on_dev(rows, states, env),
    }


def missing_titles_shown(rows: Rows, states: Mapping[str, State], corpus: Any) -> dict[str, int]:
    """Of the test's states of round 2: how many documents are missing, and how many of their
    titles (without what stands in brackets) a shown IMPORTANT, or a shown LOCAL text holds."""
    counts = Counter({"missing": 0, "IMPORTANT": 0, "LOCAL": 0})
    for row in rows.evaluation("test", f"sft-{rows.seeds[0]}").states:
        if row["round"] == 2:
            state = states[row["state_id"]]
            contexts = {context.docid: context.text for context in state.context_table}
            for docid in state.missing:
                title = _BRACKETS.sub("", corpus.get(docid).title).strip().casefold()
                holds = {
                    shown.verdict
                    for shown in state.document_table
                    if title in (contexts.get(shown.docid) or shown.summary).casefold()
                }
                counts.update(["missing", *holds & {"IMPORTANT", "LOCAL"}])
    return dict(counts)


def script_on_dev(rows: Rows, states: Mapping[str, State], env: Any) -> dict[str, Any]:
    """The script as it made the rounds (two or three clues, in an order with noise), with other
    draws, and as well as it can: three clues, the most promising first. On dev."""
    most = env.max_clues
    tested = [states[s["state_id"]] for s in rows.evaluation("dev", "untouched").states]
    versions = {
        "as it made the rounds": [ScriptedPolicy(most, rows.seeds[0])],
        "20 other draws": [ScriptedPolicy(most, seed) for seed in range(100, 120)],
        "steady, three clues": [ScriptedPolicy(most, steady=True)],
    }
    found: dict[str, Any] = {"questions": len({state.question_id for state in tested})}
    values = {}
    for name, policies in versions.items():
        values[name] = {i: _played(env, policy, tested) for i, policy in enumerate(policies)}
        found[name] = _mean(values[name])
    steady = values["steady, three clues"][0]
    for how in ("sampled", "greedy"):
        tuned = rows.by_seed("dev", "grpo", DISCOVERY, how == "greedy")
        if tuned:
            pairs = {seed: (of, steady) for seed, of in tuned.items()}
            found[f"grpo, {how}, minus the steady script"] = plain_interval(seeds_interval(pairs))
    return found


def _played(env: Any, policy: ScriptedPolicy, states: Sequence[State]) -> Values:
    rows = []
    for state in states:
        env.reset(state)
        result = env.step(env.parse_clues_from_output(policy.write(state)).clues)
        place = {"question_id": state.question_id, "state_id": state.state_id}
        rows.append({**place, DISCOVERY: result.discovery_rate, "reward": result.reward.total})
    return by_question(pd.DataFrame(rows), DISCOVERY)


def _actions(rows: Rows, name: str, seed: int, greedy: bool) -> pd.DataFrame | None:
    """A policy's actions on test; of one without a training of its own, the first seed's."""
    of = POLICIES[name]
    return rows.actions("test", of.part.format(seed), of.policy, greedy)


def _gains(rows: Rows, questions: set[str]) -> dict[str, Any]:
    """Of these questions: means, sampled, and GRPO minus the others."""
    kept = {
        name: {
            seed: {q: value for q, value in of.items() if q in questions}
            for seed, of in rows.by_seed("test", name, DISCOVERY).items()
        }
        for name in ("scripted", *TRAINED)
    }
    means = {name: _mean(of) for name, of in kept.items()}
    return {"questions": len(questions), "policies": means, "grpo minus": _minus(kept)}


def _minus(by_policy: Mapping[str, Mapping[int, Values]]) -> dict[str, Any]:
    """GRPO minus each other policy, over the seeds that both have."""
    tuned = by_policy["grpo"]
    found = {}
    for name, of in by_policy.items():
        pairs = {seed: (tuned[seed], of[seed]) for seed in of if seed in tuned}
        if name != "grpo" and pairs:
            found[name] = plain_interval(seeds_interval(pairs))
    return found


def _less(rows: Rows, policy: str, baseline: str) -> dict[str, Any]:
    found = {}
    for how in ("sampled", "greedy"):
        a, b = (rows.by_seed("test", n, DISCOVERY, how == "greedy") for n in (policy, baseline))
        pairs = {seed: (a[seed], b[seed]) for seed in a if seed in b}
        found[how] = plain_interval(seeds_interval(pairs)) if pairs else {}
    return found


def hotpotqa_per_document(rows: Rows) -> dict[str, Any]:
    """Tuned minus the raw question, which reads more documents."""
    found = {}
    for which in FROM_ROUND:
        of = hotpotqa_difference(rows, which, "raw_question", metric="per_document")
        found[which] = {} if of is None else plain_interval(of)
    return found


def _mean(by_seed: Mapping[int, Values]) -> dict[str, Any]:
    if not by_seed:
        return {}
    n, mean, low, high = mean_interval(averaged(by_seed).values(), SHARE)
    return {"mean": mean, "low": low, "high": high, "n": n, "seeds": [*map(str, by_seed)]}


def text(result: Mapping[str, Any]) -> str:
    """Every figure on a line of its own, to print."""
    return "\n".join(_lines(result, ""))


def _lines(found: Mapping[str, Any], place: str) -> list[str]:
    if "mean" in found and found["mean"] is not None:
        ends = "" if found["low"] is None else f" [{signed(found['low'])}, {signed(found['high'])}]"
        return [f"{place}: {signed(found['mean'])}{ends}, n = {found['n']}"]
    lines = []
    for name, of in found.items():
        if isinstance(of, Mapping) and name != "machine":
            lines += _lines(of, f"{place}, {name}" if place else name)
        elif place:
            lines.append(f"{place}, {name}: {of}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the study's output")
    parser.add_argument("--data", type=Path, help="the folder that holds 2wiki")
    parser.add_argument(
        "--output", type=Path, default=RESULT, help=f"default: {RESULT.relative_to(ROOT)}"
    )
    options = parser.parse_args(arguments)
    result = further(options.out, options.data)
    publish(result, text(result), options.output)


if __name__ == "__main__":
    main()
