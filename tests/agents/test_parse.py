"""The parser of what the Executor writes: three forms, damage, size, and its inverse."""

from __future__ import annotations

import random
import time

import pytest

from rlkit.agents.clues import clean_clue, count_words, distinct_clues, format_clues
from rlkit.agents.parse import completeness, parse_clues_from_output
from rlkit.config import RunConfig
from rlkit.errors import ConfigError


def clues(text: str, **options: object) -> list[str]:
    return list(parse_clues_from_output(text, **options).clues)


FORMS = {
    "two_phase": (
        "<analysis>The director is <clue>not this</clue>.</analysis>\n"
        "<search_clues><clue>Mary Harron</clue><clue>American Psycho</clue></search_clues>"
    ),
    "search_block": "<search>\n1. Mary Harron\n2. American Psycho\n</search>",
    "clue_list": "Clues:\n- Mary Harron\n- American Psycho\n\nI hope that this helps!",
    "clue_tags": "<clue>Mary Harron</clue>\n<clue>American Psycho</clue>",
    "plain_lines": "Mary Harron\nAmerican Psycho\n",
}


@pytest.mark.parametrize("how", FORMS)
def test_every_form_is_read_and_named(how: str) -> None:
    parsed = parse_clues_from_output(FORMS[how])
    assert parsed.clues == ("Mary Harron", "American Psycho")
    assert parsed.how == how
    assert parsed.dropped == 0


@pytest.mark.parametrize("how", FORMS)
def test_spans_point_at_the_clues_in_the_original_text(how: str) -> None:
    text = f"<think>Mary? <clue>x</clue></think>```\n{FORMS[how]}"
    parsed = parse_clues_from_output(text)
    assert [text[start:end].strip() for start, end in parsed.spans] == list(parsed.clues)


@pytest.mark.parametrize(
    "text",
    [
        "<think>first <clue>wrong</clue></think><clue>right</clue>",
        "first <clue>wrong</clue></think>\n<clue>right</clue>",
        "<THINK>a <think> b</think><clue>right</clue><think>and <clue>wrong</clue>",
        "<clue>right</clue><thinking>cut off <clue>wrong</clue>",
        "```xml\n<clue>right</clue>\n```",
        "<search_clues>\n```\n<clue>right</clue>\n```\n</search_clues>",
        "<clue>wrong</clue><search_clues><clue>right</clue></search_clues><clue>wrong</clue>",
        "<analysis>open <search_clues><clue>right</clue></search_clues>",
        "<search_clues>\n1) right\n</search_clues>",
        "Sure, here they are:\n\n1. right",
        "**Search clues:**\n1. right\nThat is all.",
        "Clues: right",
        "Clue 1: right",
        "搜索线索：\n１．right",
        "线索：\n一、right",
        "（1）right",
        "① right",
        "• right",
        "* **right**",
        "“right”",
        "<clue>\n right <b></b>\n</clue>",
        "<clue id='1'>\"right\",</clue>",
        "<clue>right<|im_end|></clue>",
    ],
)
def test_wrappings_are_taken_off(text: str) -> None:
    assert clues(text) == ["right"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<clue>one</clue><clue>two is cut o", ["one"]),
        ("<clue>one<clue>two</clue>", ["one", "two"]),
        ("<clue>one\n<clue>two\n", ["one", "two"]),
        ("<search_clues><clue>one</search_clues>", ["one"]),
        ("<search_clues><clue>one</clue><clue>two", ["one"]),
        ("<search>\none\ntwo is cut o", ["one"]),
        ("<clue>cut off", []),
        ("<think>cut off", []),
    ],
)
def test_an_unfinished_last_clue_is_dropped_and_a_missing_close_tag_tolerated(
    text: str, expected: list[str]
) -> None:
    assert clues(text) == expected


def test_duplicates_fold_case_and_width_and_order_is_kept() -> None:
    parsed = parse_clues_from_output(
        "<clue>b</clue><clue>ＮＯＬＡＮ  films</clue><clue>Nolan films</clue><clue>a</clue>"
    )
    assert parsed.clues == ("b", "ＮＯＬＡＮ films", "a")
    assert (parsed.dropped, parsed.repeated) == (1, 1)


def test_the_cap_counts_what_it_drops() -> None:
    text = "".join(f"<clue>clue {n}</clue>" for n in range(7))
    parsed = parse_clues_from_output(text, max_clues=3)
    assert parsed.clues == ("clue 0", "clue 1", "clue 2")
    assert parsed.dropped == 4
    assert clues(text, max_clues=0) == []


def test_prose_is_no_clue() -> None:
    assert clues("word " * 31) == []
    assert len(clues("word " * 30)) == 1
    assert clues("词" * 61) == []
    assert len(clues("词" * 60)) == 1
    assert count_words("Nolan 的电影") == 3  # one word, and three characters as two
    assert clues("<clue>" + "word " * 65 + "</clue>") == []
    assert clues("<clue>" + "w" * 301 + "</clue>") == []


def test_plain_lines_off_reads_only_what_is_marked() -> None:
    assert clues("Mary Harron\nAmerican Psycho", plain_lines=False) == []
    for how in ("two_phase", "search_block", "clue_list", "clue_tags"):
        assert len(clues(FORMS[how], plain_lines=False)) == 2


