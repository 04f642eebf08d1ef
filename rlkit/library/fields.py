"""Takes checked values out of one row of a file; every error names file, line and field."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlkit.errors import DataError
from rlkit.library.corpus import clean_text

MAX_ID = 500  # characters; records of rounds allow no more (rlkit/rounds/state.py, DocId)


class Row(NamedTuple):
    """One object of a file, and where it stands (`file, line n`)."""

    fields: dict[str, Any]
    where: str

    @classmethod
    def checked(cls, value: Any, where: str) -> Row:
        """A row from any JSON value. Raises DataError where it is not an object."""
        if not isinstance(value, dict):
            raise DataError(
                f"{where}: a {type(value).__name__} where an object is wanted; "
                "every row must look like {...}."
            )
        return cls(value, where)

    def child(self, key: str, number: int, value: Any) -> Row:
        """An object inside this row, e.g. the second of its `paragraphs`."""
        return Row.checked(value, f"{self.where}, field '{key}[{number}]'")


def text_field(row: Row, *names: str, required: bool = True) -> str:
    """The first of the named fields that is there, cleaned and stripped ('' if optional).

    Raises DataError where it is missing, empty, or not text.
    """
    name = _present(row, names)
    if name is None:
        if not required:
            return ""
        wanted = " or ".join(f"'{name}'" for name in names)
        raise DataError(f"{row.where}, field {wanted}: missing; give it a text.")
    return _text(row.fields[name], f"{row.where}, field '{name}'", required)


def identifier(row: Row, *names: str) -> str:
    """The first of the named fields as an id; whole numbers are taken as text.

    Raises DataError where it is missing, empty, neither, or too long for a record of a round.
    """
    name = _present(row, names)
    if name is None:
        return text_field(row, *names)
    found = _identifier(row.fields[name], f"{row.where}, field '{name}'")
    if len(found) > MAX_ID:
        raise DataError(
            f"{row.where}, field '{name}': an id of {len(found)} characters; at most {MAX_ID} are "
            "allowed, so give it a shorter one."
        )
    return found


def strings(row: Row, *names: str) -> tuple[str, ...]:
    """The first of the named fields as distinct ids or texts in order; () where there is none."""
    name = _present(row, names)
    if name is None:
        return ()
    values = enumerate(list_field(row, name))
    found = (_identifier(value, f"{row.where}, field '{name}[{n}]'") for n, value in values)
    return tuple(dict.fromkeys(found))


def list_field(row: Row, name: str) -> list[Any]:
    """A field that must be a list. Raises DataError where it is missing or something else."""
    value = row.fields.get(name)
    if not isinstance(value, list):
        raise DataError(
            f"{row.where}, field '{name}': "
            + ("missing" if value is None else f"a {type(value).__name__}")
            + " where a list is wanted."
        )
    return value


def _identifier(value: Any, where: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(value, where, required=True)


def _text(value: Any, where: str, required: bool) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: a {type(value).__name__} where text is wanted.")
    text = clean_text(value).strip()
    if required and not text:
        raise DataError(f"{where}: empty; give it a text.")
    return text


def _present(row: Row, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if row.fields.get(name) is not None), None)
