"""The trained adapter, written out for vLLM: another name and another folder for every set of
weights, so that neither its cache of prefixes, nor a resumed run, nor a second trainer can ever
meet an adapter of before."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlkit.files import new_folder
from rlkit.training.adapters import save_lora_checkpoint

FOLDER = "rollout_adapters"  # in a run's folder


@dataclass(frozen=True)
class Adapter:
    """What vLLM loads; `number` counts from 1."""

    name: str
    number: int
    folder: Path


class Adapters:
    """The adapter as it was published last. All ranks make one, and publish together."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        made = (secrets.token_hex(4), str(self._parent())) if trainer.ranks.is_main else None
        self._nonce, parent = trainer.ranks.broadcast(made)
        self.parent = Path(parent)
        self._count = 0
        self._moves: int | None = None  # of the optimiser, when the current one was written
        self.current: Adapter | None = None
        self.written: list[Adapter] = []  # by this rank, and not removed yet

    def _parent(self) -> Path:
        """The folder of the adapters' folders: `rollout.adapters_path`, or the run's own."""
        given, run = self._trainer.config.rollout.adapters_path, self._trainer.run
        if given is not None:
            return Path(given).expanduser().resolve()
        if run is None:
            return Path(tempfile.mkdtemp(prefix="rlkit-adapters-"))
        folder = (run.folder / FOLDER).resolve()
        shutil.rmtree(folder, ignore_errors=True)  # what a killed process left
        return folder

    @contextmanager
    def renewed(self) -> Iterator[tuple[Adapter, Adapter | None] | None]:
        """For a body that hands the new adapter to vLLM and takes the old one away: (new, old), or
        None where the weights are those that are published. Where the body fails, the old one stays
        the current one."""
        moves = self._trainer.progress.moves
        if self.current is not None and self._moves == moves:
            yield None
            return
        self._count += 1
        name = f"rlkit-{self._nonce}-{self._count}"
        new = Adapter(name, self._count, self.parent / name)
        if self._trainer.ranks.is_main:
            with new_folder(new.folder) as temporary:
                save_lora_checkpoint(self._trainer.model, temporary)
            self.written.append(new)
        yield new, self.current
        self.current, self._moves = new, moves
        remove([adapter for adapter in self.written if adapter is not new])
        del self.written[:-1]

    def forget(self) -> None:
        """The weights are others than those that are published, however often they moved."""
        self._moves = None


def remove(adapters: Sequence[Adapter]) -> None:
    """Their folders."""
    for adapter in adapters:
        shutil.rmtree(adapter.folder, ignore_errors=True)
