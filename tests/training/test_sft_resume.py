"""An SFT that was stopped, or killed, goes on and is bitwise the one that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rlkit.errors import RunError
from rlkit.training.checkpointing import checkpoint_steps
from rlkit.training.gradients import loss_scaler, trainable
from rlkit.training.policy import load_model_with_lora
from rlkit.training.sft import Example, checkpoints_of, save_warm_start, train_sft
from rlkit.training.sft_state import SftState

LORA = SimpleNamespace(rank=4, alpha=8, dropout=0.3, target_modules=["q_proj", "v_proj"])
ALL = SimpleNamespace(enabled=False)
EXAMPLES = [Example([5 + i, 6, 7], [8, 9 + i, 2]) for i in range(7)]
UPDATES = 8  # two epochs of 7 examples, two at a time


def settings(**changes):
    values = dict(
        learning_rate=1e-2, num_epochs=2, batch_size=2, max_samples=None, max_grad_norm=1.0,
        warmup_steps=5, packing="auto", save_every_n_updates=2,
        start_from=None, evaluate_every_n_updates=None, patience=None, cpu_minutes=None,
    )  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def attempt(
    folder: Path, lora=LORA, at: int = 0, do=None, log=lambda _: None, evaluate=None, **changes
) -> Path:
    """The warm start in `folder`, from a model that is loaded anew; `do` is called at an update."""
    model, _ = load_model_with_lora("debug", lora, device="cpu", log=lambda _: None)

    def progress(row):
        if row["update"] == at:
            do()

    rows = train_sft(
        model, EXAMPLES, settings(**changes), seed=3, checkpoints=checkpoints_of(folder),
        progress=progress, log=log, evaluate=evaluate and (lambda: evaluate(model)),
    )  # fmt: skip
    return save_warm_start(model, rows, folder)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def crash():
    raise ZeroDivisionError


def content(folder: Path) -> dict:
    rows = json.loads((folder / "sft_metrics.json").read_text())
    found = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".json"}
    assert any(name.endswith("model.safetensors") for name in found)
    return found | {"rows": [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]}


@pytest.fixture(autouse=True)
def interrupts(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("lora", [LORA, ALL], ids=["adapter", "all weights"])
def test_interrupted_then_crashed_then_finished_is_bitwise_the_one_that_ran_through(tmp_path, lora):
    whole = content(attempt(tmp_path / "whole" / "adapter", lora))
    assert [row["update"] for row in whole["rows"]] == [*range(1, UPDATES + 1)]
    folder, said = tmp_path / "part" / "adapter", []
    with pytest.raises(KeyboardInterrupt):
        attempt(folder, lora, at=3, do=interrupt, log=said.append)
    assert checkpoint_steps(checkpoints_of(folder)) == [3]  # the update was finished and kept
    with pytest.raises(ZeroDivisionError):
        attempt(folder, lora, at=5, do=crash, log=said.append)
    assert checkpoint_steps(checkpoints_of(folder)) == [4]
    attempt(folder, lora, log=said.append)
    assert content(folder) == whole
    assert not checkpoints_of(folder).exists()
    lines = [line for line in said if line.startswith(("stopped", "SFT"))]
    assert lines == [
        f"stopped after update 3 of {UPDATES}", "SFT goes on after update 3",
        "SFT goes on after update 4",
    ]  # fmt: skip


def test_an_interrupt_in_the_last_update_is_not_swallowed(tmp_path):
    folder = tmp_path / "sft" / "adapter"
    with pytest.raises(KeyboardInterrupt):
        attempt(folder, at=UPDATES, do=interrupt)
    assert content(attempt(folder)) == content(attempt(tmp_path / "whole" / "adapter"))


def test_a_second_interrupt_ends_at_once_and_leaves_what_was_kept(tmp_path):
    folder = tmp_path / "sft" / "adapter"
    with pytest.raises(KeyboardInterrupt):
        attempt(folder, at=3, do=lambda: (interrupt(), interrupt()))
    assert checkpoint_steps(checkpoints_of(folder)) == [2]


@pytest.mark.parametrize("change, words", [
    ({"learning_rate": 0.5}, r"sft\.learning_rate \(0\.01 there, 0\.5 given\)"),
    ({"packing": "never"}, r"sft\.packing \(auto there, never given\)"),
])  # fmt: skip
def test_other_settings_are_refused_with_their_names(tmp_path, change, words):
    folder = tmp_path / "sft" / "adapter"
    with pytest.raises(KeyboardInterrupt):
        attempt(folder, at=3, do=interrupt)
    with pytest.raises(RunError, match=words + ".*remove the folder to begin anew"):
        attempt(folder, **change)


def test_other_examples_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "sft" / "adapter"
    with pytest.raises(KeyboardInterrupt):
        attempt(folder, at=3, do=interrupt)
    monkeypatch.setattr(f"{__name__}.EXAMPLES", [*EXAMPLES[:-1], Example([5], [2])])
    with pytest.raises(RunError, match=r"examples \(7 of sha256 .* there, 7 of sha256"):
        attempt(folder)


def test_dropout_depends_on_seed_and_update_alone(tmp_path):
    """Whatever was drawn before, the same comes out."""
    results = []
    for drawn in (0, 5):
        torch.rand(drawn)
        results.append(content(attempt(tmp_path / str(drawn) / "adapter")))
    assert results[0] == results[1]


def in_float16(folder: Path, scale: float, at: int = 0, older: bool = False):
    """The scaler after a warm start of a float16 base, interrupted in an update where `at` says
    so; `older`: what it then kept lacks the scale."""
    model, _ = load_model_with_lora("debug", LORA, device="cpu", dtype="float16", log=lambda _: 0)
    scalers = []

    def made(model):
        scalers.append(loss_scaler(model))
        scalers[0].update(scale)
        return scalers[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlkit.training.sft.loss_scaler", made)
        if older:
            patch.setattr(SftState, "save", without_scale(SftState.save))
        train_sft(
            model, EXAMPLES, settings(), seed=3, checkpoints=folder, log=lambda _: None,
            progress=lambda row: row["update"] == at and interrupt(),
        )  # fmt: skip
    return model, scalers[0]


def without_scale(save):
    def saved(state, rows):
        state.scaler, kept = torch.amp.GradScaler("cpu", enabled=False), state.scaler
        save(state, rows)
        state.scaler = kept

    return saved


def test_the_scale_of_a_float16_loss_is_kept_and_one_that_was_not_kept_begins_anew(tmp_path):
    """2^13 overflows nothing here, and stays; a process that goes on would begin with another."""
    whole, scaler = in_float16(tmp_path / "whole", 2.0**13)
    assert scaler.is_enabled() and scaler.get_scale() == 2.0**13
    for name, older, scale in (("kept", False, 2.0**13), ("older", True, 2.0**10)):
        with pytest.raises(KeyboardInterrupt):
            in_float16(tmp_path / name, 2.0**13, at=3, older=older)
        model, scaler = in_float16(tmp_path / name, 2.0**10)
        assert scaler.get_scale() == scale
        if not older:
            ends = zip(trainable(model).values(), trainable(whole).values(), strict=True)
            assert all(torch.equal(ours, theirs) for ours, theirs in ends)


PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.training import test_sft_resume as t
folder, at = Path(sys.argv[1]), int(sys.argv[2])
t.attempt(folder, at=at, do=lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.slow
def test_killed_again_and_again_it_is_bitwise_the_one_that_ran_through(root, tmp_path):
    """SIGKILL at updates 1, 4 (nothing of it kept yet), 5 and 7, in processes of their own."""
    folder = tmp_path / "part" / "adapter"
    for at in (1, 4, 5, 7, 0):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder), str(at)], cwd=root, capture_output=True
        )
        assert done.returncode == (-signal.SIGKILL if at else 0), done.stderr.decode()
    assert content(folder) == content(attempt(tmp_path / "whole" / "adapter"))


def measured(model) -> dict:
    """A figure of the weights alone, that rises and falls over the updates."""
    total = sum(float(p.detach().sum()) for p in model.parameters() if p.requires_grad)
    return {"reward": round(total * 1e4) % 7}


def test_the_best_adapter_is_kept_also_where_sft_was_interrupted(tmp_path):
    every = {"evaluate": measured, "evaluate_every_n_updates": 1}
    whole = content(attempt(tmp_path / "whole" / "adapter", **every))
    values = [row["eval/reward"] for row in whole["rows"]]
    best = values.index(max(values))
    assert best + 1 < UPDATES  # else nothing is proved
    shorter = tmp_path / "shorter" / "adapter"
    attempt(shorter, cpu_minutes=None)
    folder = tmp_path / "part" / "adapter"
    with pytest.raises(KeyboardInterrupt):
        attempt(folder, at=best + 2, do=interrupt, **every)
    assert content(attempt(folder, **every)) == whole
    assert content(shorter)["adapter_model.safetensors"] != whole["adapter_model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["adapter"]
