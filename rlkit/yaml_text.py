"""YAML as people mean it: `1e-5` is a number, a key that stands twice is an error, and every error
names the file and the line. Nothing but plain values is ever constructed."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from rlkit.errors import ConfigError
from rlkit.files import write_text

MAX_VALUES = 100_000  # a params file has some two hundred


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but strict with keys and generous with exponents."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            name = self.construct_object(key_node, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {str(name)[:60]!r} stands twice", key_node.start_mark
                )
            if isinstance(name, Hashable) and key_node.tag != "tag:yaml.org,2002:merge":
                seen.add(name)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 wants a dot and a signed exponent; 1e-5 and 5e5 are numbers to everybody else.
_Loader.yaml_implicit_resolvers = {
    first: list(rules) for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, source: str) -> Any:
    """The value that `text` writes; `source` is named in errors.

    Raises ConfigError with the source, the line and the reason. The text itself is never quoted,
    since it may hold a secret.
    """
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(
            f"{source}{line}: {error.problem or 'not YAML'}; mend the line."
        ) from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(
            f"{source}: a sign that YAML does not allow (position {error.position}); remove it."
        ) from None
    except (RecursionError, ValueError, TypeError, AttributeError) as error:
        # PyYAML's constructors meet `!!timestamp x` and the like with whatever comes to hand
        raise ConfigError(f"{source}: not readable as YAML ({type(error).__name__}).") from None
    _refuse_endless(value, source)
    return value


def _refuse_endless(value: Any, source: str) -> None:
    """Raise ConfigError where anchors make a value hold itself, or grow beyond all measure."""
    waiting = [value]
    for _ in range(MAX_VALUES):
        if not waiting:
            return
        inner = waiting.pop()
        if isinstance(inner, dict):
            waiting += [*inner.keys(), *inner.values()]
        elif isinstance(inner, (list, tuple, set)):
            waiting += inner
    raise ConfigError(
        f"{source} has more than {MAX_VALUES} values, or one that holds itself; "
        "write out what its anchors (& and *) stand for."
    )


def read_yaml(path: str | Path) -> Any:
    """The value in a YAML file; raises ConfigError where it is missing or damaged."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); check the path.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); save it so.") from None
    except ValueError as error:  # a NUL in the path
        raise ConfigError(f"{str(path)!r} cannot be read ({error}); check the path.") from None
    return parse_yaml(text, str(path))


def write_yaml(path: str | Path, value: Any, comment: str = "") -> Path:
    """Write plain values so that the file appears whole; `comment` becomes its first line."""
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return write_text(path, f"# {comment}\n{text}" if comment else text)
