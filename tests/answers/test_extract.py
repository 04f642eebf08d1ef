"""The final answer of a completion: what is read, by which rule, and what is not an answer."""

from __future__ import annotations

import json
import random
import time
from fractions import Fraction
from pathlib import Path

import pytest

from rlkit.answers.extract import (
    MARKERS,
    extract_answer,
    parse_number,
    same_answer,
    visible_text,
)

MARKED = {
    r"\boxed{72}": (72, "boxed"),
    r"\[ 1 + 1 = \boxed{2} \]": (2, "boxed"),
    r"So $\boxed{72\text{ clips}}$.": (72, "boxed"),
    r"\boxed{\frac{3}{4}}": (Fraction(3, 4), "boxed"),
    r"\boxed{-\dfrac{3}{4}}": (Fraction(-3, 4), "boxed"),
    r"\boxed{x = \frac{-5}{2}}": (Fraction(-5, 2), "boxed"),
    r"\boxed{1\frac{1}{2}}": (Fraction(3, 2), "boxed"),
    r"\boxed{\$1{,}234.00}": (1234, "boxed"),
    r"\boxed{50\%}": (50, "boxed"),
    r"\boxed{48 + 24 = 72}": (72, "boxed"),
    r"Final Answer: $\boxed{72}$": (72, "boxed"),
    "Final Answer: 72": (72, "final_answer"),
    "final answer = 72": (72, "final_answer"),
    "The final answer is 72.": (72, "final_answer"),
    "**Final Answer:** 72": (72, "final_answer"),
    "**Final Answer**: **72**": (72, "final_answer"),
    "### Final Answer\n\n72 clips": (72, "final_answer"),
    "Final Answer:\n```\n72\n```": (72, "final_answer"),
    "Final Answer: 1 1/2": (Fraction(3, 2), "final_answer"),
    "Final Answer: 48 + 24 = 72": (72, "final_answer"),
    "Final Answer: 48 clips + 24 clips = 72 clips": (72, "final_answer"),
    "Final Answer: x = -5": (-5, "final_answer"),
    "Final Answer: − 5": (-5, "final_answer"),
    "Final Answer: -$5": (-5, "final_answer"),
    "Final Answer: (5)": (5, "final_answer"),
    "Final Answer: 72 (since 96 - 24 = 72, and 72 - 24 = 48)": (72, "final_answer"),
    "Final Answer: 72. Check: 72 - 24 = 48": (72, "final_answer"),
    "Final Answer: 72 = 48 + 24": (72, "final_answer"),
    "Final Answer: 72 clips in 2 months": (72, "final_answer"),
    "Final Answer: $15 for 2 of them": (15, "final_answer"),
    "Final Answer: 20% of 50 is 10": (10, "final_answer"),
    "Final Answer: between 2 and 3: 2.5": (Fraction(5, 2), "final_answer"),
    "Final Answer: Option 2: 72": (72, "final_answer"),
    "Final Answer: (a) 72": (72, "final_answer"),
    "Final Answer: She sold 72 clips. That took 2 months.": (72, "final_answer"),
    "Final Answer: $5 x 7": (35, "final_answer"),
    "Final Answer: 3 + 4": (7, "final_answer"),
    "Final Answer: 2 × (3 + 4)": (14, "final_answer"),
    r"\boxed{6\times12}": (72, "boxed"),
    "Final Answer: 5k": (5000, "final_answer"),
    "Final Answer: $5M": (5_000_000, "final_answer"),
    "Final Answer: 5 dozen eggs": (60, "final_answer"),
    "Final Answer: 1_000": (1000, "final_answer"),
    "Final Answer: 10^3": (1000, "final_answer"),
    "Final Answer: 72 cm^2": (72, "final_answer"),
    "Final Answer: 1 1/2.": (Fraction(3, 2), "final_answer"),
    "Final Answer: 3⁄4": (Fraction(3, 4), "final_answer"),
    "Final Answer: minus 72": (-72, "final_answer"),
    r"\boxed{- 72}": (-72, "boxed"),
    "Final Answer: not 72 but 70": (70, "final_answer"),
    "Final Answer: 72\nI hope this helps in 2 days.": (72, "final_answer"),
    "Final Answer: 1\nWait.\nFinal Answer: 2": (2, "final_answer"),
    r"\boxed{1} Final Answer: 2": (2, "final_answer"),
    "Final Answer: 1,234,567 people": (1234567, "final_answer"),
    "Final Answer: 1 234 567": (1234567, "final_answer"),
    "Final Answer: 1.2 million": (1200000, "final_answer"),
    "Final Answer: 1.5 × 10^3": (1500, "final_answer"),
    '{"final_answer": 72}': (72, "final_answer"),
    "最终答案：72": (72, "final_answer"),
    "最后答案是７２": (72, "final_answer"),
    "<answer>72</answer>": (72, "final_answer"),
    "so\n#### 72": (72, "hashes"),
    "so\n#### -$1,080": (-1080, "hashes"),
}
UNMARKED = {
    "The answer is 72": (72, "answer_is"),
    "The answer is not 72 but 70": (70, "answer_is"),
    "The answer isn't 72, it is 70.": (70, "answer_is"),
    "Answer: 72": (72, "answer_is"),
    "答案是 72": (72, "answer_is"),
    "答案是72个，用了3天": (72, "answer_is"),
    "答案是负72": (-72, "answer_is"),
    "It is negative 72.": (-72, "last_number"),
    "- 72": (-72, "last_number"),
    "48+24=<<48+24=73>>72": (72, "equation"),
    "The 3 boxes hold 3*24=<<3*24=72>>72 clips": (72, "equation"),
    "答案不是72而是70": (70, "answer_is"),
    "48 + 24 = 72": (72, "equation"),
    "She sold 48 + 24 = 72 clips in 2 months.": (72, "equation"),
    "x = 5": (5, "equation"),
    "$1,234.00": (1234, "last_number"),
    "72 clips.": (72, "last_number"),
    "3/4": (Fraction(3, 4), "last_number"),
    "1e3": (1000, "last_number"),
    "７２": (72, "last_number"),
    "１，２３４．５": (Fraction(2469, 2), "last_number"),
    "-5": (-5, "last_number"),
    "−5": (-5, "last_number"),
    "10-5": (5, "last_number"),
    ".5": (Fraction(1, 2), "last_number"),
    "5.": (5, "last_number"),
    "72kg": (72, "last_number"),
    "$5.50/hour": (Fraction(11, 2), "last_number"),
    "**72**": (72, "last_number"),
    "_72_": (72, "last_number"),
    "1½": (Fraction(3, 2), "last_number"),
    "3万": (30000, "last_number"),
    "She bought 3 on the 2nd at 7:30.": (3, "last_number"),
    "72 is my final answer.": (72, "last_number"),
    "#### 3. Next step": (3, "last_number"),
    "Answer: Step 1 gives 5. So 6.": (6, "last_number"),
    "<think>Final Answer: 5</think>6": (6, "last_number"),
    "Final Answer: 5 </think> 6": (6, "last_number"),
    "7 <think>Final Answer: 5": (7, "last_number"),
}
NOTHING = [
    "", "no number", "nan", "infinity", "at 7:30", "R2D2", "on 2026-11-29", "1/0", "2^10",
    "The result is 5. Final Answer:", "5\nFinal Answer: none", "5 \\boxed{}", "5 \\boxed{72",
    "Final Answer: 7:30", r"\boxed{2\sqrt{3}}", r"\boxed{3\pi}", "1e999999999", "9" * 200,
    "Final Answer: 1e999999999", "<think>The answer is 5",
]  # fmt: skip


