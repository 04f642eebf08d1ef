"""Reasoning steps: lines and sentences with an equation that is arithmetically right."""

from __future__ import annotations

import random
import time

import pytest

from rlkit.answers.steps import right_equations

RIGHT = {
    "48 / 2 = 24": "48/2=24",
    "In 5 days she sold 48 + 24 = 72 clips.": "48+24=72",
    "48 clips + 24 clips = 72 clips": "48+24=72",
    "11 pieces/house * 75 houses = 825 pieces": "11*75=825",
    "$12 x 3 = $36": "12*3=36",
    "12 × 3 ＝ ３６": "12*3=36",
    "- 48 + 24 = 72": "48+24=72",
    "1. 48 + 24 = 72": "48+24=72",
    "**48 + 24 = 72**": "48+24=72",
    r"\(\frac{48}{2} = 24\)": "48/2=24",
    "1,000 + 5 = 1,005": "1000+5=1005",
    "5 - 8 = -3": "5-8=-3",
    "-5 + 3 = -2": "-5+3=-2",
    "2*(-3) = -6": "2*(-3)=-6",
    "(2 + 3) * 4 = 20": "(2+3)*4=20",
    "20% * 50 = 10": "20%*50=10",
    "5 / 20 * 100 = 25%": "5/20*100=25%",
    "10/3 = 3.33": "10/3=3.33",
    "72 = 48 + 24": "72=48+24",
    "0.2 x 50 = $<<0.2*50=10>>10.": "0.2*50=10",
    "48/2 = 24 + 3 = 27": "24+3=27",
}


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_equation_is_a_step(text: str) -> None:
    assert list(right_equations(text)) == [RIGHT[text]]


@pytest.mark.parametrize(
    "text",
    ["", "\n\n\n", "x = 5", "72 = 72", "1 + 1 = 3", "10/3 = 3", "10/3 = 3.4", "8/0 = 0",
     "12 + 3 = 15 - 2", "() = 1+", "two plus two = 4", "a" * 2000 + " 1 + 1 = 2"],
)  # fmt: skip
def test_what_is_wrong_or_calculates_nothing_is_no_step(text: str) -> None:
    assert list(right_equations(text)) == []


def test_an_equation_counts_once_and_a_sentence_is_one_step() -> None:
    assert list(right_equations("1 + 1 = 2\n1+1=2\n2 + 2 = 4, and 3 + 3 = 6. 4 + 4 = 8")) == [
        "1+1=2", "2+2=4", "4+4=8",
    ]  # fmt: skip


def test_nothing_raises_and_nothing_takes_long() -> None:
    generator = random.Random(7)
    pieces = ["1", "=", "+", "-", "*", "/", "(", ")", "%", " ", "x", "clips ", ".", ",", "9" * 200]
    for _ in range(3000):
        list(right_equations("".join(generator.choices(pieces, k=generator.randint(1, 40)))))
    start = time.process_time()
    for piece in ("=", "1=", "(", "1 a + ", "a = b. "):
        list(right_equations(piece * (1_000_000 // len(piece))))
    assert time.process_time() - start < 20
