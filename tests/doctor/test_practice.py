"""The whole check with its real step: seconds with the debug model, and the run stays as it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from rlkit import cli
from rlkit.config import RunConfig
from rlkit.doctor import Finding
from rlkit.doctor.look import Look
from rlkit.doctor.practice import _aside, practice
from rlkit.run import Run
from rlkit.training.adapters import save_lora_checkpoint
from rlkit.training.stages import prepare_data
from tests.training.conftest import tiny_base, with_lora

PARAMS = Path(__file__).resolve().parents[2] / "params" / "debug.yaml"
STEP = ["prompts", "ratio", "KL", "gradients", "ends", "groups", "reward", "time"]


def content(folder: Path) -> dict[str, str]:
    """SHA-256 of every file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def checked(root: Path, capsys, *arguments: str) -> tuple[int, dict[str, dict]]:
    capsys.readouterr()
    code = cli.main(
        ["check", "--json", "--params", str(PARAMS), "--set", f"output_root={root}", *arguments]
    )
    return code, {one["subject"]: one for one in json.loads(capsys.readouterr().out)}


def test_a_new_run_is_checked_with_a_step_and_nothing_is_left_behind(tmp_path, capsys):
    code, found = checked(tmp_path / "outputs", capsys, "model.init_adapter=null")
    assert [*found][-len(STEP) :] == STEP
    assert (found["ratio"]["text"], found["KL"]["text"]) == (
        "exactly 1 before the optimiser moves",
        "exactly 0 to the reference",
    )
    assert found["gradients"]["facts"] == {"ok": 8, "waits": 8}
    assert found["groups"]["facts"]["groups"] == 2
    assert found["time"]["facts"]["steps"] == 4  # two epochs of two steps
    no_end = found["ends"]["level"] == "fail"  # a random model rarely ends within 16 tokens
    assert code == int(no_end)
    assert {s for s, one in found.items() if one["level"] == "fail"} <= {"ends"}
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_rounds_and_a_warm_start_is_left_as_it_is(tmp_path, capsys):
    config = RunConfig.load(PARAMS, [f"output_root={tmp_path}"])
    run = Run.open(config)
    prepare_data(config, run, lambda line: None)
    save_lora_checkpoint(with_lora(tiny_base()), run.folder / "sft" / "adapter")
    before = content(tmp_path)
    _, found = checked(tmp_path, capsys)
    assert content(tmp_path) == before
    assert f"states in {run.folder}/rounds" in found["data"]["text"]
    parts = [found["splits"]["text"].split(part)[0].split()[-1] for part in ("train", "dev")]
    assert all(int(count) > 0 for count in parts)
    assert found["KL"]["text"] == "exactly 0 to the reference"  # the frozen copy of the adapter
    assert found["gradients"]["facts"] == {"ok": 16}  # its B matrices are not 0


@pytest.mark.parametrize(
    "change",
    [["model.base_model_path=./nowhere"], ["data.source=rounds", "data.rounds_path=./nowhere"]],
)
def test_without_a_model_or_data_no_step_is_tried(tmp_path, capsys, change):
    what = change[0].split(".")[0]
    code, found = checked(tmp_path, capsys, *change)
    assert code == 1 and found[what]["level"] == "fail"
    text = f"no step was tried: {what} must be there first"
    assert (found["step"]["level"], found["step"]["text"]) == ("fail", text)


AWAY = "http://127.0.0.1:9/v1"
JUDGED = ("checker.kind=llm", f"model.vllm_base_url={AWAY}")
SERVED = ("data.collectors=[served]", f"executor.served_url={AWAY}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (JUDGED, f"no answer from the judge at {AWAY}"),
        ((*JUDGED, "data.planner=llm"), f"no answer from the judge and planner at {AWAY}"),
        (SERVED, f"no answer from the served Executor at {AWAY}"),
    ],
)
def test_without_a_server_that_a_step_asks_none_is_tried_and_that_is_red(
    tmp_path, capsys, changes, said
):
    code, found = checked(tmp_path, capsys, *changes)
    assert {s for s, one in found.items() if one["level"] == "fail"} == {"step"} and code == 1
    assert found["step"]["text"] == f"no step was tried: {said}"
    assert found["step"]["todo"] == "start it, and check again (until then: --quick)"
    assert checked(tmp_path, capsys, *changes, "--quick")[0] == 0  # it may be started yet


def test_a_served_executor_that_only_the_evaluation_asks_stops_no_step(tmp_path, capsys):
    served = ("evaluation.policies=[served]", f"executor.served_url={AWAY}")
    _, found = checked(tmp_path, capsys, "model.init_adapter=null", *served)
    assert found["served"]["level"] == "warn" and [*found][-len(STEP) :] == STEP


@pytest.mark.parametrize("cause", ["disk", "memory", "weights"])
def test_each_other_cause_that_stops_the_step_is_red(tmp_path, monkeypatch, cause):
    look = Look(RunConfig.load(PARAMS, [f"output_root={tmp_path}"]))
    if cause == "weights":
        monkeypatch.setattr("rlkit.training.estimate.weights_are_here", lambda base: False)
    else:
        look.failed.add(cause)
    (found,) = practice(look)
    assert found.level == "fail" and cause in found.text and found.todo


def test_paths_with_signs_of_yaml_reach_the_step_whole(tmp_path):
    rounds, adapter, place = (tmp_path / f"a #{name}: 'c'" for name in ("rounds", "ad", "place"))
    config = RunConfig.from_sections(
        output_root=str(tmp_path),
        data={"rounds_path": str(rounds)},
        model={"init_adapter": str(adapter)},
    )
    aside = _aside(Look(config), place)
    assert (aside.output_root, aside.data.rounds_path) == (str(place), str(rounds))
    assert aside.model.init_adapter == str(adapter)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (torch.OutOfMemoryError("CUDA out\nof memory"), "OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_what_the_machine_refuses_is_a_finding_of_the_step(tmp_path, monkeypatch, error, said):
    def refuses(look, place):
        yield Finding("ok", "prompts", "short")
        raise error

    monkeypatch.setattr("rlkit.doctor.practice._practice", refuses)
    found = list(practice(Look(RunConfig.load(PARAMS, [f"output_root={tmp_path}"]))))
    assert [one[:3] for one in found] == [("ok", "prompts", "short"), ("fail", "step", said)]
    assert found[1].todo


def test_the_list_is_whole_where_a_check_breaks_off(capsys, monkeypatch):
    def breaks(config):
        yield Finding("ok", "packages", "all")
        raise ZeroDivisionError

    monkeypatch.setattr("rlkit.doctor.quick_check", breaks)
    with pytest.raises(ZeroDivisionError):
        cli.main(["check", "--json", "--quick", "--params", str(PARAMS)])
    assert [one["subject"] for one in json.loads(capsys.readouterr().out)] == ["packages"]
