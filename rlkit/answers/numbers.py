"""Numbers as models and people write them, read exactly: `$1,234.00`, `3/4`, `1 1/2`, `1e3`,
`72kg`, `50%`, `1.2 million`, `７２`, `\\frac{3}{4}`.

What only looks like a number is passed over: dates, times and ratios (7:30), versions (1.2.3),
ordinals (3rd), powers (2^10), multiples of roots and π (2√3), digits within a word (R2D2). A
percent sign is a unit: 50% is 50. Parentheses are never a minus. Reading is linear in the length
of the text."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

Number = Fraction
MAX_DIGITS = 100  # longer ones are no answer, and would cost time and memory
MAX_EXPONENT = 100

_WIDE = str.maketrans("０１２３４５６７８９：％＋－／＝＄（）−–", "0123456789:%+-/=$()--")
_SIGN_APART = re.compile(r"(?:(?<=[:=*(] )|(?<=[:=*($])|^)− (?=[$0-9])", re.MULTILINE)
_WIDE_POINT = re.compile(r"(?<=[0-9０-９])[，．](?=[０-９])")
_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "万": 10**4, "亿": 10**8,
}  # fmt: skip
_BLANK = r"[ \u00a0\u2009\u202f]"
_GROUPED = rf"[1-9][0-9]{{0,2}}(?:{_BLANK}[0-9]{{3}}(?![0-9/]|-[A-Za-z]))++"
_DIGITS = rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}}(?![0-9]))++|{_GROUPED}|[0-9]++)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]++)?|(?<![A-Za-z0-9_)\].])\.[0-9]++)"
_NUMBER = re.compile(
    rf"""
    (?P<other>(?<![A-Za-z0-9_])(?<![0-9]\.)(?:
        [0-9]{{4}}-[0-9]{{1,2}}-[0-9]{{1,2}}(?![0-9])
      | [0-9]++(?::[0-9]++)++
      | [0-9]++(?:\.[0-9]++){{2,}}+
      | [0-9]++(?:/[0-9]++){{2,}}+
      | [0-9]++(?:\.[0-9]++)?[ ]?\^[ ]?-?[0-9]++
      | (?:[0-9]++(?:\.[0-9]++)?)?[ ]?(?:√[ ]?[0-9]*+|π)
      | (?:[0-9]{{1,3}},)?[0-9]++(?:st|nd|rd|th)\b))
  | (?P<sign>(?<![0-9A-Za-z)\]}}%])(?<![0-9)\]%][ ])-
        (?:[ ](?:(?<=[=:]-[ ])|(?<=[=:][ ]-[ ])))?)?
    (?:[$€£¥￥][ ]?)?(?:(?<=[$€£¥￥])(?P<inner>-))?
    (?<![A-Za-z0-9_])(?<![0-9]\.)
    (?: (?P<whole>[0-9]{{1,9}})[ ](?P<part>[0-9]{{1,4}}/[0-9]{{1,4}})(?![0-9/.])
      | (?P<over>{_DECIMAL})[ ]?/[ ]?\$?(?P<under>{_DECIMAL})
      | (?P<plain>{_DECIMAL})
        (?: [eE](?P<exponent>[+-]?[0-9]++)(?![A-Za-z])
          | [ ]?[x×*·][ ]?10\^(?P<power>-?[0-9]++)
          | [ ]?(?P<scale>{"|".join(_SCALES)})(?![A-Za-z]))? )
    (?:[ ]?(?P<percent>%))?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_VULGAR = re.compile(r"([0-9])?([¼½¾⅓⅔⅛⅜⅝⅞])")
