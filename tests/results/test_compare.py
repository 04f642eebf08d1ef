"""Which checkpoints are compared, under which names."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rlkit.config import RunConfig
from rlkit.errors import RunError
from rlkit.results.compare import _checkpoints, _played, evaluate_run
from rlkit.results.evaluate import load_evaluation
from rlkit.training.checkpointing import write_checkpoint


def test_checkpoints_of_the_same_step_from_other_runs_are_all_kept(tmp_path: Path) -> None:
    runs = ("first", "second", "third.again")
    folders = [tmp_path / run / "lora_checkpoints" / "checkpoint-10" for run in runs]
    run = SimpleNamespace(checkpoints_folder=tmp_path)
    assert _checkpoints(run, False, folders, print) == {
        "tuned": folders[0],
        "checkpoint-10": folders[1],
        "third_again-checkpoint-10": folders[2],
    }


def test_every_checkpoint_has_a_name_of_its_own_and_none_takes_a_baselines(tmp_path: Path) -> None:
    parents = [tmp_path / f"{n}" / "arith" / "lora_checkpoints" for n in range(4)]
    folders = [parent / "checkpoint-10" for parent in parents] + [
        Path("/untouched"),
        Path("/oracle"),
    ]
    found = _checkpoints(SimpleNamespace(checkpoints_folder=tmp_path), False, folders, print)
    assert dict(zip(found, folders, strict=True)) == found
    assert list(found) == [
        "tuned", "checkpoint-10", "arith-checkpoint-10", "arith-checkpoint-10-2",
        "-untouched", "-oracle",
    ]  # fmt: skip


def checkpoints_with_a_best(run: Path) -> SimpleNamespace:
    folder = run / "lora_checkpoints"
    for step in (4, 8):
        state = {"best_step": 4}
        write_checkpoint(
            folder / f"checkpoint-{step}", Path.exists, state, {}, {"x": torch.ones(1)}
        )
    return SimpleNamespace(folder=run, checkpoints_folder=folder)


def test_the_best_checkpoint_on_dev_can_be_asked_for_by_a_word_or_a_parameter(
    tmp_path: Path,
) -> None:
    run, said = checkpoints_with_a_best(tmp_path / "run"), []
    best, newest = (run.checkpoints_folder / f"checkpoint-{step}" for step in (4, 8))
    assert _checkpoints(run, False, [], print) == {"tuned": newest}
    assert _checkpoints(run, False, [], said.append, "best") == {"tuned": best}
    assert said == ["evaluation: the best checkpoint is checkpoint-4"]
    both = _checkpoints(run, False, [Path("best"), "newest"], print)
    assert both == {"tuned": best, "checkpoint-8": newest}
    assert _played(best, run) == {"folder": "lora_checkpoints/checkpoint-4", "step": 4}
    other = SimpleNamespace(folder=tmp_path / "other", checkpoints_folder=tmp_path / "other")
    assert _played(best, other)["folder"] == "../run/lora_checkpoints/checkpoint-4"
    with pytest.raises(RunError, match="has no checkpoint yet, so none is the best"):
        _checkpoints(other, False, ["best"], print)


def test_an_evaluation_of_some_policies_joins_what_is_there_of_the_same_states(
    tmp_path: Path,
) -> None:
    def evaluated(policies: str, *changes: str) -> list[str]:
        policies = f"evaluation.policies=[{policies}]"
        changes = (f"output_root={tmp_path}", policies, "evaluation.max_states=4", *changes)
        config = RunConfig.load("params/debug.yaml", changes)
        return evaluate_run(config, baseline=True, log=said.append).policies

    said: list[str] = []
    path = tmp_path / "debug" / "evaluation.json"
    assert evaluated("raw_question, oracle") == ["raw_question", "oracle"]
    before = load_evaluation(path)
    assert evaluated("raw_question, scripted") == ["raw_question", "scripted"]
    joined = load_evaluation(path)
    assert joined.policies == ["raw_question", "scripted", "oracle"] and len(joined.frame) == 12
    for policy in before.policies:
        assert joined.question_values(policy, "reward") == before.question_values(policy, "reward")
    assert said[-1].endswith("(from before: oracle)")
    # other states: the file is moved aside, whole
    whole = path.read_bytes()
    evaluated("raw_question", "evaluation.max_states=3")
    assert path.with_name("evaluation-1.json").read_bytes() == whole
    assert any("is now evaluation-1.json" in line for line in said)
    assert load_evaluation(path).policies == ["raw_question"]
    path.write_text("{}")
    evaluated("oracle", "evaluation.max_states=3")
    assert json.loads(path.with_name("evaluation-2.json").read_text()) == {}
    assert load_evaluation(path).policies == ["oracle"]


def test_a_run_without_a_checkpoint_says_that_no_tuned_executor_is_compared(tmp_path: Path) -> None:
    changes = [f"output_root={tmp_path}", "evaluation.policies=[raw_question, tuned, oracle]"]
    said: list[str] = []
    config = RunConfig.load("params/debug.yaml", changes)
    assert evaluate_run(config, log=said.append).policies == ["raw_question", "oracle"]
    assert any("no checkpoint yet" in line for line in said)
