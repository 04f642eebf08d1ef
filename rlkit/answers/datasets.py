"""Rows of questions with checkable answers, by name: `arithmetic`, `gsm8k`, files, your own.

rows = load_rows("../data/gsm8k", "train", max_samples=1000)
parts = split_rows(rows, load_rows("../data/gsm8k", "test"))     # train, dev, eval
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlkit.answers.arithmetic import arithmetic_rows
from rlkit.answers.prompts import completion_text, question_prompt, rl_rows, sft_rows
from rlkit.answers.rows import BadRow, Row, fields_of_file, normalised, rows_from, rows_of_file
from rlkit.config import load_object
from rlkit.errors import ConfigError, DataError, did_you_mean
from rlkit.section import DOTTED, shown

__all__ = [
    "BadRow",
    "Parts",
    "Row",
    "completion_text",
    "load_rows",
    "normalised",
    "question_prompt",
    "register_dataset",
    "rl_rows",
    "sft_rows",
    "split_rows",
]
SPLITS = ("train", "test")
GSM8K = ("gsm8k", "openai/gsm8k")
ARITHMETIC: dict[str, dict[str, Any]] = {  # arguments of arithmetic_rows
    "arithmetic": {},
    "arithmetic-easy": {"steps": (2,), "largest": 12},
    "arithmetic-zh": {"language": "zh"},
}
SIZES = {"train": 1000, "test": 300}  # of the generated sets, unless more are asked for
DATA_SEED = 7  # the generated sets are the same in every run
_SUFFIXES = (".jsonl", ".json", ".parquet")
_registered: dict[str, Any] = {}


class Parts(dict[str, list[Row]]):
    """The rows of `train`, `dev` and `eval`; `dropped` counts the train rows that stood in test,
    `repeated` those whose question stood in train before."""

    dropped: int = 0
    repeated: int = 0


def load_rows(
    dataset: str | Path, split: str = "train", max_samples: int | None = None, seed: int = 7
) -> list[Row]:
    """The rows of one split, `train` or `test`; of more than `max_samples`, a choice by `seed`.

    `dataset` is `arithmetic`, `arithmetic-easy` or `arithmetic-zh` (generated), `gsm8k` (from the
    hub), a registered name, a folder with train.jsonl and test.jsonl, one file (train rows only),
    or `module:object` (rows, {split: rows}, or a function of the split that returns them). Where
    there is no test split, `test` is empty, and `split_rows` parts what is there. Raises
    ConfigError for an unknown name or split, DataError where data is missing, and BadRow with file
    and line of a bad row.
    """
    if split not in SPLITS:
        raise ConfigError(f"split is {split!r}; allowed are {' and '.join(SPLITS)}.")
    if max_samples is not None and max_samples < 1:
        raise ConfigError(f"max_samples is {max_samples}; allowed is 1 or more, or null for all.")
    rows = _rows(str(dataset), split, max_samples)
    if max_samples is None or len(rows) <= max_samples:
        return rows
    chosen = random.Random(f"{seed} rows").sample(range(len(rows)), max_samples)
    return [rows[index] for index in sorted(chosen)]


def register_dataset(name: str, rows: Any) -> None:
    """Make `rows` (a list of mappings or Rows, {split: list}, a datasets.Dataset or DatasetDict,
    or a function of the split that returns rows) known under `name`, in this process.

    Raises ConfigError where the name is taken by a built-in set or is no plain name.
    """
    if not isinstance(name, str) or not name.strip() or ":" in name or "/" in name:
        raise ConfigError(f"{name!r} is no name of a dataset; give a text without ':' and '/'.")
    if name in (*GSM8K, *ARITHMETIC):
        raise ConfigError(f"{name!r} is a built-in dataset; register yours under another name.")
    _registered[name] = rows


def split_rows(
    train: Sequence[Row],
    test: Sequence[Row] = (),
    *,
    dev_ratio: float = 0.1,
    train_ratio: float = 0.8,
    seed: int = 7,
) -> Parts:
    """`train`, `dev` and `eval` by normalised question, so that no question stands in two.

    `eval` is `test`; without one it is cut from `train`, of whose questions it leaves the share
    `train_ratio`. `dev` is the share `dev_ratio` of what remains. Train rows that stand in `test`
    are dropped, and so are repeated questions within a part; both are counted. Augmented rows
    stay with their origin, and are dropped where it is held out. Raises DataError where a part
    would be empty, or an origin is that of no row.
    """
    _check_shares(dev_ratio, train_ratio)
    parts = Parts()
    held_out = _distinct(test)
    kept = _distinct(train)
    parts.repeated = len(train) - len(kept) + len(test) - len(held_out)
    by_id = {row.id: row for row in (*test, *train)}  # an origin is first of all a train row
    held = held_out.keys() | {_first_question(row, by_id) for row in test}
    units: dict[str, list[Row]] = {}  # what a question's rows share
    for question, row in kept.items():
        key = _first_question(row, by_id)
        if question in held or key in held:
            parts.dropped += 1
        else:
            units.setdefault(key, []).append(row)
    order = sorted(units)
    random.Random(f"{seed} split").shuffle(order)
    n_eval = 0 if held_out else max(1, round((1 - train_ratio) * len(order)))
    left = len(order) - n_eval
    n_dev = max(int(dev_ratio > 0 and left > 1), round(dev_ratio * left))
    if left - n_dev < 1:
        raise DataError(
            f"{len(order)} different questions are too few for train, dev and evaluation; give "
            "more rows, or smaller parts."
        )
    part_of = {
        key: "eval" if n < n_eval else "dev" if n < n_eval + n_dev else "train"
        for n, key in enumerate(order)
    }
    parts |= {"train": [], "dev": [], "eval": []}
    for key, rows in units.items():
        parts[part_of[key]] += rows
    ids = {row.id for row in train}
    for row in held_out.values():
        parts["eval"].append(replace(row, id=f"test-{row.id}") if row.id in ids else row)
    return parts


def _first_question(row: Row, by_id: Mapping[str, Row]) -> str:
    """The normalised question that a row was made from, at the beginning of its line of origins."""
    passed = {row.id}
    while row.origin is not None and row.origin not in passed:
        if row.origin not in by_id:
            raise DataError(
                f"the row {row.id[:60]!r} was made from {row.origin[:60]!r} (its origin), which is "
                "the id of no row; give that row too, or take `origin` out."
            )
        row = by_id[row.origin]
        passed.add(row.id)
    return normalised(row.question)


def _distinct(rows: Iterable[Row]) -> dict[str, Row]:
    """The first row of each question, by its normalised text."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(normalised(row.question), row)
    return found


