"""Names by their spelling."""

import time

import pytest

from rlkit.agents.names import names_in


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("The Silent Orchard was written by Anna Holt in 1916.", ["Silent Orchard", "Anna Holt"]),
        ("He met J. R. R. Tolkien. She did not.", ["J. R. R. Tolkien"]),
        ("Lothair II. She reigned.", ["Lothair II"]),
        ("He served the River of Kings and Port Alden.", ["River of Kings", "Port Alden"]),
        ("It was Apollo 11, not Apollo 1969.", ["Apollo 11", "Apollo"]),
        ("Directed by an American in May 1920.", []),
        (
            "He loved St. Maurice's Abbey and Zoë Würst's house.",
            ["St. Maurice's Abbey", "Zoë Würst"],
        ),
        ("She read Solaris (novel) and saw Ada Holt (born 1901).", ["Solaris (novel)", "Ada Holt"]),
        ("电影《霸王别姬》由《程蝶衣》的作者执导。", ["霸王别姬", "程蝶衣"]),
        ("Who is older, Theda Bara or Ada?", ["Theda Bara", "Ada"]),
        ("", []),
        ("no names here.", []),
    ],
)
def test_names_are_found_in_order(text, names):
    assert names_in(text) == names


def test_a_word_that_begins_a_sentence_counts_if_it_is_capitalised_within_one():
    assert names_in("Holt was a painter.") == []
    assert names_in("Holt was a painter. Nobody knew Holt.") == ["Holt"]


def test_long_texts_take_linear_time():
    start = time.thread_time()
    for text in ("Ab " * 60_000, "《" * 60_000, "A." * 60_000, "of " * 60_000, "a" * 200_000):
        names_in(text)
    assert time.thread_time() - start < 5


def test_a_menu_is_no_name_and_a_long_name_is_one():
    menu = " ".join(["Home", "About", "Contact"] * 2000)
    assert names_in(f"He read {menu}.") == []
    longest = " ".join(["Maria"] + ["Antonia"] * 29)
    assert names_in(f"He met {longest} there, and {longest} Anna.") == [longest]


@pytest.mark.parametrize("sign", ["b", "-A", ".b", "字", "Bc "])
def test_no_name_is_longer_than_three_hundred_characters(sign):
    assert names_in(f"He saw Elm Row and A{sign * 9000} there.") == ["Elm Row"]


def test_a_name_of_three_hundred_characters_is_the_longest():
    longest = "A" + "b" * 299
    assert names_in(f"He saw {longest}.") == [longest]
    assert names_in(f"He saw {longest}b.") == []


def test_joiners_behind_a_name_take_linear_time():
    text = "He saw Elm Row " + "of the " * 60_000
    start = time.thread_time()
    assert names_in(text) == ["Elm Row"]
    assert time.thread_time() - start < 5  # half a second; quadratic code takes minutes
