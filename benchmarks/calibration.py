"""Is the confidence of an answer (rlkit/deploy/confidence.py) worth anything? Held-out states.

    python benchmarks/calibration.py outputs/arithmetic [outputs/another ...]

lets the policies of finished runs (base model, warm start, newest checkpoint) answer held-out
states, greedily and at a temperature, computes the probabilities of the answers' tokens in a pass
of its own, and compares confidence with right or wrong: the task's own primary measure is above 0
(a right answer; an action that discovers something). Prints a table and one JSON line, and draws
the reliability plot of the first run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # so that it runs from anywhere, as a script
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.machine import machine, versions  # noqa: E402
from rlkit.config import RunConfig  # noqa: E402
from rlkit.deploy.confidence import confidence  # noqa: E402
from rlkit.practice.source import sample_of  # noqa: E402
from rlkit.practice.task import build_task  # noqa: E402
from rlkit.results.calibration import calibration, reliability_plot  # noqa: E402
from rlkit.run import Run  # noqa: E402
from rlkit.training.adapters import REFERENCE, TRAINED, using_adapter  # noqa: E402
from rlkit.training.checkpointing import PREFIX, checkpoint_steps  # noqa: E402
from rlkit.training.logprobs import group_log_probs  # noqa: E402
from rlkit.training.policy import load_model_with_lora  # noqa: E402
from rlkit.training.sampling import sample_actions, uniform_numbers  # noqa: E402
from rlkit.training.text import decode, encode_prompt, end_ids, token_counter  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "calibration.json"
PLOT = ROOT / "docs" / "images" / "calibration.png"
POLICIES = {"untouched": None, "warm_start": REFERENCE, "tuned": TRAINED}  # the adapter that is on
BATCH = 25


def main() -> None:
    options = parse()
    began, cells = time.time(), []
    for folder in options.runs:
        for cell in cells_of(Path(folder), options):
            cells.append(cell)
            print(line(cell), flush=True)
            keep(cells, options, time.time() - began)
    draw(cells, options.plot)
    print(json.dumps(keep(cells, options, time.time() - began)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of finished runs")
    parser.add_argument("--questions", type=int, default=200, metavar="N", help="states of eval")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7], metavar="T")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=[*POLICIES])
    parser.add_argument("--output", type=Path, default=RESULT, metavar="F")
    parser.add_argument("--plot", type=Path, default=PLOT, metavar="F")
    return parser.parse_args()


def cells_of(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A run's policies at each temperature."""
    config = RunConfig.load(folder / "config.yaml")
    config = config.with_overrides(f"output_root={folder.parent}", f"run_name={folder.name}")
    run = Run.open(config, create=False)
    step = checkpoint_steps(run.checkpoints_folder)[-1]
    model, tokenizer = load_model_with_lora(
        config.model.base_model_path,
        config.lora,
        device=config.model.device,
        dtype=config.model.dtype,
        adapter=run.checkpoints_folder / f"{PREFIX}{step}",
    )
    model.delete_adapter(REFERENCE)  # a copy of the checkpoint; the run's own was the warm start
    model.load_adapter(str(folder / "reference_adapter"), adapter_name=REFERENCE)
    task = build_task(config, run)
    task.count_tokens = token_counter(tokenizer)
    states = sample_of(task.states("eval"), options.questions)
    for policy in options.policies:
        for temperature in options.temperatures:
            start = time.time()
            with using_adapter(model, POLICIES[policy]):
                answers = answered(model, tokenizer, task, states, config, temperature)
            head = {"run": folder.name, "step": step, "policy": policy, "temperature": temperature}
            found = calibration(*zip(*(a[1:3] for a in answers), strict=True))
            taken = {"seconds": round(time.time() - start, 1), "answers": answers}
            yield head | found.as_dict() | taken


@torch.no_grad()
def answered(
    model: Any, tokenizer: Any, task: Any, states: Sequence[Any], config: Any, temperature: float
) -> list[tuple[str, float, int, int]]:
    """(state id, confidence, right or not, tokens) of one answer a state; what could not be scored
    is left out."""
    found, length, ends = [], config.grpo.max_new_tokens, end_ids(model, tokenizer)
    for start in range(0, len(states), BATCH):
        part = states[start : start + BATCH]
        prompts = [
            encode_prompt(tokenizer, task.prompt(s), config.model.enable_thinking) for s in part
        ]
        draws = [uniform_numbers(config.seed, s.state_id, 0, 1, length) for s in part]
        sampled = sample_actions(
            model,
            prompts,
            1,
            length,
            end_ids=ends,
            temperature=temperature or 1.0,
            uniforms=torch.cat([torch.from_numpy(d) for d in draws]).numpy()
            if temperature
            else None,
        )
        for state, prompt, ids in zip(part, prompts, sampled.rows(), strict=True):
            (score,) = task.score(state, [decode(tokenizer, ids)])
            value = score.components.get(task.primary)
            if value is None:
                continue
            logprobs, _ = group_log_probs(model, prompt, torch.tensor([ids], device=model.device))
            sure = round(confidence(logprobs[0].tolist()), 6)
            found.append((state.state_id, sure, int(value > 0), len(ids)))
    return found


def line(cell: dict[str, Any]) -> str:
    """The figures of a cell in a line."""
    ends = cell["auroc_interval"] or (float("nan"),) * 2
    area = float("nan") if cell["auroc"] is None else cell["auroc"]
    return (
        f"{cell['run']:<18}{cell['policy']:<11} T {cell['temperature']:<4g} n {cell['n']}: right "
        f"{cell['right']:.3f}, confidence {cell['confidence']:.3f}, ECE {cell['ece']:.3f} "
        f"[{cell['ece_interval'][0]:.3f}, {cell['ece_interval'][1]:.3f}] (calibrated: "
        f"{cell['ece_if_calibrated']:.3f}, p {cell['p_calibrated']:.3f}), Brier "
        f"{cell['brier']:.3f} (constant {cell['brier_of_constant']:.3f}), AUROC {area:.3f} "
        f"[{ends[0]:.3f}, {ends[1]:.3f}]; {cell['seconds']:.0f} s"
    )


def keep(cells: list[dict[str, Any]], options: argparse.Namespace, seconds: float) -> dict:
    """Write what there is by now; returns it without the single answers."""
    names = " ".join(f"outputs/{Path(folder).name}" for folder in options.runs)
    result = {
        "benchmark": "calibration",
        "command": f"python benchmarks/calibration.py {names} --questions {options.questions} "
        f"--policies {' '.join(options.policies)}",
        "date": time.strftime("%Y-%m-%d"),
        "temperatures": options.temperatures,
        "seconds": round(seconds),
        "machine": machine(),
        "versions": versions(),
        "cells": cells,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return result | {"cells": [{k: v for k, v in c.items() if k != "answers"} for c in cells]}


def draw(cells: list[dict[str, Any]], path: Path) -> None:
    """The reliability plot of the first run."""
    mine = [cell for cell in cells if cell["run"] == cells[0]["run"]]
    figure = reliability_plot(
        {
            f"{c['policy']}, T {c['temperature']:g}": calibration(
                *zip(*(a[1:3] for a in c["answers"]), strict=True)
            )
            for c in mine
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
