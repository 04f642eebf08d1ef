"""Which augmented rows are kept: those whose answer still follows, that are new, and that come
near no held-out question."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from rlkit.answers.equations import Equation, equations, numbers_in
from rlkit.answers.extract import parse_number, same_answer
from rlkit.answers.rows import Row, normalised
from rlkit.library.tokenize import Tokenizer, dominant_language

NEAR = 0.8  # share of common words from which two questions with the same numbers are near
LONGEST = 4000  # characters of a question
_ANSWERS = re.compile(r"####|<<|\\boxed|final answer|最终答案|答案是", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+")
_TO_TWELVE = "two three four five six seven eight nine ten eleven twelve".split()
_SPELT = {word: Fraction(number) for number, word in enumerate(_TO_TWELVE, start=2)}
_SPELT |= {"thirteen": 13, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50}
_SPELT |= {"twice": 2, "double": 2, "triple": 3, "thrice": 3, "dozen": 12, "hundred": 100}
_SPELT |= {"half": Fraction(1, 2), "quarter": Fraction(1, 4)}
_words = Tokenizer(stem=False, stop_words=False)
Signature = tuple[Fraction, ...]


class Guard:
    """Knows every question that is there, and which of them are held out."""

    def __init__(self, rows: Sequence[Row], held_out: Sequence[Row]) -> None:
        self._seen = {normalised(row.question) for row in (*rows, *held_out)}
        self._ids = {row.id for row in (*rows, *held_out)}
        self._held: dict[Signature, list[frozenset[str]]] = defaultdict(list)
        for row in held_out:
            self._held[signature(row.question)].append(frozenset(_words(row.question)))

    def add(self, row: Row) -> None:
        """Remember a row that is kept."""
        self._seen.add(normalised(row.question))
        self._ids.add(row.id)

    def free_id(self, wanted: str) -> str:
        """The id, with a mark behind it where it is taken."""
        while wanted in self._ids:
            wanted += "+"
        return wanted

    def refusal(self, question: str) -> str | None:
        """Why the question may not be added, or None."""
        if normalised(question) in self._seen:
            return "the same question is there already"
        words = frozenset(_words(question))
        for held in self._held.get(signature(question), ()):
            if len(words & held) >= NEAR * len(words | held):
                return "it is nearly a held-out question"
        return None


def signature(question: str) -> Signature:
    """The numbers of a question in order of size, those in English words (from two) included."""
    spelt = (_SPELT[word] for word in _WORD.findall(question.casefold()) if word in _SPELT)
    return tuple(sorted([*numbers_in(normalised(question)), *map(Fraction, spelt)]))


def reason_against(origin: Row, row: Row, method: str, guard: Guard) -> str | None:
    """Why an augmented row is dropped; None where it is sound."""
    check = _similar if method == "similar" else _retold
    return _form(origin, row) or check(origin, row) or guard.refusal(row.question)


def _form(origin: Row, row: Row) -> str | None:
    if not row.question.strip():
        return "the question is empty"
    if len(row.question) > min(LONGEST, 3 * len(origin.question) + 200):
        return "the question is much longer than its origin"
    if _ANSWERS.search(row.question) and not _ANSWERS.search(origin.question):
        return "the question holds an answer"
    if _asks(origin.question) and not _asks(row.question):
        return "it asks nothing"
    if dominant_language(row.question) != dominant_language(origin.question):
        return "it is in another language than its origin"
    return None


def _retold(origin: Row, row: Row) -> str | None:
    if signature(row.question) != signature(origin.question):
        return "its numbers are not those of its origin"
    if not same_answer(row.ground_truth, origin.ground_truth):
        return "its answer is not that of its origin"
    return None


def _similar(origin: Row, row: Row) -> str | None:
    numbers, answer = signature(row.question), parse_number(row.ground_truth)
    if numbers == signature(origin.question):
        return "it has the numbers of its origin"
    if answer is None:
        return "its answer is no number"
    if _is_whole(parse_number(origin.ground_truth)) and not _is_whole(answer):
        return "its answer is no whole number of 0 or more, as its origin's is"
    lines = [line for line in row.full_answer.splitlines() if line and not line.startswith("####")]
    steps = [list(equations(line)) for line in lines]
    if not steps or not steps[-1]:
        return "the last line of its solution is no equation"
    return _not_following([e for step in steps for e in step], answer, {*numbers}, origin)


def _not_following(
    steps: Sequence[Equation], answer: Fraction, known: set[Fraction], origin: Row
) -> str | None:
    """Why the answer does not follow from what is known; constants of the origin's own solution
    (60 minutes, 100 percent) may be used, too."""
    asked = set(signature(origin.question))
    known |= _constants(origin) - asked
    for step in steps:
        if not step.holds:
            return f"{step.text} is false"
        unknown = [number for number in step.numbers if number not in known]
        if unknown:
            return f"{float(unknown[0]):g} in {step.text} comes from nowhere"
        known.add(abs(step.right))
    if steps[-1].right != answer:
        return f"its solution ends with {float(steps[-1].right):g} and not with its answer"
    return None


def _constants(origin: Row) -> set[Fraction]:
    """The numbers of the origin's equations that neither its question nor a step gives."""
    steps = list(equations(origin.full_answer))
    return {n for step in steps for n in step.numbers} - {abs(step.right) for step in steps}


def _is_whole(number: Fraction | None) -> bool:
    return number is not None and number >= 0 and number.denominator == 1


def _asks(question: str) -> bool:
    return "?" in question or "？" in question
