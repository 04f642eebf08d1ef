"""The study's result: the table of policies, differences with intervals, the targets, two plots.

    python benchmarks/study/table.py --out outputs/study [--publish]

Into the output folder go study.json, study.md (the tables) and the plots.
What is not there yet is left out, and its targets say "not run yet". Primary is the mean of the
samples of a state, averaged within a question, over the seeds; greedy comes second. Intervals are
by question, over the seed-averaged difference (rlkit.results.statistics); each seed stands beside.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from benchmarks.machine import machine, versions  # noqa: E402
from benchmarks.publish import publish  # noqa: E402
from benchmarks.study.figures import draw  # noqa: E402
from benchmarks.study.ledger import Ledger  # noqa: E402
from benchmarks.study.markdown import markdown  # noqa: E402
from benchmarks.study.parts import PLAN, ROWS, Part, metrics, parts  # noqa: E402
from benchmarks.study.rows import MEASURES, POLICIES, Rows, averaged, by_question, course  # noqa: E402
from benchmarks.study.run import FAILED, Queue  # noqa: E402
from benchmarks.study.shared_gold import shared_with_training  # noqa: E402
from benchmarks.study.targets import Target, further_targets, trl_against_ours  # noqa: E402
from rlkit.config import RunConfig  # noqa: E402
from rlkit.files import read_object, write_text  # noqa: E402
from rlkit.results.statistics import (  # noqa: E402
    COUNT,
    FREE,
    SHARE,
    mean_interval,
    seeds_interval,
    signed,
)
from rlkit.yaml_text import read_yaml  # noqa: E402

PAIRS = (
    ("grpo", "warm_start"), ("grpo", "raw_question"), ("grpo", "scripted"),
    ("grpo", "untouched"), ("grpo", "untouched_plain"), ("grpo", "sft_continued"),
    ("grpo", "rejection"), ("warm_start", "raw_question"), ("sft_continued", "warm_start"),
    ("rejection", "warm_start"),
)  # fmt: skip
PUBLISHED = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
PRIMARY = "discovery_rate"
CONTROLS = ("sft-continued", "rejection")
# sampled, and greedy for the first two
SHOWN = (PRIMARY, "reward", "invalid", "n_clues", "important_rate", *MEASURES)
COUNTS, FREELY = ("n_clues", "documents_read"), ("reward", "reward_default")  # others are shares
COMPARED = (PRIMARY, "reward_default", "per_document")
TARGETS = (
    Target("GRPO over warm start", ("grpo", "warm_start"), least=0.08, floor=0.0, every_seed=True),
    Target("GRPO over raw question", ("grpo", "raw_question"), least=0.20, floor=0.0),
    Target("GRPO over SFT continued", ("grpo", "sft_continued"), floor=0.0),
    Target("GRPO over rejection sampling", ("grpo", "rejection"), floor=0.0),
)
AGAIN = (  # the gain stands when it is measured otherwise: in words, metric, greedy
    ("greedy", PRIMARY, True),
    ("reward with the default values", "reward_default", False),
    ("discovery per document read", "per_document", False),
    ("discovery per document read, greedy", "per_document", True),
)


def study(output: Path, plan_path: Path = PLAN) -> dict[str, Any]:
    """All that the study's output tells so far, as plain values."""
    plan, found = read_yaml(plan_path), parts(plan_path)
    base = RunConfig.load(next(iter(found.values())).base)
    rows = Rows(output, plan["seeds"], base.search)
    differences = [
        difference(rows, split, pair, metric, greedy)
        for split in ("test", "dev")
        for pair in PAIRS
        for metric in COMPARED
        for greedy in (False, True)
    ]
    targets = [_judged(rows, target, PRIMARY) for target in TARGETS]
    pair = ("grpo", "warm_start")
    for how, metric, greedy in AGAIN:
        target = Target(f"GRPO over warm start, {how}", pair, floor=0.0)
        targets.append(_judged(rows, target, metric, greedy))
    shared = shared_with_training(output, f"study-sft-{plan['seeds'][0]}")
    further = further_targets(rows)
    trl = trl_against_ours(output, plan["seeds"][0])
    queue = Queue(found, output, Path())
    return {
        "benchmark": "study",
        "command": "python benchmarks/study/run.py, then python benchmarks/study/table.py",
        "seeds": plan["seeds"],
        "machine": machine(),
        "versions": versions(),
        "trained on": trainings(output, found.values()),
        "states": _sizes(rows),
        "policies": {s: policies(rows, s) for s in ("test", "dev")},
        "differences": [row for row in differences if row],
        "without shared gold": {
            "questions outside of train that share a gold document with one in it": len(shared),
            **{s: difference(rows, s, pair, PRIMARY, False, shared) for s in ("test", "dev")},
        },
        "test by round": by_round(rows, base.search),
        "controls": controls(output, found.values()),
        "targets": targets + further["targets"] + trl["targets"],
        "teams": further["teams"],
        "hotpotqa": further["hotpotqa"],
        "trl": trl["figures"],
        "ablations": ablations(rows, found.values()),
        "failed": [_failure(queue, p) for p in found.values() if queue.state(p) == FAILED],
        "test opened": [
            {k: line[k] for k in ("row", "what", "time", "recipe") if k in line}
            for line in Ledger(output).lines()
        ],
    }


