"""A sign for a function of the user's own that changes where the function does."""

from __future__ import annotations

import functools
import hashlib
import inspect
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def code_digest(function: Any) -> str:
    """Twelve signs of a function's source (where there is none, of its code), its defaults, and
    the plain values and functions that it closes over, or that its object holds. Lists and dicts
    there are passed over, since functions collect in them; so are helpers and globals that it
    calls by name."""
    return hashlib.sha256(repr(_told(function, ())).encode()).hexdigest()[:12]


def _told(value: Any, above: tuple[int, ...]) -> Any:
    """A value in a form that is the same in every process."""
    if isinstance(value, _PLAIN):
        return value
    if id(value) in above:
        return "itself"
    above = (*above, id(value))
    if isinstance(value, tuple):
        return [_told(item, above) for item in value]
    if isinstance(value, (list, dict, set)):
        return type(value).__name__
    if isinstance(value, functools.partial):
        return _told((value.func, value.args, *sorted(value.keywords.items())), above)
    if isinstance(value, MethodType):
        return _told((value.__func__, value.__self__), above)
    if isinstance(value, FunctionType):
        cells = tuple(_cell(cell) for cell in value.__closure__ or ())
        named = sorted((value.__kwdefaults__ or {}).items())
        return [_source(value, value.__code__), _told((value.__defaults__, *named, cells), above)]
    if isinstance(value, (type, ModuleType)) or inspect.isroutine(value):
        return _source(value, None)
    held = tuple(sorted(getattr(value, "__dict__", {}).items(), key=lambda pair: pair[0]))
    return [_source(type(value), None), _told(held, above)]


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _source(value: Any, code: CodeType | None) -> Any:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):  # typed into a prompt, or written in C
        return _code(code) if code else getattr(value, "__qualname__", value.__name__)


def _code(code: CodeType) -> list[Any]:
    consts = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), consts, code.co_names]
