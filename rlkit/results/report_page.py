"""What every part of a report is made with: pictures for light and dark pages, numbers as text, and
the Jinja template, in which everything from documents and models is escaped."""

from __future__ import annotations

import base64
from collections.abc import Callable

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from rlkit.results import plots, statistics
from rlkit.results.templating import template


def page() -> jinja2.Template:
    """The report's page."""
    return template("report.html.j2", number=number, signed=signed, p_value=p_value,
                    claimed=statistics.claimed)  # fmt: skip


def number(value: float | None, digits: int = 2) -> str:
    """A number with that many digits; a dash where there is none."""
    if value is None or pd.isna(value):
        return "–"
    return f"{round(value, digits) + 0.0:.{digits}f}"


def signed(value: float | None) -> str:
    """A difference with its sign; a dash where there is none."""
    if value is None or pd.isna(value):
        return "–"
    text = statistics.signed(value)
    return text if float(text) else text.lstrip("+")


def p_value(value: float | None) -> str:
    """`p = 0.03`, `p < 0.001`, or nothing where there is no p."""
    if value is None:
        return ""
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def picture(draw: Callable[[], Figure], alt: str) -> dict[str, str]:
    """A figure as data URIs for light and for dark pages, with the text that stands for it."""
    with plots.style():
        light = plots.svg(draw())
    return {"alt": alt, "light": _data_uri(light), "dark": _data_uri(plots.darkened(light))}


def _data_uri(image: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(image).decode('ascii')}"
