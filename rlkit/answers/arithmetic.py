"""Generated word problems of two or three steps, for runs without any download.

"Tom has 12 apples. He buys 3 bags with 8 apples each. He gives 9 away. How many apples does Tom
have now?" is solved as `3 * 8 = 24`, `12 + 24 = 36`, `36 - 9 = 27`, one equation a line. A problem
is its story and its numbers; a checksum of these puts it into train or test, so that none stands in
both, whatever seeds, sizes, names and wordings are asked for.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

from rlkit.answers.rows import Row
from rlkit.answers.stories import PEOPLE, STORIES, Story
from rlkit.errors import ConfigError, DataError

LARGEST, LARGEST_RESULT = 50, 500
_TRIES = 2000
_TEST_SHARE = 4  # one problem in four is a test problem
_BY_NAME = {story.name: story for stories in STORIES.values() for story in stories}


def arithmetic_rows(
    split: str = "train",
    count: int = 1000,
    seed: int = 7,
    steps: Sequence[int] = (2, 3),
    largest: int = LARGEST,
    language: str = "en",
) -> list[Row]:
    """`count` different problems of `train` or `test`, of `steps` steps each.

    Numbers in the questions go up to `largest`, all results are whole numbers from 0 to 500. The
    same arguments give the same rows, and fewer give the first of them. Raises ConfigError for
    arguments out of range, DataError where so many different problems do not exist.
    """
    stories = _stories(split, count, steps, largest, language)
    rng = random.Random(f"{seed} {split} {language} {tuple(steps)} {largest}")
    rows: list[Row] = []
    seen: set[tuple[str, tuple[int, ...]]] = set()
    misses = 0
    while len(rows) < count and misses < _TRIES:
        misses += 1
        story = rng.choice(stories)
        values = _draw(story, rng, largest)
        if values is None or part_of(story.name, values) != split or (story.name, values) in seen:
            continue
        misses = 0
        seen.add((story.name, values))
        person = rng.choice(PEOPLE[language])[0]
        wording = rng.randrange(len(story.wordings))
        rows.append(_row(f"{split}-{len(rows) + 1}", story, values, person, wording))
    if len(rows) == count:
        return rows
    raise DataError(
        f"only {len(rows)} of {count} different problems were found with numbers up to {largest}; "
        "ask for fewer, or allow larger numbers."
    )


def part_of(story: str, values: Sequence[int]) -> str:
    """`train` or `test`: where the problem with this story and these numbers stands."""
    key = f"{story} {' '.join(map(str, values))}"
    return "test" if zlib.crc32(key.encode()) % _TEST_SHARE == 0 else "train"


def is_generated(row: Row) -> bool:
    """Whether the row is one of these problems, so that it can be told anew by rule."""
    story, values = _BY_NAME.get(row.columns.get("template")), row.columns.get("values")
    fits = story is not None and isinstance(values, list) and len(values) == len(story.letters)
    if not fits or not all(type(value) is int for value in values):
        return False
    results = _results(story, values)
    return results is not None and str(results[-1]) == row.ground_truth


def reworded(row: Row, number: int = 1) -> Row | None:
    """The same problem in its `number`-th other wording; None where it has not so many."""
    story = _BY_NAME[row.columns["template"]]
    others = [w for w in range(len(story.wordings)) if w != row.columns["wording"]]
    if number > len(others):
        return None
    values, person = tuple(row.columns["values"]), row.columns["name"]
    return _row(f"{row.id}-paraphrase-{number}", story, values, person, others[number - 1])


def redrawn(row: Row, number: int, seed: int) -> Row | None:
    """The same story with other numbers, of the same split; None where none is found."""
    story, old = _BY_NAME[row.columns["template"]], tuple(row.columns["values"])
    part = part_of(story.name, old)
    rng = random.Random(f"{seed} similar {row.id} {number}")
    for _ in range(50):
        values = _draw(story, rng, LARGEST)
        if values is not None and values != old and part_of(story.name, values) == part:
            person, wording = row.columns["name"], row.columns["wording"]
            return _row(f"{row.id}-similar-{number}", story, values, person, wording)
    return None


def _row(id: str, story: Story, values: Sequence[int], person: str, wording: int) -> Row:
    language = "zh" if story in STORIES["zh"] else "en"
    name, subject, possessive = next(p for p in PEOPLE[language] if p[0] == person)
    words = {"name": name, "He": subject, "he": subject.lower(), "his": possessive}
    numbers = dict(zip(story.letters, values, strict=True))
    results = _results(story, values)
    lines = _equations(story, values)
    return Row(
        id=id,
        question=story.wordings[wording].format(**words, **numbers),
        full_answer="\n".join([*lines, f"#### {results[-1]}"]),
        ground_truth=str(results[-1]),
        columns={
            "template": story.name,
            "wording": wording,
            "name": name,
            "values": list(values),
            "steps": len(story.steps),
        },
    )


def _draw(story: Story, rng: random.Random, largest: int) -> tuple[int, ...] | None:
    """Numbers with which every result is whole, in range, and no step is trivial."""
    for _ in range(_TRIES):
        values = tuple(
            rng.randint(2, min(9, largest)) if letter in story.small else rng.randint(3, largest)
            for letter in story.letters
        )
        if _results(story, values) is not None:
            return values
    return None


def _results(story: Story, values: Sequence[int]) -> list[int] | None:
    """The results of the steps; None where one is not whole or out of range."""
    known = dict(zip(story.letters, values, strict=True))
    for step, letter in zip(story.steps, "xyz", strict=False):
        left, sign, right = step.split()
        a, b = known[left], known[right]
        if sign == "/" and (b == 0 or a % b):
            return None
        known[letter] = {"+": a + b, "-": a - b, "*": a * b, "/": a // (b or 1)}[sign]
        if not 0 <= known[letter] <= LARGEST_RESULT:
            return None
    return [known[letter] for letter in "xyz"[: len(story.steps)]]


def _equations(story: Story, values: Sequence[int]) -> list[str]:
    results = _results(story, values)
    known = dict(zip(story.letters + "xyz"[: len(results)], [*values, *results], strict=True))
    return [
        f"{known[left]} {sign} {known[right]} = {result}"
        for (left, sign, right), result in zip(map(str.split, story.steps), results, strict=True)
    ]


def _stories(
    split: str, count: int, steps: Sequence[int], largest: int, language: str
) -> list[Story]:
    if split not in ("train", "test"):
        raise ConfigError(f"split is {split!r}; allowed are train and test.")
    if count < 1 or not 10 <= largest <= LARGEST_RESULT:
        raise ConfigError(
            f"count is {count} and largest is {largest}; allowed are 1 or more, and 10 to "
            f"{LARGEST_RESULT}."
        )
    if language not in STORIES:
        raise ConfigError(f"language is {language!r}; allowed are {', '.join(STORIES)}.")
    stories = [story for story in STORIES[language] if len(story.steps) in steps]
    if not stories:
        raise ConfigError(f"steps is {tuple(steps)}; allowed are 2, 3, or both.")
    return stories
