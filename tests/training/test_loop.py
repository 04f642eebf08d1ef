"""The stages of a training run, on a two-layer model."""

from __future__ import annotations

import sys
from shutil import rmtree
from types import SimpleNamespace

import pytest

from rlkit.config import RunConfig
from rlkit.errors import ConfigError, ModelError, RunError
from rlkit.files import read_object
from rlkit.run import Run
from rlkit.training.adapters import save_lora_checkpoint
from rlkit.training.loop import train
from rlkit.training.stages import _run_of_main, prepare_model, sft_run, warm_start
from tests.training.conftest import LetterTask, tiny_base, tiny_config, tiny_trainer, with_lora


def test_a_tracker_that_is_not_installed_is_said_before_the_run_is_called_running(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = tiny_config(tmp_path).with_overrides("monitoring.use_wandb=true")
    trainer = tiny_trainer(config)
    with pytest.raises(ConfigError, match="wandb is not installed"):
        train(trainer)
    assert trainer.run.status()["state"] == "new"


def test_a_machine_that_does_not_see_the_mains_folder_is_told_what_to_do(tmp_path):
    config = tiny_config(tmp_path)
    with pytest.raises(RunError, match="tiny, which this machine does not see; put output_root"):
        _run_of_main(config)
    opened = Run.open(config)
    assert _run_of_main(config).folder == opened.folder


@pytest.mark.parametrize("mistake", ["other base", "no weights", "no folder"])
def test_an_adapter_that_does_not_fit_leaves_nothing_in_the_run(tmp_path, mistake):
    """Else the run would have begun, and refuse its own correction."""
    adapter = tmp_path / "adapter"
    if mistake != "no folder":
        save_lora_checkpoint(with_lora(tiny_base(hidden_size=48)), adapter)
    if mistake == "no weights":
        (adapter / "adapter_model.safetensors").unlink()
    config = tiny_config(tmp_path).with_overrides(f"model.init_adapter={adapter}")
    run = Run.open(config)
    with pytest.raises(ModelError, match="does not fit" if mistake == "other base" else "missing"):
        prepare_model(config, run, SimpleNamespace(), lambda _: None)
    Run.open(config.with_overrides("model.init_adapter=null"))


def test_the_adapter_that_training_starts_from_is_kept_in_the_run(tmp_path):
    adapter = save_lora_checkpoint(with_lora(tiny_base()), tmp_path / "adapter")
    config = tiny_config(tmp_path).with_overrides(f"model.init_adapter={adapter}")
    run = Run.open(config)
    prepare_model(config, run, SimpleNamespace(), lambda _: None)
    weights = "adapter_model.safetensors"
    kept = (run.folder / "reference_adapter" / weights).read_bytes()
    assert kept == (adapter / weights).read_bytes()
    (adapter / weights).unlink()  # the run stands alone
    prepare_model(config, run, SimpleNamespace(), lambda _: None)


def test_a_warm_start_is_evaluated_on_dev_and_its_best_adapter_is_kept(tmp_path):
    config = tiny_config(tmp_path).with_overrides(
        "sft.evaluate_every_n_updates=1", "sft.num_epochs=1", "sft.batch_size=1",
        "training.best=reward",
    )  # fmt: skip
    task, rows = LetterTask(count=3), []
    task.examples = lambda: [(state, "abc") for state in task.states("train")]
    warm_start(config, Run.open(config), task, log=lambda _: None, progress=rows.append)
    assert [row["eval/states"] for row in rows] == [2.0, 2.0, 2.0]
    assert all(0 <= row["eval/reward"] <= 1 for row in rows)
    assert [row["eval/kl"] for row in rows] == [None] * 3  # SFT has no reference


def test_a_step_that_breaks_off_after_it_was_counted_is_not_told_as_done(tmp_path, monkeypatch):
    trainer = tiny_trainer(tiny_config(tmp_path))
    update = trainer._update

    def broken() -> dict:
        if trainer.progress.step > 2:
            raise RuntimeError("another process is gone")
        return update()

    monkeypatch.setattr(trainer, "_update", broken)
    with pytest.raises(RuntimeError, match="is gone"):
        train(trainer)
    assert trainer.progress.step == 4  # two steps make an update
    status = trainer.run.status()
    assert (status["state"], status["step"]) == ("failed", 3)


def test_with_null_steps_an_epoch_is_one_pass_over_the_training_states(tmp_path):
    config = tiny_config(tmp_path).with_overrides(
        "training.steps_per_epoch=null", "training.max_steps=null", "training.batch_size=3",
        "training.save_every_n_steps=9", "evaluation.epoch_states=1",
    )  # fmt: skip
    trainer = tiny_trainer(config, LetterTask(count=5))
    assert train(trainer) == "finished"
    rows = trainer.run.read_metrics()
    assert [row["epoch"] for row in rows] == [0.0, 0.5, 1.0, 1.5, 2.0]  # 5 states, 3 a step
    assert ["eval/reward" in row for row in rows] == [True, False, True, False, True]
    rmtree(trainer.run.checkpoints_folder)
    with pytest.raises(RunError, match="goes on to step 4"):  # step 2 was saved
        trainer.run.cut_metrics(-1)


def test_a_warm_start_alone_says_where_it_comes_from(tmp_path):
    few = ["data.max_questions=12", "sft.max_samples=4", f"output_root={tmp_path}"]
    folder = sft_run(RunConfig.load("params/debug.yaml", few), log=lambda _: None)
    found = read_object(tmp_path / "debug" / "lineage.json")
    assert found["device"] == "cpu" and found["processes"] == 1
    assert found["parts"]["train"]["states"] > 0 and found["arithmetic"]["threads"] >= 1
    before = (tmp_path / "debug" / "lineage.json").read_bytes()
    assert sft_run(RunConfig.load("params/debug.yaml", few), log=lambda _: None) == folder
    assert (tmp_path / "debug" / "lineage.json").read_bytes() == before  # nothing was made anew
