"""The Jinja templates of reports and of `browse`; everything that fills them in is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jinja2
from markupsafe import Markup

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")  # no text of HTML's


def template(name: str, **filters: Callable[..., Any]) -> jinja2.Template:
    """`rlkit/results/templates/<name>`; a name that it uses and is not given is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rlkit.results", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.finalize = _shown  # every value, whether the template thinks of it or not
    environment.filters |= filters
    return environment.get_template(name)


def _shown(value: Any) -> Any:
    """Text without the signs that HTML has not; what is markup already was made of such text."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _CONTROL.sub("\ufffd", value)
    return value
