"""Writes recorded rounds: a run's folder appears whole, with `meta.json` written last, or not at
all; a writer that is killed leaves only a hidden folder, which no reader takes for a run."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from rlkit.errors import DataError
from rlkit.files import check_id, new_folder
from rlkit.rounds.stamps import META_NAME, round_name, run_names, run_number
from rlkit.rounds.state import MetaFile, RoundFile, RoundRef

_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}


def run_folders(question_folder: Path) -> list[Path]:
    """The folders `run_NNN` of one question, by number; empty where there are none."""
    return [question_folder / name for name in run_names(question_folder)]


class RoundWriter:
    """Writes runs below `root`: `<root>/<question_id>/run_001/`, the next free number each."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def write_run(self, meta: MetaFile, rounds: Sequence[RoundFile]) -> Path:
        """Write one run and return its folder.

        `rounds` holds the state before the first round (round 0), then one file a round, and
        `meta.rounds` names the same rounds. Raises DataError where the question's id cannot be
        a folder's name, or where the rounds are not those that `meta` lists.
        """
        check_id(meta.question_id, "question_id")
        _check_rounds(meta, rounds)
        question_folder = self.root / meta.question_id
        number = _next_number(question_folder)
        while True:
            path = question_folder / f"run_{number:03d}"
            try:
                with new_folder(path) as folder:
                    for file in rounds:
                        _write(folder / round_name(file.round), file)
                    _write(folder / META_NAME, meta)
                return path
            except OSError as error:  # another collector took this number first
                if not isinstance(error, FileExistsError) and error.errno not in _TAKEN:
                    raise
                number += 1


def refs_of(rounds: Sequence[RoundFile]) -> tuple[RoundRef, ...]:
    """The list for `meta.json` of rounds, as if all went well; round 0 is not listed."""
    return tuple(
        RoundRef(
            round=file.round,
            strategy=file.strategy,
            subgoal=file.subgoal,
            clues=file.clues,
            checkpoint=round_name(file.round),
        )
        for file in rounds
        if file.round > 0
    )


def _write(path: Path, model: MetaFile | RoundFile) -> None:
    """`new_folder` flushes all files at once before it renames the folder."""
    path.write_text(model.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")


def _check_rounds(meta: MetaFile, rounds: Sequence[RoundFile]) -> None:
    wanted = [0, *(ref.round for ref in meta.rounds if ref.round > 0)]
    given = [file.round for file in rounds]
    names = [ref.checkpoint for ref in meta.rounds]
    if given != wanted or names != [round_name(ref.round) for ref in meta.rounds]:
        raise DataError(
            f"question {meta.question_id}: the round files are {given} and meta lists {wanted}; "
            "write round 0 and then every round of the list, each under its own name."
        )


def _next_number(question_folder: Path) -> int:
    folders = run_folders(question_folder)
    return run_number(folders[-1].name) + 1 if folders else 1
