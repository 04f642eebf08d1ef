"""What a judge wrote, read as verdicts: by id, by the book, and never more than was said."""

from __future__ import annotations

import json
import time

import pytest

from rlkit.agents.verdicts import MAX_CHARS, parse_verdicts

IMPORTANT, LOCAL, DISCARD = "IMPORTANT", "LOCAL", "DISCARD"


def read(text: str, documents: int = 3) -> str:
    """The verdicts of d1, d2, ... by their first letters; `.` where there is none."""
    ids = [f"d{number}" for number in range(1, documents + 1)]
    found = parse_verdicts(text, ids)
    return "".join(found.get(name, ".")[0] for name in ids)


@pytest.mark.parametrize(
    "text",
    [
        '{"d1": "IMPORTANT", "d2": "LOCAL", "d3": "DISCARD"}',
        '{"d3": "DISCARD", "d1": "important", "d2": " Local "}',
        'Sure! It is:\n```json\n{"d1": "IMPORTANT", "d2": "LOCAL", "d3": "DISCARD"}\n```\nBye.',
        'I see {3} texts [of them]. {"d1": "IMPORTANT", "d2": "LOCAL", "d3": "DISCARD"}',
        '{"note": 1} {"d1": "IMPORTANT", "d2": "LOCAL", "d3": "DISCARD"} {"d1": "IMPORTANT"}',
        '{"d1": "IMPORTANT"}\n{"d2": "LOCAL"}\n{"d3": "DISCARD"}',
        'Here is the JSON object and nothing else:\n{"d1": "IMPORTANT", "d2": "LOCAL"}, {"d3":'
        ' "DISCARD"}',
        "The label for d1 is IMPORTANT.\nLabel of d2: LOCAL.\nd3: Definitely DISCARD.",
        "d1: IMPORTANT (Wait Until Dark)\nd2: LOCAL (Wrong Turn)\nd3: DISCARD (No Country...)",
        '{"verdicts": {"d1": "IMPORTANT", "d2": "LOCAL", "d3": "DISCARD"}}',
        '{"verdicts": [{"id": "d2", "label": "LOCAL"}, {"id": "d1", "label": "IMPORTANT"},'
        ' {"id": "d3", "label": "DISCARD"}]}',
        '[{"id": "D1", "verdict": "IMPORTANT"}, {"id": "[d2]", "verdict": "LOCAL"},'
        ' {"document": "document d3", "verdict": "DISCARD"}]',
        '{"id": "d1", "label": "IMPORTANT"}\n{"id": "d2", "label": "LOCAL"}\n'
        '{"id": "d3", "label": "DISCARD"}',
        '{"d1": {"label": "IMPORTANT", "reason": "names her"}, "d2": {"label": "LOCAL"},'
        ' "d3": {"label": "DISCARD"}}',
        '{"d1": "IMPORTANT - names her", "d2": "LOCAL (same street)", "d3": "DISCARD."}',
        '{"d1": "重要", "d2": "部分相关", "d3": "无关"}',
        "{'d1': 'IMPORTANT', 'd2': 'LOCAL', 'd3': 'DISCARD'}",
        "d1: IMPORTANT\nd2: LOCAL\nd3: DISCARD",
        "d3: DISCARD\nd1: IMPORTANT\nd2: LOCAL",
        "d1: IMPORTANT, d2: LOCAL, d3: DISCARD",
        "- **d1**: **IMPORTANT** because it names her\n- **d2**: **LOCAL**\n- **d3**: **DISCARD**",
        "| id | label |\n|---|---|\n| d1 | IMPORTANT |\n| d2 | LOCAL |\n| d3 | DISCARD |",
        "1. Document d1 - Label: IMPORTANT\n2. Document d2 - Label: LOCAL\n3. d3 => DISCARD",
        "d1 is important.\nd2: local\n[d3] discard - nothing in it",
        "d1 is labelled IMPORTANT\nd2 is labeled LOCAL\nI label d3 as DISCARD",
        "ｄ１：ＩＭＰＯＲＴＡＮＴ\nd2：部分相关\nd3：无关，没有提到她",
        "d1: IMPORTANT, as it is not about LOCAL news\nd2: LOCAL, no more\nd3: DISCARD: not her",
    ],
)
def test_verdicts_are_read_by_id_out_of_many_forms(text):
    assert read(text) == "ILD"


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("d1: It names her house. IMPORTANT\nd2: On her street, so LOCAL.\nd3: DISCARD", "ILD"),
        ("d1: I thought LOCAL first. But it names her: IMPORTANT.\nd2: DISCARD", "ID."),
        ("d1 - This is not IMPORTANT but LOCAL.\nd2: it is not about her, so DISCARD", "LD."),
        ("d1: not IMPORTANT\nd2: isn't LOCAL\nd3: NON-IMPORTANT", "..."),
        ("d1: neither IMPORTANT nor LOCAL\nd2: not IMPORTANT or LOCAL\nd3: hardly LOCAL", "..."),
        ("d1: LOCAL rather than IMPORTANT\nd2: It is not a DISCARD and not LOCAL", "L.."),
        ("d1: I considered IMPORTANT, but no, it is not IMPORTANT.", "..."),
        ("d1: IMPORTANT?\nd2: IMPORTANT: no\nd3: MAYBE IMPORTANT", "..."),
        ("d1: 不重要\nd2: 并不重要\nd3: 重要性不高", "..."),
        ("d1: 不是【重要】，而是【部分相关】\nd2: 未提到她，因此为“无关”\nd3: 重要", "LDI"),
        ("d1: 该文档提供了重要信息\nd2: 非常重要\nd3: 重要。", "..I"),
        ("d1: RELEVANT\nd2: 5/5\nd3: UNIMPORTANT", "..."),
        ("d1: IMPORTANT or LOCAL\nd2: IMPORTANT/LOCAL/DISCARD\nd3: LOCAL, DISCARD", "..."),
        ("d1: Local government of Trent\nd2: Important people lived here\nd3: Local-ish", "..."),
        ("d1: IMPORTANT\nd1: DISCARD\nd2: LOCAL\nd2: LOCAL", ".L."),
        ("d7: IMPORTANT\nd11: LOCAL\nx1: DISCARD\ndoc 1: DISCARD", "..."),
        ('d1: it says "d2: IMPORTANT"\nd3: DISCARD', "..D"),
        ("IMPORTANT\nLOCAL\nDISCARD", "..."),  # by position: never
        ("1: IMPORTANT\n2: LOCAL\n3: DISCARD", "..."),
        ("All documents are IMPORTANT.", "..."),
        ("", "..."),
        ("I cannot help with that.", "..."),
    ],
)
def test_lines_say_what_they_say_and_no_more(text, verdicts):
    assert read(text) == verdicts


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ('{"d1": "IMPORTANT", "d1": "DISCARD", "d2": "LOCAL", "d2": "LOCAL"}', ".L."),
        ('{"d1": "IMPORTANT", "d2": "RELEVANT", "d3": "not IMPORTANT"}', "I.."),
        ('{"d1": "IMPORTANT/LOCAL", "d2": null, "d3": 3}', "..."),
        ('{"d9": "IMPORTANT", "D2": "LOCAL", "doc3": "DISCARD"}', ".L."),
        ('[{"id": "d1", "label": "LOCAL"}, {"id": "d1", "label": "DISCARD"}]', "..."),
        ('[{"id": "d1", "label": "LOCAL"}, {"id": "d1", "label": "MAYBE"}]', "..."),
        ('[{"id": 1, "label": "LOCAL"}, {"label": "LOCAL"}]', "..."),
        ('["IMPORTANT", "LOCAL", "DISCARD"]', "..."),
        ('{"IMPORTANT": ["d1"]}', "..."),
        ('{"d1": "IMPORTANT", "d2": "LOC', "I.."),
        ('```json\n{"d1": "IMPORTANT", "d2": "LOCAL"', "IL."),
        ('{"verdicts": {"d1": "IMPORTANT", "d2": "LOCAL', "I.."),
        ('{"verdicts": [{"id": "d1", "label": "IMPORTANT"}, {"id": "d2", "label": "L', "I.."),
        ('{"d1": {"reason": "names her", "label": "IMPORTANT"}, "d2": {"label": "LO', "I.."),
        ('{"d1": {"reason": "it says \\"d2\\": \\"LOCAL\\"", "label": "IMPORTANT"}, "d3', "I.."),
        ('{"d1": "IMPORTANT", "d1": "LOCAL", "d2": "DISCARD", "d3": "DIS', ".D."),
        ('{"d1": "IMPORTANT", "d2": "LOCAL"}\n{"d1": "DISCARD"}', ".L."),
        (
            '{"d1": {"label": "IMPORTANT", "negated": true}, "d2": {"label": "LOCAL", "ok": true}}',
            ".L.",
        ),
        ('{"id": "d1", "label": "LOCAL", "correct": false}', "..."),
    ],
)
def test_json_counts_as_far_as_it_is_complete_and_agrees_with_itself(text, verdicts):
    assert read(text) == verdicts


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("IMPORTANT", IMPORTANT),
        ("**Label: local**", LOCAL),
        ("标签：无关", DISCARD),
        ("这篇文档应标为【部分相关】。", LOCAL),
        ('"DISCARD"', DISCARD),
        ('{"label": "LOCAL"}', LOCAL),
        ("IMPORTANT: it names her.", IMPORTANT),
        ("It names her street only. LOCAL", LOCAL),
        ("d1: It is about her.\n\nVerdict: IMPORTANT", IMPORTANT),
        ("DISCARD, as it is not IMPORTANT", DISCARD),
        ("It is not IMPORTANT.", None),
        ("不是【重要】", None),
        ("d7: IMPORTANT", None),
        ('{"id": "d7", "label": "IMPORTANT"}', None),
        ('{"d7": {"label": "IMPORTANT"}, "d8": {"la', None),
        ("IMPORTANT\nDISCARD", None),
        ("IMPORTANT: directly relevant\nLOCAL: partly relevant\nDISCARD: irrelevant", None),
        ("The labels are IMPORTANT (directly relevant), LOCAL (partly) and DISCARD.", None),
        ("It could be IMPORTANT. It could be LOCAL. It could be DISCARD.", None),
        ("An important local event.", None),
    ],
)
def test_one_document_needs_no_id_but_no_other_document_s_either(text, verdict):
    assert parse_verdicts(text, ["d1"]).get("d1") == verdict


