"""Reasoning steps of a completion: lines and sentences with an equation that is right.

An equation counts where at least one side calculates, and both are equal: `48 / 2 = 24`,
`$12 x 3 = $36`, `48 clips + 24 clips = 72 clips`. A result with decimals may be rounded to them
(`10 / 3 = 3.33`). Unlike equations.py, which judges solutions that people wrote, this reads on
where units stand between the numbers; GSM8K's calculator marks are passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from rlkit.answers.equations import evaluate
from rlkit.answers.numbers import MAX_DIGITS, plain_math, plain_signs

MAX_SENTENCE = 1_000  # characters; a longer one is no step
MAX_TOKENS = 40  # of one side
MAX_UNIT_WORDS = 3

_MARKS = re.compile(r"<<[^<>\n]*+>>")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|[。！？；]|[\r\n]+")
_BULLET = re.compile(r"^\s*(?:[-*•]|[0-9]{1,2}[.)])\s+")
_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3}(?![0-9]))++|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++)"
    r"|(?P<word>/?[^\W\d_]{2,}+|[a-wyzA-WYZ])|(?P<sign>[-+*/()=%x×·÷X])|(?P<mark>[^\s$€£¥])"
)
_SIGNS = {"x": "*", "X": "*", "×": "*", "·": "*", "÷": "/"}
Tokens = list[str]


def right_equations(text: str) -> Iterator[str]:
    """For each line or sentence with an equation that is arithmetically right and was not
    written before, that equation in one form, such as `48/2=24`."""
    seen: set[str] = set()
    for sentence in _SENTENCE_END.split(_MARKS.sub("", plain_signs(text))):
        if "=" in sentence and len(sentence) <= MAX_SENTENCE:
            new = [one for one in _equations(sentence) if one not in seen]
            seen.update(new)
            if new:
                yield new[0]


def _equations(sentence: str) -> Iterator[str]:
    sides: list[Tokens] = [[]]
    for token in _tokens(_BULLET.sub("", plain_math(sentence), count=1)):
        if token == "=":
            sides.append([])
        else:
            sides[-1].append(token)
    for before, behind in zip(sides, sides[1:], strict=False):
        left, right = _ending(before), _beginning(behind)
        if len(left) + len(right) > 2 and _equal(left, right):
            yield f"{''.join(left)}={''.join(right)}"


def _tokens(text: str) -> Iterator[str]:
    """Numbers, signs, words as `w` and other marks as `?`; Markdown's `**` is nothing."""
    for match in _TOKEN.finditer(text.replace("**", "")):
        kind, token = match.lastgroup, match[0]
        if kind == "number":
            yield token.replace(",", "") if len(token) <= MAX_DIGITS else "?"
        else:
            yield {"word": "w", "mark": "?"}.get(kind or "", _SIGNS.get(token, token))


def _ending(tokens: Tokens) -> Tokens:
    """The longest calculation that ends the tokens; words behind a number are its unit."""
    taken: Tokens = []
    wants_operand, words, depth = True, 0, 0
    for token in reversed(tokens[-MAX_TOKENS:]):
        if wants_operand and token == "w" and words < MAX_UNIT_WORDS:
            words += 1
            continue
        if wants_operand and (token in ")%" or _is_number(token)):
            depth += token == ")"
            wants_operand = not _is_number(token)
        elif not wants_operand and token in "+-*/":
            wants_operand, words = True, 0
        elif token == "(" and depth and (not wants_operand or taken[-1] == "-"):
            depth, wants_operand = depth - 1, False
        elif not (wants_operand and taken and taken[-1] == "-" and token in "+*/"):
            break
        taken.append(token)
    if taken and taken[-1] in "+*/":
        taken.pop()
    return taken[::-1]


def _beginning(tokens: Tokens) -> Tokens:
    """The longest calculation that begins the tokens."""
    taken: Tokens = []
    wants_operand, depth = True, 0
    for token in tokens[:MAX_TOKENS]:
        if wants_operand and (token in "(-" or _is_number(token)):
            depth += token == "("
            wants_operand = not _is_number(token)
        elif not wants_operand and token == "%":
            pass
        elif not wants_operand and token in "+-*/":
            wants_operand = True
        elif not wants_operand and token == ")" and depth:
            depth -= 1
        else:
            break
        taken.append(token)
    while taken and taken[-1] in "+-*/(":
        taken.pop()
    return taken


def _equal(left: Tokens, right: Tokens) -> bool:
    value, result = evaluate("".join(left)), evaluate("".join(right))
    if value is None or result is None:
        return False
    if value == result or (right[-1] == "%" and value == result * 100):
        return True
    if len(right) > 1 or "." not in right[0]:
        return False
    places = len(right[0].partition(".")[2])
    return abs(value - result) <= Fraction(1, 2 * 10**places)


def _is_number(token: str) -> bool:
    return token[0].isdigit() or token[0] == "."
