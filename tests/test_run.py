"""A run owns a folder: it resumes only what is its own, and survives being killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from rlkit.config import RunConfig
from rlkit.errors import DataError, RlkitError, RunError
from rlkit.lineage import git_state
from rlkit.run import MAY_CHANGE, Run, find_run, list_runs, load_run


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return RunConfig.from_sections(run_name="one", output_root=str(tmp_path))


# ---- opening


def test_a_new_run_writes_its_resolved_parameters(config):
    run = Run.open(config)
    assert RunConfig.load(run.folder / "config.yaml") == config
    assert Run.at(run.folder).config == config


def test_the_same_config_opens_the_same_run(config):
    Run.open(config).append_metrics({"step": 1})
    assert Run.open(config).read_metrics() == [{"step": 1}]


def test_what_may_change_may_change_and_is_saved(config):
    Run.open(config)
    longer = config.with_overrides(
        "training.num_epochs=9", "training.max_steps=5", "monitoring.use_tensorboard=false",
        "evaluation.max_states=3", "merge.dtype=float32", "model.vllm_base_url=http://b:1/v1",
    )  # fmt: skip
    assert Run.at(Run.open(longer).folder).config.training.num_epochs == 9


def test_a_trained_run_may_be_judged_and_served_from_elsewhere(config):
    Run.open(config).append_metrics({"step": 1})
    elsewhere = config.with_overrides(
        "executor.served_model=tuned", "executor.served_url=http://b:1/v1", "checker.patience=5",
        "checker.concurrency=4", "checker.timeout=9", "checker.max_retries=1",
        "checker.cache_path=v.sqlite",
    )  # fmt: skip
    assert Run.open(elsewhere).config.executor.served_model == "tuned"
    with pytest.raises(RunError, match="executor.layout"):
        Run.open(config.with_overrides("executor.layout=bare"))


def test_the_readme_names_every_parameter_that_may_change(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    told = text[text.index("After that these may change") : text.index("| `config.yaml` |")]
    wanted = {name.rstrip(".") for name in MAY_CHANGE}
    assert set(re.findall(r"`([a-z_.]+)`", told)) == wanted - {"overrides"}  # a run keeps none


def test_other_differences_are_listed_key_by_key(config):
    Run.open(config).append_metrics({"step": 1})
    other = config.with_overrides(
        "model.base_model_path=debug", "grpo.group_size=8", "seed=1", "training.num_epochs=9"
    )
    with pytest.raises(RunError) as error:
        Run.open(other)
    said = str(error.value)
    assert "model.base_model_path (" in said
    assert "grpo.group_size (4 there, 8 given)" in said and "seed (7 there, 1 given)" in said
    assert "num_epochs" not in said
    assert Run.at(Run.open(config).folder).config == config  # nothing was overwritten


def test_a_first_try_that_trained_nothing_does_not_block_its_correction(config):
    run = Run.open(config)
    Run.open(config.with_overrides("model.base_model_path=debug", "data.max_questions=9"))
    run.rounds_folder.mkdir()  # from here on the rounds depend on data, but not on the model
    mended = Run.open(config.with_overrides("model.base_model_path=./x", "data.max_questions=9"))
    with pytest.raises(RunError, match=r"data\.max_questions"):
        Run.open(mended.config.with_overrides("data.max_questions=8"))


def test_resume_false_refuses_a_folder_that_holds_a_run_but_not_to_read_it(config):
    fresh = config.with_overrides("training.resume=false")
    Run.open(fresh).append_metrics({"step": 1})
    with pytest.raises(RunError, match="holds a run already and training.resume is false"):
        Run.open(fresh)
    assert Run.open(fresh, create=False).folder.is_dir()


def test_without_create_a_missing_run_is_an_error_that_names_the_nearest(config):
    Run.open(config.with_overrides("run_name=once"))
    with pytest.raises(RunError, match=r"no run 'one' under .*; did you mean once\?"):
        Run.open(config, create=False)
    assert not os.path.exists(os.path.join(config.output_root, "one"))


def test_a_run_without_its_config_is_not_taken_over(config):
    run = Run.open(config)
    run.append_metrics({"step": 1})
    run.config_path.unlink()
    with pytest.raises(RunError, match=r"without its config\.yaml"):
        Run.open(config)


# ---- metrics


def test_half_a_line_is_ignored_and_cut_before_the_next(config):
    run = Run.open(config)
    run.append_metrics({"step": 1})
    with open(run.metrics_path, "a") as file:
        file.write('{"step": 2, "rew')
    again = Run.open(config)
    assert again.read_metrics() == [{"step": 1}]
    again.append_metrics({"step": 2})
    assert again.read_metrics() == [{"step": 1}, {"step": 2}]
    assert run.metrics_path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_damaged_line_in_the_middle_is_an_error_with_its_number(config):
    run = Run.open(config)
    run.metrics_path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
        run.read_metrics()


def test_metrics_are_plain_json_whatever_numbers_come_in(config):
    run = Run.open(config)
    run.append_metrics({"step": np.int64(1), "loss": float("nan"), "x": np.float32(0.5),
                        "list": np.array([1, 2]), "path": run.folder})  # fmt: skip
    row = json.loads(run.metrics_path.read_text())
    assert row == {"step": 1, "loss": None, "x": 0.5, "list": [1, 2], "path": str(run.folder)}


def test_cutting_forgets_later_metrics_and_rollouts(config):
    run = Run.open(config)
    for step in (1, 2, 3):
        run.append_metrics({"step": step})
        run.write_rollouts(step, pd.DataFrame({"state_id": ["a"]}))
    run.cut_metrics(2)
    assert [row["step"] for row in run.read_metrics()] == [1, 2]
    assert list(run.read_rollouts()["step"]) == [1, 2]
    run.append_metrics({"step": 3})
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]


def test_metrics_of_steps_whose_checkpoints_are_gone_are_not_thrown_away(config):
    """Between step 1 and its checkpoint a run may be killed; at step 2 there must be one."""
    run = Run.open(config)
    run.append_metrics({"step": 1})
    run.cut_metrics(-1)
    assert run.read_metrics() == []
    for step in (1, 2):
        run.append_metrics({"step": step})
        run.write_rollouts(step, pd.DataFrame({"state_id": ["a"]}))
    with pytest.raises(RunError, match=r"goes on to step 2, but .*lora_checkpoints holds no check"):
        run.cut_metrics(-1)
    assert len(run.read_metrics()) == 2 and len(run.read_rollouts()) == 2


def test_a_line_that_a_full_disk_cut_off_is_cut_before_the_next(config, monkeypatch):
    run = Run.open(config)
    run.append_metrics({"step": 1})

    def half(path, line):
        path.open("a").write(line[:5])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rlkit.run.append_line", half)
        with pytest.raises(OSError):
            run.append_metrics({"step": 2})
    run.append_metrics({"step": 2})  # in the same kernel
    assert run.metrics_path.read_text() == '{"step": 1}\n{"step": 2}\n'


# ---- rollouts, status, lineage


def test_rollouts_come_back_as_they_were(config):
    run = Run.open(config)
    frame = pd.DataFrame(
        {"clues": [["a", "b"], []], "reward": [5.1, None], "token_ids": [[1], [2]]}
    )
    for step in (2, 10):
        run.write_rollouts(step, frame)
    back = run.read_rollouts(10)
    assert [list(clues) for clues in back["clues"]] == [["a", "b"], []]
    assert list(back["step"]) == [10, 10] and list(run.read_rollouts()["step"]) == [2, 2, 10, 10]
    with pytest.raises(RunError, match="no actions of step 3"):
        run.read_rollouts(3)


def test_status_says_interrupted_when_nobody_holds_a_running_run(config):
    run = Run.open(config)
    assert run.status() == {"state": "new"}
    with run.lock():
        run.set_status("running", step=np.int64(3))
        assert run.status()["state"] == "running" and run.status()["step"] == 3
    assert Run.at(run.folder).status()["state"] == "interrupted"
    run.set_status("finished", step=4)
    assert run.status()["state"] == "finished"
    with pytest.raises(ValueError, match="allowed are running"):
        run.set_status("done")


def test_lineage_names_versions_and_keeps_what_was_before(config):
    run = Run.open(config)
    run.write_lineage({"device": "cpu", "data_fingerprint": "abc"})
    run.write_lineage({"device": "cuda"})
    lineage = json.loads(run.lineage_path.read_text())
    assert lineage["device"] == "cuda" and lineage["earlier"][0]["device"] == "cpu"
    assert len(lineage["earlier"]) == 1 and lineage["seed"] == 7
    assert lineage["versions"]["pydantic"] and "python" in lineage["versions"]


def test_git_state_is_that_of_the_root_itself(tmp_path):
    assert git_state(tmp_path) is None

    def git(*arguments):
        subprocess.run(
            ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            check=True, capture_output=True,
        )  # fmt: skip

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "--no-verify", "-m", "x")
    assert git_state(tmp_path)["dirty"] is False
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "new").write_text("x")
    assert git_state(tmp_path)["dirty"] is True and len(git_state(tmp_path)["commit"]) == 40
    assert git_state(tmp_path / "inner") is None


# ---- the lock

HOLD = """
import sys, time
from rlkit.run import Run
run = Run.at(sys.argv[1])
with run.lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_cannot_train_in_one_folder_and_a_killed_one_frees_it(config, root):
    run = Run.open(config)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.folder)], cwd=root, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        assert run.locked()
        with pytest.raises(RunError, match="is being trained by another process"), run.lock():
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=10)
        time.sleep(0.05)
        with run.lock():
            pass
    finally:
        holder.kill()
        holder.stdout.close()


