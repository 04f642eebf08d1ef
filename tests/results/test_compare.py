"""Which checkpoints are compared, under which names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from rlkit.config import RunConfig
from rlkit.results.compare import _checkpoints, evaluate_run


def test_checkpoints_of_the_same_step_from_other_runs_are_all_kept(tmp_path: Path) -> None:
    runs = ("first", "second", "third.again")
    folders = [tmp_path / run / "lora_checkpoints" / "checkpoint-10" for run in runs]
    run = SimpleNamespace(checkpoints_folder=tmp_path)
    assert _checkpoints(run, False, folders, print) == {
        "tuned": folders[0],
        "checkpoint-10": folders[1],
        "third_again-checkpoint-10": folders[2],
    }


def test_a_run_without_a_checkpoint_says_that_no_tuned_executor_is_compared(tmp_path: Path) -> None:
    changes = [f"output_root={tmp_path}", "evaluation.policies=[raw_question, tuned, oracle]"]
    said: list[str] = []
    config = RunConfig.load("params/debug.yaml", changes)
    assert evaluate_run(config, log=said.append).policies == ["raw_question", "oracle"]
    assert any("no checkpoint yet" in line for line in said)
