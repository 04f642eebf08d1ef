"""When SFT has learnt enough, and which of its adapters is kept: both by evaluations on dev.

Both are functions of the rows so far (and of the best adapter's files beside the checkpoints), so
that SFT that goes on from a checkpoint ends as the one that was not interrupted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlkit.files import new_folder
from rlkit.training.adapters import load_lora_checkpoint, save_lora_checkpoint
from rlkit.training.gradients import trainable

Row = dict[str, Any]
PREFIX = "best-"


def is_over(rows: Sequence[Row], settings: Any, metric: str) -> bool:
    """Whether no further update should begin: the last `patience` evaluations were no better than
    one before them, or `cpu_minutes` are spent. `settings` is the params section `sft`."""
    evaluated = [row for row in rows if row.get(f"eval/{metric}") is not None]
    best = best_row(rows, metric)
    if settings.patience and best is not None:
        waited = len(evaluated) - 1 - evaluated.index(best)
        if waited >= settings.patience:
            return True
    spent = sum(row["cpu_seconds"] for row in rows)
    return settings.cpu_minutes is not None and spent >= 60 * settings.cpu_minutes


def best_row(rows: Sequence[Row], metric: str) -> Row | None:
    """The first of the evaluated rows that no other one exceeds; None where none was evaluated."""
    evaluated = [row for row in rows if row.get(f"eval/{metric}") is not None]
    return max(evaluated, key=lambda row: row[f"eval/{metric}"], default=None)


def best_folder(checkpoints: Path) -> Path:
    """Where the best adapters stand until SFT is done."""
    return checkpoints.with_name(f"{checkpoints.name}-best")


class BestAdapter:
    """Evaluates now and then, and keeps the best adapter: beside the checkpoints, or in memory
    where none are kept."""

    def __init__(
        self,
        checkpoints: Path | None,
        model: nn.Module,
        metric: str,
        evaluate: Callable[[], Row] | None,
        settings: Any,
    ) -> None:
        every = settings.evaluate_every_n_updates
        self.evaluate = evaluate if every else None
        self.every, self.metric, self.model = every, metric, model
        self.folder = checkpoints and best_folder(checkpoints)
        self._kept: dict[str, torch.Tensor] = {}

    def evaluated(self, rows: Sequence[Row], last: bool) -> bool:
        """Evaluate after the newest of these rows where that is due, write what was measured into
        it, and keep the adapter where it is the best so far."""
        row = rows[-1]
        if self.evaluate is None or not (last or row["update"] % self.every == 0):
            return False
        self.model.eval()
        row |= {f"eval/{name}": value for name, value in self.evaluate().items()}
        if best_row(rows, self.metric) is row:
            self._keep(row["update"])
        return True

    def put_back(self, rows: Sequence[Row], log: Callable[[str], None]) -> None:
        """Give the model the best adapter; as it is where nothing was evaluated."""
        best = best_row(rows, self.metric) if self.evaluate else None
        if best is None:
            return
        if best is not rows[-1]:
            if self.folder is not None:
                load_lora_checkpoint(self.model, self.folder / f"{PREFIX}{best['update']}")
            else:
                with torch.no_grad():
                    for name, parameter in trainable(self.model).items():
                        parameter.copy_(self._kept[name])
        value = best[f"eval/{self.metric}"]
        log(f"SFT: the best on dev is update {best['update']}, {self.metric} {value:.3g}")

    def _keep(self, update: int) -> None:
        if self.folder is None:
            self._kept = {n: p.detach().clone() for n, p in trainable(self.model).items()}
            return
        # those before stay until SFT is done: the checkpoint of now may still have to go on from
        # rows whose best was another one
        folder = self.folder / f"{PREFIX}{update}"
        shutil.rmtree(folder, ignore_errors=True)
        with new_folder(folder) as temporary:
            save_lora_checkpoint(self.model, temporary)
