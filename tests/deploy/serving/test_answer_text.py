"""An answer's text, token by token; an id stands for one byte here."""

from __future__ import annotations

import pytest

from rlkit.deploy.serving.answer_text import AnswerText


def decode(ids):
    return bytes(ids).decode("utf-8", "replace")


def pieces(data: bytes, *stops: str) -> tuple[list[str], bool]:
    text, found = AnswerText(decode, stops), []
    for byte in data:
        found.append(text.add(byte))
        if text.stopped:
            return found, True
    return [*found, text.end()], text.stopped


def test_half_a_character_is_held_back_until_it_is_whole():
    assert pieces("aé".encode()) == (["a", "", "é", ""], False)
    assert pieces("问x".encode()) == (["", "", "问", "x", ""], False)


@pytest.mark.parametrize(
    "data", [b"\xe9\xe9abc", b"ab\xff\xfec\xe9", b"\xf0\x9f", "é问🙂é".encode()]
)
def test_the_pieces_are_the_whole_text_whatever_the_bytes(data):
    assert "".join(pieces(data)[0]) == data.decode("utf-8", "replace")


def test_a_stop_string_and_what_follows_is_no_part_of_the_text():
    assert pieces(b"one END two", "END") == (["o", "n", "e", " ", "", "", ""], True)


def test_what_only_begins_like_a_stop_string_is_given_out_in_the_end():
    assert "".join(pieces(b"an EN", "END")[0]) == "an EN"
    assert "".join(pieces(b"ENEND", "END")[0]) == "EN"


def test_of_several_stop_strings_the_earliest_counts():
    assert "".join(pieces(b"a.b;c", ";", ".")[0]) == "a"
