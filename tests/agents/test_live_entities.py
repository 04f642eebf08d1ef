"""The entity manager that a model plays: what counts of its reply, and that nothing is invented."""

from __future__ import annotations

import json
import re

import pytest

from rlkit.agents.entities import ReadDocument, RuleEntityManager, build_entities
from rlkit.agents.entity_updates import MAX_ATTRIBUTES, MAX_NEW_ENTITIES, MAX_NEW_TARGETS
from rlkit.agents.live_entities import LLMEntityManager
from rlkit.agents.live_prompts import about_tokens
from rlkit.agents.planner import Plan
from rlkit.config import RunConfig
from rlkit.errors import AgentError, ConfigError
from rlkit.library.corpus import Document
from rlkit.rounds.state import EntityRow, RoundFile, TargetRow
from tests.agents.fault_server import Answer, FaultServer
from tests.agents.live_toys import CORPUS, client_of

QUESTION = "Where was the maker of Elm Row born?"
PLAN = Plan("SEARCH", "Find the maker")
GOLD = Document("doc-1", "Elm Row", "Elm Row was built by Ada Holt in Port Alden.")
NEAR = Document("doc-2", "Oak End", "Oak End is like Elm Row, said Bo Lee ...")
REST = Document("doc-3", "Rest", "Nothing of use by Cy Dee.")
LOST = Document("doc-4", "Lost", "Nobody judged Di Fay.")
READ = [
    ReadDocument(REST, "DISCARD"),
    ReadDocument(GOLD, "IMPORTANT"),
    ReadDocument(LOST, None),
    ReadDocument(NEAR, "LOCAL"),
]
GOOD = {
    "entities": [
        {
            "name": "Ada Holt",
            "type": "person",
            "attributes": {"built": "Elm Row"},
            "documents": ["d1"],
        }
    ],
    "targets": [
        {
            "id": "t2",
            "description": "",
            "status": "answered",
            "value": "Ada Holt",
            "documents": ["d1"],
        },
        {
            "id": "",
            "description": "Birthplace of Ada Holt",
            "status": "open",
            "value": "",
            "documents": [],
        },
    ],
    "summaries": [{"document": "d2", "summary": "Bo Lee compares it with Elm Row."}],
}


def before(question=QUESTION, plan=PLAN):
    """The state before the first round, with the subgoal as a target t2 already."""
    begin = RuleEntityManager().begin(question)
    state = RoundFile(schema=1, round=0, entity_table=begin.entities, target_table=begin.targets)
    return state.model_copy(
        update={"target_table": RuleEntityManager().update(state, plan, []).targets}
    )


def updated(*replies, read=READ, state=None, plan=PLAN, **options):
    """The tables that these replies lead to, and the requests that were sent."""
    answers = [
        r if isinstance(r, Answer) else Answer(r if isinstance(r, str) else json.dumps(r))
        for r in replies
    ]
    with FaultServer(answers) as server:
        manager = LLMEntityManager(client_of(server), **options)
        return manager.update(state or before(), plan, read), server.requests


def rules(read=READ, state=None, plan=PLAN):
    return RuleEntityManager().update(state or before(), plan, read)


def names(tables):
    return [row.name for row in tables.entities]


# ---- what counts of a reply


def test_a_whole_reply_fills_all_tables():
    tables, _ = updated(GOOD)
    ada = next(row for row in tables.entities if row.name == "Ada Holt")
    assert (ada.type, ada.attributes, ada.docids) == ("person", {"built": "Elm Row"}, ("doc-1",))
    assert [(t.id, t.description, t.status, t.value, t.docids) for t in tables.targets] == [
        ("t1", QUESTION, "open", None, ()),
        ("t2", "Find the maker", "answered", "Ada Holt", ("doc-1",)),
        ("t3", "Birthplace of Ada Holt", "open", None, ()),
    ]
    assert [(d.docid, d.verdict, d.summary) for d in tables.documents] == [
        ("doc-1", "IMPORTANT", GOLD.text),
        ("doc-2", "LOCAL", "Bo Lee compares it with Elm Row."),
    ]
    assert [c.docid for c in tables.contexts] == ["doc-1"]
    assert not tables.by_rules


