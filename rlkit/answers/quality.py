"""Is a set of questions fit to train on? `check_data_quality` says what is wrong, row by row.

for sentence in check_data_quality("../data/gsm8k"):
    print(sentence)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rlkit.answers.datasets import SPLITS, source_rows
from rlkit.answers.quality_checks import (
    Finding,
    Item,
    balance,
    duplicates,
    leakage,
    lengths,
    solutions,
    usable,
)
from rlkit.answers.rows import Row
from rlkit.errors import DataError

__all__ = ["Finding", "check_data_quality", "find_problems", "problem_table"]
CountTokens = Callable[[str], int]


def check_data_quality(
    dataset: Any, *, count_tokens: CountTokens | None = None, max_tokens: int | None = None
) -> list[str]:
    """One sentence a problem, with the row numbers; [] where none was found.

    `dataset` is a list of rows (mappings or Rows), {split: rows}, a datasets.Dataset or
    DatasetDict, a DataFrame, or what `load_rows` takes: a name, a file, a folder, module:object.
    Bad rows are findings; raised is only DataError or ConfigError, where `dataset` is none of
    these. With `count_tokens` and `max_tokens`, rows that are too long for the model are found.
    """
    findings = find_problems(_splits(dataset), count_tokens, max_tokens)
    return [finding.message for finding in findings]


def find_problems(
    rows_by_split: Mapping[str, Iterable[Any]],
    count_tokens: CountTokens | None = None,
    max_tokens: int | None = None,
) -> list[Finding]:
    """All findings, the gravest kinds first. Rows are Rows, mappings, or errors of reading; they
    are numbered from 1 within their split. `max_tokens` is the room for prompt and completion."""
    items = [
        Item.of(split, number, given)
        for split, rows in rows_by_split.items()
        for number, given in enumerate(rows, start=1)
    ]
    findings = usable(items)
    rows = [item for item in items if item.row is not None]
    findings += [*duplicates(rows), *leakage(rows), *solutions(rows)]
    if count_tokens is not None and max_tokens is not None:
        findings += lengths(rows, count_tokens, max_tokens)
    if not items:
        findings.append(Finding("empty", "The dataset holds no rows.", ()))
    return findings + balance(rows)


def model_limits(config: Any) -> dict[str, Any]:
    """`count_tokens` and `max_tokens` of the base model of a RunConfig, for the two functions
    above. Raises ModelError where it is not there."""
    from rlkit.training.policy import prompt_counter  # loads torch
    from rlkit.training.prefix import longest_text_of

    model = config.model
    most = longest_text_of(model.base_model_path, trust_remote_code=model.trust_remote_code)
    return {"count_tokens": prompt_counter(config), "max_tokens": most}


def problem_table(findings: Sequence[Finding]) -> pd.DataFrame:
    """One line a finding: its kind, how many rows it is about, and the sentence."""
    return pd.DataFrame(
        [{"kind": f.kind, "rows": len(f.rows), "finding": f.message} for f in findings],
        columns=["kind", "rows", "finding"],
    )


def _splits(dataset: Any) -> dict[str, Iterable[Any]]:
    if isinstance(dataset, (str, Path)):
        return {split: source_rows(str(dataset), split) for split in SPLITS}
    if isinstance(dataset, pd.DataFrame):
        return {"train": dataset.to_dict("records")}
    if isinstance(dataset, Mapping) and all(_are_rows(rows) for rows in dataset.values()):
        return {str(split): rows for split, rows in dataset.items()}
    if not isinstance(dataset, Mapping) and _are_rows(dataset):
        return {"train": dataset}
    raise DataError(
        f"a {type(dataset).__name__} is no dataset; give a list of rows such as "
        '{"question": ..., "answer": ...}, a dict of splits, or a name or path.'
    )


def _are_rows(given: Any) -> bool:
    """Whether it can be gone through row by row; a text, a row, or a column cannot."""
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping, Row))
