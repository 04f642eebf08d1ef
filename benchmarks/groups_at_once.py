"""What sampling several groups in one batch gains on a CPU: `rollout.groups_at_once` 1, 2 and 4.

    python benchmarks/groups_at_once.py

trains SmolLM2 with four groups a step, as the study does. The settings take turns, step by step,
with the same prompts. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import os
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

import torch  # noqa: E402

from benchmarks import ours  # noqa: E402
from benchmarks.machine import machine, versions  # noqa: E402
from benchmarks.publish import parse_to_keep, publish  # noqa: E402
from benchmarks.workload import SMOLLM2, Workload, make_prompts, prepare_model  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "groups_at_once.json"
TOGETHER, GROUPS = (1, 2, 4), 4


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    work = Workload(options.model, options.prompt_tokens, options.action_tokens, options.actions)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        job = {"model": str(prepare_model(work.model, Path(folder))), "seed": options.seed}
        sides = {together: _trainer(work, job, together) for together in TOGETHER}
        texts = make_prompts(sides[1].tokenizer, work.prompt_tokens, options.seed, GROUPS)
        states = [ours.PromptState(f"state-{i}", text) for i, text in enumerate(texts)]
        rows: dict[int, list[dict[str, float]]] = {together: [] for together in TOGETHER}
        for _ in range(1 + options.steps):
            for together, trainer in sides.items():
                rows[together].append(_step(trainer, states))
        samples = {n: [g.sampled for g in trainer.last_groups] for n, trainer in sides.items()}
    result = {
        "benchmark": "groups_at_once",
        "command": shlex.join(["python", "benchmarks/groups_at_once.py", *given]),
        "date": time.strftime("%Y-%m-%d"),
        "seed": options.seed,
        "groups": GROUPS,
        "workload": asdict(work),
        "machine": machine() | {"threads": 1, "load": os.getloadavg()[0]},
        "versions": versions(),
        "cases": [_case(n, found[1:], rows[1][1:]) for n, found in rows.items()],
        "same_tokens": {
            n: [torch.equal(a.tokens, b.tokens) for a, b in zip(one, samples[1], strict=True)]
            for n, one in samples.items()
        },
    }
    publish(result, as_text(result), options.output)
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--model", default=SMOLLM2, help="smollm2, or a file of models/")
    add("--prompt-tokens", type=int, default=256, metavar="P")
    add("--action-tokens", type=int, default=40, metavar="C")
    add("--actions", type=int, default=8, metavar="K")
    add("--steps", type=int, default=5, help="counted steps of each setting, after one that is not")
    add("--seed", type=int, default=7, help="of prompts and sampling")
    return parse_to_keep(parser, arguments, RESULT)


def _trainer(work: Workload, job: dict[str, Any], together: int) -> Any:
    trainer = ours._trainer(work, job)
    trainer.config = trainer.config.with_overrides(f"rollout.groups_at_once={together}")
    return trainer


def _step(trainer: Any, states: Sequence[Any]) -> dict[str, float]:
    """Seconds of a step: of the processor, on the clock, and of the latter in sampling."""
    cpu = time.process_time()
    told = trainer.training_step(states)
    cpu, seconds = time.process_time() - cpu, told["step_time"]
    return {"step": seconds, "cpu": cpu, "sampling": told["time/sampling"] * seconds}


def _case(
    together: int, rows: Sequence[dict[str, float]], alone: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """Medians in seconds; how many times faster than one group at a time, as the median over the
    turns."""
    turns = list(zip(alone, rows, strict=True))
    return {
        "together": together,
        "n": len(rows),
        "median_s": {name: statistics.median(row[name] for row in rows) for name in rows[0]},
        "steps": list(rows),
        "faster": {
            name: statistics.median(a[name] / b[name] for a, b in turns) for name in rows[0]
        },
    }


def as_text(result: dict[str, Any]) -> str:
    """The table: a row a setting."""
    work = result["workload"]
    lines = [
        f"{work['model']}, P {work['prompt_tokens']}, C {work['action_tokens']}, K "
        f"{work['actions']}, {result['groups']} groups a step, one thread; medians in seconds",
        "",
        f"{'at once':>8}{'sampling':>10}{'faster':>8}{'step':>8}{'faster':>8}{'processor':>11}   n",
    ]
    for case in result["cases"]:
        s, faster = case["median_s"], case["faster"]
        lines.append(
            f"{case['together']:>8}{s['sampling']:>10.2f}{faster['sampling']:>7.2f}x"
            f"{s['step']:>8.2f}{faster['step']:>7.2f}x{s['cpu']:>11.2f}{case['n']:>4}"
        )
    same = {n: f"{sum(found)} of {len(found)}" for n, found in result["same_tokens"].items()}
    lines.append(f"groups with the same tokens as one at a time, in the last step: {same}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