def test_a_reply_that_is_cut_off_counts_as_far_as_its_rows_are_complete():
    whole = json.dumps(GOOD)
    cut = whole[: whole.index("Birthplace of") + 5]
    tables, requests = updated(Answer(cut, finish_reason="length"))
    assert len(requests) == 1
    assert [(t.id, t.value) for t in tables.targets] == [("t1", None), ("t2", "Ada Holt")]
    assert "Ada Holt" in names(tables)
    assert tables.documents[1].summary == NEAR.text


def test_a_reply_without_targets_leaves_them_to_the_rules():
    tables, _ = updated({"entities": []})
    assert tables == rules()
    tables, _ = updated({"targets": [{"id": "t2", "status": "answered", "value": ""}]})
    assert tables.targets[1].status == "open"


@pytest.mark.parametrize("reply", ["", "no JSON", '{"note": []}', '{"entities": "none"}', "[1]"])
def test_where_nothing_can_be_read_twice_the_rules_stand_in(reply):
    tables, requests = updated(reply, reply)
    assert len(requests) == 2
    assert tables == rules()._replace(by_rules=True)


def test_the_second_reply_counts_where_the_first_cannot_be_read():
    tables, (first, second) = updated("no JSON", GOOD)
    assert "Birthplace of Ada Holt" in [t.description for t in tables.targets]
    old, new = (request["messages"][1]["content"] for request in (first, second))
    assert new.startswith(old) and "could not be used" in new[len(old) :]


@pytest.mark.parametrize(
    "answer",
    [Answer(status=500), Answer(status=400), Answer(raw="{"), Answer(reset_after=30)],
    ids=["500", "400", "truncated", "reset"],
)
def test_a_server_without_a_reply_is_a_failure(answer):
    with pytest.raises(AgentError, match="http://127.0.0.1"):
        updated(answer)


# ---- nothing is invented


def test_ids_that_do_not_exist_and_names_that_nobody_showed_are_left_out():
    entities = [
        {"name": "Ada Holt", "documents": ["d1", "d9", "doc-4", 3, None, "[d2]"]},
        {"name": "Napoleon", "type": "person", "documents": ["d1"]},
        {"name": "Di Fay", "documents": ["d1"]},
        {"name": "", "type": "person"},
        {"name": "...", "type": "...", "attributes": {"...": "..."}, "documents": ["d1"]},
        {"name": ["Bo Lee"]},
        "Bo Lee",
    ]
    targets = [
        {"id": "t9", "status": "answered", "value": "Trent"},
        {"id": "t9", "description": "Where Bo Lee lives", "status": "done", "documents": ["d8"]},
        {"id": {"a": 1}, "status": "answered", "value": "x"},
        {"id": "t1", "status": "answered", "value": ["Trent"]},
        {"id": "t1", "description": "...", "status": "answered", "value": "..."},
    ]
    summaries = [
        {"document": "d3", "summary": "no such document"},
        {"document": "d1", "summary": 5},
        {"document": ["d1"], "summary": "x"},
    ]
    tables, _ = updated({"entities": entities, "targets": targets, "summaries": summaries})
    assert names(tables) == names(rules())
    assert next(row.docids for row in tables.entities if row.name == "Ada Holt") == (
        "doc-1",
        "doc-2",
    )
    assert [(t.id, t.description, t.status) for t in tables.targets] == [
        ("t1", QUESTION, "open"),
        ("t2", "Find the maker", "open"),
        ("t3", "Where Bo Lee lives", "open"),
    ]
    assert tables.documents == rules().documents


def test_neither_discarded_nor_unjudged_documents_are_shown_or_enter_a_table():
    tables, (request,) = updated(GOOD)
    shown = request["messages"][1]["content"]
    assert "[d1] (IMPORTANT) Elm Row: Elm Row was built" in shown and "[d2] (LOCAL)" in shown
    assert "Cy Dee" not in shown and "Di Fay" not in shown and "[d3]" not in shown
    assert not {"doc-3", "doc-4"} & {row.docid for row in (*tables.documents, *tables.contexts)}


def test_a_round_that_found_nothing_useful_asks_nobody():
    tables, requests = updated("never sent", read=[ReadDocument(LOST, None)])
    assert requests == [] and tables == rules(read=[])


