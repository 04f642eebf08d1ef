"""What accelerate's launcher asks for, beside the parameters; and float16 with a scaled loss."""

from __future__ import annotations

import pytest
import torch

from rlkit.errors import ConfigError
from rlkit.training import launcher
from rlkit.training.launcher import check_launcher, launched_dtype
from rlkit.training.ranks import device_of
from tests.training.conftest import LetterTask, tiny_base, tiny_config, tiny_trainer, with_lora

PRECISION = "ACCELERATE_MIXED_PRECISION"


@pytest.fixture
def config(tmp_path):
    return tiny_config(tmp_path).with_overrides("model.device=cpu")


@pytest.mark.parametrize(
    ("variable", "given", "both"),
    [
        (PRECISION, "fp16", "mixed_precision is fp16 .float16. and model.dtype is bfloat16"),
        (PRECISION, "fp8", "mixed_precision is fp8, which is not supported"),
        (
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            "4",
            "steps is 4 and training.gradient_accumulation_steps is 2",
        ),
        ("ACCELERATE_GRADIENT_CLIPPING", "0.5", "clipping is 0.5 and grpo.max_grad_norm is 1.0"),
    ],
)
def test_a_difference_is_an_error_that_names_both(config, monkeypatch, variable, given, both):
    config = config.with_overrides("model.dtype=bfloat16", "grpo.max_grad_norm=1.0")
    check_launcher(config, print)
    monkeypatch.setenv(variable, given)
    with pytest.raises(ConfigError, match=both):
        check_launcher(config, print)


@pytest.mark.parametrize("given", ["auto", "no", "none", "", "2"])
def test_auto_or_the_same_is_none(config, monkeypatch, given):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", given)
    check_launcher(config, print)


def test_precision_is_the_launchers_where_the_parameters_leave_it_open(config, monkeypatch):
    said = []
    monkeypatch.setenv(PRECISION, "bf16")
    assert launched_dtype(config, said.append) == "bfloat16"
    monkeypatch.setenv(PRECISION, "fp16")
    assert launched_dtype(config, said.append) == "auto"  # a CPU
    assert "a CPU does not train in" in said.pop()
    assert launched_dtype(config.with_overrides("model.dtype=float16"), said.append) == "float16"
    monkeypatch.setattr(launcher, "device_of", lambda rank, device: "cuda:0")
    assert launched_dtype(config, said.append) == "float16"
    with pytest.raises(ConfigError, match="trains all weights"):
        launched_dtype(config.with_overrides("lora.enabled=false"), said.append)


def test_a_launcher_that_started_one_process_for_several_is_told(config, monkeypatch):
    said = []
    monkeypatch.setenv(PRECISION, "no")
    check_launcher(config, said.append)
    assert not said
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # accelerate sets it for several, all the same
    check_launcher(config, said.append)
    assert "asked for several processes and started one" in said.pop()
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_launcher(config, said.append)
    assert not said


def test_more_processes_than_gpus_are_refused_in_all_of_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    for rank in range(4):
        with pytest.raises(ConfigError, match="4 processes are started .* torch sees 2 GPUs"):
            device_of(rank)
    assert device_of(3, "cpu") == "cpu"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert device_of(3) == "cpu"


def test_where_a_scaled_loss_overflows_nothing_moves_and_half_the_scale_is_kept(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.gradient_accumulation_steps=1")
    task = LetterTask()
    half = with_lora(tiny_base().half())
    for name, parameter in half.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    trainer = tiny_trainer(config, task, half)
    trainer.scaler.update(2.0**100)
    before = {name: p.detach().clone() for name, p in trainer.parameters.items()}
    metrics = trainer.training_step(task.states("train")[:1])
    assert metrics["grad_norm"] is None and trainer.scaler.get_scale() == 2.0**99
    assert all(torch.equal(p, before[name]) for name, p in trainer.parameters.items())
    assert not trainer.optimizer.state and all(p.grad is None for p in trainer.parameters.values())
    assert (trainer.progress.moves, trainer.progress.denominator) == (1, 0.0)
    trainer.save_checkpoint()
    again = tiny_trainer(config, task, half)
    assert again.load_checkpoint() == 1 and again.scaler.get_scale() == 2.0**99
    again.scaler.update(2.0**10)
    assert again.training_step(task.states("train")[1:2])["grad_norm"] > 0
    assert any(not torch.equal(p, before[name]) for name, p in again.parameters.items())
