"""Which policies an evaluation compares, and which folders they are: checkpoints and whole models,
given by path or by a word.

| `baseline` | checkpoints given | folders | compared are |
|---|---|---|---|
| no | no | `evaluation.checkpoint` (if `tuned` is wanted), `evaluation.models` | all policies |
| yes | no | none | `evaluation.policies` but `tuned` |
| no | yes | those given | these alone |
| yes | yes | those given | all policies |

All policies: `evaluation.policies`, with the folders in the place of `tuned`, else at the end.
`warm_start` is left out where the run has none. `eval --policy P --checkpoint C` is the last row,
with P for `evaluation.policies`. The first folder that is no whole model is called `tuned`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlkit.errors import DataError, RunError
from rlkit.results.evaluate import NAMES
from rlkit.results.model_content import is_model_folder
from rlkit.run import Run
from rlkit.training.adapters import REFERENCE
from rlkit.training.checkpointing import (
    PREFIX,
    _whole_state,
    best_folder,
    check_sums,
    checkpoint_steps,
    newest_folder,
)
from rlkit.training.weights import TRAINED

Log = Callable[[str], None]
BY_WORD = {"newest": newest_folder, "best": best_folder}  # checkpoints of the run itself
ALL = "all"


def chosen_folders(
    run: Run,
    baseline: bool,
    given: Sequence[str | Path],
    log: Log,
    which: str | None = "newest",
    more: Sequence[str] = (),
) -> dict[str, Path]:
    """{policy name: folder}: the first checkpoint is `tuned`, unless none is given and `which` is
    None; further ones, and whole models such as merged ones, keep their folders' names. A folder
    that is named twice counts once.

    Without any given, and not for `baseline` alone: the run's newest or best (`which`), and
    `more`. Words are `newest`, `best` and `all`, the newest first. Raises RunError where a word
    was given that the run has no checkpoint for, and DataError where one that was given is damaged.
    """
    asked = [str(name) for name in given] or ([] if baseline else list(more))
    words = list(asked)
    if not given and not baseline and which and run.checkpoints_folder.is_dir():
        words.insert(0, which)
    tuned = bool(given or which)
    found: dict[str, Path] = {}
    for word in words:
        folders = _folders_of(word, run, log)
        if not folders and word in asked:
            raise RunError(f"{run.folder} has no checkpoint yet, so none is the {word}; train it.")
        for folder in folders:
            if folder.resolve() not in {there.resolve() for there in found.values()}:
                found[_name(folder, found, tuned)] = folder
    return found


def _folders_of(word: str, run: Run, log: Log) -> list[Path]:
    if Path(word).is_dir() or word not in (*BY_WORD, ALL):
        check_sums(Path(word))
        return [Path(word)]
    if word == ALL:
        newest = newest_folder(run.checkpoints_folder, log)
        steps = checkpoint_steps(run.checkpoints_folder) if newest else []
        folders = [run.checkpoints_folder / f"{PREFIX}{step}" for step in steps]
        others = [f for f in folders if f != newest and _whole(f, log)]
        return [newest, *others] if newest else []
    folder = BY_WORD[word](run.checkpoints_folder, log)
    if folder is not None:
        log(f"evaluation: the {word} checkpoint is {folder.name}")
    return [] if folder is None else [folder]


def _whole(folder: Path, log: Log) -> bool:
    try:
        _whole_state(folder)
    except DataError as error:
        log(f"evaluation: {folder.name} is passed over: {error}")
        return False
    return True


def _name(folder: Path, found: Mapping[str, Path], tuned: bool) -> str:
    if tuned and "tuned" not in found and not is_model_folder(folder):
        return "tuned"
    return _free_name(folder, found)


def _free_name(folder: Path, found: Mapping[str, Path]) -> str:
    """The folder's name; where that is taken, with its run's name before it, then counted up."""
    own = folder.resolve()
    longer = f"{own.parent.parent.name}-{own.name}"
    counted = (f"{longer}-{n}" for n in itertools.count(2))
    taken = {*NAMES, TRAINED, REFERENCE, *found}
    names = (name.replace(".", "_") for name in itertools.chain((own.name, longer), counted))
    return next(name for name in names if name not in taken)  # torch wants no dot in a name


def chosen_names(
    config: Any, run: Run, baseline: bool, given: bool, tuned: Sequence[str]
) -> list[str]:
    """The names to compare: of `evaluation.policies` those that can be had, with every checkpoint
    and model in the place of `tuned`, else after the others; only these where they alone were
    asked for."""
    if given and not baseline:
        return list(tuned)
    names: list[str] = []
    for name in config.evaluation.policies:
        if name == "tuned":
            names += tuned
        elif name != "warm_start" or warm_start_of(run):
            names.append(name)
    return names + [name for name in tuned if name not in names]


def warm_start_of(run: Run) -> Path | None:
    """The adapter (or model) that the run's training starts from, the reference of its KL; None
    without."""
    folders = [run.folder / "reference_adapter", run.warm_start_folder]
    if not run.config.lora.enabled:
        given = run.config.model.init_adapter
        folders = [run.warm_start_folder if given in (None, "auto") else Path(given)]
    return next((folder for folder in folders if folder.is_dir()), None)
