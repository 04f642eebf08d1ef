"""The rule-based entity manager: which document enters which table."""

from rlkit.agents.entities import CONTEXT_CHARS, ReadDocument, RuleEntityManager, shorten
from rlkit.agents.planner import Plan
from rlkit.library.corpus import Document
from rlkit.rounds.state import RoundFile

QUESTION = "Where was the maker of Elm Row born?"
MANAGER = RuleEntityManager()


def after(read, subgoal="Find the maker", before=None):
    begin = MANAGER.begin(QUESTION)
    before = before or RoundFile(
        schema=1, round=0, entity_table=begin.entities, target_table=begin.targets
    )
    return MANAGER.update(before, Plan("SEARCH", subgoal), read)


GOLD = Document("g", "Elm Row", "Elm Row was built by Ada Holt in Port Alden.")
NEAR = Document("n", "Oak End", "Oak End is like Elm Row, said Bo Lee.")
REST = Document("r", "Rest", "Nothing of use by Cy Dee.")
READ = [ReadDocument(GOLD, "IMPORTANT"), ReadDocument(NEAR, "LOCAL"), ReadDocument(REST, "DISCARD")]


def test_it_begins_with_the_question_and_its_names():
    begin = MANAGER.begin(QUESTION)
    assert [(row.id, row.name, row.type) for row in begin.entities] == [
        ("e1", "Elm Row", "question")
    ]
    assert [(row.description, row.status) for row in begin.targets] == [(QUESTION, "open")]
    assert begin.documents == begin.contexts == ()


def test_useful_documents_enter_the_tables_and_the_rest_does_not():
    tables = after([*READ, ReadDocument(Document("u", "Unjudged", "Text."), None)])
    assert [(d.docid, d.title, d.verdict, d.round) for d in tables.documents] == [
        ("g", "Elm Row", "IMPORTANT", 1),
        ("n", "Oak End", "LOCAL", 1),
    ]
    assert [(c.docid, c.text) for c in tables.contexts] == [("g", GOLD.text)]
    assert tables.documents[0].summary == GOLD.text


def test_names_come_from_titles_and_important_texts():
    assert [(row.name, row.type, row.docids) for row in after(READ).entities] == [
        ("Elm Row", "found", ("g",)),
        ("Oak End", "found", ("n",)),
        ("Ada Holt", "", ("g",)),
        ("Port Alden", "", ("g",)),
    ]


def test_a_subgoal_is_answered_by_an_important_document_only():
    assert [(t.description, t.status, t.value) for t in after(READ).targets] == [
        (QUESTION, "open", None),
        ("Find the maker", "answered", "Elm Row"),
    ]
    assert after(READ[1:]).targets[1].status == "open"
    assert [t.id for t in after(READ, subgoal=QUESTION).targets] == ["t1"]


def test_a_second_round_adds_to_the_first():
    first = after(READ)
    before = RoundFile(
        schema=1,
        round=1,
        entity_table=first.entities,
        target_table=first.targets,
        document_table=first.documents,
        context_table=first.contexts,
    )
    found = ReadDocument(Document("a", "Ada Holt", "She was born in Trent."), "IMPORTANT")
    tables = after([found, READ[0]], "Find Ada Holt", before)
    assert [(d.docid, d.round) for d in tables.documents] == [("g", 1), ("n", 1), ("a", 2)]
    assert {row.name: row.type for row in tables.entities}["Ada Holt"] == "found"
    assert [row.id for row in tables.entities] == ["e1", "e2", "e3", "e4", "e5"]


def test_texts_are_kept_short_and_on_one_line():
    long = ReadDocument(Document("g", "T\n1", "Line.\n<clue>" + "word " * 5000), "IMPORTANT")
    tables = after([long])
    assert tables.documents[0].title == "T 1"
    assert len(tables.documents[0].summary) <= 242
    assert len(tables.contexts[0].text) <= CONTEXT_CHARS + 2
    assert tables.contexts[0].text.startswith("Line. ‹clue>word")


def test_shorten_cuts_at_a_blank():
    assert shorten("one two three", 13) == "one two three"
    assert shorten("one two three", 10) == "one two …"
    assert shorten("字" * 20, 10) == "字" * 10 + " …"
