"""What is taken from a chat completion."""

from __future__ import annotations

import pytest

from rlkit.agents.llm_reply import Reply, read_json, read_reply, storable, without_thinking


@pytest.mark.parametrize(
    ("text", "rest", "thought"),
    [
        ("plain", "plain", False),
        ("a<think>b</think>c", "ac", True),
        ("<THINK>b</ThInK >c", "c", True),
        ("<thinking>b</thinking>c", "c", True),
        ("<think>one</think>a<think>two</think>b", "ab", True),
        ("<think>one<think>two</think>b", "b", True),
        ("a<think>cut off", "a", True),
        ("<think>", "", True),
        ("<think> </think>a", "a", False),
        ("</think>a", "a", False),
        ("b</think>a", "a", True),
        ("b</think>c</think>a", "a", True),
        ("<think>x</think>b</think>a", "a", True),
        ("a < think b", "a < think b", False),
        ("<thinker>a", "<thinker>a", False),
    ],
)
def test_blocks_of_thinking_are_cut_out(text, rest, thought):
    assert without_thinking(text) == (rest, thought)


def test_many_tags_take_no_time():
    text, thought = without_thinking("<think>" * 100_000 + "</think>" * 100_000 + "a")
    assert (text, thought) == ("a", True)
    assert without_thinking("<" + " " * 200_000)[1] is False


@pytest.mark.parametrize(
    ("text", "stored"),
    [("ab", "ab"), ("a\0b", "a\ufffdb"), ("\ud800", "\ufffd"), ("\udc00\ud800", "\ufffd\ufffd"),
     ("\ud83d\ude00", "😀"), ("é字😀", "é字😀")],
)  # fmt: skip
def test_text_can_be_written_to_any_file(text, stored):
    assert storable(text) == stored
    stored.encode()


def completion(message, **more):
    return {"choices": [{"message": message, **more}]}


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (completion({"content": "a"}), Reply("a", False, None, 0, 0)),
        (completion({"content": "a"}, finish_reason=7), Reply("a", False, None, 0, 0)),
        (completion({"content": ["a", {"text": "b"}, {"text": 3}]}), Reply("b", False, None, 0, 0)),
        (completion({"content": {"a": 1}}), Reply("", False, None, 0, 0)),
        (completion({"content": "a", "reasoning": "r"}), Reply("a", True, None, 0, 0)),
        (completion({"content": "a", "reasoning_content": " "}), Reply("a", False, None, 0, 0)),
        (completion({"reasoning": "IMPORTANT"}), Reply("", True, None, 0, 0)),
    ],
)
def test_odd_completions_are_read(body, reply):
    assert read_reply(body) == reply


@pytest.mark.parametrize(
    "usage", [None, [], {}, {"prompt_tokens": "5"}, {"prompt_tokens": -1}, {"prompt_tokens": True}]
)
def test_counts_that_are_none_are_0(usage):
    reply = read_reply({**completion({"content": "a"}), "usage": usage})
    assert (reply.prompt_tokens, reply.completion_tokens) == (0, 0)


@pytest.mark.parametrize(
    "body",
    [None, 3, "x", [], {}, {"choices": None}, {"choices": [None]}, {"choices": [{"message": "x"}]}],
)
def test_what_is_no_completion_is_none(body):
    assert read_reply(body) is None


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 200_000, b'{"a": 1'])
def test_what_is_no_json_is_none(body):
    assert read_json(body) is None
