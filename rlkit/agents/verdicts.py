"""Reads verdicts out of a judge's reply: by the documents' ids, never by position.

A reply is untrusted: reading is linear in its length but for a bounded number of tries, never
raises, and would rather find nothing than something that the judge did not say. What is not found
stays out of the answer: unjudged, never DISCARD.

1. The complete JSON values that hold verdicts, out of fences and prose; where there is none, the
   complete entries of one that is cut off. A value is a label, or a label and a reason behind a
   separator.
2. Otherwise lines that begin with an id, or the whole text where one document was asked for;
   `verdict_clauses.py` says where a label in a text counts.

Neither counts behind a sentence that leads to it and denies it (`It is not true that`).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rlkit.agents.verdict_clauses import (
    CLOSE,
    OPEN,
    STARTS,
    is_denied,
    label_in,
    labels_named,
)
from rlkit.rounds.state import Verdict

MAX_CHARS = 50_000  # of a reply that are read
MAX_STARTS = 200  # places that are tried as the beginning of a JSON value
# `d3`, alone or decorated, at the beginning of a line or after a comma; then what separates
_HEAD = re.compile(
    rf"(?:[\s>#|{{•-]|\d{{1,3}}[.)]\s|{OPEN})*+(?:I (?:label|rate|mark|judge|classify) |"
    rf"(?:the |my )?(?:final )?(?:label|verdict) (?:for|of) )?"
    rf"(?:(?:the )?(?:document|doc|文档)\s*+{OPEN}*+)?"
    rf"(d\d{{1,4}})(?!\w)(?:{CLOSE})*+\s*+(?:[:=|,>–—-]|(?:is(?: labell?ed)?|as)\b|为|是)*+\s*+",
    re.IGNORECASE,
)
_NEXT = re.compile(
    r"(?:\s*+\([^()]{0,80}\))?\s*+[,;|、。.]\s*+(?=\W*+(?:(?:document|doc|文档)\s*+)?d\d)", re.I
)
_NAME = re.compile(r"\W*+(?:document\s*+)?\W*+(d\d{1,4})\W*+", re.IGNORECASE)
_KEY = re.compile(r"\"(d\d{1,4})\"\s*+:\s*+", re.IGNORECASE)
_ID_KEYS = ("id", "doc", "document", "docid", "doc_id", "document_id", "编号")
_DENYING_KEY = re.compile(r"neg|not(?!e)|wrong|incorrect|invalid|false|reject|deni", re.IGNORECASE)
_AFFIRMING_KEY = re.compile(r"correct|valid|true", re.IGNORECASE)
_LABEL_KEYS = ("label", "verdict", "标签", "判断")

Entry = tuple[str | None, Verdict | None]  # (id, label); None: no id was given, an unknown label


def parse_verdicts(text: str, ids: Sequence[str]) -> dict[str, Verdict]:
    """id -> verdict, for those of `ids` (such as d1, d2) that the reply judges.

    Wrong ids are passed over; an id with labels that contradict each other is left out. Where one
    document was asked for, a label without an id is its.
    """
    text = text[:MAX_CHARS]
    entries = _json_entries(text)
    if entries is None:
        entries = _text_entries(unicodedata.normalize("NFKC", text), ids)
    only = ids[0] if len(ids) == 1 else None
    found: dict[str | None, set[Verdict | None]] = defaultdict(set)
    for name, verdict in entries:
        found[only if name is None else name].add(verdict)
    agreed = {name: next(iter(labels)) for name, labels in found.items() if len(labels) == 1}
    return {name: agreed[name] for name in ids if agreed.get(name) is not None}


# ---- JSON


class _Object(list):
    """A JSON object as (key, value) pairs, so that a key that stands there twice is seen."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Object)


def _json_entries(text: str) -> list[Entry] | None:
    """The entries of all complete JSON values that have any and are not denied, since some judges
    write one object a line; else of one that is cut off. None where no JSON has any."""
    keyed, values = bool(_KEY.search(text)), 0
    found: list[Entry] = []
    for lead, value in _json_values(text):
        entries = [e for e in _entries_of(value) if not (keyed and e[0] is None)]
        values += bool(entries)
        found += [] if entries and is_denied(lead) else entries
    if not values:
        found = list(_members(text))
        values = len(found)
        found = [] if is_denied(text[: max(text.find("{"), 0)]) else found
    return found if values else None


