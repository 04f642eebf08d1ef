"""Equations inside a solution (`48/2 = <<48/2=24>>24`), evaluated with fractions and no `eval`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

LONGEST = 20_000  # characters of a solution that are read
_MARK = re.compile(r"<<([^<>\n]*)>>")
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,30})?(?:\.\d{1,30})?"
_PLAIN = rf"[$€£¥]?[+-]?[$€£¥]?(?=\.?\d){_DIGITS}(?!\d)%?"
_TERM = rf"\({{0,4}}\s?{_PLAIN}\s?\){{0,4}}"
_SIGN = r"\s{0,3}(?:[-+*/×÷−]|[xX](?=\s{0,3}[\d.($€£¥]))\s{0,3}"
_RIGHT = re.compile(rf"\s*({_TERM}(?:{_SIGN}{_TERM})*)")
_FIRST = re.compile(_PLAIN + r"|\(")
_TOKEN = re.compile(rf"\s*(?:((?=\.?\d){_DIGITS}%?)|([-+*/()]))")
_SUM = re.compile(rf"(?<![A-Za-z0-9_.,])[$€£¥]?\(?{_TERM}(?:{_SIGN}{_TERM})+\s*$")
_NUMBER = re.compile(rf"(?<![A-Za-z0-9_.,])(?=\.?\d){_DIGITS}(?!\d)")
_ON = re.compile(
    r"[A-Za-z0-9_]|\.\d|,\d|\s*[-+*/^×÷−]\s*\S|\s+(?:and\s+)?\d|\s*\(\s*\d|\s*¢|\s*cents?\b"
    r"|\s*[rR](?:em|\b)"
)
_CLOCK = re.compile(r"(?<![\d.,])0\d")  # 0900 - 0130 = 0730
_DECIMALS = re.compile(r"\.(\d+)[)%\s]*$")
_MIXED = re.compile(r"\d\s+and$")  # 1 and 1/4
_FRACTION = re.compile(r"\d+/\d+")
_ALLOWED = "0123456789 \t.,$€£¥%()+-*/xX×÷−"
_SAME = str.maketrans({"x": "*", "X": "*", "×": "*", "÷": "/", "−": "-"} | dict.fromkeys("$€£¥,"))


@dataclass(frozen=True, slots=True)
class Equation:
    """`left = right` as they stand in the text, with their values; it holds if these are equal."""

    text: str
    left: Fraction
    right: Fraction
    holds: bool

    @property
    def numbers(self) -> list[Fraction]:
        """The numbers on the left side, without their signs."""
        return numbers_in(re.sub(r"[^\d.,]", " ", self.text.partition("=")[0]))


def equations(text: str) -> Iterator[Equation]:
    """The equations of a solution whose left side is a sum, product and so on of plain numbers.

    What is not clearly one (mixed numbers, unknowns, remainders) is passed over.
    """
    text = text[:LONGEST]
    for mark in _MARK.findall(text):
        yield from _chain(mark)
    for line in _MARK.sub("", text).splitlines():
        yield from _chain(line)


def wrong_equations(text: str) -> list[str]:
    """Those equations of a solution that are arithmetically false, each once."""
    return list(dict.fromkeys(e.text for e in equations(text) if not e.holds))


def numbers_in(text: str) -> list[Fraction]:
    """The numbers written in a text, in order."""
    return [Fraction(found.replace(",", "")) for found in _NUMBER.findall(text)]


def evaluate(expression: str) -> Fraction | None:
    """The value of `+ - * / ( )` over plain numbers; None for anything else, and for x / 0.

    >>> evaluate("(3 + 4) * 0.5")
    Fraction(7, 2)
    """
    tokens, position = [], 0
    expression = expression.translate(_SAME).strip()
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None or len(tokens) > 60:
            return None
        tokens.append(match[1] or match[2])
        position = match.end()
    try:
        value, rest = _sum(tokens)
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    return None if rest else value


def _sum(tokens: list[str]) -> tuple[Fraction, list[str]]:
    value, tokens = _product(tokens)
    while tokens and tokens[0] in "+-":
        sign, (other, tokens) = tokens[0], _product(tokens[1:])
        value = value + other if sign == "+" else value - other
    return value, tokens


def _product(tokens: list[str]) -> tuple[Fraction, list[str]]:
    value, tokens = _factor(tokens)
    while tokens and tokens[0] in "*/":
        sign, (other, tokens) = tokens[0], _factor(tokens[1:])
        value = value * other if sign == "*" else value / other
    return value, tokens


def _factor(tokens: list[str]) -> tuple[Fraction, list[str]]:
    first, rest = tokens[0], tokens[1:]
    if first in "+-":
        value, rest = _factor(rest)
        return (value if first == "+" else -value), rest
    if first == "(":
        value, rest = _sum(rest)
        if rest[0] != ")":
            raise ValueError(first)
        return value, rest[1:]
    if first.isdecimal():
        return Fraction(int(first)), rest
    return Fraction(first.rstrip("%")) / (100 if first.endswith("%") else 1), rest


def _chain(line: str) -> Iterator[Equation]:
    sides = line.split("=")
    for n, (before, after) in enumerate(pairwise(sides), start=2):
        left, right = _left(before), _RIGHT.match(after)
        if left is None or right is None or _goes_on(after[len(after[: right.end()].rstrip()) :]):
            continue
        values = evaluate(left), evaluate(right[1])
        if None not in values and not _CLOCK.search(left):
            text = f"{left.strip()} = {right[1].strip()}"
            holds = _holds(left, right[1], *values)
            if not holds and n < len(sides):  # 12 + 24 = 36 - 9 = 27, carelessly written on
                holds = evaluate(_FIRST.match(right[1])[0]) == values[0]
            yield Equation(text, *values, holds)


def _left(side: str) -> str | None:
    """The sum, product and so on that a side ends with; None where it may begin before."""
    start = max(len(side.rstrip(_ALLOWED)), len(side) - 200)
    end = side[max(0, start - 1) :]  # with the sign before it, which must not be a letter
    found = _SUM.search(end)
    if found is None:
        return None
    before = side[: len(side) - len(end) + found.start()].rstrip()
    if _MIXED.search(before[-12:]) and _FRACTION.match(found[0]):
        return None
    return None if before and (before[-1].isdigit() or before[-1] in "+-*/x×÷−^(%") else found[0]


def _goes_on(rest: str) -> bool:
    """Whether what follows a right side changes its value: `7x`, `2 1/2`, `1 and 1/3`, `50 cents`
    (of a dollar), `2 remainder 1`."""
    return bool(_ON.match(rest))


def _holds(left: str, right: str, *values: Fraction) -> bool:
    """Whether both sides are equal. A right side with decimals may be rounded or cut off, and a
    percentage may be told as a number (`5 / 20 * 100 = 25%`)."""
    point = _DECIMALS.search(right)
    decimals = len(point[1]) if point else 0
    slack = Fraction(1, 10**decimals) if decimals else 0
    if values[0] == values[1] or abs(values[0] - values[1]) < slack / (100 if "%" in right else 1):
        return True
    if "%" not in left + right:
        return False
    a, b = (evaluate(side.replace("%", "")) for side in (left, right))
    return a == b or (None not in (a, b) and abs(a - b) < slack)
