"""Numbers as models and people write them, read exactly: `$1,234.00`, `3/4`, `1 1/2`, `1e3`,
`72kg`, `50%`, `1.2 million`, `$5M`, `5 dozen`, `minus 72`, `７２`, `\\frac{3}{4}`.

Numbers joined by signs are one calculation and have its value: `6 × 12` is 72. Whatever else is
part of something larger has no value: a power or a root (`2^10`, `sqrt(72)`; `10^3` is 1000), a
term with an unknown (`72x`, `72 + x`), one side of a relation (`x > 72`), a choice, a list or a
range (`71 or 72`, `71, 72`, `70-72`), a sum of quantities with units. k, K, M and B at a number
are thousand, million and billion; a letter that may be anything (`5m`) leaves no value.

What only looks like a number is passed over: dates, times and ratios (7:30), versions (1.2.3),
ordinals (3rd), digits within a word (R2D2). A percent sign is a unit: 50% is 50. Parentheses are
never a minus. Reading is linear in the length of the text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from rlkit.answers.equations import evaluate

MAX_DIGITS = 100  # longer ones are no answer, and would cost time and memory
MAX_EXPONENT = 100
MAX_BETWEEN = 90  # characters between two numbers that may belong together

_WIDE = str.maketrans("０１２３４５６７８９：％＋－／＝＄（）−–⁄∕", "0123456789:%+-/=$()--//")
_SIGN_APART = re.compile(r"(?:(?<=[:=*(] )|(?<=[:=*($])|^)− (?=[$0-9])", re.MULTILINE)
_WIDE_POINT = re.compile(r"(?<=[0-9０-９])[，．](?=[０-９])")
_SCALES = {  # the letters directly at the number, and M and B as capitals
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "dozen": 12, "万": 10**4, "亿": 10**8, "k": 10**3, "m": 10**6, "b": 10**9,
}  # fmt: skip
_WORDS = "|".join(name for name in _SCALES if name not in "kmb")
_BLANK = r"[ \u00a0\u2009\u202f]"
_GROUPED = rf"[1-9][0-9]{{0,2}}(?:{_BLANK}[0-9]{{3}}(?![0-9/]|-[A-Za-z]))++"
_DIGITS = rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}}(?![0-9]))++|{_GROUPED}"
_DIGITS += r"|[0-9]{1,3}(?:_[0-9]{3}(?![0-9]))++|[0-9]++)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]++)?|(?<![A-Za-z0-9_)\].])\.[0-9]++)"
_NUMBER = re.compile(
    rf"""
    (?P<other>(?<=[A-Za-z])\^-?[0-9]++ | (?<![A-Za-z0-9_])(?<![0-9]\.)(?:
        [0-9]{{4}}-[0-9]{{1,2}}-[0-9]{{1,2}}(?![0-9])
      | [0-9]++(?::[0-9]++)++
      | [0-9]++(?:\.[0-9]++){{2,}}+
      | [0-9]++(?:/[0-9]++){{2,}}+
      | (?:[0-9]{{1,3}},)?[0-9]++(?:st|nd|rd|th)\b))
  | (?P<unread>(?<![A-Za-z0-9_])(?<![0-9]\.)(?:
        0[xbo][0-9A-F]++
      | (?!10\^)[0-9]++(?:\.[0-9]++)?[ ]?\^[ ]?-?[0-9]++
      | (?:[0-9]++(?:\.[0-9]++)?)?[ ]?(?:√[ (]*[0-9]*+|π)))
  | (?P<sign>(?<![0-9A-Za-z)\]}}%])(?<![0-9)\]%][ ])(?:
        -(?:[ ](?:(?<=^-[ ])|(?<=[=:(*$]-[ ])|(?<=[=:(*$][ ]-[ ])))?
      | (?:minus|negative)[ ] | (?:负的?|零下)[ ]?))?
    (?:[$€£¥￥][ ]?)?(?:(?<=[$€£¥￥])(?P<inner>-))?
    (?<![A-Za-z0-9_])(?<![0-9]\.)
    (?: (?P<whole>[0-9]{{1,9}})[ ](?P<part>[0-9]{{1,4}}/[0-9]{{1,4}})(?![0-9/]|\.[0-9])
      | 10\^(?P<ten>-?[0-9]++)
      | (?P<over>{_DECIMAL})[ ]?/[ ]?\$?(?P<under>{_DECIMAL})
      | (?P<plain>{_DECIMAL})
        (?: [eE](?P<exponent>[+-]?[0-9]++)(?![A-Za-z])
          | [ ]?[x×*·][ ]?10\^(?P<power>-?[0-9]++)
          | (?P<letter>(?-i:[kKMB]))(?![A-Za-z])
          | [ ]?(?P<scale>{_WORDS})s?(?![A-Za-z]))? )
    (?:[ ]?%)?
    (?P<doubt>[ ]?[²³¹⁰⁴-⁹₀-₉^√πα-λν-ω]
      | (?=[A-Za-z_]{{1,3}}[0-9]) | [ ]?(?:{_WORDS})(?![A-Za-z]) | [十百千](?![克米瓦卡])
      | (?![ ]?x[ ]?[-$(.]?[0-9])
        (?:[ ]?(?:bn|mn|mil)|(?-i:(?![ghlsLCFWV])[A-Za-z])|[ ](?-i:[xyzkKMB]))(?![A-Za-z'’]))?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_PART_BEFORE = re.compile(  # ends right before a number
    r"""(?:(?<![=-])[<>]=? | [≤≥≠±] | !=
      | (?:√|\b(?:sqrt|log|ln|sin|cos|tan|exp|root|half|third|quarter|twice|double|triple|square)
          (?:[ ]of)?) | [A-Za-z]\(
      | [A-Za-z)²³][ ]?[+×÷/^][ ]? | [A-Za-z)]\* | [A-Za-z)][ ][*-][ ] | (?<![A-Za-z])[A-Za-z]-
      | (?<![A-Za-z])[x×] | -[ ]?[+]? | (?:more|less|fewer|greater)[ ]than[ ]
    )[ $(]*$""",
    re.VERBOSE | re.IGNORECASE,
)
_PART_BEHIND = re.compile(
    r"""[)\]]*(?:[ ]?(?:[+×÷^±≠≤≥²³]|[<>]|!=|[-*/][ ]?\(?[xyzn](?![A-Za-z])) | [(](?=[0-9])
      | [ ](?:squared|cubed|factorial|and[ ]a[ ](?:half|third|quarter))\b)""",
    re.VERBOSE | re.IGNORECASE,
)
_OPERATOR = re.compile(
    r"[^=:<>.;]{0,40}?(?:[+×÷·/±]|(?<= )\*(?= )|(?<! )\*(?! )|(?<![A-Za-z])x(?![A-Za-z])"
    r"|(?<![A-Za-z])-|\b(?:plus|minus|times)\b)[ $€£¥(*]*",
    re.IGNORECASE,
)
_CHOICE = re.compile(
    r"[\s,;，；.)、&~-]*(?:\b(?:and|to|through)\b|和|到|至| :)?[\s$€£¥]*"
    r"|[^=.;]{0,40}?(?:\b(?:so|thus|therefore|hence|divided by)\b|所以)[^=]{0,40}"
    r"|[^=]{0,40}?(?:\bor\b|或).{0,40}|[\s,;]+[A-Za-z]\s?=\s?",
    re.IGNORECASE,
)
_MIXED = re.compile(r"[0-9]-[0-9]+/")  # 1-1/2 may be 1 1/2
_VULGAR = re.compile(r"([0-9])?([¼½¾⅓⅔⅛⅜⅝⅞])")
_EMPHASIS = re.compile(
    r"(?<![A-Za-z0-9_])_++|_++(?![A-Za-z0-9_])"
    r"|(?<![A-Za-z0-9)*])\*{2,3}(?!\*)|(?<!\*)\*{2,3}(?![A-Za-z0-9(*])"
)
_PLAIN = re.compile(r"[0-9.,]+")
_SIGNED = re.compile(r"-?[0-9.,]+")
_FRAC = re.compile(r"([0-9])?\\[dtc]?frac\s*+(?:\{([^{}]*+)\}\s*+\{([^{}]*+)\}|([0-9])\s*+([0-9]))")
_LATEX = (
    (re.compile(r"\{,\}|\\[,!]|\\(?:left|right)\b"), ""),
    (re.compile(r"\\([$%#&])"), r"\1"),
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), "×"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"\\(?:sqrt|lfloor|lceil|binom|sum|prod)(?![A-Za-z])"), "√"),
    (re.compile(r"\\(?=(?:log|ln|sin|cos|tan|exp)\b)"), ""),
    (re.compile(r"\\neq?\b|\\(?:l|g)(?:e|eq|t)\b"), "≠"),
    (re.compile(r"\\pm\b"), "±"),
    (re.compile(r"\^\s*+(?:\{\s*+\\circ\s*+\}|\\circ\b)"), "°"),
    (re.compile(r"\\pi\b"), "π"),
    (re.compile(r"\\(?:text|math|operatorname|mbox)[a-z]*+\s*+\{([^{}]*+)\}"), r" \1 "),
)
_COMMAND = re.compile(r"\\[A-Za-z]++|\\.|[{}]")


class Found(NamedTuple):
    """A number, or a calculation of `parts` numbers, and where it stands. `value` None: it is part
    of something larger or too large; `parts` 0: it only looks like a number."""

    value: Fraction | None
    start: int
    end: int
    parts: int


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
        text = _COMMAND.sub(_without_command, _FRAC.sub(_frac, text).replace("}{", " ~ "))
    if not text.isascii():
        text = _VULGAR.sub(_vulgar, text)
    return _EMPHASIS.sub("", text) if "_" in text or "**" in text else text


def find_numbers(text: str) -> list[Found]:
    """Every number and every calculation of a `plain_math` text, in order."""
    return [_whole(text, run, joined) for run, joined in _runs(text)]


def _runs(text: str) -> Iterator[tuple[list[Found], bool]]:
    """The numbers that belong together, and whether signs alone join them."""
    run: list[Found] = []
    calculates = True
    for m in _NUMBER.finditer(text):
        one = Found(_value(m), m.start(), m.end(), 0 if m["other"] else 1)
        between = text[run[-1].end : one.start] if run else ""
        operator = _OPERATOR.fullmatch(between) if len(between) < MAX_BETWEEN else None
        if run and (operator or (len(between) < MAX_BETWEEN and _CHOICE.fullmatch(between))):
            run.append(one)
            calculates = calculates and operator is not None
        else:
            if run:
                yield run, calculates
            run, calculates = [one], True
    if run:
        yield run, calculates


def _whole(text: str, run: list[Found], calculates: bool) -> Found:
    start, end = run[0].start, run[-1].end
    value = run[0].value
    if len(run) > 1:
        value = _calculated(text[start:end]) if calculates else None
    if _PART_BEFORE.search(text[max(start - 24, 0) : start]) or _PART_BEHIND.match(text, end):
        value = None
    return Found(value, start, end, len(run) if len(run) > 1 else run[0].parts)


def _calculated(text: str) -> Fraction | None:
    """The value of a calculation, whose outer parentheses may be missing; a difference below
    zero may be a range, and a share of something is not defined: None."""
    if len(text) > 10 * MAX_DIGITS or "%" in text or _MIXED.search(text):
        return None
    missing = text.count("(") - text.count(")")
    value = evaluate("(" * -missing + text.replace("·", "*") + ")" * missing)
    return None if value is not None and value < 0 and "-" in text[1:] else value


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
    if len(numbers) != 1 or numbers[0].parts != 1 or re.search(r"[^\W_]", text[: numbers[0].start]):
        return None
    return numbers[0].value


def _value(match: re.Match[str]) -> Fraction | None:
    if (
        match["other"]
        or match["unread"]
        or match["doubt"] is not None
        or match.end() - match.start() > MAX_DIGITS
    ):
        return None
    if match["whole"]:
        part = _ratio(*match["part"].split("/"))
        value = int(match["whole"]) + part if part is not None and part < 1 else None
    elif match["over"]:
        value = _ratio(match["over"], match["under"])
    else:
        exponent = int(match["exponent"] or match["power"] or match["ten"] or 0)
        scale = _SCALES.get((match["scale"] or match["letter"] or "").lower(), 1)
        small = abs(exponent) <= MAX_EXPONENT
        value = (
            _decimal(match["plain"] or "1") * scale * Fraction(10) ** exponent if small else None
        )
    negative = bool(match["sign"]) != bool(match["inner"])
    return -value if negative and value is not None else value


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(rf"[,_]|{_BLANK}", "", text))


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
