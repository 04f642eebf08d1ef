"""The checks of `quality.py`, each a function from rows to findings; all in one pass over them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rlkit.answers.equations import wrong_equations
from rlkit.answers.extract import extract_answer, parse_number, same_answer
from rlkit.answers.prompts import completion_text, question_prompt
from rlkit.answers.rows import QUESTION, SOLUTION, BadRow, Row, normalised, row_from, template
from rlkit.files import plain

SHOWN = 8  # row numbers in a sentence
MANY_ROWS, LARGE_SHARE = 50, 0.2  # imbalance: more than this share of at least so many rows
_BAD_TEXT = re.compile(r"[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of problem: a sentence with row numbers, and all of these as (split, number)."""

    kind: str
    message: str
    rows: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A row as it was given; `row` is None where it cannot be used, and `reason` says why."""

    split: str
    number: int
    given: Any
    row: Row | None
    kind: str = ""
    reason: str = ""
    question: str = ""  # normalised

    @property
    def place(self) -> tuple[str, int]:
        return self.split, self.number

    @classmethod
    def of(cls, split: str, number: int, given: Any) -> Item:
        fields = given.fields() if isinstance(given, Row) else given
        if isinstance(fields, Exception):
            return cls(split, number, given, None, "damaged row", str(fields))
        kind, reason = _missing(fields) if isinstance(fields, Mapping) else ("", "")
        if kind:
            return cls(split, number, given, None, kind, reason)
        try:
            row = row_from(fields, f"row {number}", f"{split}-{number}")
        except BadRow as error:
            reason = str(error).removeprefix(f"row {number}").lstrip(":, ")
            return cls(split, number, given, None, "bad row", reason)
        return cls(split, number, given, row, question=normalised(row.question))


def places(rows: Iterable[tuple[str, int]]) -> str:
    """`train rows 3, 7 and test row 1`, and after eight of them `and 37 more`."""
    rows = list(rows)
    shown: dict[str, list[str]] = defaultdict(list)
    for split, number in rows[:SHOWN]:
        shown[split].append(str(number))
    texts = [
        f"{split} row{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        for split, numbers in shown.items()
    ]
    return "; ".join(texts) + (f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else "")


def usable(items: Sequence[Item]) -> list[Finding]:
    """Missing fields, empty values, damaged rows, and signs that no file should hold."""
    groups: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    strange = []
    for item in items:
        if item.row is None:
            groups[item.kind, item.reason].append(item.place)
        elif isinstance(item.given, Mapping) and any(
            isinstance(value, str) and _BAD_TEXT.search(value) for value in item.given.values()
        ):
            strange.append(item.place)
    found = [_finding(kind, at, reason.rstrip(".")) for (kind, reason), at in groups.items()]
    what = "a text holds NUL or half of a surrogate pair (taken out on loading)"
    return found + ([_finding("bad signs", strange, what)] if strange else [])


def duplicates(items: Sequence[Item]) -> list[Finding]:
    """Ids and questions that stand twice in a split, exactly or but for case and punctuation."""
    exact, folded, conflicts, ids = [], [], [], []
    for group in _groups(items, lambda item: (item.split, item.question)):
        same = len({item.row.question for item in group}) < len(group)
        (exact if same else folded).extend(item.place for item in group)
        first = group[0].row.ground_truth
        if not all(_same(item.row.ground_truth, first) for item in group):
            conflicts.extend(item.place for item in group)
    for group in _groups(items, lambda item: (item.split, item.row.id)):
        ids.extend(item.place for item in group)
    found = (
        ("duplicate", exact, "the same question stands more than once"),
        ("near duplicate", folded, "questions differ only in case, width, blanks or punctuation"),
        ("conflicting answers", conflicts, "the same question has different answers"),
        ("duplicate id", ids, "the same id stands more than once"),
    )
    return [_finding(kind, at, what) for kind, at, what in found if at]


def leakage(items: Sequence[Item]) -> list[Finding]:
    """Questions in two splits; and as a warning, questions that differ only in their numbers."""
    found = []
    by_split: dict[str, dict[str, list[Item]]] = defaultdict(lambda: defaultdict(list))
    masked: dict[str, dict[str, list[Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        by_split[item.split][item.question].append(item)
        masked[item.split][template(item.row.question)].append(item)
    for a, b in combinations(by_split, 2):
        shared = [q for q in by_split[b] if q in by_split[a]]
        at = [i.place for q in shared for i in (*by_split[a][q], *by_split[b][q])]
        if at:
            found.append(_finding("leakage", at, f"the same question stands in {a} and in {b}"))
        alike = [
            i.place
            for t in masked[b]
            if t in masked[a]
            for i in masked[b][t]
            if i.question not in by_split[a]
        ]
        if alike:
            what = f"a question of {a} has the same words with other numbers (no leakage by itself)"
            found.append(_finding("shared template", alike, what))
    return found


def solutions(items: Sequence[Item]) -> list[Finding]:
    """Answers that are no number, solutions that end with another one, and false equations."""
    unparsed, other, wrong, example = [], [], [], ""
    for item in items:
        truth, solution = item.row.ground_truth, item.row.full_answer
        if parse_number(truth) is None:
            unparsed.append(item.place)
        elif solution != truth and not _ends_with(solution, truth):
            other.append(item.place)
        false = wrong_equations(solution)
        if false:
            wrong.append(item.place)
            example = example or false[0]
    found = (
        ("unparsable answer", unparsed, "the answer cannot be read as a number"),
        ("other answer", other, "the solution's final answer is not the ground truth"),
        ("wrong equation", wrong, f"an equation of the solution is false, such as {example}"),
    )
    return [_finding(kind, at, what) for kind, at, what in found if at]


def lengths(
    items: Sequence[Item], count_tokens: Callable[[str], int], max_tokens: int
) -> list[Finding]:
    """Rows whose prompt and completion do not fit into `max_tokens`."""
    long, longest = [], 0
    for item in items:
        texts = [message["content"] for message in question_prompt(item.row)]
        tokens = sum(map(count_tokens, [*texts, completion_text(item.row)]))
        if tokens > max_tokens:
            long.append(item.place)
            longest = max(longest, tokens)
    what = f"prompt and solution have more than {max_tokens} tokens, up to {longest}"
    return [_finding("too long", long, what)] if long else []


def balance(items: Sequence[Item]) -> list[Finding]:
    """One answer, or one template, in more than a fifth of a split of 50 rows or more."""
    found = []
    kinds = (
        ("label imbalance", "the answer is the same", _label),
        ("template imbalance", "the question has the same words but for its numbers", _template),
    )
    for split in dict.fromkeys(item.split for item in items):
        rows = [item for item in items if item.split == split]
        for kind, what, key in kinds if len(rows) >= MANY_ROWS else ():
            keys = [key(item.row) for item in rows]
            for value, count in Counter(keys).most_common(4):
                if count > LARGE_SHARE * len(rows):
                    at = [i.place for i, k in zip(rows, keys, strict=True) if k == value]
                    share = f"{what} in {count / len(rows):.0%} of {split} ({str(value)[:60]})"
                    found.append(_finding(kind, at, share))
    return found


def _missing(fields: Mapping[str, Any]) -> tuple[str, str]:
    """(kind, reason) where a field that is needed is missing or empty."""
    for names in (QUESTION, ("ground_truth", *SOLUTION)):
        values = [v for name in names if (v := plain(fields.get(name))) is not None]
        if not values:
            return "missing field", f"the field {' or '.join(map(repr, names[:3]))} is missing"
        if not any(not isinstance(value, str) or value.strip("\ufeff \t\r\n") for value in values):
            return "empty value", f"the field {names[0]!r} is empty"
    return "", ""


def _finding(kind: str, at: Sequence[tuple[str, int]], what: str) -> Finding:
    at = tuple(sorted(set(at)))
    return Finding(kind, f"{kind}, {places(at)}: {what}.", at)


def _groups(items: Iterable[Item], key: Callable[[Item], Hashable]) -> Iterator[list[Item]]:
    """The items that share a key with another one."""
    groups: dict[Hashable, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return (group for group in groups.values() if len(group) > 1)


def _same(a: str, b: str) -> bool:
    return a == b or same_answer(a, b)


def _ends_with(solution: str, truth: str) -> bool:
    found = extract_answer(solution)
    return found is not None and same_answer(found.text, truth)


def _label(row: Row) -> Hashable:
    number = parse_number(row.ground_truth)
    return row.ground_truth if number is None else number


def _template(row: Row) -> str:
    own = row.columns.get("template")
    return own if isinstance(own, str) else template(row.question)
