"""The final answer of a completion, as an exact number.

Rules, the first that applies decides:
1. thinking is dropped, closed or cut off;
2. the last marker wins, of `\\boxed{...}` (`boxed`), `Final Answer:`, `最终答案`, `<answer>`
   (`final_answer`) and `#### 72` (`hashes`). The first number behind it counts, or the result
   of the equation that it begins (`Final Answer: 48 + 24 = 72`). A marker with no number behind
   it, or a box that was cut off, is no answer;
3. the last `The answer is ...`, `Answer: 72`, `答案是 72` with a number behind it (`answer_is`);
   here and in 2., a number that is denied is passed over (`is not 72 but 70`);
4. the last clause with a number: what its last `=` equals (`equation`), or its last number
   (`last_number`). Only the end of a long text is looked at.

What a number is: numbers.py. Completions are untrusted: reading is linear and never raises."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rlkit.answers.numbers import (
    Found,
    Number,
    find_numbers,
    parse_number,
    plain_math,
    plain_signs,
)

__all__ = [
    "Extracted", "Number", "extract_answer", "parse_number", "same_answer",
    "visible_text",
]  # fmt: skip
MARKERS = ("boxed", "final_answer", "hashes")
MAX_BEHIND = 400  # characters behind a marker, or inside a box, that are read
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
_CLAUSE_END = re.compile(
    r"[.!?;,](?=\s|[*_\"')]|$)|[。！？；，（\n]| \(|\b(?:because|since)\b|因为", re.IGNORECASE
)
_EQUALS = re.compile(r"(?<![<>!=])=(?!=)")
_GOES_ON = re.compile(r"\s*[-+*/×÷]\s*[$(]?[0-9]|\s*[xX]\s*[0-9]")


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
    text = plain_signs(visible_text(text))
    marker = _last_marker(text)
    if marker is not None:
        return _behind(marker, text)
    for found in reversed(deque(_ANSWER_IS.finditer(text), maxlen=20)):
        answer = _answer_in(_first_line(text, found.end()), "answer_is", bool(found["label"]))
        if answer is not None:
            return answer
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
        return None if inside is None else _answer_in(inside, how)
    return _answer_in(_first_line(text, marker.end()), how)


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


def _answer_in(segment: str, how: str, at_once: bool = False) -> Extracted | None:
    """The first number, or the result of the equation that its clause holds; `at_once`: only
    signs may stand before it."""
    text = plain_math(segment)
    numbers = [n for n in find_numbers(text) if not _denied(text, n)]
    if not numbers or (at_once and _WORD.search(text[: numbers[0].start])):
        return None
    first = numbers[0]
    stop = _CLAUSE_END.search(text, first.end)
    result = _result(text, numbers, first.end, stop.start() if stop else len(text))
    return _extracted(text, result or first, how)


def _denied(text: str, number: Found) -> bool:
    return bool(_DENIED.search(text[max(number.start - 20, 0) : number.start]))


def _result(text: str, numbers: Iterable[Found], start: int, stop: int) -> Found | None:
    """The number behind the last `=` between `start` and `stop`, unless a calculation goes on
    there."""
    equals = max((e.start() for e in _EQUALS.finditer(text, start, stop)), default=None)
    if equals is None:
        return None
    behind = next((n for n in numbers if equals < n.start < stop), None)
    return None if behind is None or _GOES_ON.match(text, behind.end) else behind


def _last_number(tail: str) -> Extracted | None:
    for line in reversed(tail.splitlines()):
        text = plain_math(line)
        numbers = [n for n in find_numbers(text) if n.value is not None and not _denied(text, n)]
        if numbers:
            ends = [end.end() for end in _CLAUSE_END.finditer(text, 0, numbers[-1].start)]
            start = ends[-1] if ends else 0
            result = _result(text, numbers, start, len(text))
            how = "equation" if result else "last_number"
            return _extracted(text, result or numbers[-1], how)
    return None


def _extracted(text: str, number: Found, how: str) -> Extracted | None:
    if number.value is None:
        return None
    return Extracted(number.value, text[number.start : number.end].strip(), how)
