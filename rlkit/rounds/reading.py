"""Reads one recorded file, or says where and why it cannot be read: path, line and reason."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from json.decoder import scanstring
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from rlkit.rounds.state import MetaFile, RoundFile

Recorded = TypeVar("Recorded", MetaFile, RoundFile)
_PARSER_LINE = re.compile(r" at line (\d+) column \d+$")
_BLANK = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file that was set aside with its run; `line` counts from 1, None where there is none."""

    path: Path
    line: int | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.path}, line {self.line}" if self.line else str(self.path)
        return f"{where}: {self.reason}"


class DamagedFile(Exception):
    """Carries a `Damaged` from the file to the loader, which sets the run aside and goes on."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.damaged = Damaged(path, line, reason)


def read_recorded(path: Path, model: type[Recorded]) -> Recorded:
    """Read and check one file. Raises DamagedFile with path, line and reason."""
    return parse_recorded(path, read_file(path)[0], model)


def read_file(path: Path) -> tuple[bytes, os.stat_result]:
    """What a file holds, and its status before it was read. Raises DamagedFile, caused by the
    system's error."""
    try:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            return file.read(), status
    except FileNotFoundError as error:
        raise DamagedFile(path, None, "the file is missing, and the run lists it") from error
    except OSError as error:
        raise DamagedFile(path, None, f"cannot be read ({error.strerror})") from error


def parse_recorded(path: Path, raw: bytes, model: type[Recorded]) -> Recorded:
    """Check what the file at `path` holds. Raises DamagedFile with path, line and reason."""
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        line, reason = _explain(raw, error)
        raise DamagedFile(path, line, reason) from error


def _explain(raw: bytes, error: ValidationError) -> tuple[int, str]:
    """The line and the reason of the first of pydantic's complaints."""
    first = error.errors(include_url=False, include_input=False)[0]
    message, loc = str(first["msg"]), tuple(first["loc"])
    parser = _PARSER_LINE.search(message)
    if first["type"] == "json_invalid" and parser:
        reason = message.removeprefix("Invalid JSON: ")
        return int(parser.group(1)), f"not JSON ({_PARSER_LINE.sub('', reason)})"
    field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc)
    message = message.removeprefix("Value error, ")
    return line_of(raw.decode("utf-8"), loc), f"{field.lstrip('.')}: {message}".lstrip(": ")


def line_of(text: str, loc: tuple[str | int, ...]) -> int:
    """The line, from 1, on which the value at `loc` begins in a JSON text (its parent's line
    where the value itself is missing)."""
    at = _after_blank(text, 0)
    for step in loc:
        inner = _value_at(text, at, step)
        if inner is None:
            break
        at = inner
    return text.count("\n", 0, at) + 1


def _value_at(text: str, at: int, step: str | int) -> int | None:
    """Where the value of key or index `step` begins inside the object or list that begins at
    `at`; None where there is none."""
    decoder, is_object, found = json.JSONDecoder(), text[at] == "{", None
    if text[at] not in "{[":
        return None
    index, at = 0, _after_blank(text, at + 1)
    while text[at] not in "}]":
        key: str | int = index
        if is_object:
            key, at = scanstring(text, at + 1)
            at = _after_blank(text, _after_blank(text, at) + 1)
        if key == step:
            found = at  # of a repeated key the last one counts
        at = _after_blank(text, decoder.raw_decode(text, at)[1])
        at, index = (_after_blank(text, at + 1) if text[at] == "," else at), index + 1
    return found


def _after_blank(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]  # matches always
