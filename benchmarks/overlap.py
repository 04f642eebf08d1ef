"""What sampling beside a live checker gains: a step with `rollout.overlap` none, update and ahead.

    python benchmarks/overlap.py

trains a two-layer model (models/tiny.json) against a judge, in a process of its own, that takes
100 ms a batch of four documents; the batches of a group are asked at once. The settings take turns,
step by step. The ideal hides whatever can be hidden: the longer of sampling and training, and of
judging. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import hashlib
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
from benchmarks.checker import STATE, judge_server  # noqa: E402
from benchmarks.machine import machine, versions  # noqa: E402
from benchmarks.publish import parse_to_keep, publish  # noqa: E402
from benchmarks.workload import Workload, make_prompts, prepare_model  # noqa: E402
from rlkit.agents.judge import LLMChecker  # noqa: E402
from rlkit.agents.llm import ChatClient  # noqa: E402
from rlkit.agents.verdict_cache import VerdictCache  # noqa: E402
from rlkit.library.corpus import Document  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "overlap.json"
CASES = ((4, "none"), (4, "update"), (4, "ahead"), (1, "none"), (1, "ahead"))  # groups a step
PARTS = ("sampling", "environment", "environment_hidden", "training")
A_BATCH, AN_ACTION = 4, 4  # documents a request, and that an action brings back
STATES = 32  # that come again; what they bring back is new each time
TEXT = "The house was built for the harbour master of Port Alden, and sold twice since. " * 6


class JudgedTask(ours.PromptTask):
    """Every action brings back documents of its own, which the live checker labels; the reward is
    still that of the text, so that all settings learn the same."""

    def __init__(self, checker: LLMChecker) -> None:
        self.checker, self.scored = checker, 0

    def score(self, state: ours.PromptState, completions: Sequence[str]) -> list[Any]:
        self.scored += 1
        names = [f"{state.state_id}-{self.scored}-{n}" for n in range(len(completions) * AN_ACTION)]
        found = [Document(name, f"House {name}", f"{name}: {TEXT}") for name in names]
        verdicts = self.checker.check(STATE, found)
        assert len(verdicts) == len(found) and set(verdicts.values()) == {"LOCAL"}
        return super().score(state, completions)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    work = Workload(options.model, options.prompt_tokens, options.action_tokens, options.actions)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, judge_server(options.seconds) as url:
        model = str(prepare_model(work.model, Path(folder)))
        sides = [
            Side(work, {"model": model, "seed": options.seed}, *case, url, Path(folder))
            for case in CASES
        ]
        for _ in range(options.warm_up + options.steps):
            for side in sides:
                side.step()
        for side in sides:
            side.close(options.warm_up)
    result = {
        "benchmark": "overlap",
        "command": shlex.join(["python", "benchmarks/overlap.py", *given]),
        "date": time.strftime("%Y-%m-%d"),
        "seed": options.seed,
        "batch_s": options.seconds,
        "workload": asdict(work),
        "machine": machine() | {"threads": 1, "load": os.getloadavg()[0]},
        "versions": versions(),
        "cases": summary(sides),
    }
    publish(result, as_text(result), options.output)
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--seconds", type=float, default=0.1, help="the judge takes a batch")
    add("--model", default="tiny", help="a file of models/")
    add("--prompt-tokens", type=int, default=24, metavar="P")
    add("--action-tokens", type=int, default=16, metavar="C")
    add("--actions", type=int, default=4, metavar="K")
    add("--steps", type=int, default=20, help="counted steps of each setting")
    add("--warm-up", type=int, default=1, help="steps before, which are not counted")
    add("--seed", type=int, default=7, help="of prompts and sampling")
    return parse_to_keep(parser, arguments, RESULT)


class Side:
    """A training of its own with so many groups a step, each of which moves the optimiser. `rows`:
    seconds of every step, by part, and those of this process's processor."""

    def __init__(
        self, work: Workload, job: dict[str, Any], size: int, overlap: str, url: str, folder: Path
    ) -> None:
        self.size, self.overlap, self.rows, self.adapter = size, overlap, [], ""
        client = ChatClient(f"{url}/v1", "judge", log=_quiet)
        cache = VerdictCache(folder / f"{size}-{overlap}.sqlite")
        self.checker = LLMChecker(client, cache, model="judge", batch_size=A_BATCH, log=_quiet)
        self.checker.look_at_server()
        self.trainer = ours._trainer(work, job)
        self.trainer.config = self.trainer.config.with_overrides(f"rollout.overlap={overlap}")
        self.trainer.task = JudgedTask(self.checker)
        prompts = make_prompts(self.trainer.tokenizer, work.prompt_tokens, job["seed"], STATES)
        self.states = [ours.PromptState(f"{size}-{i}", text) for i, text in enumerate(prompts)]

    def step(self) -> None:
        start = len(self.rows) * self.size
        states, coming = (
            [self.states[(at + i) % STATES] for i in range(self.size)]
            for at in (start, start + self.size)
        )
        cpu = time.process_time()
        told = self.trainer.training_step(states, coming)
        cpu, seconds = time.process_time() - cpu, told["step_time"]
        parts = {part: told.get(f"time/{part}", 0.0) * seconds for part in PARTS}
        self.rows.append({"step": seconds, "cpu": cpu, **parts})

    def close(self, warm_up: int) -> None:
        """Keep the counted steps, and a fingerprint of the adapter."""
        self.checker.close()
        weights = hashlib.sha256()
        for parameter in self.trainer.parameters.values():
            weights.update(parameter.detach().numpy().tobytes())
        self.rows, self.adapter = self.rows[warm_up:], weights.hexdigest()


def summary(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """One row a setting: medians over its steps, in seconds, and what they make beside the steps
    without overlap that took turns with them."""
    found, plain = [], {side.size: side for side in sides if side.overlap == "none"}
    for side in sides:
        none = plain[side.size]
        s, off = ({n: statistics.median(row[n] for row in one.rows) for n in one.rows[0]}
                  for one in (side, none))  # fmt: skip
        turns = zip(none.rows, side.rows, strict=True)
        judging = sum(row["environment"] + row["environment_hidden"] for row in side.rows)
        found.append({
            "groups": side.size,
            "overlap": side.overlap,
            "n": len(side.rows),
            "median_s": s,
            "steps_s": [row["step"] for row in side.rows],
            "faster": statistics.median(a["step"] / b["step"] for a, b in turns),
            "hidden_share": sum(row["environment_hidden"] for row in side.rows) / judging,
            "ideal_s": max(off["sampling"] + off["training"], off["environment"]),
            "same_adapter": side.adapter == none.adapter,
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
        parts = [s[name] for name in ("sampling", "training", *PARTS[1:3], "cpu")]
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
