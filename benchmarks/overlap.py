"""What sampling beside a live checker gains: a step with `rollout.overlap` none, update and ahead.

    python benchmarks/overlap.py

trains the 16M Qwen3 of grpo_step.py against a judge, in a process of its own, that takes 100 ms a
batch of four documents; the eight batches of a group are asked at once. The settings take turns.
The ideal hides whatever can be hidden: the longer of sampling and training, and of judging. Prints
a table and one JSON line.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from benchmarks import ours  # noqa: E402
from benchmarks.checker import STATE, judge_server  # noqa: E402
from benchmarks.machine import machine, versions  # noqa: E402
from benchmarks.publish import publish  # noqa: E402
from benchmarks.workload import Workload, make_prompts, prepare_model  # noqa: E402
from rlkit.agents.judge import LLMChecker  # noqa: E402
from rlkit.agents.llm import ChatClient  # noqa: E402
from rlkit.agents.verdict_cache import VerdictCache  # noqa: E402
from rlkit.library.corpus import Document  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "overlap.json"
CASES = ((4, "none"), (4, "update"), (4, "ahead"), (1, "none"), (1, "ahead"))  # groups a step
PARTS = ("sampling", "environment", "environment_hidden", "training")
A_BATCH, AN_ACTION = 4, 4  # documents a request, and that an action brings back
TEXT = "The house was built for the harbour master of Port Alden, and sold twice since. " * 6


class JudgedTask(ours.PromptTask):
    """Every action brings back documents of its own, which the live checker labels; the reward is
    still that of the text, so that all settings learn the same."""

    def __init__(self, checker: LLMChecker) -> None:
        self.checker = checker

    def score(self, state: ours.PromptState, completions: Sequence[str]) -> list[Any]:
        names = [f"{state.state_id}-{k}-{n}" for k in range(len(completions))
                 for n in range(AN_ACTION)]  # fmt: skip
        found = [Document(name, f"House {name}", f"{name}: {TEXT}") for name in names]
        verdicts = self.checker.check(STATE, found)
        assert len(verdicts) == len(found) and set(verdicts.values()) == {"LOCAL"}
        return super().score(state, completions)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    work = Workload(options.model, options.prompt_tokens, options.action_tokens, options.actions)
    runs: dict[tuple[int, str], list[dict[str, Any]]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder, judge_server(options.seconds) as url:
        model = str(prepare_model(work.model, Path(folder)))
        for number in range(options.rounds):
            for size, overlap in CASES:
                job = {"model": model, "seed": options.seed + number}
                cache = Path(folder) / f"{size}-{overlap}-{number}.sqlite"
                runs[size, overlap].append(train(work, job, size, overlap, url, cache, options))
    result = {
        "benchmark": "overlap",
        "command": shlex.join(["python", "benchmarks/overlap.py", *given]),
        "date": time.strftime("%Y-%m-%d"),
        "seeds": [options.seed + number for number in range(options.rounds)],
        "batch_s": options.seconds,
        "workload": asdict(work),
        "machine": machine(),
        "versions": versions(),
        "cases": summary(runs),
    }
    publish(result, as_text(result), options.output)
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--seconds", type=float, default=0.1, help="the judge takes a batch")
    add("--model", default="qwen3-16m", help="a file of models/")
    add("--prompt-tokens", type=int, default=64, metavar="P")
    add("--action-tokens", type=int, default=16, metavar="C")
    add("--actions", type=int, default=8, metavar="K")
    add("--steps", type=int, default=10, help="counted steps a run")
    add("--warm-up", type=int, default=2, help="steps before, which are not counted")
    add("--rounds", type=int, default=2, help="runs of each setting, taking turns")
    add("--seed", type=int, default=7, help="round r takes seed + r")
    add("--output", type=Path, metavar="F", help=f"default: {RESULT.name}, kept in results/ where "
        "the other flags are left alone")  # fmt: skip
    options = parser.parse_args(arguments)
    flags = set(vars(options)) - {"output"}
    if all(getattr(options, name) == parser.get_default(name) for name in flags):
        options.output = options.output or RESULT
    return options


def train(
    work: Workload,
    job: dict[str, Any],
    size: int,
    overlap: str,
    url: str,
    cache: Path,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """A short training of so many groups a step, each of which moves the optimiser: seconds of
    every counted step by part, and a fingerprint of the adapter at its end."""
    import torch

    torch.set_num_threads(1)
    client = ChatClient(f"{url}/v1", "judge", log=_quiet)
    checker = LLMChecker(client, VerdictCache(cache), model="judge", batch_size=A_BATCH, log=_quiet)
    checker.look_at_server()
    trainer = ours._trainer(work, job)
    trainer.config = trainer.config.with_overrides(f"rollout.overlap={overlap}")
    trainer.task = JudgedTask(checker)
    steps = options.warm_up + options.steps
    prompts = make_prompts(trainer.tokenizer, work.prompt_tokens, job["seed"], (steps + 1) * size)
    states = [ours.PromptState(f"{job['seed']}-{i}", text) for i, text in enumerate(prompts)]
    rows = []
    for start in range(0, steps * size, size):
        middle = start + size
        told = trainer.training_step(states[start:middle], states[middle : middle + size])
        seconds = told["step_time"]
        parts = {part: told.get(f"time/{part}", 0.0) * seconds for part in PARTS}
        rows.append({"step": seconds, **parts})
    checker.close()
    weights = hashlib.sha256()
    for parameter in trainer.parameters.values():
        weights.update(parameter.detach().numpy().tobytes())
    return {"rows": rows[options.warm_up :], "adapter": weights.hexdigest()}


def summary(runs: dict[tuple[int, str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row a setting: medians over the counted steps of all runs, in seconds, and what they
    make beside the setting without overlap."""
    found = []
    for (size, overlap), of_case in runs.items():
        rows = [row for run in of_case for row in run["rows"]]
        plain = [row for run in runs[size, "none"] for row in run["rows"]]
        s = {name: statistics.median(row[name] for row in rows) for name in ("step", *PARTS)}
        none = {name: statistics.median(row[name] for row in plain) for name in ("step", *PARTS)}
        judging = sum(row["environment"] + row["environment_hidden"] for row in rows)
        adapters = [[run["adapter"] for run in one] for one in (of_case, runs[size, "none"])]
        found.append({
            "groups": size,
            "overlap": overlap,
            "n": len(rows),
            "median_s": s,
            "steps_s": [[row["step"] for row in run["rows"]] for run in of_case],
            "faster": none["step"] / s["step"],
            "hidden_share": sum(row["environment_hidden"] for row in rows) / judging,
            "ideal_s": max(none["sampling"] + none["training"], none["environment"]),
            "same_adapter": adapters[0] == adapters[1],
        })  # fmt: skip
    return found