_EMPHASIS = re.compile(r"(?<![A-Za-z0-9_])_++|_++(?![A-Za-z0-9_])")
_PLAIN = re.compile(r"[0-9.,]+")
_SIGNED = re.compile(r"-?[0-9.,]+")
_FRAC = re.compile(r"([0-9])?\\[dtc]?frac\s*+(?:\{([^{}]*+)\}\s*+\{([^{}]*+)\}|([0-9])\s*+([0-9]))")
_LATEX = (
    (re.compile(r"\{,\}|\\[,!]|\\(?:left|right)\b"), ""),
    (re.compile(r"\\([$%#&])"), r"\1"),
    (re.compile(r"\\(?:times|cdot)\b"), "×"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(r"\\sqrt\b"), "√"),
    (re.compile(r"\\pi\b"), "π"),
    (re.compile(r"\\(?:text|math|operatorname|mbox)[a-z]*+\s*+\{([^{}]*+)\}"), r" \1 "),
)
_COMMAND = re.compile(r"\\[A-Za-z]++|\\.|[{}]")


class Found(NamedTuple):
    """A number and where it stands; `value` None: something that only looks like a number, or
    one that is too large."""

    value: Fraction | None
    start: int
    end: int
    percent: bool


def plain_signs(text: str) -> str:
    """Full-width digits, and the signs among them, as ASCII; every character keeps its place."""
    if text.isascii():
        return text
    text = _SIGN_APART.sub(" -", text)  # U+2212 is no bullet
    text = _WIDE_POINT.sub(lambda sign: "," if sign[0] == "，" else ".", text)
    return text.translate(_WIDE)


def plain_math(text: str) -> str:
    """The text with the LaTeX, the Markdown and the fraction signs in it as plain arithmetic.

    >>> plain_math(r"1\\frac{1}{2} + \\$½")
    '1 1/2 + $1/2'
    """
    text = plain_signs(text)
    if "\\" in text or "{" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
        text = _COMMAND.sub(_without_command, _FRAC.sub(_frac, text))
    if not text.isascii():
        text = _VULGAR.sub(_vulgar, text)
    return _EMPHASIS.sub("", text) if "_" in text else text


def find_numbers(text: str) -> list[Found]:
    """Every number of a `plain_math` text, in order."""
    return [
        Found(_value(m), m.start(), m.end(), bool(m["percent"])) for m in _NUMBER.finditer(text)
    ]


def parse_number(text: str) -> Fraction | None:
    """The value of a text that is one number, with or without a currency before it and a unit
    behind it; None for anything else.

    >>> parse_number("$1,234.50 per year"), parse_number("3 or 4")
    (Fraction(2469, 2), None)
    """
    if len(text) > 10 * MAX_DIGITS:
        return None
    text = plain_math(text)
    numbers = find_numbers(text)
    if len(numbers) != 1 or re.search(r"[^\W_]", text[: numbers[0].start]):
        return None
    return numbers[0].value


def _value(match: re.Match[str]) -> Fraction | None:
    if match["other"] or match.end() - match.start() > MAX_DIGITS:
        return None
    if match["whole"]:
        part = _ratio(*match["part"].split("/"))
        value = int(match["whole"]) + part if part is not None and part < 1 else None
    elif match["over"]:
        value = _ratio(match["over"], match["under"])
    else:
        exponent = int(match["exponent"] or match["power"] or 0)
        scale = _SCALES[match["scale"].lower()] if match["scale"] else 1
        small = abs(exponent) <= MAX_EXPONENT
        value = _decimal(match["plain"]) * scale * Fraction(10) ** exponent if small else None
    negative = bool(match["sign"]) != bool(match["inner"])
    return -value if negative and value is not None else value


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(rf",|{_BLANK}", "", text))


def _ratio(over: str, under: str) -> Fraction | None:
    denominator = _decimal(under)
    return _decimal(over) / denominator if denominator else None


def _frac(match: re.Match[str]) -> str:
    before, *parts = match.groups()
    over, under = (part.strip() for part in parts if part is not None)
    over = over if (_PLAIN if before else _SIGNED).fullmatch(over) else f"({over})"
    under = under if _PLAIN.fullmatch(under) else f"({under})"
    return f"{before} {over}/{under}" if before else f"{over}/{under}"


def _vulgar(match: re.Match[str]) -> str:
    value = Fraction(unicodedata.numeric(match[2])).limit_denominator(8)
    return f"{match[1]} {value}" if match[1] else str(value)


def _without_command(match: re.Match[str]) -> str:
    return "" if match[0] in "{}" else " "
