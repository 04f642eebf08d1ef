"""Two gloo processes under torchrun beside one with twice the accumulation. This file is also the
program that they run:

    torchrun --nproc_per_node 2 -m tests.training.test_ranks FOLDER ACCUMULATION
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlkit.training.ranks import Ranks, joined
from rlkit.training.schedule import state_order
from tests.training.conftest import LetterTask, tiny_base, tiny_config, tiny_trainer, with_lora

STATES = 5  # fewer than the eight of an update, so that states come twice in one


def test_parts_are_contiguous_and_cover_all():
    parts = [list(Ranks(rank, 3).part(7)) for rank in range(3)]
    assert parts == [[0, 1], [2, 3], [4, 5, 6]]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "batch", "passes", "flat"])
def test_two_processes_are_one_with_twice_the_accumulation(root, tmp_path, case):
    """Float32, one thread each, at each move of the optimiser."""
    for name, size, accumulation in (("one", 1, 4), ("two", 2, 2)):
        _launch(root, size, tmp_path / name, str(accumulation), case)
    one, two = (torch.load(tmp_path / name / "seen.pt") for name in ("one", "two"))
    assert one["tokens"] == two["tokens"] and len(one["gradients"]) == len(two["gradients"]) >= 3
    for a, b in zip(one["gradients"], two["gradients"], strict=True):
        difference = float((a - b).norm() / a.norm())
        print(f"{case}: gradients differ by {difference:.2e} of their norm")
        assert difference < 1e-5
    update = (one["after"] - one["before"]).norm()
    difference = float((one["after"] - two["after"]).norm() / update)
    print(f"{case}: the adapter differs by {difference:.2e} of its update")
    assert difference < 1e-3


def _launch(root: Path, size: int, *arguments: object) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={size}", "-m", "tests.training.test_ranks"]
    subprocess.run(
        [*command, *map(str, arguments)],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )


def _flat(values) -> torch.Tensor:
    return torch.cat([value.detach().reshape(-1).clone() for value in values])


def main(folder: Path, accumulation: int, case: str) -> None:
    torch.set_num_threads(1)
    changes = {"batch": {"scale_rewards": "batch"}, "passes": {"num_iterations": 2}}
    config = tiny_config(folder, kl_penalty=0.1, **changes.get(case, {}))
    config = config.with_overrides(f"training.gradient_accumulation_steps={accumulation}")
    if case == "batch":  # one process looks at as many groups a step
        config = config.with_overrides("training.gradient_accumulation_steps=2")
    with joined() as ranks:
        task = LetterTask(STATES)
        if case == "flat":  # of the second process: nothing to learn, and nothing that is known
            score = task.score
            task.score = lambda state, texts: [
                type(one)(None, one.components) if state.state_id in ("s1", "s3") else one
                for one in score(state, texts)
            ]
        trainer = tiny_trainer(config, task, with_lora(tiny_base()), run=False, ranks=ranks)
        gradients, tokens = [], []
        step = trainer.optimizer.step

        def seen() -> None:
            gradients.append(_flat(p.grad for p in trainer.parameters.values()))
            step()

        trainer.optimizer.step = seen
        before = _flat(trainer.parameters.values())
        size = 2 if case == "batch" else ranks.size  # groups a step
        for start in range(0, 12, size):
            order = state_order(task.states("train"), 7, start, size)
            if case == "flat":
                order = [task.states("train")[i % 4] for i in range(start, start + size)]
            metrics = trainer.training_step(order)
            if ranks.is_main:
                assert metrics["reward"] is not None or case == "flat"
                for group in trainer.last_groups:
                    tokens.append((group.state.state_id, group.visit, group.sampled.rows()))
        if ranks.is_main:
            after = _flat(trainer.parameters.values())
            found = {"tokens": tokens, "gradients": gradients, "before": before, "after": after}
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(found, folder / "seen.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
