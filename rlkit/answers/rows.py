"""`Row`: one question with its worked answer; how rows are read, and when two questions are one."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlkit.errors import DataError
from rlkit.files import plain
from rlkit.library import fields, readers
from rlkit.library.corpus import clean_text
from rlkit.library.tokenize import folded

QUESTION, SOLUTION = ("question", "problem"), ("full_answer", "answer", "solution")
WORKED = ("full_answer", "solution")  # before `answer`, which beside one of them is the result
_OWN = {"id", "question_id", "augmented", "origin", "ground_truth", *QUESTION, *SOLUTION}
_HASHES = re.compile(r"####[ \t]*(.*)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MARKS = re.compile(r"(?<!\d)\.|\.(?!\d)|-(?!\s*[\d.])|[^\w\s.+\-*/%=<>^$€£¥]|_")
_APOSTROPHE = re.compile("['\u2018\u2019]")
_LOOSE_BLANK = re.compile(r"(?<![a-z0-9]) | (?![a-z0-9])")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class BadRow(DataError):
    """A row cannot be used; the sentence names its file and line, or its number."""


@dataclass(frozen=True, slots=True)
class Row:
    """A question, its solution as it is to be learnt, and the answer that is checked.

    `columns` are the row's further fields. `augmented` names the method that made the row from
    the row `origin` (an id); both are None for a row that was there.
    """

    id: str
    question: str
    full_answer: str
    ground_truth: str
    columns: dict[str, Any] = field(default_factory=dict)
    augmented: str | None = None
    origin: str | None = None

    def fields(self) -> dict[str, Any]:
        """The row as one flat object, as a JSONL file has it."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "columns"}
        return {**self.columns, **{name: v for name, v in own.items() if v is not None}}


def row_from(given: Any, where: str, default_id: str) -> Row:
    """A row of fields {question, answer} as GSM8K has them, or {question, ground_truth,
    full_answer}; further fields become its columns. Numbers are taken as text.

    `ground_truth` is what follows the answer's last `####`; an answer of one line may be it. Where
    `answer` stands beside `solution` or `full_answer`, these are the solution, and it the result.
    Raises BadRow where a field is missing, empty or of another kind.
    """
    try:
        return _row(fields.Row.checked(given, where), default_id)
    except BadRow:
        raise
    except DataError as error:
        raise BadRow(str(error)) from error


def _row(given: fields.Row, default_id: str) -> Row:
    row = fields.Row({k: _number_as_text(v) for k, v in given.fields.items()}, given.where)
    question = fields.text_field(row, *QUESTION)
    truth = fields.text_field(row, "ground_truth") if row.fields.get("ground_truth") else ""
    solution = truth
    if not truth or _has(row, SOLUTION):
        solution = fields.text_field(row, *WORKED, "answer")
    if not truth and _has(row, WORKED):
        truth = truth_of(fields.text_field(row, "answer", required=False))
    truth = truth or truth_of(solution)
    if not truth:
        raise BadRow(
            f"{row.where}, field 'answer': no line '#### <number>' ends it, and there is no field "
            "'ground_truth'; add one of the two."
        )
    has_id = _has(row, ("id", "question_id"))
    return Row(
        id=fields.identifier(row, "id", "question_id") if has_id else default_id,
        question=question,
        full_answer=solution,
        ground_truth=truth,
        columns={str(k): _cleaned(v) for k, v in given.fields.items() if k not in _OWN},
        augmented=fields.text_field(row, "augmented", required=False) or None,
        origin=fields.text_field(row, "origin", required=False) or None,
    )


def truth_of(solution: str) -> str:
    """What follows the last `####`; a solution of one line without it is itself the answer."""
    marked = _HASHES.findall(solution)
    return marked[-1].strip() if marked else "" if "\n" in solution else solution


def rows_from(items: Iterable[Any], name: str) -> list[Row]:
    """Rows of mappings or Rows; ids that are missing become `name-1`, `name-2`, ...

    Raises BadRow with the number of the first row that cannot be used, or repeats an id.
    """
    numbered = ((f"{name}, row {n}", item) for n, item in enumerate(items, start=1))
    return _checked(numbered, name)


def rows_of_file(path: str | Path) -> list[Row]:
    """The rows of a JSONL, JSON (a list) or parquet file.

    Raises BadRow, with file and line, at the first that cannot be used, or repeats an id.
    """
    path = Path(path)

    def numbered() -> Iterator[tuple[str, Any]]:
        for where, item in fields_of_file(path):
            if isinstance(item, DataError):
                raise BadRow(str(item)) from item
            yield where, item

    rows = _checked(numbered(), path.stem)
    if not rows:
        raise DataError(f"{path} holds no rows; give at least one question with its answer.")
    return rows


def fields_of_file(path: Path) -> Iterator[tuple[str, Any]]:
    """Each row's place and its fields; in place of a damaged JSONL line's, the error."""
    if path.suffix in (".json", ".parquet"):
        yield from ((row.where, row.fields) for row in readers.read_rows(path))
        return
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    for number, line in enumerate(lines, start=1):
        if line.strip(b"\xef\xbb\xbf \t\r"):
            where = f"{path}, line {number}"
            try:
                yield where, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", None) or getattr(error, "reason", str(error))
                yield (
                    where,
                    BadRow(f"{where}: not a JSON object ({reason}); mend or remove the line."),
                )


def normalised(question: str) -> str:
    """The form in which two questions are the same: without case, width, blanks, punctuation and
    commas of thousands, but with the signs that change a number or a formula.

    >>> normalised("Tom has $1,200 ;  it's  3.50?") == normalised("tom has ＄1200, its 3.50")
    True
    """
    text = "".join(c for c in folded(question) if unicodedata.category(c) != "Cf")
    text = " ".join(_MARKS.sub(" ", _APOSTROPHE.sub("", _THOUSANDS.sub("", text))).split())
    return _LOOSE_BLANK.sub("", text) or folded(question)


def template(question: str) -> str:
    """The normalised question with every number masked."""
    return _NUMBER.sub("#", normalised(question))


def _checked(numbered: Iterable[tuple[str, Any]], name: str) -> list[Row]:
    rows, first_at = [], {}
    for number, (where, item) in enumerate(numbered, start=1):
        row = item if isinstance(item, Row) else row_from(item, where, f"{name}-{number}")
        if row.id in first_at:
            raise BadRow(
                f"{where}: the id {row.id[:60]!r} is that of {first_at[row.id]} too; give every "
                "row an id of its own, or none at all."
            )
        first_at[row.id] = where
        rows.append(row)
    return rows


def _has(row: fields.Row, names: Iterable[str]) -> bool:
    return any(row.fields.get(name) is not None for name in names)


def _number_as_text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    whole = isinstance(value, float) and math.isfinite(value) and value.is_integer()
    return str(int(value) if whole else value)


def _cleaned(value: Any) -> Any:
    """A further field's value, fit for JSON and UTF-8."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(name)): _cleaned(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(inner) for inner in value]
    return plain(value)
