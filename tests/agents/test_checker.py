"""The gold checker's rules, by hand."""

import pytest

from rlkit.agents.checker import GoldChecker, stands_in
from rlkit.errors import DataError
from rlkit.library.corpus import Corpus, Document
from rlkit.rounds.state import RoundFile, make_state

CORPUS = Corpus(
    [
        Document("g1", "Elm Row", "Elm Row was built by Ada Holt near Port Alden."),
        Document("g2", "Ada Holt", "Ada Holt was born in Trent."),
        Document("named", "PORT  Alden", "A harbour."),
        Document("holds", "Houses", "A list of houses: Oak End, elm row, and others."),
        Document("near", "Elm Rowing Club", "Members row near the elm rows."),
        Document("short", "Ada", "Three letters."),
        Document("zh-gold", "榆树街", "榆树街由何达建造。"),
        Document("zh-named", "何达", "建筑师。"),
        Document("zh-one", "何", "姓氏。"),
        Document("untitled", "", "Nothing."),
    ]
)


def a_state(*gold, known=()):
    return make_state(
        RoundFile(schema=1, round=0),
        question_id="q",
        question="Q",
        run="r",
        strategy="SEARCH",
        subgoal="",
        gold_docids=gold,
        known_important=known or gold,
    )


def verdicts(state):
    return GoldChecker(CORPUS).check(state, list(CORPUS))


def test_gold_is_important_named_or_naming_is_local_the_rest_is_discard():
    assert verdicts(a_state("g1", "g2")) == {
        "g1": "IMPORTANT",
        "g2": "IMPORTANT",
        "named": "LOCAL",  # its title stands in g1, case and blanks folded
        "holds": "LOCAL",  # it holds the title of g1
        "near": "DISCARD",  # `elm row` only inside other words
        "short": "DISCARD",  # `Ada` stands in g1, but has fewer than four letters
        "zh-gold": "DISCARD",
        "zh-named": "DISCARD",
        "zh-one": "DISCARD",
        "untitled": "DISCARD",
    }


def test_chinese_titles_need_two_characters_and_no_word_boundary():
    found = verdicts(a_state("zh-gold"))
    assert (found["zh-gold"], found["zh-named"], found["zh-one"]) == (
        "IMPORTANT",
        "LOCAL",
        "DISCARD",
    )


def test_without_gold_known_documents_take_its_place():
    assert verdicts(a_state(known=("g2",)))["g2"] == "IMPORTANT"


def test_gold_that_the_corpus_lacks_is_no_error():
    assert verdicts(a_state("absent"))["g1"] == "DISCARD"


def test_without_gold_and_known_documents_it_says_what_to_do():
    with pytest.raises(DataError, match="question q has no gold documents"):
        verdicts(a_state())


def test_remembered_verdicts_belong_to_their_question():
    checker = GoldChecker(CORPUS)
    document = [CORPUS.get("g2")]
    assert checker.check(a_state("g2"), document) == {"g2": "IMPORTANT"}
    assert checker.check(a_state("g1"), document) == {"g2": "LOCAL"}
    assert checker.check(a_state("g2"), document) == {"g2": "IMPORTANT"}


@pytest.mark.parametrize(
    ("title", "text", "stands"),
    [
        ("elm row", "at elm row.", True),
        ("elm row", "elm rows, elm row", True),
        ("elm row", "helm row", False),
        ("elm row", "elm row2", False),
        ("r2-d2", "(r2-d2)", True),
        ("what is?", "in what is? he", True),
        ("何达", "由何达建造", True),
        ("何达x", "由何达xy", False),
        ("", "anything", False),
    ],
)
def test_titles_stand_as_words_of_their_own(title, text, stands):
    assert stands_in(title, text) is stands
