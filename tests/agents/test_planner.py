"""The rule-based planner sees only what the rounds have shown."""

from rlkit.agents.planner import Plan, RulePlanner
from rlkit.rounds.state import DocumentRow, EntityRow, RoundFile, TargetRow

QUESTION = "Where was the maker of Elm Row born?"


def history(*rounds):
    files = [RoundFile(schema=1, round=0)]
    for number, fields in enumerate(rounds, start=1):
        files.append(RoundFile(schema=1, round=number, **fields))
    return files


def entity(name, *docids):
    return EntityRow(id=name, name=name, docids=docids)


def document(docid, number, verdict="IMPORTANT", title=""):
    return DocumentRow(docid=docid, title=title, verdict=verdict, round=number)


def plan(*rounds, question=QUESTION):
    return RulePlanner().plan(question, history(*rounds))


def test_the_first_subgoal_is_the_question():
    assert plan() == Plan("SEARCH", QUESTION)


def test_it_asks_for_the_newest_name_of_an_important_document():
    found = {
        "seen_docids": ("d1", "d2", "d3"),
        "document_table": (
            document("d1", 1, title="Elm Row"),
            document("d2", 2, title="Ada Holt"),
            document("d3", 2, "LOCAL"),
        ),
        "entity_table": (
            entity("Elm Row", "d1"),
            entity("Old Name", "d1"),
            entity("Ada Holt", "d1", "d2"),
            entity("Local Name", "d3"),
            entity("Trent", "d2"),
            entity("Port Alden", "d2"),
            entity("Last Name", "d2"),
        ),
    }
    first = {"seen_docids": ("d1",)}
    assert plan(first, found).subgoal == "Find what is still missing about Port Alden"


def test_no_name_is_asked_for_twice_and_then_the_question_again():
    found = {
        "seen_docids": ("d1",),
        "document_table": (document("d1", 1),),
        "entity_table": (entity("Ada Holt", "d1"), entity("Bo Lee", "d1")),
    }
    asked = TargetRow(id="t1", description="Find what is still missing about Ada Holt")
    assert plan(found).subgoal.endswith("about Ada Holt")
    assert plan({**found, "target_table": (asked,)}).subgoal.endswith("about Bo Lee")
    both = TargetRow(id="t2", description="Find what is still missing about Bo Lee")
    assert plan({**found, "target_table": (asked, both)}) == Plan("SEARCH", QUESTION)


def test_it_ends_after_a_round_that_brought_nothing_new():
    assert plan({}) == Plan("ANSWER", "")
    assert plan({"seen_docids": ("d1",)}, {"seen_docids": ("d1",)}) == Plan("ANSWER", "")


def test_chinese_questions_get_chinese_subgoals():
    found = {
        "seen_docids": ("d1",),
        "document_table": (document("d1", 1),),
        "entity_table": (entity("何达", "d1"),),
    }
    assert plan(found, question="榆树街的建造者出生在哪里？").subgoal == "查明关于何达还缺少的信息"