DOUBTFUL = [
    "5m", "5bn", "72²", "2^10", "72_8", "0x48", "sqrt(72)", "√72", r"\binom{7}{2}", "half of 72",
    "72x", "2x3", "72 + x", "x - 72", "72/x", "x ≠ 72", r"x \ge 72", "x > 72", "more than 72",
    "71 or 72", "x = 71 or x = 72", "71, 72, 73", "71 72", "70-72", "5–10", "1-1/2", "1. 72",
    "1) 72", "5 hours 30 minutes", "5 feet, 6 inches", "5h30", "12 apples and 5 pears", "20% of 50",
    "3 times 24", "72 and a half", "On day 3 she has 72 clips", "In 2 months, 72 clips",
    "Tom is 72 and Ann is 48", "73 = 48 + 24", "48 clips + 24 clips", "*71* 72", "--72",
]  # fmt: skip


@pytest.mark.parametrize("words", DOUBTFUL)
def test_a_number_of_something_larger_or_one_of_several_is_no_answer(words: str) -> None:
    for text in (f"Final Answer: {words}", rf"\boxed{{{words}}}", f"The answer is {words}."):
        assert extract_answer(text) is None


@pytest.mark.parametrize("text", MARKED)
def test_the_last_marker_wins_and_is_the_format(text: str) -> None:
    found = extract_answer(text)
    assert found is not None and (found.value, found.how) == MARKED[text]
    assert found.how in MARKERS


