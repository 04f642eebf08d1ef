"""What a section of parameters is: a frozen pydantic model whose every key has a default, a unit
and a range, and whose every mistake becomes one sentence (`ConfigError`)."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Set
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from rlkit.errors import ConfigError, nearest

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_BAD_TEXT = re.compile(r"[\x00\ud800-\udfff]")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Parameter(NamedTuple):
    """One key as a user sees it; `key` is `section.key`, or `key` at the top."""

    key: str
    default: Any
    unit: str
    range: str
    help: str


def key(
    default: Any,
    help: str,
    unit: str = "-",
    *,
    choices: tuple[str, ...] = (),
    dotted: bool = False,
    allowed: str = "",
    **limits: Any,
) -> Any:
    """A field of a section.

    `choices` are the names that a text key (or each item of a list) may have; `dotted` allows
    `module:object` too; `allowed` replaces the range in words that is made from type and limits;
    `limits` are pydantic's (ge, gt, le, lt, min_length, pattern).
    """
    extra = {"help": help, "unit": unit, "choices": choices, "dotted": dotted, "allowed": allowed}
    if isinstance(default, list):
        return Field(
            default_factory=lambda: list(default),
            description=help,
            json_schema_extra=extra,
            **limits,
        )
    return Field(default=default, description=help, json_schema_extra=extra, **limits)


class Section(BaseModel):
    """Base of all sections; built from a dict, it raises `ConfigError` and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    title: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for field in cls.model_fields.values():
            if field.json_schema_extra:
                help_, unit = field.json_schema_extra["help"], field.json_schema_extra["unit"]
                field.description = f"{help_} [unit: {unit}; range: {allowed_range(field)}]"
        cls.model_rebuild(force=True)

    @model_validator(mode="wrap")
    @classmethod
    def _one_sentence(cls, value: Any, handler: Any) -> Section:
        if isinstance(value, cls):
            return value
        value = cls.prepared(value)
        for name, given in value.items():
            field = cls.model_fields[name]
            value[name] = _coerced(given, field)
            if _has_bad_text(value[name]):
                raise ConfigError(
                    f"{cls.full(name)} is {shown(given)}; a text may hold neither NUL nor half of "
                    "a surrogate pair."
                )
            if (
                not _in_choices(value[name], field)
                or _has_bad_number(value[name], field)
                or isinstance(value[name], Set)  # which pydantic takes for a list, in any order
            ):
                raise ConfigError(cls.refusal(name, given))
        try:
            section = handler(value)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise ConfigError(cls.refusal(name, value.get(name))) from None
        section.check()
        return section

    @classmethod
    def prepared(cls, value: Any) -> dict[str, Any]:
        """The given keys as a new dict; raises ConfigError for anything but known keys."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ConfigError(
                f"{cls.title or 'The parameters'} must be a mapping of keys to values, "
                f"not {shown(value)}."
            )
        for name in value:
            if name not in cls.model_fields:
                raise ConfigError(cls.unknown(str(name)))
        return dict(value)

    @classmethod
    def unknown(cls, name: str) -> str:
        """The sentence for a key that this section does not have."""
        near = nearest(name, cls.model_fields)
        known = f"its keys are {', '.join(cls.model_fields)}."
        hint = f"did you mean {cls.full(near)}?" if near else known
        return f"{cls.full(name)} is not a parameter; {hint}"

    @classmethod
    def full(cls, name: str) -> str:
        return f"{cls.title}.{name}" if cls.title else name

    @classmethod
    def refusal(cls, name: str, given: Any) -> str:
        """The sentence for a value that this key may not have."""
        field = cls.model_fields[name]
        near = nearest(given, _names(field)) if isinstance(given, str) else None
        hint = f"; did you mean {near}?" if near else "."
        return f"{cls.full(name)} is {shown(given)}; allowed is {allowed_range(field)}{hint}"

    def check(self) -> None:
        """Refuse combinations that make no sense, and fill in what follows from other keys."""

    def plugins(self) -> list[str]:
        """What the keys that may name an object of the user's own do name, as `module:object`."""
        found = []
        for name, field in type(self).model_fields.items():
            if (field.json_schema_extra or {}).get("dotted"):
                value = getattr(self, name)
                found += value if isinstance(value, list) else [value]
        return [value for value in found if value is not None and DOTTED.fullmatch(value)]

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """Every key of this section with default, unit, range and help."""
        rows = []
        for name, field in cls.model_fields.items():
            extra = field.json_schema_extra or {}
            if extra:
                default = field.get_default(call_default_factory=True)
                unit, help_ = extra["unit"], extra["help"]
                rows.append(Parameter(cls.full(name), default, unit, allowed_range(field), help_))
        return rows