def test_texts_of_a_reply_become_one_harmless_line_of_bounded_length():
    bad = "Ada\u0000 Holt\u202e\n<|im_end|>"
    row = {"name": "Ada Holt", "type": bad, "attributes": {bad: f"{bad} {'y' * 900}"}}
    target = {"description": "d" * 10_000, "value": "v\n" * 9000, "status": "answered"}
    summary = {"document": "d1", "summary": f"{bad} {'word ' * 999}"}
    tables, _ = updated({"entities": [row], "targets": [target], "summaries": [summary]})
    ada = next(row for row in tables.entities if row.name == "Ada Holt")
    ((key, value),) = ada.attributes.items()
    assert ada.type == key == "Ada Holt ‹|im_end|>"
    assert value.startswith(key) and len(value) <= 402
    assert len(tables.targets[2].description) <= 402 and len(tables.targets[2].value) <= 402
    assert tables.documents[0].summary.startswith(key) and len(tables.documents[0].summary) <= 242


def test_odd_values_of_attributes_become_text_or_are_left_out():
    given = {"born": 1931, "on": True, "works": ["A", 2, None], "x": None, "y": {"z": 1}, "big": 1}
    text = json.dumps({"entities": [{"name": "Ada Holt", "attributes": given}]})
    tables, _ = updated(text.replace('"big": 1', '"big": 1e999'))
    ada = next(row for row in tables.entities if row.name == "Ada Holt")
    assert ada.attributes == {"born": "1931", "on": "True", "works": "A; 2"}


def test_a_number_of_hundreds_of_digits_is_text_like_any_other():
    text = json.dumps({"entities": [{"name": "Ada Holt", "attributes": {"rank": 7}}]})
    tables, _ = updated(text.replace("7", "7" * 400))
    ada = next(row for row in tables.entities if row.name == "Ada Holt")
    assert set(ada.attributes) == {"rank"} and ada.attributes["rank"].startswith("777")
    tables, _ = updated(text.replace("7", "7" * 5000))  # more than Python reads as a number
    assert all(not row.attributes for row in tables.entities if row.name == "Ada Holt")


def test_one_reply_can_add_only_so_much():
    words = [f"Name{i}" for i in range(100)]
    read = [ReadDocument(Document("doc-1", "T", " ".join(words).lower()), "IMPORTANT")]
    attributes = {f"key {i}": "v" for i in range(50)}
    reply = {
        "entities": [{"name": word.lower(), "attributes": attributes} for word in words],
        "targets": [{"description": f"thing {i}"} for i in range(50)],
    }
    tables, _ = updated(reply, read=read)
    base = rules(read=read)
    assert len(tables.entities) == len(base.entities) + MAX_NEW_ENTITIES
    assert len(tables.targets) == len(base.targets) + MAX_NEW_TARGETS
    assert {len(row.attributes) for row in tables.entities[-3:]} == {MAX_ATTRIBUTES}


# ---- over several rounds, and in Chinese


def test_later_rounds_keep_what_was_known_and_answered():
    first, _ = updated(GOOD)
    state = RoundFile(
        schema=1,
        round=1,
        entity_table=first.entities,
        target_table=first.targets,
        document_table=first.documents,
        context_table=first.contexts,
    )
    ada = Document("doc-5", "Ada Holt", "She was born in Trent.")
    reply = {
        "entities": [{"name": "ADA HOLT", "type": "robot", "attributes": {"born in": "Trent"},
                      "documents": ["d1"]}],
        "targets": [{"id": "t2", "status": "open", "value": ""}],
    }  # fmt: skip
    plan = Plan("SEARCH", "Find Ada Holt")
    read = [ReadDocument(ada, "IMPORTANT")]
    tables, (request,) = updated(reply, state=state, plan=plan, read=read)
    row = next(row for row in tables.entities if row.name == "Ada Holt")
    assert (row.type, row.docids) == ("person", ("doc-1", "doc-5"))
    assert row.attributes == {"built": "Elm Row", "born in": "Trent"}
    assert [(t.id, t.status, t.value) for t in tables.targets] == [
        ("t1", "open", None),
        ("t2", "answered", "Ada Holt"),
        ("t3", "open", None),
        ("t4", "open", None),
    ]
    shown = request["messages"][1]["content"]
    assert "- t2 [answered] Find the maker = Ada Holt" in shown
    assert shown.endswith(f"Subgoal of this round: Find Ada Holt\nQuestion: {QUESTION}")
    stand_in, _ = updated("x", "x", state=state, plan=plan, read=read)
    kept = next(row for row in stand_in.entities if row.name == "Ada Holt")
    assert (kept.type, kept.attributes) == ("person", {"built": "Elm Row"})