@pytest.mark.parametrize("text", UNMARKED)
def test_without_a_marker_the_answer_is_read_but_the_format_is_not_kept(text: str) -> None:
    found = extract_answer(text)
    assert found is not None and (found.value, found.how) == UNMARKED[text]
    assert found.how not in MARKERS


@pytest.mark.parametrize("text", NOTHING)
def test_what_holds_no_answer_has_none(text: str) -> None:
    assert extract_answer(text) is None


def test_the_number_is_told_as_it_was_read() -> None:
    assert extract_answer("Final Answer: **$1,080.50**.").text == "$1,080.50"
    assert extract_answer("Final Answer: 50 % of it").text == "50 %"


def test_a_number_is_parsed_only_where_a_text_is_one_number() -> None:
    assert parse_number("$1,234.50 per year") == Fraction(2469, 2)
    assert parse_number(r"\frac{1}{3}") == Fraction(1, 3)
    for text in ("3 or 4", "x = 5", "about 5", "", "five", "9" * 5000):
        assert parse_number(text) is None


@pytest.mark.parametrize(
    ("a", "b"),
    [("3/4", "0.75"), ("1e3", 1000), ("$1,234.00", 1234), ("50%", "50"), (0.1, "1/10"),
     ("#### 72", "72"), (extract_answer("x = 5"), Fraction(5)), ("1 1/2", 1.5)],
)  # fmt: skip
def test_answers_are_compared_by_exact_value(a: object, b: object) -> None:
    assert same_answer(a, b) and same_answer(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [("1/3", "0.3333333333"), (None, None), ("none", "none"), (float("nan"), float("nan")),
     (float("inf"), "1"), (True, 1), ("72", "-72")],
)  # fmt: skip
def test_what_is_not_the_same_or_not_a_number_is_no_match(a: object, b: object) -> None:
    assert not same_answer(a, b)


def test_thinking_is_dropped_closed_or_cut_off_or_begun_in_the_prompt() -> None:
    assert visible_text("a<think>b</think>c<THINK>d").split() == ["a", "c"]
    assert visible_text("b</think>c") == "c"


PIECES = [
    "9", "1,234,", "1 ", "-", "$", "\\boxed{", "Final Answer:", "final ", "final answer (",
    "<think>", "</think>", "<think></think>", "answer is ", "answer is 7:30 ", "#### ", "\n",
    "####1\n", "{", "= ", "not 5 ", "最终答案", "_", "final answer\n", "5, ", "1/", "1.", "1e",
    "<<", "= 1 ", "is 1 ", "5 x ", "1 or ", "2 * (", "minus ", "<b>", "72, ", "and ", "}{",
    "\\frac{", "½", "1^", "\ud800", "\x00",
]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_a_long_text_is_read_in_linear_time(piece: str) -> None:
    start = time.process_time()
    extract_answer(piece * (400_000 // len(piece)))
    assert time.process_time() - start < 5  # at most 0.7 s; a quadratic reader takes far longer


def test_nothing_raises_whatever_the_pieces() -> None:
    generator = random.Random(7)
    pieces = [*PIECES, "72", ".5", "}", " ", "%", "x", "10^", "is", "不是", "(", ")", "/"]
    for _ in range(3000):
        text = "".join(generator.choices(pieces, k=generator.randint(1, 12)))
        extract_answer(text)
        parse_number(text)


@pytest.mark.parametrize("name", ["train", "test"])
def test_every_gold_solution_of_gsm8k_ends_with_its_answer(shared_data: Path, name: str) -> None:
    path = shared_data / "gsm8k" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip("no gsm8k here")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        solution, gold = row["answer"].rsplit("####", 1)
        assert int(gold.replace(",", "")) == extract_answer(row["answer"]).value
        assert same_answer(f"{solution}\nFinal Answer: {gold.strip()}", gold.strip())
