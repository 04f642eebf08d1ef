"""Rows of questions with checkable answers, by name: `arithmetic`, `gsm8k`, files, your own.

    rows = load_rows("../data/gsm8k", "train", max_samples=1000)
    parts = split_rows(rows, load_rows("../data/gsm8k", "test"))     # train, dev, eval
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlkit.answers.prompts import completion_text, question_prompt, rl_rows, sft_rows
from rlkit.answers.rows import BadRow, Row, normalised, rows_from, rows_of_file
from rlkit.config import load_object
from rlkit.errors import ConfigError, DataError, nearest

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
ARITHMETIC = {"arithmetic": "en", "arithmetic-zh": "zh"}
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
    dataset: str, split: str = "train", max_samples: int | None = None, seed: int = 7
) -> list[Row]:
    """The rows of one split, `train` or `test`; of more than `max_samples`, a choice by `seed`.

    `dataset` is `arithmetic` or `arithmetic-zh` (generated), `gsm8k` (from the hub), a registered
    name, a folder with train.jsonl and test.jsonl, one file (train rows only), or `module:object`
    (rows, {split: rows}, or a function of the split that returns them). Where there is no test
    split, `test` is empty, and `split_rows` parts what is there. Raises ConfigError for an unknown
    name or split, DataError where data is missing, and BadRow with file and line of a bad row.
    """
    if split not in SPLITS:
        raise ConfigError(f"split is {split!r}; allowed are {' and '.join(SPLITS)}.")
    if max_samples is not None and max_samples < 1:
        raise ConfigError(f"max_samples is {max_samples}; allowed is 1 or more, or null for all.")
    rows = _rows(dataset, split, max_samples)
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
    stay with their origin. Raises DataError where a part would be empty.
    """
    raise NotImplementedError