@pytest.mark.parametrize(
    "lead",
    [
        "It is not true that\n",
        "It is clear. Wrong answer would be:\n",
        "Do not answer ",
        "I will not say ",
        "不要回答：",
        "以下说法是错误的：\n",
    ],
)
def test_labels_behind_a_denial_are_none(lead):
    for text in (
        '{"d1": "IMPORTANT", "d2": "LOCAL"}',
        '{"d1": "IMPORTANT", "d2": "LOCAL", "d3": "DIS',
        "```json\n" + '{"d1": "IMPORTANT"}\n```',
        "\nd1: IMPORTANT\nd2: LOCAL",
    ):
        assert read(lead + text) == "...", text
        assert read(f"{lead}so. {text}") != "...", text  # the sentence has ended
    assert parse_verdicts(f"{lead}\nIMPORTANT".replace("\n\n", "\n"), ["d1"]) == {}
    assert read('{"d2": "DISCARD"}\n' + lead + '{"d1": "IMPORTANT", "d2": "LOCAL"}') == ".D."


NO_LABEL = """
IMPORTANT, I would not say
否，重要
IMPORTANT is not the right label
It would be wrong to call it IMPORTANT
anything but DISCARD
DISCARD would be wrong
I'd say IMPORTANT is too strong
lacks anything IMPORTANT
It is anything but IMPORTANT.
It is by no means IMPORTANT.
It is far from IMPORTANT
IMPORTANT: no wait, that is wrong
IMPORTANT? No.
IMPORTANT. Wait, no.
IMPORTANT (not)
IMPORTANT - not really
not: IMPORTANT
This isn't, in my view, IMPORTANT.
It is not so IMPORTANT.
!IMPORTANT
label != IMPORTANT
≠ IMPORTANT
~~IMPORTANT~~
If it named her: IMPORTANT.
The document claims: IMPORTANT
The document says it is IMPORTANT
I doubt it is IMPORTANT.
It could be IMPORTANT.
It might be LOCAL, so maybe LOCAL.
Nobody would say IMPORTANT.
IMPORTANT, but that would be too strong.
IMPORTANT is what a careless reader would say.
One cannot call it DISCARD
Calling it DISCARD is a mistake.
I refuse to label it IMPORTANT
I hesitate between IMPORTANT and LOCAL
算不上重要
谈不上“重要”
并非【重要】
这篇文档不是重要的
不应标为【重要】
【重要】是错误的
“重要”这个标签不合适
很难说【重要】
重要?不。
重要,不对,无关
重要——算不上
它可能是【重要】
称之为【重要】就错了
没有什么【重要】
如果提到她,则为【重要】
除了【无关】都可以
IMPORTANT = directly relevant | I choose LOCAL
IMPORTANT, I think not.
LOCAL at best
No. IMPORTANT facts are missing
IMPORTANT or not?
Not IMPORTANT, not LOCAL
Is it IMPORTANT?
IMPORTANT/LOCAL
The answer is not DISCARD.
Label: not IMPORTANT
Verdict: IMPORTANT is excluded
label: anything but LOCAL
IMPORTANT - definitely not.
IMPORTANT! Just kidding, DISCARD.
DISCARD -> no, LOCAL
It is IMPORTANT that it be marked as DISCARD
IMPORTANT: that label does not fit.
DISCARD is not what I would pick; neither is LOCAL
重要性：无
并不是“无关”
不能算作：重要
谈不上：重要
绝非重要
不属于【重要】
不该标为无关
别标为无关
IMPORTANT, though I would not call it that.
IMPORTANT does not apply.
IMPORTANT: does not apply
DISCARD? never.
Hardly: IMPORTANT
It is IMPORTANT, or is it?
Scratch that. IMPORTANT it isn't.
IMPORTANT (as if)
Far from being IMPORTANT
IMPORTANT — or rather LOCAL
It can't be IMPORTANT, can it?
There is nothing here that makes it IMPORTANT.
"""