def as_text(result: dict[str, Any]) -> str:
    """The table: a row a setting, with the parts of its step."""
    work, names = result["workload"], ("sampling", "training", "waited", "hidden")
    lines = [
        f"{work['model']}, P {work['prompt_tokens']}, C {work['action_tokens']}, K "
        f"{work['actions']}; {result['batch_s'] * 1000:.0f} ms a batch of {A_BATCH} documents, "
        f"{work['actions'] * AN_ACTION // A_BATCH} batches a group; medians in seconds",
        "",
        f"{'groups':>6}  {'overlap':<8}{'step':>7}{'faster':>8}{'ideal':>7}"
        + "".join(f"{name:>10}" for name in names)
        + f"{'share hidden':>14}{'same adapter':>14}   n",
    ]
    for case in result["cases"]:
        s = case["median_s"]
        parts = (s["sampling"], s["training"], s["environment"], s["environment_hidden"])
        lines.append(
            f"{case['groups']:>6}  {case['overlap']:<8}{s['step']:>7.3f}{case['faster']:>7.2f}x"
            f"{case['ideal_s']:>7.3f}"
            + "".join(f"{part:>10.3f}" for part in parts)
            + f"{case['hidden_share']:>14.0%}{'yes' if case['same_adapter'] else 'no':>14}"
            f"{case['n']:>4}"
        )
    return "\n".join(lines)


def _quiet(line: str) -> None:
    """The benchmark prints its own."""


if __name__ == "__main__":
    main()
