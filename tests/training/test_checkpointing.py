"""Checkpoints appear whole, and a killed or failing writer never takes the last one away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlkit.errors import DataError, ModelError, RunError
from rlkit.training.adapter_check import check_weights
from rlkit.training.checkpointing import (
    FILES,
    arithmetic,
    best_folder,
    check_sums,
    checkpoint_steps,
    newest_checkpoint,
    newest_folder,
    prune_checkpoints,
    read_checkpoint,
    tidy_checkpoints,
    write_checkpoint,
)
from rlkit.training.gradients import trainable, without_dropout
from rlkit.training.loop import train
from rlkit.training.models import byte_tokenizer
from rlkit.training.stages import load_model
from tests.training.conftest import tiny_base, tiny_config, tiny_trainer

TENSORS = {"x": torch.ones(2)}


def write(folder: Path, mark: int, save_adapter=lambda _: None) -> Path:
    return write_checkpoint(folder, save_adapter, {"mark": mark}, TENSORS, {})


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    for mark in (1, 2):
        write(tmp_path / "checkpoint-3", mark)
    assert newest_checkpoint(tmp_path).state["mark"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_a_full_disk_leaves_the_checkpoint_that_was_there(tmp_path):
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path / "checkpoint-3", 1)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            write(tmp_path / "checkpoint-3", 2, full)
    assert newest_checkpoint(tmp_path).state["mark"] == 1


def test_a_process_killed_while_it_replaces_its_only_checkpoint_loses_nothing(tmp_path):
    write(tmp_path / "checkpoint-3", 1)
    (tmp_path / "checkpoint-3").rename(tmp_path / ".old-checkpoint-3")
    (tmp_path / ".checkpoint-3.x1y2z3").mkdir()  # and then SIGKILL
    tidy_checkpoints(tmp_path)
    assert newest_checkpoint(tmp_path).state["mark"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


ADAPTER = {"adapter_config.json": '{"r": 4}', "adapter_model.safetensors": "weights"}


def write_whole(folder: Path, mark: int) -> Path:
    def save(path: Path) -> None:
        for name, content in ADAPTER.items():
            (path / name).write_text(content)

    return write_checkpoint(folder, save, {"mark": mark, "visits": {"s": 3}}, TENSORS, TENSORS)


def flipped(content: bytes) -> bytes:
    """One bit of the byte in the middle."""
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


DAMAGES = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-3]),
    "emptied": lambda file: file.write_bytes(b""),
    "one bit flipped": lambda file: file.write_bytes(flipped(file.read_bytes())),
    "missing": lambda file: file.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*ADAPTER, *FILES])
def test_a_damaged_file_makes_the_one_before_it_the_newest_and_that_is_said(tmp_path, name, damage):
    for step in (1, 2):
        write_whole(tmp_path / f"checkpoint-{step}", step)
    DAMAGES[damage](tmp_path / "checkpoint-2" / name)
    said: list[str] = []
    assert newest_checkpoint(tmp_path, said.append).state["mark"] == 1
    assert len(said) == 1 and said[0].startswith("checkpoint 2 is passed over: ")
    assert f"checkpoint-2/{name}" in said[0]
    again: list[str] = []
    assert newest_folder(tmp_path, again.append) == tmp_path / "checkpoint-1"
    assert again == said


def test_the_newest_folder_is_found_without_reading_a_tensor(tmp_path, monkeypatch):
    def read(path):
        raise AssertionError(f"{path} was read")

    folder = write_whole(tmp_path / "checkpoint-1", 1)
    monkeypatch.setattr("rlkit.training.checkpointing.load_file", read)
    assert newest_folder(tmp_path) == folder


def test_without_a_measurement_on_dev_no_checkpoint_is_the_best(tmp_path):
    assert best_folder(tmp_path) is None
    write_whole(tmp_path / "checkpoint-1", 1)
    with pytest.raises(RunError, match="nothing was measured on dev; take newest"):
        best_folder(tmp_path)


def test_every_changed_number_of_the_state_is_seen(tmp_path):
    folder = write_whole(tmp_path / "checkpoint-1", 1)
    text = (folder / "trainer_state.json").read_text()
    for before, after in (('"mark": 1', '"mark": 2'), ('"s": 3', '"s": 2'), ('"s": 3', '"t": 3')):
        (folder / "trainer_state.json").write_text(text.replace(before, after))
        with pytest.raises(DataError, match=r"trainer_state\.json is missing or damaged"):
            read_checkpoint(folder)


def test_where_every_checkpoint_is_damaged_nothing_is_begun_anew_behind_ones_back(tmp_path):
    for step in (1, 2):
        (write_whole(tmp_path / f"checkpoint-{step}", step) / "pending.safetensors").unlink()
    said: list[str] = []
    with pytest.raises(RunError, match="holds 2 checkpoints and none is whole; move the run's fo"):
        newest_checkpoint(tmp_path, said.append)
    assert [line.split(" is ")[0] for line in said] == ["checkpoint 2", "checkpoint 1"]
    assert newest_checkpoint(tmp_path / "nothing here") is None


def test_a_checkpoint_of_another_version_is_said_to_be_one(tmp_path):
    folder = write_whole(tmp_path / "checkpoint-1", 1)
    text = (folder / "trainer_state.json").read_text()
    (folder / "trainer_state.json").write_text(text.replace('"schema": 2', '"schema": 1'))
    with pytest.raises(DataError, match="is of schema 1, this version reads 2"):
        read_checkpoint(folder)


def test_sums_are_looked_at_of_the_weights_alone_or_of_all_and_only_where_they_are(tmp_path):
    folder = write_whole(tmp_path / "checkpoint-3", 1)
    assert check_sums(folder) and check_sums(folder, whole=False)
    (folder / FILES[0]).write_bytes(b"changed")  # the optimiser's, which only a resumed run needs
    assert check_sums(folder, whole=False)
    with pytest.raises(DataError, match=f"{FILES[0]} is missing or damaged"):
        check_sums(folder)
    weights = next(f for f in folder.iterdir() if f.name not in FILES)
    weights.write_bytes(b"changed")
    with pytest.raises(DataError, match=f"{weights.name} is missing or damaged"):
        check_sums(folder, whole=False)
    with pytest.raises(ModelError, match=f"{weights.name} is missing or damaged"):
        check_weights(folder)  # as whoever loads them does
    (folder / FILES[2]).write_text('{"schema": 1}')  # another version's sums say nothing
    assert not check_sums(folder)
    (folder / FILES[2]).write_text("{}")
    with pytest.raises(DataError, match="not a checkpoint's state"):
        check_sums(folder)
    (folder / FILES[2]).unlink()
    assert not check_sums(folder)


def test_a_damaged_later_checkpoint_is_not_counted_among_the_last_ones(tmp_path):
    """Else a run that goes on from 5 would, at 6, remove 5 and 6 and keep the damaged 7."""
    for step in (5, 7):
        write_whole(tmp_path / f"checkpoint-{step}", step)
    (tmp_path / "checkpoint-7" / "pending.safetensors").write_bytes(b"")
    write_whole(tmp_path / "checkpoint-6", 6)
    prune_checkpoints(tmp_path, 1, set())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-6",
        "checkpoint-7.damaged",
    ]
    for step in (6, 7):  # what is whole stays, of whatever step it is
        write_whole(tmp_path / f"checkpoint-{step}", step)
    write_whole(tmp_path / "checkpoint-6", 6)
    assert checkpoint_steps(tmp_path) == [6, 7]


def test_the_best_by_dev_is_kept_besides_the_last_ones(tmp_path):
    """Saved at 2, 3, 4, 6, 8 and 9; dev, at 3, 6 and 9, was best at 6."""
    config = tiny_config(tmp_path).with_overrides(
        "training.num_epochs=3", "training.save_every_n_steps=2", "training.keep_last=1"
    )
    trainer, written = tiny_trainer(config), set()
    dev = {0: 2.0, 3: 0.5, 6: 0.9, 9: 0.1}  # before training there is nothing to keep
    trainer.evaluate = lambda _: {"reward": dev[trainer.progress.step]}
    folder = trainer.run.checkpoints_folder
    train(trainer, progress=lambda _: written.update(checkpoint_steps(folder)))
    assert written | {*checkpoint_steps(folder)} == {2, 3, 4, 6, 8, 9}
    assert checkpoint_steps(folder) == [6, 9]


def test_with_another_version_a_run_goes_on_and_says_that_it_is_not_bitwise(tmp_path, monkeypatch):
    config = tiny_config(tmp_path)
    train(tiny_trainer(config.with_overrides("training.max_steps=2")))
    monkeypatch.setattr("rlkit.training.checkpointing.metadata.version", lambda name: f"{name} 99")
    again, said = tiny_trainer(config.with_overrides("training.max_steps=3")), []
    again.log = said.append
    assert train(again) == "finished" and again.progress.step == 3
    (line,) = [text for text in said if text.startswith("not bitwise: ")]
    assert all(f"now {name} 99)" in line for name in ("transformers", "peft", "numpy"))


PLAIN = """
import sys, peft, safetensors.torch, torch
checkpoint, tokens, out = sys.argv[1], [int(t) for t in sys.argv[2].split(",")], sys.argv[3]
model = peft.AutoPeftModelForCausalLM.from_pretrained(checkpoint).eval()
again = peft.PeftModel.from_pretrained(model.get_base_model(), checkpoint).eval()
with torch.no_grad():
    logits = {str(i): m(torch.tensor([tokens])).logits for i, m in enumerate((model, again))}