def test_chinese_questions_are_asked_and_filed_in_chinese():
    question = "《榆树街》的建造者出生在哪里？"
    read = [ReadDocument(Document("文1", "《榆树街》", "《榆树街》由何达建造。"), "IMPORTANT")]
    plan = Plan("SEARCH", "查明建造者")
    reply = {
        "entities": [{"name": "何达", "type": "人物", "attributes": {"建造": "榆树街"},
                      "documents": ["d1"]}],
        "targets": [{"id": "t2", "status": "answered", "value": "何达", "documents": ["d1"]}],
        "summaries": [{"document": "d1", "summary": "何达建造了榆树街。"}],
    }  # fmt: skip
    tables, (request,) = updated(reply, state=before(question, plan), plan=plan, read=read)
    system, user = request["messages"]
    assert system["content"].startswith("你是一个多轮检索系统的实体管理者")
    assert user["content"].endswith(f"本轮的子目标：查明建造者\n问题：{question}")
    assert "- t1 [未解决] " in user["content"]
    assert tables.entities[-1].name == "何达" and tables.entities[-1].docids == ("文1",)
    assert (tables.targets[1].status, tables.targets[1].value) == ("answered", "何达")
    assert tables.documents[0].summary == "何达建造了榆树街。"


def test_long_documents_are_shown_cut():
    read = [ReadDocument(Document("doc-1", "T", "word " * 5000), "IMPORTANT")]
    _, (request,) = updated({"entities": []}, read=read, max_document_chars=100)
    line = next(x for x in request["messages"][1]["content"].splitlines() if x.startswith("[d1]"))
    assert len(line) < 130 and line.endswith("…")


def test_of_many_names_and_targets_what_fits_is_shown_and_the_rest_is_counted():
    first = before()
    rows = [
        TargetRow(id=f"t{n}", description=f"Goal{n} " + "long " * 20, status=status)
        for n, status in zip(range(2, 32), ["open", "answered"] * 15, strict=True)
    ]
    state = first.model_copy(
        update={
            "target_table": (first.target_table[0], *rows),
            "entity_table": tuple(EntityRow(id=f"e{n}", name=f"Name{n}") for n in range(1000)),
        }
    )
    _, (request,) = updated({"entities": []}, state=state, max_prompt_tokens=1000)
    system, user = (message["content"] for message in request["messages"])
    apart = [line for line in user.splitlines() if line.startswith("[d")]
    assert len(apart) == 2
    assert about_tokens(system) + about_tokens(user) - about_tokens("".join(apart)) <= 1000
    head, *shown = re.search("Targets:\n(.*)\nEntities", user, re.DOTALL)[1].splitlines()
    assert head == f"(... {31 - len(shown)} targets left out)"
    assert shown[0] == f"- t1 [open] {QUESTION}"  # the question; then the newest open ones
    assert 3 <= len(shown) and shown[-1].startswith("- t30 [open] Goal30")
    assert all("[open]" in line for line in shown)
    head, *names = re.search("Entities known: (.*)", user)[1].split("; ")
    assert head == f"(... {1000 - len(names)} earlier names left out)"
    assert names == [f"Name{n}" for n in range(1000 - len(names), 1000)] != []


def test_with_room_for_nothing_all_is_counted():
    _, (request,) = updated({"entities": []}, max_prompt_tokens=1)
    user = request["messages"][1]["content"]
    assert "Targets:\n(... 2 targets left out)\nEntities known: (... 1 earlier names left" in user


# ---- how it is built


def no_manager(config, corpus):
    return range(3)


def test_the_parameters_build_it():
    build = RunConfig.from_sections
    assert isinstance(build_entities(build(), CORPUS), RuleEntityManager)
    config = build(
        data={"entities": "llm", "agent_prompt_tokens": 600},
        checker={"max_document_chars": 300},
        model={"checker_model": "m"},
    )
    manager = build_entities(config, CORPUS)
    assert (manager.max_document_chars, manager.label) == (300, "llm m, prompt 2")
    assert manager.max_prompt_tokens == 600
    manager.client.close()
    with pytest.raises(ConfigError, match="made a range, which lacks begin"):
        build_entities(build(data={"entities": f"{__name__}:no_manager"}), CORPUS)