def shown(value: Any) -> str:
    """A given value, short enough for a sentence."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def allowed_range(field: FieldInfo) -> str:
    """The range of a key in words, from its type and its limits."""
    extra = field.json_schema_extra or {}
    parts = _parts(field.annotation)
    words = extra.get("allowed") or _words(field, parts, extra)
    return f"{words}, or null" if type(None) in parts else words


def _words(field: FieldInfo, parts: tuple[Any, ...], extra: dict[str, Any]) -> str:
    names = _names(field)
    if names or extra.get("dotted"):
        words = " | ".join([*names, *(["module:object"] if extra.get("dotted") else [])])
        return f"a list of {words}" if _is_list(parts) else words
    if bool in parts:
        return "true | false"
    if _is_list(parts):
        return "a list of whole numbers" if list[int] in parts else "a list of names"
    if int in parts or float in parts:
        kind = "a number" if float in parts else "a whole number"
        return f"{kind} {_limits(field)}".strip()
    return "text"


def _limits(field: FieldInfo) -> str:
    found = {}
    for limit in field.metadata:
        for name in ("ge", "gt", "le", "lt"):
            if getattr(limit, name, None) is not None:
                found[name] = getattr(limit, name)
    if "ge" in found and "le" in found:
        return f"from {found['ge']} to {found['le']}"
    words = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(f"{words[name]} {found[name]}" for name in words if name in found)


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a type: `int | None` -> (int, NoneType)."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _is_list(parts: tuple[Any, ...]) -> bool:
    return any(get_origin(part) is list for part in parts)


def _names(field: FieldInfo) -> tuple[str, ...]:
    for part in _parts(field.annotation):
        if get_origin(part) is Literal:
            return get_args(part)
    return tuple((field.json_schema_extra or {}).get("choices", ()))


def _coerced(value: Any, field: FieldInfo) -> Any:
    """Numbers that came as text (YAML 1.1 reads 1e-5 so), whole numbers given as names, and one
    name where a list of names is wanted."""
    parts = _parts(field.annotation)
    if isinstance(value, (list, tuple)) and _numeric(field):
        return [_number(item) for item in value]
    if _numeric(field):
        return _number(value)
    if isinstance(value, int) and not isinstance(value, bool) and str in parts:
        return str(value)
    if isinstance(value, str) and list[str] in parts:
        return [value]
    return list(value) if isinstance(value, tuple) and _is_list(parts) else value


def _number(value: Any) -> Any:
    """A number that came as text; anything else as it is."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return value
    number = float(value)
    return int(number) if math.isfinite(number) and number.is_integer() else number


def _numeric(field: FieldInfo) -> bool:
    """Whether the key holds a number, or a list of numbers."""
    parts = _parts(field.annotation)
    items = [item for part in parts if get_origin(part) is list for item in get_args(part)]
    items = [get_args(item)[0] if get_origin(item) is Annotated else item for item in items]
    return not {int, float}.isdisjoint((*parts, *items))


def _has_bad_number(value: Any, field: FieldInfo) -> bool:
    """Whether a number, or one of a list, is true, false, NaN, infinite or a text."""
    if not _numeric(field):
        return False
    return any(
        isinstance(item, (bool, str)) or (isinstance(item, float) and not math.isfinite(item))
        for item in (value if isinstance(value, list) else [value])
    )


def _has_bad_text(value: Any) -> bool:
    """Whether a text holds what no file name, and no UTF-8, can hold."""
    if isinstance(value, list):
        return any(_has_bad_text(item) for item in value)
    return isinstance(value, str) and bool(_BAD_TEXT.search(value))


def _in_choices(value: Any, field: FieldInfo) -> bool:
    extra = field.json_schema_extra or {}
    if value is None or not (extra.get("choices") or extra.get("dotted")):
        return True
    items = value if isinstance(value, list) else [value]
    return all(
        isinstance(item, str)
        and (item in extra["choices"] or (extra["dotted"] and DOTTED.fullmatch(item)))
        for item in items
    )
