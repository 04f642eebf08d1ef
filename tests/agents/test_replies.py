"""JSON in replies: whole, in fences, after prose, cut off, and what is none."""

import time

import pytest

from rlkit.agents.replies import MAX_CHARS, first_json, json_values, partial_object


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('```json\n{"a": [1, 2]}\n```', {"a": [1, 2]}),
        ('Sure {that is it}: {"a": "b}"} and {"a": 2}', {"a": "b}"}),
        ('["x"] {"a": 1}', ["x"]),
        ('{"问": "答"}。', {"问": "答"}),
        ("no json", None),
        ('{"a": 1', None),
        ('{"a": NaN} {"a": Infinity}', None),
        ("", None),
    ],
)
def test_the_first_complete_value_is_taken(text, value):
    assert first_json(text) == value


def test_a_kind_can_be_asked_for():
    assert first_json('As [1] says: {"a": 1}', dict) == {"a": 1}
    assert first_json('As {"a": 1}', list) is None


def test_every_complete_value_counts_but_none_inside_another():
    assert list(json_values('{"a": {"b": 1}} x [2] {"c": [{"d": 3}, {"e"')) == [
        {"a": {"b": 1}},
        [2],
        {"d": 3},
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('x {"a": 1, "b": [1, {"c": 2}]} y', {"a": 1, "b": [1, {"c": 2}]}),
        ('{"a": [{"n": "x"}, {"n": "y"}, {"n": "z', {"a": [{"n": "x"}, {"n": "y"}]}),
        ('{"a": "x", "b": "cut o', {"a": "x"}),
        ('{"a": "x", "b": 12', {"a": "x"}),
        ('{"a": [1, 12', {"a": [1]}),
        ('{"a": [1, 12.', {"a": [1]}),
        ('{"a": true, "b": {"c": 1', {"a": True}),
        ('{"a": true', {"a": True}),
        ('{"a": 1, "b"', {"a": 1}),
        ('{"a": []', {"a": []}),
        ("{no} json", {}),
        ("[1, 2", {}),
        ("", {}),
    ],
)
def test_of_an_object_that_is_cut_off_the_complete_part_counts(text, value):
    assert partial_object(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "{" * MAX_CHARS,
        '{"a":' * 40_000,
        "[" * MAX_CHARS,
        "[1," * 70_000,
        '{"a": ' + "9" * 5000 + "}",
        '{"\ud800": "\x00"}',
        '{"a": 1e999}',
    ],
    ids=["braces", "nested", "brackets", "lists", "number", "signs", "infinite"],
)
def test_nonsense_neither_raises_nor_takes_long(text):
    start = time.thread_time()
    list(json_values(text))
    partial_object(text)
    assert time.thread_time() - start < 5.0