assert not [name for name in sys.modules if name.split(".")[0] == "rlkit"]
safetensors.torch.save_file(logits, out)
"""


def test_peft_alone_loads_a_checkpoint_and_gives_the_same_logits(tmp_path):
    """With the base that the adapter names, in a process that knows nothing of us."""
    byte_tokenizer().save_pretrained(tmp_path / "base")
    tiny_base().save_pretrained(tmp_path / "base")
    config = tiny_config(tmp_path).with_overrides(
        f"model.base_model_path={tmp_path / 'base'}", "model.dtype=float32", "model.device=cpu"
    )
    model, _ = load_model(config, None, lambda _: None)
    for name, parameter in trainable(model).items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    folder, tokens = tiny_trainer(config, model=model).save_checkpoint(), [72, 101, 108, 108, 111]
    arguments = [str(folder), ",".join(map(str, tokens)), str(tmp_path / "logits.safetensors")]
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    theirs = load_file(tmp_path / "logits.safetensors")
    with torch.no_grad(), without_dropout(model):
        ours = model(torch.tensor([tokens])).logits
        with model.disable_adapter():
            assert (model(torch.tensor([tokens])).logits - ours).abs().max() > 0.01
    for logits in theirs.values():
        torch.testing.assert_close(logits, ours, atol=1e-5, rtol=0)


def test_what_is_read_back_is_in_memory_and_bound_to_no_file(tmp_path):
    read = read_checkpoint(write_whole(tmp_path / "checkpoint-1", 1))
    read.pending["x"] += 1  # as gradients are
    assert torch.equal(read_checkpoint(tmp_path / "checkpoint-1").pending["x"], TENSORS["x"])


def test_arithmetic_names_what_may_change_a_last_bit():
    found = arithmetic(torch.device("cpu"))
    assert found["torch"] == torch.__version__ and found["threads"] == torch.get_num_threads()
    assert {"transformers", "peft", "numpy", "machine", "processor", "instructions"} <= {*found}


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    for step in range(1, 6):
        write(tmp_path / f"checkpoint-{step}", step)
    prune_checkpoints(tmp_path, 2, {1})
    assert checkpoint_steps(tmp_path) == [1, 4, 5] and len(list(tmp_path.iterdir())) == 3