@pytest.mark.parametrize(
    "text", [line.replace(" | ", "\n") for line in NO_LABEL.strip().split("\n")]
)
def test_a_label_that_is_a_word_of_a_sentence_or_taken_back_is_none(text):
    assert parse_verdicts(text, ["d1"]) == {}
    assert parse_verdicts(json.dumps({"d1": text}), ["d1"]) == {}
    assert parse_verdicts(f"d2: LOCAL\nd1: {text}", ["d1", "d2"]) == {"d2": LOCAL}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("d1 is IMPORTANT", IMPORTANT),
        ("I label d1 as LOCAL", LOCAL),
        ("I label d1 LOCAL.", LOCAL),
        ("It is LOCAL.", LOCAL),
        ("I'd say LOCAL.", LOCAL),
        ("Final answer: DISCARD", DISCARD),
        ("The label is DISCARD.", DISCARD),
        ("d1: does not mention her. DISCARD", DISCARD),
        ("No mention of her → DISCARD", DISCARD),
        ("Nothing on her, therefore DISCARD.", DISCARD),
        ("The document d1 is IMPORTANT.", IMPORTANT),
        ("Verdict:\nLOCAL", LOCAL),
        ("未提到她，所以标为无关。", DISCARD),
        ("该文档属于【重要】", IMPORTANT),
        ("结论：部分相关", LOCAL),
        ("无关（没有提到）", DISCARD),
        ("I would label this document as IMPORTANT.", IMPORTANT),
        ("DISCARD because it does not mention Ada", DISCARD),
        ("DISCARD\n\nThe document does not mention Ada. Do you want more?", DISCARD),
        ("Label: LOCAL\nReason: it is not about her but about her street.", LOCAL),
        ("Reason: it does not name her.\nLabel: DISCARD", DISCARD),
        ("IMPORTANT facts are missing here, so DISCARD", DISCARD),
        ("LOCAL, since IMPORTANT would be too strong", LOCAL),
    ],
)
def test_a_clause_that_is_the_label_or_affirms_it_gives_it(text, verdict):
    assert parse_verdicts(text, ["d1"]) == {"d1": verdict}


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        ("IMPORTANT — no wait, DISCARD", None),
        ("IMPORTANT, as it is not LOCAL", None),  # two labels in one value
        ("It names her, so IMPORTANT", None),  # a value is the label, or begins with it
        ("重要，不，【无关】", None),
        ("label: LOCAL", LOCAL),
        ("DISCARD, it is not about her", DISCARD),
        ("部分相关：提到了重要人物", LOCAL),
    ],
)
def test_a_json_value_is_one_label_and_its_reason(value, verdict):
    assert parse_verdicts(json.dumps({"d1": value}), ["d1"]).get("d1") == verdict


