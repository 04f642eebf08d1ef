"""Checkpoints appear whole, and a killed or failing writer never takes the last one away."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlkit.training.checkpointing import (
    checkpoint_steps,
    newest_checkpoint,
    prune_checkpoints,
    tidy_checkpoints,
    write_checkpoint,
)

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


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    for step in range(1, 6):
        write(tmp_path / f"checkpoint-{step}", step)
    prune_checkpoints(tmp_path, 2, {1})
    assert checkpoint_steps(tmp_path) == [1, 4, 5] and len(list(tmp_path.iterdir())) == 3