def _json_values(text: str) -> Iterator[tuple[str, Any]]:
    """(what stands between it and the value before, the value) of each complete JSON value."""
    at = last = 0
    for _ in range(MAX_STARTS):
        start = min((p for p in (text.find("{", at), text.find("[", at)) if p >= 0), default=-1)
        if start < 0:
            return
        value, end = _decoded(text, start)
        if end > start:
            yield text[last:start], value
            last = end
        at = max(end, start + 1)


def _members(text: str) -> Iterator[Entry]:
    """The complete members, keyed by an id, of an object that is cut off."""
    at = text.find("{")
    for _ in range(MAX_STARTS):
        key = _KEY.search(text, at) if at >= 0 else None
        if key is None:
            return
        value, end = _decoded(text, key.end())
        if end > key.end():
            yield _named(key[1]), _label_of(value)
        at = max(end, key.end())


def _decoded(text: str, at: int) -> tuple[Any, int]:
    """(value, its end) of the JSON value that begins at `at`; (None, at) where it is not whole."""
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, at


def _entries_of(value: Any) -> Iterator[Entry]:
    """The entries in a complete JSON value: `{"d1": LABEL}`, `{"id": "d1", "label": LABEL}`, a
    list of either, or an object around one of these."""
    if isinstance(value, _Object):
        if _is_entry(value):
            nameless = not any(key.strip().casefold() in _ID_KEYS for key, _ in value)
            name = None if nameless else _named(_first(value, _ID_KEYS)) or ""
            yield name, _label_of(value)
            return
        keyed = [(_named(key), inner) for key, inner in value]
        if any(name for name, _ in keyed):
            yield from ((name, _label_of(inner)) for name, inner in keyed if name)
            return
        for _, inner in value:
            if isinstance(inner, list):
                yield from _entries_of(inner)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, _Object):
                yield from _entries_of(inner)


def _is_entry(value: _Object) -> bool:
    return _first(value, _LABEL_KEYS) is not None


def _takes_back(value: _Object) -> bool:
    """Whether a flag beside a label, such as `"negated": true`, takes it back."""
    for key, flag in value:
        if isinstance(flag, bool):
            denying = _DENYING_KEY.search(key)
            if (flag and denying) or (not flag and not denying and _AFFIRMING_KEY.search(key)):
                return True
    return False


def _first(pairs: _Object, names: Iterable[str]) -> Any:
    """The value of the one key among `names`; None where none or several values are there."""
    found = [v for key, v in pairs if key.strip().casefold() in names]
    return found[0] if len(found) == 1 else None


def _named(name: Any) -> str | None:
    """An id as the prompt has it, out of `D1`, `[d1]` or `document d1`; None for anything else."""
    if not isinstance(name, str):
        return None
    match = _NAME.fullmatch(unicodedata.normalize("NFKC", name))
    return match[1].casefold() if match else None


def _label_of(value: Any) -> Verdict | None:
    """The label that a value is, or begins with; none where it names two."""
    if isinstance(value, _Object):
        value = None if _takes_back(value) else _first(value, _LABEL_KEYS)
    if not isinstance(value, str):
        return None
    value = unicodedata.normalize("NFKC", value).strip()
    if not STARTS.match(value) or len(set(labels_named(value))) > 1:
        return None
    return label_in(value, None)


# ---- lines


def _text_entries(text: str, ids: Sequence[str]) -> list[Entry]:
    """What each part of the text says of its id."""
    parts = _parts(text.replace("```", "\n"))
    if len(parts) == 1:  # no id begins a line
        return [(None, label_in(parts[0][1], None))] if len(ids) == 1 else []
    if is_denied(parts[0][1]):
        return []
    found = [(name, label_in(said, name)) for name, said in parts[1:]]
    return [(name, verdict) for name, verdict in found if verdict]


def _parts(text: str) -> list[tuple[str | None, str]]:
    """(id, what follows it) for each id that begins a line, or that follows an anchored label on
    a line (`d1: LOCAL, d2: DISCARD`); what stands before the first one has the id None."""
    parts: list[tuple[str | None, list[str]]] = [(None, [])]
    for line in text.splitlines():
        at = 0
        while head := _HEAD.match(line, at):
            label = STARTS.match(line, head.end())
            following = _NEXT.match(line, label.end()) if label else None
            end = following.start() if following else len(line)
            parts.append((head[1].casefold(), [line[head.end() : end]]))
            at = following.end() if following else len(line)
        if at < len(line) or not line:
            parts[-1][1].append(line[at:])
    return [(name, "\n".join(lines)) for name, lines in parts]