def test_what_follows_the_last_label_does_not_unsay_it():
    end = "\n\nNote: IMPORTANT means directly relevant. So d1 is IMPORTANT. Shall I go on?"
    assert read("d1: IMPORTANT\nd2: LOCAL (d1's street)\nd3: DISCARD" + end) == "ILD"


@pytest.mark.parametrize(
    "unit",
    ["[", '{"a":', '{"d1":', "d1: IMPORTANT or ", "IMPORTANT,", "not ", "((", '"d1": ', "d1 ", "\\",
     "IMPORTANT (", "IMPORTANT.\n", "d1 IMPORTANT, ", "no, ", "**", "d1:\n", "> ", "不是【重要】"],
)  # fmt: skip
def test_any_text_is_read_in_short_time_and_never_raises(unit):
    start = time.process_time()
    parse_verdicts(unit * (2 * MAX_CHARS // len(unit)), ["d1", "d2"])
    assert time.process_time() - start < 2.0


def test_whatever_is_cut_off_gives_no_verdict_that_the_whole_does_not_give():
    whole = {"d1": IMPORTANT, "d2": LOCAL, "d3": DISCARD}
    texts = [
        json.dumps(whole),
        json.dumps([{"id": name, "label": label} for name, label in whole.items()], indent=1),
        json.dumps({name: {"reason": "r", "label": label} for name, label in whole.items()}),
        "\n".join(f"{name}: {label}" for name, label in whole.items()),
    ]
    for text in texts:
        assert parse_verdicts(text, list(whole)) == whole
        for end in range(len(text)):
            found = parse_verdicts(text[:end], list(whole))
            assert found.items() <= whole.items(), text[:end]