def test_the_parameters_of_a_run_in_progress_are_not_rewritten(config):
    run = Run.open(config)
    with run.lock():
        assert Run.open(config).config == config  # the same ones: a look is free
        with pytest.raises(RunError, match="being trained"):
            Run.open(config.with_overrides("training.num_epochs=9"))
    assert Run.at(run.folder).config == config


def test_whoever_holds_a_run_clears_what_a_killed_process_left_half_written(config):
    run = Run.open(config)
    run.write_rollouts(1, pd.DataFrame({"state_id": ["a"]}))
    for name in (".metrics.jsonl.x1y2z3w4", "rollouts/.step-2.parquet.x1y2z3w4"):
        (run.folder / name).touch()
    (run.folder / ".reference_adapter.x1y2z3w4").mkdir()
    with run.lock():
        found = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*")}
    assert found == {"config.yaml", ".lock", "rollouts", "rollouts/step-1.parquet"}


def test_one_process_cannot_hold_a_folder_twice(config):
    with Run.open(config).lock():
        with pytest.raises(RunError), Run.open(config).lock():
            pass


# ---- reading back


def test_load_run_gives_frames_by_name_and_by_path(config):
    run = Run.open(config)
    run.append_metrics({"step": 1, "reward": 0.5})
    run.write_rollouts(1, pd.DataFrame({"state_id": ["a", "b"]}))
    for name in ("one", str(run.folder)):
        frames = load_run(name, config.output_root)
        assert frames.config == config and frames.evaluation is None and frames.lineage == {}
        assert list(frames.metrics["reward"]) == [0.5] and len(frames.rollouts) == 2


