"""The errors that a user can mend: each is one sentence that says what was given, what is
allowed, and what to do. Anything else that is raised is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RlkitError(Exception):
    """Base of all errors that the user can mend; the command line prints only the sentence."""

    def _render_traceback_(self) -> list[str]:
        """IPython asks for this: a notebook, too, shows only the sentence."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(RlkitError):
    """A parameter is unknown, out of range, or does not fit another one."""


class DataError(RlkitError):
    """A file of documents, questions or rounds is missing or damaged."""


class ModelError(RlkitError):
    """A model or an adapter cannot be loaded, or does not fit."""


class RunError(RlkitError):
    """A run's folder does not allow what was asked for."""


class AgentError(RlkitError):
    """A server or its model does not answer as it must."""


class ServerAwayError(AgentError):
    """A server was waited for in vain; whatever is asked of it next has no better chance."""


def nearest(name: str, options: Iterable[str]) -> str | None:
    """The option whose spelling is nearest to `name`, or None if none comes near."""
    options = list(options)
    by_fold = {option.casefold(): option for option in options}
    found = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None


def did_you_mean(name: str, options: Iterable[str], otherwise: str = ".") -> str:
    """How a sentence about an unknown name ends: with the nearest option, else `otherwise`."""
    near = nearest(name, options)
    return f"; did you mean {near}?" if near else otherwise
