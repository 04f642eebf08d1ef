"""What a state showed the model, as text to read: its question, a few facts, and its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlkit.agents.prompt import build_messages
from rlkit.errors import DataError, RlkitError
from rlkit.files import check_id
from rlkit.practice.source import rounds_folder
from rlkit.practice.splits import NAME, PARTS
from rlkit.practice.task import build_task, estimate_tokens
from rlkit.rounds.reading import DamagedFile, read_recorded
from rlkit.rounds.state import MetaFile, RoundFile, State, make_state
from rlkit.rounds.writer import META_NAME, round_name
from rlkit.run import Run


@dataclass(frozen=True, slots=True)
class StateText:
    """A state to read; `note` says what is not there, and why."""

    question: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    messages: Sequence[Mapping[str, str]] = ()
    note: str = ""


class StateTexts:
    """The texts of a run's states, each read when it is first asked for.

    States of task `search` come from the recorded rounds, those of `answers` from the run's
    dataset; for a task of one's own, pass the `task` that the notebook has built.
    """

    def __init__(self, run: Run, task: Any = None) -> None:
        self.run, self.task = run, task
        self._of_parts: dict[str, Any] | None = None
        self._kept: dict[str, Any] = {}  # a state, or the error that stands for it

    def question(self, state_id: str) -> str:
        """A state's question; empty where the state is gone."""
        return str(getattr(self._state(state_id), "question", ""))

    def of(self, state_id: str) -> StateText:
        """The text of a state; one that is gone has a note that says so."""
        state, config = self._state(state_id), self.run.config
        if isinstance(state, RlkitError):
            return StateText(note=f"The state cannot be shown: {state}")
        if self.task is not None:
            return StateText(self.question(state_id), _facts(state), self.task.prompt(state))
        messages = build_messages(state, config.executor, config.search, estimate_tokens)
        note = "Tokens are estimated here: a long prompt may have been shortened elsewhere."
        return StateText(state.question, _facts(state), messages, note)

    def _state(self, state_id: str) -> Any:
        if state_id not in self._kept:
            try:
                self._kept[state_id] = self._read(state_id)
            except RlkitError as error:
                self._kept[state_id] = error
        return self._kept[state_id]

    def _read(self, state_id: str) -> Any:
        if self.task is None and self.run.config.task == "search":
            return recorded_state(rounds_folder(self.run.config, self.run.folder), state_id)
        states = self._of_task()
        if state_id not in states:
            raise DataError(f"the task has no state {state_id[:60]!r} any more.")
        return states[state_id]

    def _of_task(self) -> dict[str, Any]:
        if self._of_parts is None:
            if self.task is None:
                self.task = self._built()
            states = (state for part in PARTS for state in self.task.states(part))
            self._of_parts = {state.state_id: state for state in states}
        return self._of_parts

    def _built(self) -> Any:
        if self.run.config.task != "answers":
            raise DataError("this task is one of your own; pass it, as in browse(run, task=task).")
        if not (self.run.folder / NAME).exists():  # building it would make another split
            raise DataError(f"{self.run.folder / NAME} is not there; restore it.")
        return build_task(self.run.config, self.run)


def recorded_state(rounds: str | Path, state_id: str) -> State:
    """One state, `question/run/round`, from its recorded files alone; gold is what its own run
    names. Raises DataError where they are not there or damaged."""
    parts = state_id.split("/")
    if len(parts) != 3 or not parts[2].isdecimal():
        raise DataError(f"{state_id[:60]!r} is no id of a recorded state (question/run/round).")
    question_id, name, number = check_id(parts[0], "question"), check_id(parts[1], "run"), parts[2]
    folder, round_ = Path(rounds) / question_id / name, int(number)
    try:
        meta = read_recorded(folder / META_NAME, MetaFile)
        files = {0: round_name(0)} | {ref.round: ref.checkpoint for ref in meta.rounds}
        played = next((ref for ref in meta.rounds if ref.round == round_), None)
        if played is None or round_ - 1 not in files:
            raise DataError(f"{folder / META_NAME} lists no round {number}.")
        before = read_recorded(folder / files[round_ - 1], RoundFile)
    except DamagedFile as error:
        raise DataError(str(error.damaged)) from None
    gold = meta.gold_docids or ()
    return make_state(
        before,
        question_id=question_id,
        question=meta.question,
        run=name,
        strategy=played.strategy,
        subgoal=played.subgoal,
        gold_docids=gold,
        known_important=gold,
    )


def _facts(state: Any) -> tuple[tuple[str, str], ...]:
    """What is worth knowing of a state beside its prompt; `missing` and the right answer were not
    shown to the model."""
    gold, missing = getattr(state, "gold_docids", ()), getattr(state, "missing", ())
    facts = {
        "Subgoal": getattr(state, "subgoal", ""),
        "Round": getattr(state, "round", ""),
        "Documents seen": len(state.seen_docids) if hasattr(state, "seen_docids") else "",
        "Gold documents still missing": gold
        and f"{len(missing)} of {len(gold)}: {', '.join(sorted(missing))}",
        "Right answer": getattr(state, "ground_truth", ""),
    }
    return tuple((name, str(value)) for name, value in facts.items() if value not in ("", ()))
