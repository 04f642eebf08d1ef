"""One clue: what is taken off it, when two are the same, and how a set of them is written."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from rlkit.errors import ConfigError, nearest
from rlkit.library.tokenize import WIDE, folded

MAX_CLUE_WORDS = 64
MAX_CLUE_CHARS = 300
MAX_RAW_CHARS = 2000  # before tags and entities are resolved; keeps every later step cheap

_MARKUP = re.compile(r"</?[A-Za-z][^<>]*+>|<\|[^<>|]*+\|>")
_UNPRINTABLE = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u200b\u2060\ufeff\ud800-\udfff]")
_BULLET = re.compile(r"(?:[-*+–—‣◦·●•・]\s++)+")
_QUOTES = (
    *zip("\"'`“‘«「『„＂", "\"'`”’»」』“＂", strict=True),
    *((m, m) for m in ("**", "*", "__")),
)


def clean_clue(raw: str, max_words: int = MAX_CLUE_WORDS) -> str:
    """A clue without markup, bullets, quotes around it and superfluous blanks; empty if nothing
    that can be searched is left or if it is longer than `max_words` or 300 characters."""
    if len(raw) > MAX_RAW_CHARS or not raw.strip():
        return ""
    text = _UNPRINTABLE.sub("", html.unescape(_MARKUP.sub(" ", raw)))
    text, before = " ".join(text.split()), None
    while before != text:
        before = text
        text = _unquote(_BULLET.sub("", text, count=1) if _BULLET.match(text) else text)
        text = text.strip().rstrip(",;、；，").rstrip()
    searchable = any(sign.isalnum() for sign in text)
    if not searchable or len(text) > MAX_CLUE_CHARS or count_words(text) > max_words:
        return ""
    return text


def distinct_clues(clues: Iterable[str], max_clues: int) -> list[str]:
    """The first `max_clues` clues that hold a letter or digit and differ by more than case and
    width. Blanks are collapsed; nothing else in a clue is touched."""
    kept: dict[str, str] = {}
    for clue in clues:
        clue = " ".join(_UNPRINTABLE.sub("", clue).split())
        if any(sign.isalnum() for sign in clue) and len(kept) < max_clues:
            kept.setdefault(folded(clue), clue)
    return list(kept.values())


def count_words(text: str) -> int:
    """Words parted by blanks; two Chinese, Japanese or Korean characters count as one word."""
    wide = len(WIDE.findall(text))
    return len(WIDE.sub(" ", text).split()) + (wide + 1) // 2


def format_clues(clues: Sequence[str], layout: str = "bare", analysis: str = "") -> str:
    """The text that the parser reads back as exactly these clues, if they are clean and distinct.

    `layout` is bare (one `<clue>` a line), two_phase (`analysis` before the block) or legacy (a
    numbered `<search>` block). Raises ConfigError for another layout.
    """
    if layout not in _LAYOUTS:
        hint = nearest(str(layout), _LAYOUTS)
        raise ConfigError(
            f"executor.layout is {layout!r}; allowed are {', '.join(_LAYOUTS)}"
            + (f"; did you mean {hint!r}?" if hint else ".")
        )
    return _LAYOUTS[layout]([_escape(clue) for clue in clues], _escape(analysis))


def _format_bare(clues: Sequence[str], analysis: str) -> str:
    return "\n".join(f"<clue>{clue}</clue>" for clue in clues)


def _format_two_phase(clues: Sequence[str], analysis: str) -> str:
    return (
        f"<analysis>{analysis}</analysis>\n"
        f"<search_clues>\n{_format_bare(clues, '')}\n</search_clues>"
    )


def _format_legacy(clues: Sequence[str], analysis: str) -> str:
    # numbered, since a clue such as "1. FC Köln" would else lose its own number
    lines = "".join(f"{number}. {clue}\n" for number, clue in enumerate(clues, start=1))
    return f"<search>\n{lines}</search>"


_LAYOUTS = {"two_phase": _format_two_phase, "legacy": _format_legacy, "bare": _format_bare}


def _escape(clue: str) -> str:
    """Angle brackets always; an ampersand only where it would be read as an entity."""
    if html.unescape(clue) != clue:
        clue = clue.replace("&", "&amp;")
    return clue.replace("<", "&lt;").replace(">", "&gt;")


def _unquote(text: str) -> str:
    for left, right in _QUOTES:
        if len(text) > len(left + right) and text.startswith(left) and text.endswith(right):
            inner = text[len(left) : -len(right)]
            if left not in inner and right not in inner:
                return inner
    return text
