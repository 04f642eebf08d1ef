"""The generated word problems: deterministic, sound, different, and never in both splits."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

import pytest

from rlkit.answers.arithmetic import arithmetic_rows, is_generated, part_of, redrawn, reworded
from rlkit.answers.equations import equations, evaluate, numbers_in, wrong_equations
from rlkit.answers.prompts import completion_text
from rlkit.answers.rows import normalised
from rlkit.answers.stories import STORIES
from rlkit.errors import ConfigError, DataError
from rlkit.practice.task import estimate_tokens

TRAIN, TEST = arithmetic_rows("train", 1000), arithmetic_rows("test", 300)
CHINESE = arithmetic_rows("train", 100, language="zh")


def test_the_same_seed_gives_the_same_rows_in_any_count():
    assert arithmetic_rows("train", 50) == TRAIN[:50]
    assert arithmetic_rows("train", 50, seed=8) != TRAIN[:50]


@pytest.mark.parametrize("seed", [7, 8])
def test_no_problem_of_train_stands_in_test_whatever_the_seed(seed):
    test = arithmetic_rows("test", 300, seed=seed)
    train = {normalised(row.question) for row in TRAIN}
    assert not train & {normalised(row.question) for row in test}
    problem = {(row.columns["template"], *row.columns["values"]) for row in TRAIN}
    assert len(problem) == 1000, "nor twice in train"
    assert not problem & {(row.columns["template"], *row.columns["values"]) for row in test}


def test_every_solution_is_right_by_another_calculator():
    """Line by line, each number comes from the question or from a line before."""
    sign = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}
    for row in TRAIN + TEST + CHINESE:
        known = {int(n) for n in re.findall(r"\d+", row.question)}
        *lines, last = row.full_answer.splitlines()
        assert len(lines) == row.columns["steps"] in (2, 3)
        for line in lines:
            a, op, b, equals, c = line.split()
            a, b, c = int(a), int(b), int(c)
            assert equals == "=" and {a, b} <= known, row
            assert sign[op](a, b) == c and 0 <= c <= 500, row
            assert op != "/" or b * c == a, row
            known.add(c)
        assert last == f"#### {c}" and row.ground_truth == str(c)


def test_every_number_of_the_question_is_used():
    for row in TRAIN:
        used = set(map(int, re.findall(r"\d+", row.full_answer)))
        assert {int(n) for n in re.findall(r"\d+", row.question)} <= used, row


def test_there_are_many_stories_and_none_has_too_many_rows():
    counts = Counter(row.columns["template"] for row in TRAIN)
    assert len(counts) == len(STORIES["en"]) >= 20
    assert max(counts.values()) < 100


def test_texts_are_short_enough_for_two_cores():
    assert max(estimate_tokens(row.question) for row in TRAIN) <= 60
    assert max(len(completion_text(row)) for row in TRAIN) <= 60  # characters


def test_numbers_and_steps_keep_to_what_is_asked_for():
    small = arithmetic_rows("train", 100, steps=(2,), largest=20)
    assert {row.columns["steps"] for row in small} == {2}
    assert max(max(row.columns["values"]) for row in small) <= 20


def test_chinese_problems_are_chinese():
    assert all("？" in row.question and not re.search("[a-z]", row.question) for row in CHINESE)


@pytest.mark.parametrize(
    "given",
    [{"split": "dev"}, {"count": 0}, {"largest": 5}, {"steps": (7,)}, {"language": "fr"}],
)
def test_what_there_is_not_is_refused_with_what_there_is(given):
    with pytest.raises(ConfigError, match="allowed are"):
        arithmetic_rows(**given)


def test_more_problems_than_there_are_is_a_sentence():
    with pytest.raises(DataError, match="different problems were found with numbers up to 10"):
        arithmetic_rows("train", 30_000, steps=(2,), largest=10)


@pytest.mark.parametrize("row", [*TRAIN[:40], *CHINESE[:10]], ids=lambda row: row.id)
def test_another_wording_keeps_the_numbers_and_the_answer(row):
    other = reworded(row)
    assert normalised(other.question) != normalised(row.question)
    assert Counter(re.findall(r"\d+", other.question)) == Counter(re.findall(r"\d+", row.question))
    assert (other.full_answer, other.ground_truth) == (row.full_answer, row.ground_truth)
    assert reworded(row, 9) is None


@pytest.mark.parametrize("row", [*TRAIN[:40], *TEST[:40]], ids=lambda row: row.question[:20])
def test_another_draw_is_of_the_same_story_and_the_same_split(row):
    other = redrawn(row, 1, seed=1)
    assert other == redrawn(row, 1, seed=1) != redrawn(row, 2, seed=1)
    assert other.columns["template"] == row.columns["template"]
    values = row.columns["values"], other.columns["values"]
    assert values[0] != values[1]
    assert len({part_of(row.columns["template"], v) for v in values}) == 1


def test_only_an_untouched_row_counts_as_generated():
    from dataclasses import replace

    row = TRAIN[0]
    assert is_generated(row)
    for columns in ({}, {"template": "no story"}, row.columns | {"values": [1, "2", 3]}):
        assert not is_generated(replace(row, columns=columns))
    assert not is_generated(replace(row, ground_truth="9999"))


# ---- equations


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("48/2 = <<48/2=24>>24", []),
        ("48/2 = <<48/2=25>>25", ["48/2 = 25"]),
        ("so 3 * 8=24 and 12 + 24 = 37.", ["12 + 24 = 37"]),
        ("12 + 24 = 36 - 9 = 28", ["36 - 9 = 28"]),
        ("$1,000 - $1.50 = $998.50", []),
        ("(3+4)*5=35", []),
        ("共3×8=25（元）", ["3×8 = 25"]),
        ("6*2.5 = $18.00", ["6*2.5 = $18.00"]),
        ("1000 / 3 = 333.33 and 2/3=.66", []),
        ("10/3=4", ["10/3 = 4"]),
        ("20% * 50 = 10", []),
        ("5 / 20 * 100 = 25%", []),
        ("4 / 0 = 3", []),
    ],
)
def test_a_false_equation_is_found(text, wrong):
    assert wrong_equations(text) == wrong


@pytest.mark.parametrize(
    "text",
    [
        "7 / 2 = 3 remainder 1",
        "1 1/2 * 4 = 6",
        "12 x 1 and 1/4 = 15",
        "x + 3 + 4 = 10",
        "11x+15 = 301",
        "3x +4 - 4 = 28",
        "3+4=7x",
        "On 9/11 2 + 3 people",
        "5 - 3 apples = 7",
        "3 * 2 = 5 1/2",
        "4 / 3 = 1 and 1/3",
        "$1 / 2 = 50 cents",
        "0900-0130 = 0730 hours",
    ],
)
def test_what_is_not_clearly_an_equation_is_passed_over(text):
    assert list(equations(text)) == []


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("-3 - -5", 2),
        ("0.1 + 0.2", Fraction(3, 10)),
        ("8 / 4 / 2", 1),
        ("1,200 * 2", 2400),
        ("1 / 0", None),
        ("2 ** 8", None),
        ("(1", None),
        ("1 +", None),
        ("__import__('os')", None),
        ("", None),
        ("(" * 1000, None),
        ("1" * 10_000, None),
    ],
)
def test_expressions_are_evaluated_with_fractions_and_nothing_else(expression, value):
    assert evaluate(expression) == value


def test_numbers_are_found_in_words():
    assert numbers_in("Tom2 has 1,200 apples, 3.5 pears and 7.") == [1200, Fraction(7, 2), 7]


@pytest.mark.parametrize("sign", ["(", "1", "1+", "1,", "=", "$", " ", ".", "1=", "1+1="])
def test_equations_take_linear_time(sign):
    import time

    start = time.thread_time()
    list(equations(sign * (100_000 // len(sign)) + "=1"))
    assert time.thread_time() - start < 5


def test_most_equations_of_real_gsm8k_hold(shared_data):
    """Known by hand: six rows of the 2,000 hold a false one, such as 192*100 = $1920."""
    from rlkit.answers.datasets import load_rows

    rows = load_rows(str(shared_data / "gsm8k"))
    wrong = [n for n, row in enumerate(rows, start=1) if wrong_equations(row.full_answer)]
    assert wrong == [168, 169, 199, 225, 503, 717]
    assert sum(len(list(equations(row.full_answer))) for row in rows) > 11_000
