"""The stages of a training run, on a two-layer model."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from rlkit.errors import ConfigError, ModelError
from rlkit.run import Run
from rlkit.training.adapters import save_lora_checkpoint
from rlkit.training.loop import prepare_model, train
from tests.training.conftest import tiny_base, tiny_config, tiny_trainer, with_lora


def test_a_tracker_that_is_not_installed_is_said_before_the_run_is_called_running(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = tiny_config(tmp_path).with_overrides("monitoring.use_wandb=true")
    trainer = tiny_trainer(config)
    with pytest.raises(ConfigError, match="wandb is not installed"):
        train(trainer)
    assert trainer.run.status()["state"] == "new"


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