def _check_shares(dev_ratio: float, train_ratio: float) -> None:
    if not 0 <= dev_ratio < 1 or not 0 < train_ratio < 1:
        raise ConfigError(
            f"dev_ratio is {dev_ratio} and train_ratio {train_ratio}; allowed are shares from 0 to "
            "below 1, and above 0 to below 1."
        )


def _rows(dataset: str, split: str, max_samples: int | None) -> list[Row]:
    if dataset in ARITHMETIC and dataset not in _registered:
        count = max(SIZES[split], max_samples or 0)
        return arithmetic_rows(split, count, DATA_SEED, **ARITHMETIC[dataset])
    files = {} if dataset in (*_registered, *GSM8K) else files_of(dataset)
    if files:
        return rows_of_file(files[split]) if split in files else []
    return rows_from(source_rows(dataset, split), f"{dataset.rpartition('/')[2]}-{split}")


def source_rows(dataset: str, split: str) -> Iterable[Any]:
    """One split of a dataset as it was given, unchecked: mappings, Rows, or for a damaged line of
    a file the error. Raises as `load_rows` does where there is no such dataset."""
    if dataset in _registered:
        return given_rows(_registered[dataset], split, dataset)
    if dataset in ARITHMETIC:
        return _rows(dataset, split, None)
    if dataset in GSM8K:
        return _from_hub(split)
    files = files_of(dataset)
    if files:
        return [item for _, item in fields_of_file(files[split])] if split in files else []
    if DOTTED.fullmatch(dataset):
        return given_rows(load_object(dataset), split, dataset)
    names = [*ARITHMETIC, "gsm8k", *_registered]
    raise ConfigError(
        f"{shown(dataset)} is neither a dataset ({', '.join(names)}), nor a file or folder that is "
        "there, nor module:object" + did_you_mean(dataset, names, "; check the name or the path.")
    )


def files_of(path: str) -> dict[str, Path]:
    """The file of each split that a file or folder holds; {} where `path` is not there.

    Raises DataError for a folder without train.jsonl.
    """
    place = Path(path)
    if os.path.isfile(place):  # pathlib's own raises where a name is too long
        return {"train": place}
    if not os.path.isdir(place):
        return {}
    found = {
        split: file
        for split in SPLITS
        for suffix in reversed(_SUFFIXES)
        if (file := place / f"{split}{suffix}").is_file()
    }
    if "train" not in found:
        raise DataError(
            f"{place} has no train.jsonl (and test.jsonl, where there is one); give a folder that "
            "holds it, or one file."
        )
    return found


def given_rows(source: Any, split: str, name: str) -> Iterable[Any]:
    """One split of a list, of {split: list}, or of what a function returns; unchecked."""
    if callable(source):
        if inspect.signature(source).parameters:
            source = source(split)
            source = source if isinstance(source, Mapping) else {"train": (), split: source}
        else:
            source = source()
    if isinstance(source, Mapping) and "train" not in source:
        raise DataError(
            f"dataset {name} has the splits {', '.join(map(str, source)) or 'none'}; it needs "
            "'train', and 'test' where there is one."
        )
    splits = source if isinstance(source, Mapping) else {"train": source}
    rows = splits.get(split, ())
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise DataError(
            f"dataset {name} gives a {type(rows).__name__} as rows of {split}; give a list of "
            "{question, answer}."
        )
    return rows


def _from_hub(split: str) -> Iterable[Any]:
    import datasets  # loads slowly

    try:
        return datasets.load_dataset("openai/gsm8k", "main", split=split)
    except OSError as error:
        raise DataError(
            f"GSM8K cannot be fetched from the hub ({type(error).__name__}); give a local folder "
            "with its train.jsonl and test.jsonl as the dataset (answers.dataset), or go online "
            "without HF_HUB_OFFLINE."
        ) from error