def test_plain_lines_are_not_read_where_there_is_any_tag() -> None:
    assert clues("<analysis>x</analysis>\nMary Harron") == []
    assert clues("<clue></clue>\nMary Harron") == []


def test_numbers_that_belong_to_a_name_stay() -> None:
    assert clues("<clue>1. FC Köln</clue>") == ["1. FC Köln"]
    assert clues("1.5 million years") == ["1.5 million years"]
    assert clues("1917 (film)") == ["1917 (film)"]
    assert clues('<clue>"A" and "B"</clue>') == ['"A" and "B"']


def test_nothing_searchable_is_nothing() -> None:
    for text in ("", "...", "<clue>?!</clue>", "-\n-\n", "```\n```", "\x00", "\ud800"):
        assert parse_clues_from_output(text).clues == ()


@pytest.mark.parametrize("layout", ["bare", "two_phase", "legacy"])
def test_format_is_the_inverse_of_parse(layout: str) -> None:
    written = ["1. FC Köln", "Tom & Jerry", "a &amp; b", "x < y > z", "电影《活着》的导演", "AT&T"]
    text = format_clues(written, layout, analysis="who <b>made</b> it")
    assert clues(text, max_clues=9) == written


@pytest.mark.parametrize("layout", ["bare", "two_phase", "legacy"])
@pytest.mark.parametrize("words", [30, 31, 64])
def test_a_clue_as_long_as_a_clue_may_be_is_read_in_every_layout(layout: str, words: int) -> None:
    written = " ".join(f"w{number}" for number in range(words))
    assert clues(format_clues([written], layout)) == [written]


def test_a_long_line_is_prose_unless_it_is_marked_within_a_block() -> None:
    prose = " ".join(["word"] * 31)
    for text in (f"<search>{prose}\nElm Row\n</search>", f"Clues:\n1. {prose}\n2. Elm Row\n"):
        assert clues(text) == ["Elm Row"]


def test_an_unknown_layout_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'legacy'"):
        format_clues(["a"], "legaci")


PIECES = [
    "<clue>", "</clue>", "<search>", "</search>", "<search_clues>", "</search_clues>", "<think>",
    "</think>", "<analysis>", "</analysis>", "```", "Clues:", "线索：", "\n", "\r\n", "\u2028", " ",
    "1.", "- ", "&amp;", "&#0;", "&#" + "9" * 5000 + ";", "&lt;", "<", ">", "\x00", "\ud83d",
    "Ａｂ", "ß", "ﷺ", "“", '"', "'", "*", "Nolan", "的", "<b>", "<|im_end|>", "½", ",",
]  # fmt: skip


@pytest.mark.parametrize("plain_lines", [True, False])
def test_any_string_is_read_without_an_error_and_clean_clues_survive_writing(
    plain_lines: bool,
) -> None:
    draw = random.Random(7)
    for _ in range(3000):
        text = "".join(draw.choice(PIECES) for _ in range(draw.randrange(25)))
        parsed = parse_clues_from_output(text, 4, plain_lines)
        assert len(parsed.clues) == len(parsed.spans) <= 4
        assert distinct_clues(parsed.clues, 9) == list(parsed.clues)
        for clue in parsed.clues:
            assert clue == clean_clue(clue) or "&" in clue
            clue.encode("utf-8")
        for layout in ("bare", "two_phase", "legacy"):
            assert clues(format_clues(parsed.clues, layout)) == list(parsed.clues)


@pytest.mark.parametrize(
    "piece",
    [
        *PIECES,
        "<clue",
        "</think><think>",
        "<clue>a",
        "<search>a\n",
        "`",
        "#",
        "Clues:\n",
        "((",
        "a ",
    ],
)
def test_long_output_of_any_kind_is_read_in_linear_time(piece: str) -> None:
    text = piece * ((2_000_000 if piece == "<clue>" else 300_000) // len(piece))
    started = time.thread_time()
    parse_clues_from_output(text)
    assert time.thread_time() - started < 30  # a second or so; quadratic code would take hours


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("<clue>Mary Harron</clue>\n<clue>American Psycho</clue>", True),
        ("<clue>Mary Harron</clue>\n<clue>American Psycho</clue>\n \n", True),
        ("<search_clues><clue>Mary Harron</clue><CLUE>Psycho</CLUE>", True),
        ("<clue>Mary Harron</clue>\n<clue>American Psycho</clue", False),
        ("<clue>Mary Harron</clue>\n<clue>mary harron</clue>", False),  # the second says it again
        ("<clue>Mary Harron</clue>\n<clue>!</clue>", False),
        ("<think><clue>a</clue><clue>b</clue>", False),
        ("<clue>Mary Harron</clue>", False),
        ("", False),
    ],
)
def test_an_output_is_complete_with_the_tag_that_closes_its_last_counted_clue(text, complete):
    assert completeness(RunConfig()) is None
    config = RunConfig(executor={"stop_at_max_clues": True}, search={"max_clues": 2})
    assert completeness(config)(text) is complete
