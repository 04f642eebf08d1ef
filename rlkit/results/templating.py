"""The Jinja templates of reports and of `browse`; everything that fills them in is escaped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jinja2


def template(name: str, **filters: Callable[..., Any]) -> jinja2.Template:
    """`rlkit/results/templates/<name>`; a name that it uses and is not given is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rlkit.results", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name)
