"""Augmented rows: made by rule or by a model, verified, marked, and never across a split."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from rlkit.agents.llm import ChatClient
from rlkit.answers.arithmetic import arithmetic_rows
from rlkit.answers.augment import augment_rows
from rlkit.answers.augment_checks import Guard, reason_against, signature
from rlkit.answers.datasets import Row, split_rows
from rlkit.answers.rows import normalised
from rlkit.errors import AgentError, ConfigError
from tests.agents.fault_server import Answer, FaultServer

TRAIN, TEST = arithmetic_rows("train", 200), arithmetic_rows("test", 100)
EGGS = Row(
    "eggs",
    "Ann has 3 boxes of 12 eggs and sells 6. How many eggs are left?",
    "3 * 12 = 36\n36 - 6 = 30\n#### 30",
    "30",
    {"level": "easy"},
)
RETOLD = "Ann owns 3 cartons with 12 eggs in each. She sells 6. How many does she keep?"
NEW = {
    "question": "Bob has 4 bags of 15 nuts and eats 7. How many nuts are left?",
    "solution": ["4 * 15 = 60", "60 - 7 = 53"],
    "answer": "53",
}


def client_of(server):
    return ChatClient(server.url, "toy", max_retries=0, patience=1, log=lambda _: None)


def asked(script, method, rows=(EGGS,), **options):
    """(new rows, dropped, requests) of a real client that talks to a scripted server."""
    with FaultServer(script) as server:
        client = client_of(server)
        try:
            kept, dropped = augment_rows(rows, [method], client=client, **options)
        finally:
            client.close()
    return kept, dropped, server.requests


def similar(question=NEW["question"], solution=NEW["solution"], answer=NEW["answer"], again=None):
    """A server that makes this new problem, and solves it again as `again`."""

    def script(body, n):
        if "Make a new problem" in body["messages"][0]["content"]:
            reply = {"question": question, "solution": solution, "answer": answer}
            return Answer(json.dumps(reply))
        return Answer(f"Final Answer: {answer if again is None else again}")

    return script


# ---- by rule


def test_a_rule_paraphrase_keeps_numbers_and_answer_and_names_its_origin():
    kept, dropped = augment_rows(TRAIN, ["paraphrase"])
    origin = {row.id: row for row in TRAIN}
    assert len(kept) + len(dropped) == 200 and len(kept) > 190
    for row in kept:
        of = origin[row.origin]
        assert row.augmented == "paraphrase" and row.ground_truth == of.ground_truth
        assert signature(row.question) == signature(of.question)
        assert normalised(row.question) != normalised(of.question)


def test_rule_rows_are_new_and_stay_out_of_held_out_questions():
    kept, _ = augment_rows(TRAIN, ["paraphrase", "similar"], held_out=TEST, per_row=2, seed=3)
    texts = [normalised(row.question) for row in (*TRAIN, *TEST, *kept)]
    assert len(set(texts)) == len(texts)
    held = {(row.columns["template"], *row.columns["values"]) for row in TEST}
    assert not held & {(row.columns["template"], *row.columns["values"]) for row in kept}
    assert len({row.id for row in (*TRAIN, *kept)}) == len(TRAIN) + len(kept)
    parts = split_rows([*TRAIN, *kept], TEST)
    assert parts.dropped == parts.repeated == 0
    part = {row.id: name for name, rows in parts.items() for row in rows}
    assert all(part[row.id] == part[row.origin] for row in kept)


def test_the_same_seed_gives_the_same_similar_rows():
    first, again, other = (augment_rows(TRAIN[:20], "similar", seed=s)[0] for s in (1, 1, 2))
    assert first == again != other


def test_augmented_rows_are_not_augmented_again():
    kept, _ = augment_rows(TRAIN[:5], ["similar"])
    assert augment_rows(kept, ["similar"]) == ([], [])


def test_a_paraphrase_of_a_held_out_question_is_dropped_as_nearly_one():
    """Another name in a held-out story with the same numbers is no new question."""
    row = next(row for row in TRAIN if row.columns["template"] == "apples")
    other = row.columns["name"]
    held = replace(row, id="held", question=row.question.replace(other, "Zed"))
    twin = replace(row, id="twin", question=row.question.replace(other, "Kim"))
    guard = Guard([row], [held])
    assert reason_against(row, twin, "paraphrase", guard) == "it is nearly a held-out question"


@pytest.mark.parametrize(
    ("rows", "methods", "says"),
    [
        (TRAIN[:1], ["back_translation"], "has no rule"),
        ([EGGS], ["similar"], "'eggs' is no generated problem"),
        (TRAIN[:1], ["paraphrases"], "did you mean paraphrase"),
        (TRAIN[:1], [], "make no row"),
    ],
)
def test_what_no_rule_can_do_is_one_sentence(rows, methods, says):
    with pytest.raises(ConfigError, match=says):
        augment_rows(rows, methods)


# ---- by a model


def test_a_model_s_paraphrase_is_kept_and_marked():
    kept, dropped, requests = asked([Answer(f'"{RETOLD}"')], "paraphrase")
    assert dropped == []
    assert kept == [
        replace(
            EGGS, id="eggs-paraphrase-1", question=RETOLD, augmented="paraphrase", origin="eggs"
        )
    ]
    user = requests[0]["messages"][-1]["content"]
    assert user == f"<problem>\n{EGGS.question}\n</problem>"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (RETOLD.replace("12", "13"), "its numbers are not those of its origin"),
        (RETOLD.replace("6", "some"), "its numbers are not those of its origin"),
        (RETOLD.replace("?", ". #### 30?"), "the question holds an answer"),
        (RETOLD.replace("?", "."), "it asks nothing"),
        ("安有3盒鸡蛋，每盒12个，卖出6个，还剩下多少个鸡蛋？", "it is in another language"),
        (EGGS.question.upper(), "the same question is there already"),
        (RETOLD + " and so on" * 100, "the question is much longer than its origin"),
        ("", "the question is empty"),
    ],
)
def test_a_paraphrase_that_is_not_sound_is_dropped_with_its_reason(reply, reason):
    kept, dropped, _ = asked([Answer(reply)], "paraphrase")
    assert kept == [] and dropped[0].reason.startswith(reason)
    assert (dropped[0].origin, dropped[0].method) == ("eggs", "paraphrase")


def test_spelt_numbers_are_the_numbers_that_they_name():
    spelt = RETOLD.replace("3 cartons", "three cartons").replace("12 eggs", "a dozen eggs")
    kept, _, _ = asked([Answer(spelt)], "paraphrase")
    assert len(kept) == 1


def test_a_back_translation_goes_through_another_language():
    chinese = "安有3盒鸡蛋，每盒12个，卖了6个，还剩多少个？"

    def script(body, n):
        rules = body["messages"][0]["content"]
        return Answer(chinese if "into Chinese" in rules else RETOLD)

    kept, dropped, requests = asked(script, "back_translation")
    assert dropped == [] and kept[0].question == RETOLD
    assert kept[0].augmented == "back_translation"
    assert chinese in requests[1]["messages"][-1]["content"]
    assert "into English" in requests[1]["messages"][0]["content"]


def test_a_similar_question_is_kept_with_its_recomputed_answer():
    kept, dropped, requests = asked(similar(), "similar")
    assert dropped == []
    (row,) = kept
    assert (row.question, row.ground_truth) == (NEW["question"], "53")
    assert row.full_answer == "4 * 15 = 60\n60 - 7 = 53\n#### 53"
    assert (row.id, row.augmented, row.origin) == ("eggs-similar-1", "similar", "eggs")
    assert row.columns == {"level": "easy"}
    assert NEW["question"] in requests[1]["messages"][-1]["content"]
    assert "4 * 15" not in json.dumps(requests[1]), "it is solved again without its solution"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"solution": ["4 * 15 = 61", "61 - 7 = 54"], "answer": "54"}, "4 * 15 = 61 is false"),
        ({"answer": "52"}, "its solution ends with 53 and not with its answer"),
        ({"solution": ["4 * 15 = 60", "60 - 8 = 52"], "answer": "52"}, "8 in 60 - 8 = 52 comes"),
        ({"solution": ["53"]}, "the last line of its solution is no equation"),
        ({"solution": ["4 * 15 = 60", "60 - 7 = 53", "so it is"]}, "the last line"),
        ({"question": EGGS.question.replace("eggs", "nuts")}, "it has the numbers of its origin"),
        ({"question": 5}, "the reply is no JSON object"),
        ({"solution": "7 - 15 = -8", "answer": "-8"}, "its answer is no whole number"),
        ({"answer": "many"}, "its answer is no number"),
        ({"again": "60"}, "solved again, it has another answer"),
    ],
)
def test_a_similar_question_whose_answer_does_not_follow_is_dropped(reply, reason):
    kept, dropped, _ = asked(similar(**{"again": reply.get("answer")} | reply), "similar")
    assert kept == [] and dropped[0].reason.startswith(reason), dropped


def test_a_constant_of_the_origin_s_solution_may_be_used_again():
    hours = Row("h", "How many minutes are 3 hours and 5 minutes?",
                "3 * 60 = 180\n180 + 5 = 185\n#### 185", "185")  # fmt: skip
    script = similar(
        "How many minutes are 4 hours and 7 minutes?", ["4 * 60 = 240", "240 + 7 = 247"], "247"
    )
    kept, dropped, _ = asked(script, "similar", rows=[hours])
    assert len(kept) == 1, dropped


def test_a_new_question_near_a_held_out_one_is_dropped():
    held = Row("held", NEW["question"].replace("Bob", "Eve"), "#### 53", "53")
    kept, dropped, _ = asked(similar(), "similar", held_out=[held])
    assert kept == [] and dropped[0].reason == "it is nearly a held-out question"


def test_two_equal_replies_give_one_row():
    kept, dropped, requests = asked([Answer(RETOLD)], "paraphrase", per_row=2)
    assert len(requests) == 2 and len(kept) == 1
    assert dropped[0].reason == "the same question is there already"


@pytest.mark.parametrize(
    "reply",
    [
        "not JSON",
        "{" * 10_000,
        '{"question": "a?", "solution": [[1], {}], "answer": "1"}',
        '{"question": "a?", "solution": ["' + "(" * 5000 + ' = 1"], "answer": "1"}',
        '{"question": "1?", "solution": ["1 = 1"], "answer": NaN}',
        '{"question": "\\ud800 4 ?", "solution": ["4 + 4 = 8"], "answer": 8}',
        '{"question": "a 4?", "solution": ["__import__(\'os\') = 4"], "answer": "4"}',
    ],
)
def test_whatever_a_model_replies_nothing_raises(reply):
    def script(body, n):
        return Answer(reply if n == 0 else "Final Answer: 8")

    kept, dropped, _ = asked(script, "similar")
    assert len(kept) + len(dropped) == 1
    for row in kept:
        json.dumps(row.fields(), ensure_ascii=False).encode("utf-8")


def test_one_failed_request_costs_one_row_and_all_failed_ones_are_an_error():
    other = replace(EGGS, id="other", question=EGGS.question.replace("Ann", "Eve"))

    def script(body, n):
        if "Eve" in body["messages"][-1]["content"]:
            return Answer(status=400, error="refused")
        return Answer(RETOLD)

    kept, dropped, _ = asked(script, "paraphrase", rows=[EGGS, other])
    assert len(kept) == 1 and dropped[0].reason.startswith("no reply")
    with pytest.raises(AgentError):
        asked([Answer(status=400, error="refused")], "paraphrase")


def test_a_cut_off_reply_is_dropped():
    _, dropped, _ = asked([Answer(RETOLD, finish_reason="length")], "paraphrase")
    assert "cut off" in dropped[0].reason


def test_the_key_comes_from_the_environment_and_appears_nowhere(monkeypatch):
    monkeypatch.setenv("RLKIT_API_KEY", "sk-hush-hush")
    with FaultServer([Answer(status=400, error="no: sk-hush-hush")]) as server:
        with pytest.raises(AgentError) as error:
            augment_rows([EGGS], ["paraphrase"], client=client_of(server))
    assert server.headers[0]["authorization"] == "Bearer sk-hush-hush"
    assert not re.search("hush", str(error.value))


def test_numbers_count_whether_written_or_spelt():
    assert signature("three apples, 1,200 pears and half a pie") == signature("1200 0.5 3")
    assert signature("one of them") == ()
