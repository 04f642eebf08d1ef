"""`splits.json` in a run's folder: which questions and states train, and which are held out, and,
for questions without gold, which documents were known. It is written once; a resumed run, a second
evaluation and the report all read the same parts, however many rounds were recorded since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from rlkit.errors import DataError
from rlkit.files import read_json, write_json
from rlkit.practice.source import chosen_states
from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.rounds.split import Splits, split_states
from rlkit.rounds.state import State

PARTS = ("train", "dev", "eval")
NAME = "splits.json"


def kept_splits(folder: str | Path, loader: RLCheckpointLoader, config: Any) -> Splits:
    """The split that `folder` holds, or a new one of what the loader read, which is then kept
    there, unless another process was first: then it is that one's.

    States that were recorded after the split was made stay out of it. Raises DataError where
    states of a kept split are no longer recorded, or the file is damaged.
    """
    path = Path(folder) / NAME
    if not path.exists():
        splits = new_splits(usable_states(loader, config, is_split=False), config)
        if _is_first(path, _as_json(splits)):
            return splits
    return _restored(path, read_json(path), usable_states(loader, config, is_split=True))


def _is_first(path: Path, content: dict[str, Any]) -> bool:
    """Write the file, unless it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_name(f".{NAME}.lock")):
        if path.exists():
            return False
        write_json(path, content)
        return True


def new_splits(states: Sequence[State], config: Any) -> Splits:
    """The split that a run of `config` makes of these states; kept nowhere."""
    data = config.data
    return split_states(states, data.train_ratio, data.dev_ratio, data.split, split_seed(config))


def split_seed(config: Any) -> int:
    """What draws the split: `data.split_seed`, or the run's seed."""
    return config.seed if config.data.split_seed is None else config.data.split_seed


def usable_states(loader: RLCheckpointLoader, config: Any, is_split: bool) -> list[State]:
    """Of the recorded states those that a run of `config` takes (`data.max_samples_per_question`,
    `data.max_questions`, `data.first_round`). Where it `is_split` already, all that the split may
    name: it was made within these limits, of the rounds that were recorded then."""
    if is_split:
        states = loader.all_states()
    else:
        states = chosen_states(loader.extract_training_samples(), config.data.max_questions)
    return [state for state in states if state.round >= config.data.first_round]


def _as_json(splits: Splits) -> dict[str, Any]:
    parts = {part: splits.part(part) for part in PARTS}
    return {
        "schema": 1,
        "how": splits.how,
        "shared_gold": splits.shared_gold,
        "questions": {p: sorted({s.question_id for s in parts[p]}) for p in PARTS},
        "states": {p: [s.state_id for s in parts[p]] for p in PARTS},
        # what any record labels IMPORTANT: later records would change what a state misses
        "known": {
            s.question_id: sorted(s.known_important)
            for p in PARTS
            for s in parts[p]
            if not s.gold_docids
        },
    }


def _restored(path: Path, kept: Any, states: Sequence[State]) -> Splits:
    by_id = {state.state_id: state for state in states}
    parts = restored_parts(path, kept, "states", by_id, "are no longer recorded")
    known = _known(path, kept)
    for part, kept_states in parts.items():
        parts[part] = [
            state.knowing(known[state.question_id]) if state.question_id in known else state
            for state in kept_states
        ]
    how, shared = str(kept.get("how")), int(kept.get("shared_gold", 0))
    return Splits(*parts.values(), how=how, shared_gold=shared)


def _known(path: Path, kept: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The documents that were known of each question without gold when the split was made; none
    in files that were written before they were kept. Raises DataError where they are damaged."""
    known = kept.get("known", {})
    if not isinstance(known, Mapping) or not all(
        isinstance(ids, list) and all(isinstance(docid, str) for docid in ids)
        for ids in known.values()
    ):
        raise DataError(
            f"{path}: `known` must hold a list of document ids for each question without gold; "
            "restore the file, or delete it to split anew."
        )
    return {question: frozenset(ids) for question, ids in known.items()}


def restored_parts(
    path: Path, kept: Any, key: str, by_id: Mapping[str, Any], lost: str
) -> dict[str, list[Any]]:
    """What stands under the ids of `kept[key]`, by part. Raises DataError where that is no splits
    file, or lists ids that are gone, of which `lost` says how."""
    ids = kept.get(key) if isinstance(kept, Mapping) else None
    if (
        not isinstance(ids, Mapping)
        or kept.get("schema") != 1
        or not all(
            isinstance(ids.get(part), list) and all(isinstance(i, str) for i in ids[part])
            for part in PARTS
        )
    ):
        raise DataError(
            f"{path} is no splits file of schema 1 (it needs `{key}` with the lists train, dev, "
            "eval); restore it, or delete it to split anew."
        )
    gone = [one for part in PARTS for one in ids[part] if one not in by_id]
    if gone:
        raise DataError(
            f"{path} lists {len(gone)} {key} that {lost}, first {gone[0][:60]}; "
            "restore them, or start a run of another name."
        )
    return {part: [by_id[one] for one in ids[part]] for part in PARTS}
