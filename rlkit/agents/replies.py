"""Reads JSON out of a model's reply: out of fences and prose, cut off or not. Replies are
untrusted: nothing here raises, and the work is bounded whatever stands in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

MAX_CHARS = 200_000  # of a reply that are looked at
MAX_STARTS = 200  # brackets in it that are tried as the beginning of a value
_OPENING = re.compile(r"[{\[]")
_BLANK = re.compile(r"[\s,]*")
_AFTER_NUMBER = re.compile(r"[\s,}\]]")  # else it may go on: 12 of 125, or of 12.5


def first_json(text: str, kind: type | tuple[type, ...] = (dict, list)) -> Any | None:
    """The first complete JSON object or list of that kind in a text, or None.

    `NaN` and `Infinity` are no JSON here. Where the value that comes first is cut off, complete
    values inside it count: see `json_values`.
    """
    return next((value for value in json_values(text) if isinstance(value, kind)), None)


def json_values(text: str) -> Iterator[Any]:
    """Every complete JSON object or list in a text, in order, but none inside another one that
    is complete itself."""
    text, at = text[:MAX_CHARS], 0
    for _ in range(MAX_STARTS):
        start = _OPENING.search(text, at)
        if start is None:
            return
        found = _decoded(text, start.start())
        if found is not None:
            yield found[0]
        at = start.end() if found is None else found[1]


def partial_object(text: str) -> dict[str, Any]:
    """The first JSON object in a text, as far as it goes: all of it where it is complete, else its
    complete members, and of a list that is cut off its complete elements. Empty where there is
    none."""
    text = text[:MAX_CHARS]
    at = text.find("{")
    for _ in range(MAX_STARTS):
        if at < 0:
            break
        whole = _decoded(text, at)
        members = whole[0] if whole else _members(text, at + 1)
        if members:
            return members
        at = text.find("{", at + 1)
    return {}


def _members(text: str, at: int) -> dict[str, Any]:
    """The complete members of an object that is cut off, from behind its bracket."""
    members: dict[str, Any] = {}
    while (key := _decoded(text, _after_blank(text, at))) is not None:
        colon = _after_blank(text, key[1])
        if not isinstance(key[0], str) or text[colon : colon + 1] != ":":
            break
        start = _after_blank(text, colon + 1)
        value = _decoded(text, start)
        if value is None:
            if text[start : start + 1] == "[":
                members[key[0]] = _elements(text, start + 1)
            break
        members[key[0]], at = value
    return members


def _elements(text: str, at: int) -> list[Any]:
    """The complete elements of a list that is cut off, from behind its bracket."""
    elements: list[Any] = []
    while (value := _decoded(text, _after_blank(text, at))) is not None:
        elements.append(value[0])
        at = value[1]
    return elements


def _after_blank(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]  # matches always


def _decoded(text: str, at: int) -> tuple[Any, int] | None:
    """(value, where it ends) of the JSON that begins at `at`; None where it is not complete."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError, StopIteration):
        return None
    is_number = type(value) in (int, float)
    return None if is_number and not _AFTER_NUMBER.match(text, end) else (value, end)


def _refused(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refused)
