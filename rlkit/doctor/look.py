"""What the checks say, and what several of them look at, read once."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rlkit.config import DOTTED, RunConfig
from rlkit.errors import RlkitError
from rlkit.files import flat
from rlkit.library.bm25 import build_backend
from rlkit.library.corpus import Library
from rlkit.library.orchestrator import SearchOrchestrator
from rlkit.practice.source import load_library
from rlkit.practice.splits import NAME, usable_states
from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.rounds.state import State
from rlkit.rounds.tables import one_line

_COLOURS = {"ok": 32, "warn": 33, "fail": 31}  # of a terminal
Said = tuple[Any, ...]  # a finding without its subject: level, text, and perhaps todo and facts


class Finding(NamedTuple):
    """level ok, warn or fail; `todo` is empty where nothing is to be done, or the text says it;
    `facts` are the numbers behind the text."""

    level: str
    subject: str
    text: str
    todo: str = ""
    facts: Mapping[str, Any] = MappingProxyType({})

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return self._asdict() | {"facts": dict(self.facts)}


class Recorded(NamedTuple):
    """The states of the recorded rounds that a run takes which begins now, and who read them."""

    states: list[State]
    loader: RLCheckpointLoader


def line_of(finding: Finding, colour: bool = False) -> str:
    """A finding as one line, its level in green, amber or red where `colour` allows it."""
    level = f"{finding.level:<5}"
    if colour and not os.environ.get("NO_COLOR"):
        level = f"\x1b[{_COLOURS[finding.level]}m{level}\x1b[0m"
    todo = f" -> {finding.todo}" if finding.todo else ""
    return f"{level} {finding.subject:<11} {finding.text}{todo}"


def finding(subject: str, said: Said) -> Finding:
    """What a check said, under its subject."""
    return Finding(said[0], subject, *said[1:])


def refused(error: BaseException) -> Said:
    """What is said where a check cannot be made to its end."""
    if isinstance(error, RlkitError):
        return "fail", str(error)
    text = one_line(str(error)) or "no reason given"
    todo = "look at rights and free space" if isinstance(error, OSError) else "free memory"
    return "fail", f"{type(error).__name__}: {text[:300]}", todo


def plugin_fault(config: RunConfig, error: Exception) -> Said | None:
    """What is said where a plug-in of the parameters raised, which may raise anything; None where
    it was none, so that a fault of rlkit's own is not hidden."""
    values = [v for inner in flat(config.as_dict()).values() for v in _each(inner)]
    dotted = [v for v in values if isinstance(v, str) and DOTTED.fullmatch(v)]
    frames = [*traceback.walk_tb(error.__traceback__)]
    for name in dict.fromkeys(dotted):
        module = name.partition(":")[0]
        package = module if module.startswith("rlkit.") else module.partition(".")[0]
        raised = [
            (frame.f_code.co_filename, line)
            for frame, line in frames
            if f"{frame.f_globals.get('__name__')}.".startswith(f"{package}.")
        ]
        if isinstance(error, SyntaxError) and Path(error.filename or "").stem == module:
            raised, error = [(error.filename, error.lineno)], type(error)(error.msg)
        if raised:
            text = f"{name} raised {type(error).__name__}: {one_line(str(error))[:300]}"
            where = " ({}, line {})".format(*raised[-1])
            return "fail", text + where, "mend the plug-in, or name another one"
    return None


def _each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@dataclass
class Look:
    """The parameters, and what is read for them when it is first asked for. `failed` names the
    subjects that failed; `away` has, by subject, the servers that a step asks and that did not
    answer, in words."""

    config: RunConfig
    failed: set[str] = field(default_factory=set)
    away: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The run's folder, which need not be there."""
        return Path(self.config.output_root) / self.config.run_name

    @property
    def searches(self) -> bool:
        return self.config.task == "search"

    @property
    def rounds(self) -> Path | None:
        """Where the rounds are recorded; None: they are collected when the run begins, which goes
        on until there is a split."""
        given = self.config.data.rounds_path
        if given is not None:
            return Path(given)
        return self.folder / "rounds" if (self.folder / NAME).is_file() else None

    @cached_property
    def library(self) -> Library:
        return load_library(self.config)

    @cached_property
    def recorded(self) -> Recorded:
        """What is recorded in `rounds`."""
        data = self.config.data
        loader = RLCheckpointLoader(
            self.rounds, data.min_clues_per_round, data.max_samples_per_question, self.config.seed
        )
        return Recorded(usable_states(loader, self.config, is_split=False), loader)

    @cached_property
    def orchestrator(self) -> SearchOrchestrator:
        """Search as the run does it; its index is taken where one is kept, else made in memory."""
        search, kept = self.config.search, Path(self.config.output_root) / ".index"
        backend = build_backend(self.library.corpus, search, kept if kept.is_dir() else None)
        return SearchOrchestrator(self.library.corpus, backend, search.top_k)

    @cached_property
    def skeleton(self) -> Any:
        """The base model without its weights; None where its config is not here."""
        from rlkit.training.estimate import skeleton

        model = self.config.model
        return skeleton(model.base_model_path, trust_remote_code=model.trust_remote_code)

    @cached_property
    def shape(self) -> Any:
        """The skeleton's sizes; None as there."""
        from rlkit.training.estimate import shape_of

        return None if self.skeleton is None else shape_of(self.skeleton, self.config.lora)