def test_a_run_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match="no run 'x'"):
        find_run("x", tmp_path)
    with pytest.raises(RunError, match="holds no run"):
        Run.at(tmp_path)


def test_list_runs_shows_each_run_once_newest_first(config):
    Run.open(config)
    newer = Run.open(config.with_overrides("run_name=two"))
    newer.set_status("finished", step=4)
    rows = list_runs(config.output_root)
    assert [(row["run_name"], row["state"], row["step"]) for row in rows] == [
        ("two", "finished", 4), ("one", "new", None)
    ]  # fmt: skip
    assert list_runs(config.output_root + "/nowhere") == []


@pytest.mark.parametrize("content", ["[]", "5", "{}", '{"state": "x"}', "{", "\0"])
def test_a_damaged_status_is_named_and_hides_no_other_run(config, content):
    run = Run.open(config)
    Run.open(config.with_overrides("run_name=two")).set_status("finished", step=4)
    run.status_path.write_text(content)
    with pytest.raises(RlkitError, match=r"status\.json"):
        run.status()
    states = {row["run_name"]: row["state"] for row in list_runs(config.output_root)}
    assert states == {config.run_name: "damaged", "two": "finished"}


@pytest.mark.parametrize("content", ["[]", "5", "null"])
def test_a_damaged_lineage_is_named_and_stays(config, content):
    run = Run.open(config)
    run.lineage_path.write_text(content)
    with pytest.raises(DataError, match=r"lineage\.json holds a \w+ where an object is wanted"):
        run.write_lineage()
    assert run.lineage_path.read_text() == content
