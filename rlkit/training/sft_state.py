"""Where SFT stands, kept in checkpoints and taken up again, bit for bit: adapter (or all weights),
AdamW's state, the scale of the loss where it is scaled, and the rows of the updates so far. Dropout
and order are drawn from counters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlkit.errors import RunError
from rlkit.training.adapters import load_lora_checkpoint, save_lora_checkpoint
from rlkit.training.checkpointing import (
    PREFIX,
    arithmetic,
    newest_checkpoint,
    optimizer_tensors,
    prune_checkpoints,
    restore_optimizer,
    tidy_checkpoints,
    write_checkpoint,
)
from rlkit.training.gradients import trainable
from rlkit.training.resume import say_what_changed

SETTINGS = (
    "learning_rate", "num_epochs", "batch_size", "max_samples", "max_grad_norm", "warmup_steps",
    "packing", "start_from",
)  # fmt: skip


def begun_with(examples: Sequence[Any], settings: Any, seed: int) -> dict[str, Any]:
    """What must be the same where training goes on."""
    ids = json.dumps([[example.prompt, example.completion] for example in examples])
    return {
        "seed": seed,
        **{f"sft.{name}": getattr(settings, name) for name in SETTINGS},
        "examples": f"{len(examples)} of sha256 {hashlib.sha256(ids.encode()).hexdigest()[:12]}",
    }


class SftState:
    """The checkpoints of one SFT in `folder` (None: none are kept); the last one stays."""

    def __init__(
        self,
        folder: Path | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        begun: dict[str, Any],
        log: Callable[[str], None],
        scaler: torch.amp.GradScaler,
    ) -> None:
        self.folder, self.model, self.optimizer = folder, model, optimizer
        self.begun, self.log, self.scaler = begun, log, scaler

    def restore(self) -> list[dict[str, Any]]:
        """Go on from the checkpoint in the folder; returns the rows so far, none without one.

        Raises RunError where it was begun with other settings or examples.
        """
        if self.folder is None:
            return []
        tidy_checkpoints(self.folder)
        found = newest_checkpoint(self.folder, self.log)
        if found is None:
            return []
        before = found.state["begun"]
        others = [
            f"{name} ({before.get(name)} there, {now} given)"
            for name, now in self.begun.items()
            if before.get(name) != now
        ]
        if others:
            raise RunError(
                f"{self.folder} holds an SFT that was begun with other values: "
                f"{'; '.join(others)}; give the same ones, or remove the folder to begin anew."
            )
        load_lora_checkpoint(self.model, found.folder)
        restore_optimizer(self.optimizer, trainable(self.model), found.optimizer)
        if self.scaler.is_enabled() and "loss_scale" in found.state:  # older ones lack it
            self.scaler.load_state_dict(found.state["loss_scale"])
        say_what_changed(found.state["arithmetic"], self._arithmetic(), self.log)
        rows = found.state["rows"]
        self.log(f"SFT goes on after update {len(rows)}")
        return rows

    def save(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write `checkpoint-<update>` whole, and remove the one before."""
        if self.folder is None:
            return
        state = {"begun": self.begun, "rows": list(rows), "arithmetic": self._arithmetic()}
        if self.scaler.is_enabled():
            state["loss_scale"] = self.scaler.state_dict()
        write_checkpoint(
            self.folder / f"{PREFIX}{len(rows)}",
            lambda path: save_lora_checkpoint(self.model, path),
            state,
            optimizer_tensors(self.optimizer, list(trainable(self.model))),
            {},
        )
        prune_checkpoints(self.folder, 1, set())

    def _arithmetic(self) -> dict[str, Any]:
        return arithmetic(next(self.model.parameters()).device)
