"""The final answer of a completion, as an exact number.

Rules, the first that applies decides:
1. thinking is dropped, closed or cut off, and so are calculator marks (`<<48+24=72>>`);
2. the last marker wins, of `\\boxed{...}` (`boxed`), `Final Answer:`, `最终答案`, `<answer>`
   (`final_answer`) and `#### 72` (`hashes`). A marker with no number behind it, or a box that
   was cut off, is no answer;
3. the last `The answer is ...`, `Answer: 72`, `答案是 72` with a number behind it (`answer_is`);
4. the last clause with a number (`equation` behind a `=`, else `last_number`). Only the end of a
   long text is looked at.

Which number of these words it is: a number that is denied is passed over (`is not 72 but 70`).
One value alone is the answer. Of several, what follows the first clause that a number begins is
passed over (`72. Check: ...`), else what follows the first sentence; then the number directly
behind `=`, `:` or `is` (`20% of 50 is 10`), as long as there is one; then the number in front
of a phrase such as `in 2 months`. Anything else is doubtful and no answer: `On day 3 she has 72
clips`, `5 hours 30 minutes`.

What a number is: numbers.py. Completions are untrusted: reading is linear and never raises."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from rlkit.answers.numbers import (
    Found,
    find_numbers,
    parse_number,
    plain_math,
    plain_signs,
)

__all__ = [
    "Extracted", "extract_answer", "parse_number", "same_answer",
    "visible_text",
]  # fmt: skip
MARKERS = ("boxed", "final_answer", "hashes")
MAX_BEHIND = 400  # characters behind a marker, or inside a box, that are read
MAX_NUMBERS = 40  # of the last clause; with more there is no answer
MAX_TAIL = 20_000  # characters at the end of a text in which the last number is looked for

_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_MARKER = re.compile(
    r"""
    (?P<boxed>\\?\bf?boxed[ ]?\{)
  | (?P<final_answer>
        final[\s_]*+answers?(?:[ ]\([^()\n]{0,40}\))?[*_"'`\ \t]*+
            (?:[:=]|(?:is|are|was)(?:\b|(?=n't))|(?=[-$€£¥\\]{0,3}[0-9]))
      | ^[#*_\ \t]*+final[\s_]*+answers?[*_\ \t]*+$
      | 最[终后]的?答案[*_\ \t]*+(?:[:=]|是|为|(?=[-$¥]?[0-9]))
      | <answer>)
  | (?P<hashes>^[ \t]*+\#{4}[ \t]*+(?=[-$€£¥]{0,2}\.?[0-9])(?![0-9]++[.)][ \t]++\S))
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_ANSWER_IS = re.compile(
    r"""
    \banswers?[*_\ \t]*+(?:(?P<label>[:=])|(?:is|are|was)(?:\b|(?=n't)))
  | 答案[*_\ \t]*+(?:(?:应该|应当|就)?(?:是|为|等于)|[:=]|(?=不是))
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BRACE = re.compile(r"[{}]")
_WORD = re.compile(r"[^\W_]")
_DENIED = re.compile(r"(?:\bnot|n't|不是|并非)\s*(?:equal to\s*)?[*$]{0,3}$", re.IGNORECASE)
_SENTENCE_END = r"[.!?;](?=\s|[*_\"')]|$)|[。！？；\n]| \(|（|\b(?:because|since)\b|因为"
_ENDS = {
    "sentence": re.compile(_SENTENCE_END, re.IGNORECASE),
    "clause": re.compile(
        rf"{_SENTENCE_END}|,(?=\s|[*_\"')]|$)(?!\s*[$(]?[0-9])|，(?![0-9])", re.IGNORECASE
    ),
}
_DECIDES = re.compile(
    r"(?:(?<![<>!=])=(?!=)>?|:|是|为|等于|\b(?:is|are|was|were|equals?|makes?|gives?|totals)\b)"
    r"(?:\s*+(?:about|exactly|equal to|a total of)\b)?+",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"\s?[^\W\d_][^,;:=0-9]{0,60}?\b(?:in|for|out of|after|at|on|during|within)\b")
_MARKS = re.compile(r"<<[^<>\n]*+>>")
_TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,20}>")


@dataclass(frozen=True, slots=True)
class Extracted:
    """The answer: its exact value, the number as it was read (LaTeX resolved, a percent sign
    kept), and the rule that found it."""

    value: Fraction
    text: str
    how: str


@lru_cache(maxsize=256)  # each part of a reward asks for it
def extract_answer(text: str) -> Extracted | None:
    """The final answer of a completion (rules: head of this file), or None where there is none."""
    text = plain_signs(_MARKS.sub("", visible_text(text)))
    marker = _last_marker(text)
    if marker is not None:
        return _behind(marker, text)
    for found in reversed(deque(_ANSWER_IS.finditer(text), maxlen=20)):
        words = _numbers_in(_first_line(text, found.end()))
        if words.numbers and not (found["label"] and _WORD.search(words.text, 0, words.first)):
            return _answer_in(words, "answer_is")
    return _last_number(text[-MAX_TAIL:])


def same_answer(a: Any, b: Any) -> bool:
    """Whether two answers, each a text, a number, an `Extracted` or None, have the same exact
    value; an answer that cannot be read equals none. `50%` equals 50, `3/4` equals 0.75.
    """
    first, second = answer_value(a), answer_value(b)
    return first is not None and first == second


def answer_value(answer: Any) -> Fraction | None:
    """The exact value of an answer as `same_answer` takes it; a text is read as one number, else
    as a completion."""
    if isinstance(answer, Extracted):
        return answer.value
    if isinstance(answer, bool) or answer is None:
        return None
    if isinstance(answer, (int, Fraction)):
        return Fraction(answer)
    if isinstance(answer, float):
        return Fraction(repr(answer)) if math.isfinite(answer) else None
    text = str(answer)
    value = parse_number(text)
    found = extract_answer(text) if value is None else None
    return found.value if found is not None else value


def visible_text(text: str) -> str:
    """The text without its thinking. A block that was cut off reaches to the end; an end without
    a beginning (a chat template may have opened it in the prompt) ends one that began at 0."""
    text = _THINKING.sub(" ", text)
    return text[max((end.end() for end in _THOUGHT.finditer(text)), default=0) :]


def _last_marker(text: str) -> re.Match[str] | None:
    last = deque(_MARKER.finditer(text), maxlen=1)
    return last[0] if last else None


def _behind(marker: re.Match[str], text: str) -> Extracted | None:
    how = marker.lastgroup or ""
    if how == "boxed":
        inside = _inside_box(text, marker.end())
        return None if inside is None else _answer_in(_numbers_in(inside), how)
    return _answer_in(_numbers_in(_first_line(text, marker.end())), how)


def _inside_box(text: str, start: int) -> str | None:
    """What stands between the box's braces; None where it was cut off or is too long."""
    depth = 1
    for brace in _BRACE.finditer(text, start, start + MAX_BEHIND):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : brace.start()]
    return None


def _first_line(text: str, start: int) -> str:
    """The first line behind a marker that holds a letter or a digit."""
    lines = text[start : start + MAX_BEHIND].lstrip().splitlines()
    return next((line for line in lines if _WORD.search(line)), "")


class _Words(NamedTuple):
    text: str
    numbers: list[Found]

    @property
    def first(self) -> int:
        return self.numbers[0].start


def _numbers_in(segment: str) -> _Words:
    text = plain_math(_TAG.sub(" ", segment)).strip()
    numbers = [n for n in find_numbers(text) if n.parts and not _denied(text, n)]
    return _Words(text, numbers)


def _denied(text: str, number: Found) -> bool:
    return bool(_DENIED.search(text[max(number.start - 20, 0) : number.start]))


def _answer_in(words: _Words, how: str, start: int = 0) -> Extracted | None:
    text, number = words.text, _decide(words, start)
    if number is None or number.value is None:
        return None
    equals = text[: number.start].rstrip(" $*(").endswith("=")
    how = how or ("equation" if equals else "last_number")
    return Extracted(number.value, text[number.start : number.end].strip(), how)


def _decide(words: _Words, at: int) -> Found | None:
    """The number that the words tell from `at` on (rules: head of this file)."""
    text, numbers = words
    before = told = False
    while numbers:
        first = numbers[0]
        begins = not _WORD.search(text, at, first.start)
        end = _ENDS["clause" if begins else "sentence"].search(text, first.end)
        stop = end.start() if end else len(text)
        one = len({n.value for n in numbers}) == 1
        numbers = [n for n in numbers if n.start < stop]
        if one or len({n.value for n in numbers}) == 1:
            plain = next((n for n in reversed(numbers) if n.parts == 1), None)
            return plain or (None if before else first)
        decided = _decided(text, numbers, at, stop)
        if decided is None:
            between = text[first.end : numbers[1].start]
            return first if begins and _aside(text[first.start], between) else None
        count, sign = decided
        if told and count and sign[0][0] != "=":  # Tom is 7 and Ann is 9
            return None
        told = told or sign[0][0] != "="
        at, numbers, before = sign.end(), numbers[count:], before or count > 0
    return None


def _aside(first: str, between: str) -> bool:
    """Whether the next number belongs to a phrase behind the unit: `$5 for`, `72 clips in`."""
    return bool(_ASIDE.match("dollars" * (first in "$€£¥") + between))


def _decided(
    text: str, numbers: list[Found], start: int, stop: int
) -> tuple[int, re.Match[str]] | None:
    """The first `=`, `:` or `is` with a number directly behind it, after the number of numbers
    that stand before it."""
    count = 0
    for sign in _DECIDES.finditer(text, start, stop):
        while count < len(numbers) and numbers[count].start < sign.end():
            count += 1
        if count == len(numbers):
            return None
        if not _WORD.search(text, sign.end(), numbers[count].start):
            return count, sign
    return None


def _last_number(tail: str) -> Extracted | None:
    for line in reversed(tail.splitlines()):
        words = _numbers_in(line)
        if words.numbers:
            ends = [end.end() for end in _ENDS["clause"].finditer(words.text)]
            start = max((end for end in ends if end <= words.numbers[-1].start), default=0)
            clause = _Words(words.text, [n for n in words.numbers if n.start >= start])
            return _answer_in(clause, "", start) if len(clause.numbers) <= MAX_NUMBERS else None
    return None