def _failure(queue: Queue, part: Part) -> dict[str, Any]:
    record = queue.record(part)
    reason = record["reason"].replace(str(queue.output.absolute()), "OUT")
    return {"part": part.name, "tries": record["tries"], "reason": reason}


def policies(rows: Rows, split: str) -> dict[str, Any]:
    """By policy and metric: mean over questions of the seed-averaged values, interval, and each
    seed's mean; sampled, and greedy (discovery and reward)."""
    found: dict[str, Any] = {}
    for name, row in POLICIES.items():
        columns = [(metric, False) for metric in SHOWN] + [(m, True) for m in SHOWN[:2]]
        values = {
            f"{metric} (greedy)" if greedy else metric: _mean(
                rows.by_seed(split, name, metric, greedy), row.seeded, metric
            )
            for metric, greedy in columns
        }
        if any(values.values()):
            found[name] = {"title": row.title, **{k: v for k, v in values.items() if v}}
    return found


def _mean(by_seed: Mapping[int, Mapping[str, float]], seeded: bool, metric: str) -> dict[str, Any]:
    if not by_seed:
        return {}
    bounds = COUNT if metric in COUNTS else FREE if metric in FREELY else SHARE
    n, mean, low, high = mean_interval(averaged(by_seed).values(), bounds)
    found = {"mean": mean, "low": low, "high": high, "n": n}
    if seeded:
        means = {str(seed): sum(v.values()) / len(v) for seed, v in by_seed.items()}
        found["seeds"] = means
    return found


