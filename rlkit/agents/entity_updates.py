"""What a model's reply adds to the tables: names, targets, summaries, as far as they hold up.

Nothing is invented: a name must stand in the round's documents or in the tables, an id must be one
that the model was given, of a reply that is cut off only complete rows count, and every text
becomes one line of bounded length, without control signs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlkit.agents.entities import RULE_TYPES, ReadDocument, Tables, shorten
from rlkit.agents.live_agent import Unreadable
from rlkit.agents.replies import partial_object
from rlkit.library.tokenize import folded
from rlkit.rounds.state import DocumentRow, EntityRow, RoundFile, TargetRow
from rlkit.rounds.tables import one_line

KEYS = ("entities", "targets", "summaries")
MAX_NAME, MAX_TEXT, MAX_SUMMARY = 120, 400, 240  # characters
MAX_NEW_ENTITIES, MAX_NEW_TARGETS, MAX_ATTRIBUTES = 24, 4, 12  # a round; attributes an entity


def read_update(text: str) -> dict[str, list[dict[str, Any]]]:
    """The complete rows of a reply, under `entities`, `targets` and `summaries`; a key that the
    reply does not have is left out. Raises Unreadable where it has none of them."""
    found = partial_object(text)
    update = {
        key: [row for row in found[key] if isinstance(row, dict)]
        for key in KEYS
        if isinstance(found.get(key), list)
    }
    if not update:
        raise Unreadable("json")
    return update


def merged(
    before: RoundFile,
    tables: Tables,
    ids: Mapping[str, ReadDocument],
    update: Mapping[str, Sequence[dict[str, Any]]],
) -> Tables:
    """The rules' tables with a reply's rows put in, as far as they name what there is."""
    shown = [one_line(f"{item.document.title} {item.document.text}") for item in ids.values()]
    shown += [row.description for row in before.target_table]
    shown += [row.name for row in before.entity_table]
    docids = {short: item.document.docid for short, item in ids.items()}
    targets = tables.targets
    if "targets" in update:  # then the rules' guess that the subgoal is answered is not needed
        asked = {row.id for row in before.target_table}
        undecided = {"status": "open", "value": None, "docids": ()}
        base = [r if r.id in asked else r.model_copy(update=undecided) for r in tables.targets]
        targets = _with_targets(base, update["targets"], docids)
    return tables._replace(
        entities=_with_entities(
            tables.entities, update.get("entities", ()), docids, folded(" ".join(shown))
        ),
        targets=targets,
        documents=_with_summaries(tables.documents, update.get("summaries", ()), docids),
    )


def _with_entities(
    rows: Sequence[EntityRow],
    given: Sequence[dict[str, Any]],
    docids: Mapping[str, str],
    shown: str,
) -> tuple[EntityRow, ...]:
    """Known names get their type, attributes and documents; new ones follow, if they were shown."""
    entities = {row.name.casefold(): row for row in rows}
    room = len(entities) + MAX_NEW_ENTITIES
    for row in given:
        name = _text(row.get("name"), MAX_NAME)
        known = entities.get(name.casefold())
        if not name or (known is None and (len(entities) >= room or folded(name) not in shown)):
            continue
        known = known or EntityRow(id=f"e{len(entities) + 1}", name=name)
        entities[name.casefold()] = known.model_copy(
            update={
                "type": (_text(row.get("type"), MAX_NAME) or known.type)
                if known.type in RULE_TYPES
                else known.type,
                "attributes": _attributes(known.attributes, row.get("attributes")),
                "docids": _joined(known.docids, row.get("documents"), docids),
            }
        )
    return tuple(entities.values())


def _with_targets(
    rows: Sequence[TargetRow], given: Sequence[dict[str, Any]], docids: Mapping[str, str]
) -> tuple[TargetRow, ...]:
    """Known targets, by id or by their description, get their value; others are new, if they have
    a description. What was answered is not opened again: this round's documents may just be silent
    about it."""
    targets = {row.id: row for row in rows}
    room = len(targets) + MAX_NEW_TARGETS
    for row in given:
        description = _text(row.get("description"), MAX_TEXT)
        by_text = {r.description: r for r in targets.values()}
        asked_id = row.get("id") if isinstance(row.get("id"), str) else ""
        target = targets.get(asked_id) or by_text.get(description)
        if target is None:
            if not description or len(targets) >= room:
                continue
            target = TargetRow(id=f"t{len(targets) + 1}", description=description)
        value = _text(row.get("value"), MAX_TEXT)
        is_answer = row.get("status") == "answered" and bool(value)
        change: dict[str, Any] = {"status": "answered", "value": value} if is_answer else {}
        change["docids"] = _joined(target.docids, row.get("documents"), docids)
        targets[target.id] = target.model_copy(update=change)
    return tuple(targets.values())


def _with_summaries(
    rows: Sequence[DocumentRow], given: Sequence[dict[str, Any]], docids: Mapping[str, str]
) -> tuple[DocumentRow, ...]:
    """The model's summary in place of the document's beginning, for documents of this round."""
    summaries: dict[str, str] = {}
    for row in given:
        docid, summary = _known(row.get("document"), docids), _text(row.get("summary"), MAX_SUMMARY)
        if docid is not None and summary:
            summaries.setdefault(docid, summary)
    return tuple(
        row.model_copy(update={"summary": summaries[row.docid]}) if row.docid in summaries else row
        for row in rows
    )


def _attributes(before: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """The attributes with new ones; a value is a text, a number or a list of such."""
    attributes = dict(before)
    for key, value in given.items() if isinstance(given, dict) else ():
        name, text = _text(key, MAX_NAME), _value(value)
        if name and text and (name in attributes or len(attributes) < MAX_ATTRIBUTES):
            attributes[name] = text
    return attributes


def _value(value: Any) -> str:
    if isinstance(value, list):
        return _text("; ".join(filter(None, map(_value, value[:MAX_ATTRIBUTES]))), MAX_TEXT)
    is_float = isinstance(value, float) and math.isfinite(value)
    return _text(str(value) if is_float or isinstance(value, int) else value, MAX_TEXT)


def _joined(before: tuple[str, ...], given: Any, docids: Mapping[str, str]) -> tuple[str, ...]:
    """The docids with those that the given ids stand for; unknown ids are left out."""
    names: Iterable[Any] = given if isinstance(given, list) else ()
    new = [docid for name in names if (docid := _known(name, docids)) is not None]
    return tuple(dict.fromkeys([*before, *new]))


def _known(name: Any, docids: Mapping[str, str]) -> str | None:
    return docids.get(name.strip("[] ")) if isinstance(name, str) else None


def _text(value: Any, longest: int) -> str:
    """A text of the reply as one line without control signs; empty where it is none, or says
    nothing, such as the `...` of a form that was copied."""
    text = shorten(one_line(value), longest) if isinstance(value, str) else ""
    return text if any(sign.isalnum() for sign in text) else ""


def update_schema(documents: int) -> dict[str, Any]:
    """The JSON schema of an update for so many documents, for servers that enforce one. Texts and
    lists have bounds, so that no model goes on for ever."""
    text, name = _bounded(MAX_TEXT // 2), _bounded(MAX_NAME // 2)
    ids = {"type": "array", "items": _bounded(4), "maxItems": documents}
    facts = {"type": "object", "additionalProperties": name, "maxProperties": 4}
    entity = {"name": name, "type": name, "attributes": facts, "documents": ids}
    status = {"type": "string", "enum": ["open", "answered"]}
    target = {"id": _bounded(8), "description": text, "status": status, "value": name}
    lists = {
        "entities": _rows(entity, 2 * documents + 4),
        "targets": _rows(target | {"documents": ids}, 1 + MAX_NEW_TARGETS),
        "summaries": _rows({"document": _bounded(4), "summary": text}, documents),
    }
    return _object(lists)


def _bounded(length: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": length}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _rows(properties: dict[str, Any], count: int) -> dict[str, Any]:
    return {"type": "array", "items": _object(properties), "maxItems": count}
