"""Where metrics go besides the run's folder. TensorBoard's files are read back with its own
reader. W&B is no test dependency: a stand-in with its interface shows what is sent; the same calls
went through wandb 0.31 itself, offline and without a key, when this was written."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlkit.config import RunConfig
from rlkit.errors import ConfigError
from rlkit.run import Run
from rlkit.training.monitor import Monitor
from tests.training.conftest import tiny_config

ROW = {"reward": 0.5, "kl": None, "time/sampling": 0.75, "epoch": 1}
ALARM = "the KL jumps: it stands at 0.4 nats a token."


def opened(tmp_path, **monitoring) -> tuple:
    given = [f"monitoring.{name}={str(value).lower()}" for name, value in monitoring.items()]
    config = tiny_config(tmp_path).with_overrides(*given)
    return config, Run.open(config)


def board(run: Run) -> EventAccumulator:
    return EventAccumulator(str(run.tensorboard_folder)).Reload()


def test_tensorboard_is_on_by_default_and_wandb_off():
    monitoring = RunConfig().monitoring
    assert (monitoring.use_tensorboard, monitoring.use_wandb) == (True, False)


def test_tensorboard_gets_the_numbers_under_their_names_and_the_alarms_as_text(tmp_path):
    config, run = opened(tmp_path, use_tensorboard=True)
    monitor = Monitor(config, run)
    monitor.log(ROW | {"step": 1})
    monitor.log(ROW | {"step": 2, "reward": 0.75, "alarms": [ALARM]})
    monitor.close()
    found = board(run)
    assert set(found.Tags()["scalars"]) == {"reward", "time/sampling", "epoch"}
    assert [(e.step, e.value) for e in found.Scalars("reward")] == [(1, 0.5), (2, 0.75)]
    (text,) = found.Tensors("alarms/text_summary")
    assert (text.step, text.tensor_proto.string_val[0].decode()) == (2, ALARM)


def test_steps_after_the_resumed_checkpoint_stand_on_the_board_once(tmp_path):
    config, run = opened(tmp_path, use_tensorboard=True)
    for first, values in ((0, {1: 1.0, 2: 2.0, 3: 3.0}), (1, {2: 20.0})):
        monitor = Monitor(config, run, first)
        for step, value in values.items():
            monitor.log({"step": step, "reward": value})
        monitor.close()
    assert [(e.step, e.value) for e in board(run).Scalars("reward")] == [(1, 1.0), (2, 20.0)]


def test_a_warm_start_stands_apart_and_practice_takes_none_of_its_steps_away(tmp_path):
    config, run = opened(tmp_path, use_tensorboard=True)
    for first, part, values in ((0, "sft", {1: 3.0, 2: 2.0}), (0, "", {1: 0.5})):
        monitor = Monitor(config, run, first, part)
        for step, value in values.items():
            monitor.log({"step": step, "loss": value})
        monitor.close()
    assert [(e.step, e.value) for e in board(run).Scalars("loss")] == [(1, 0.5)]
    warm = EventAccumulator(str(run.tensorboard_folder / "sft")).Reload().Scalars("loss")
    assert [(e.step, e.value) for e in warm] == [(1, 3.0), (2, 2.0)]


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in: `init` gives a run that keeps what is sent; the error is wandb's own base."""
    module = ModuleType("wandb")
    module.Error = type("Error", (Exception,), {})
    module.started, module.sent = [], []

    def init(**given):
        module.started.append(given)
        return SimpleNamespace(
            log=lambda numbers, step: module.sent.append((step, numbers)),
            alert=lambda title, text: module.sent.append((title, text)),
            finish=lambda: module.sent.append("finished"),
        )

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_gets_numbers_and_alarms(tmp_path, wandb):
    config, run = opened(tmp_path, use_wandb=True, wandb_project="mine")
    monitor = Monitor(config, run)
    monitor.log(ROW | {"step": 3, "alarms": [ALARM]})
    monitor.close()
    numbers = {"reward": 0.5, "time/sampling": 0.75, "epoch": 1.0}
    assert wandb.sent == [(3, numbers), ("step 3: the KL jumps", ALARM), "finished"]
    (given,) = wandb.started
    assert given["project"] == "mine" and given["name"] == "tiny" and given["resume"] == "allow"
    assert given["dir"] == str(run.folder) and given["config"]["grpo"]["group_size"] == 4


def test_a_resumed_run_goes_on_in_wandb_and_another_run_of_its_name_does_not(tmp_path, wandb):
    for folder in ("a", "a", "b"):
        config, run = opened(tmp_path / folder, use_wandb=True)
        Monitor(config, run).close()
    first, again, other = (given["id"] for given in wandb.started)
    assert first == again != other
    Monitor(config, run, part="sft").close()
    assert wandb.started[-1]["name"] == "tiny-sft" and wandb.started[-1]["id"] != other


def test_wandb_without_a_key_is_one_sentence(tmp_path, wandb, monkeypatch):
    def init(**_):
        raise wandb.Error("No API key configured.")

    monkeypatch.setattr(wandb, "init", init)
    config, run = opened(tmp_path, use_wandb=True)
    with pytest.raises(ConfigError, match="No API key configured. Set WANDB_API_KEY, or WANDB_MOD"):
        Monitor(config, run)