def difference(
    rows: Rows,
    split: str,
    pair: tuple[str, str],
    metric: str,
    greedy: bool,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Policy minus baseline over the questions, some left out; {} where no seed has a pair."""
    a, b = (
        {
            seed: {q: value for q, value in values.items() if q not in without}
            for seed, values in rows.by_seed(split, name, metric, greedy).items()
        }
        for name in pair
    )
    shared = [seed for seed in a if seed in b]
    if not shared:
        return {}
    found = seeds_interval({seed: (a[seed], b[seed]) for seed in shared})
    place = {"split": split, "policy": pair[0], "baseline": pair[1], "metric": metric}
    seeds = {str(seed): one.mean for seed, one in found.per_seed.items()}
    figures = found.averaged._asdict() | {"seeds": seeds, "caution": found.averaged.caution}
    return {**place, "how": "greedy" if greedy else "sampled", **figures}


def by_round(rows: Rows, search: Any) -> dict[str, Any]:
    """The test's states of each round apart: each policy's discovery, and GRPO's differences.

    In a state of round 3 the script has already played round 2 and left something missing, so that
    such states are chosen against it; those of round 2 are not.
    """
    table: dict[str, Any] = {}
    first = rows.evaluation("test", f"sft-{rows.seeds[0]}")
    states = first.states if first is not None else []
    for number in sorted({state["round"] for state in states}):
        there = [state for state in states if state["round"] == number]
        part = Rows(rows.output, rows.seeds, search, only_round=number)
        found = policies(part, "test")
        table[str(number)] = {
            "states": len(there),
            "questions": len({state["question_id"] for state in there}),
            "policies": {
                name: {m: row[m] for m in (PRIMARY, f"{PRIMARY} (greedy)") if m in row}
                for name, row in found.items()
            },
            "differences": [
                row
                for pair in PAIRS[:3]
                for greedy in (False, True)
                if (row := difference(part, "test", pair, PRIMARY, greedy))
            ],
        }
    return table


def _judged(rows: Rows, target: Target, metric: str, greedy: bool = False) -> dict[str, Any]:
    found = difference(rows, "test", target.pair, metric, greedy)
    return target.judged(found, len(rows.seeds))


def trainings(output: Path, found: Iterable[Part]) -> dict[str, Any]:
    """By training: commit, processor and instructions (lineage.json), which may be another machine
    than that of the table, and the precision in which its rows were evaluated."""
    table = {}
    for part in found:
        path = output / part.run / "lineage.json"
        if part.kind in ("sft", "grpo", "trl", "ablation", *CONTROLS) and path.exists():
            lineage = read_object(path)
            of, git = lineage.get("arithmetic") or {}, lineage.get("git") or {}
            table[part.name] = {"commit": git.get("commit")} | {
                name: of.get(name) for name in ("processor", "instructions", "device")
            }
            for split in ("dev", "test"):
                row = output / ROWS / f"{split}-{part.slug}.json"
                if row.exists():
                    table[part.name][split] = read_object(row).get("precisions")
    return table


def controls(output: Path, found: Iterable[Part]) -> dict[str, Any]:
    """By training of GRPO and the controls: processor minutes in its steps or updates, how many
    there were, and how many evaluations on dev its checkpoint was chosen from."""
    table = {}
    for part in found:
        points = course(output / part.run) if part.kind in ("grpo", *CONTROLS) else []
        chances = [point for point in points if point.step and point.discovery is not None]
        if chances:
            minutes, steps = points[-1].processor, points[-1].step
            table[part.name] = {"minutes": minutes, "steps": steps, "on dev": len(chances)}
    return table


def ablations(rows: Rows, found: Iterable[Part]) -> list[dict[str, Any]]:
    """Exploratory: dev discovery of each ablation (one seed, sampled) at its last step, and minus
    the reference. An interval is over questions, and knows nothing of the noise of a training."""
    table: list[dict[str, Any]] = []
    runs = {p.name.partition("/")[2]: p.run for p in found if p.kind == "ablation"}
    names = list(runs)
    values = {n: by_question(rows.actions("dev", f"ablation-{n}", "tuned"), PRIMARY) for n in names}
    for name, of in values.items():
        if of:
            steps = max((row["step"] for row in metrics(rows.output / runs[name])), default=0)
            row = {"ablation": name, "steps": steps, "discovery": mean_interval(of.values()).mean}
            row |= {"n": len(of)}
            if values.get("reference") and name != "reference":
                against = seeds_interval({rows.seeds[0]: (of, values["reference"])}).averaged
                row |= {"minus reference": against.mean, "low": against.low, "high": against.high}
            table.append(row)
    return table


def _sizes(rows: Rows) -> dict[str, Any]:
    evaluations = {s: rows.evaluation(s, f"sft-{rows.seeds[0]}") for s in ("test", "dev")}
    return {
        split: {
            "questions": found.n_questions,
            "states": len(found.states),
            "left out, nothing missing": found.nothing_missing,
        }
        for split, found in evaluations.items()
        if found is not None
    }


def text(result: Mapping[str, Any]) -> str:
    """The tables, to print."""
    blocks = []
    for split, found in result["policies"].items():
        if found:
            frame = pd.DataFrame({row["title"]: _cells(row) for row in found.values()}).T
            blocks.append(f"{split} {result['states'].get(split, '')}\n{frame.to_string()}")
    wanted = ("split", "policy", "baseline", "metric", "how", "mean", "low", "high", "n", "seeds")
    split = "test" if result["policies"]["test"] else "dev"
    rows = [row for row in result["differences"] if row["split"] == split]
    rows = [{k: _shown(row[k]) for k in wanted} for row in rows]
    blocks.append(pd.DataFrame(rows, columns=list(wanted)).to_string(index=False))
    blocks.append("\n".join(f"{row['target']}: {row['said']}" for row in result["targets"]))
    if result["ablations"]:
        shown = [{k: _shown(v) for k, v in row.items()} for row in result["ablations"]]
        blocks.append("exploratory, dev\n" + pd.DataFrame(shown).to_string(index=False))
    return "\n\n".join(blocks)


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{found['mean']:.3f}" for name, found in row.items() if name != "title"}


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {signed(v)}" for name, v in value.items())
    return f"{value:+.3f}" if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the study's output")
    parser.add_argument("--plan", type=Path, default=PLAN, help="another queue.yaml")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="this is the project's result: write it to benchmarks/results and docs/images",
    )
    options = parser.parse_args(arguments)
    result = study(options.out, options.plan.resolve())
    results, images = PUBLISHED if options.publish else (options.out, options.out)
    publish(result, text(result), results / "study.json")
    write_text(options.out / "study.md", markdown(result))
    for path in [options.out / "study.md", *draw(options.out, result, images)]:
        print(path)


if __name__ == "__main__":
    main()
