"""The gold checker's rules, by hand."""

import copy

import pytest

from rlkit.agents.checker import GoldChecker, build_checker, stands_in
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError
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


# ---- a checker of one's own


class Own:
    """Answers what it is told to."""

    answer: object = {}
    remembers = True

    def __init__(self, config, corpus):
        self.corpus = corpus

    def check(self, state, documents):
        return self.answer

    def judge_anew(self, state, documents):
        return self.answer


@pytest.fixture
def own(monkeypatch):
    def make(answer):
        monkeypatch.setattr(Own, "answer", answer)
        config = RunConfig.from_sections(checker={"kind": f"{__name__}:Own"})
        return build_checker(config, CORPUS)

    return make


TWO = [CORPUS.get("g1"), CORPUS.get("g2")]


@pytest.mark.parametrize("ask", ["check", "judge_anew"])
@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("important", "'important'"),
        ("GREAT", "'GREAT'"),
        ("unjudged", "'unjudged'"),
        (1, "1"),
        (True, "True"),
        (["LOCAL"], r"\['LOCAL'\]"),
        ("x" * 10_000, r"'xx[x.]{20,40}xx'"),
    ],
)
def test_a_label_that_is_none_names_the_checker_the_document_and_the_allowed_ones(
    own, ask, label, shown
):
    checker = own({"g1": "LOCAL", "g2": label})
    said = f"the checker {__name__}:Own labelled document g2 {shown}; a verdict is IMPORTANT, LOCAL"
    with pytest.raises(ConfigError, match=f"^{said}, DISCARD, or None where it could not"):
        getattr(checker, ask)(a_state("g1"), TWO)


@pytest.mark.parametrize(("answer", "kind"), [(None, "NoneType"), (["LOCAL", "LOCAL"], "list")])
def test_an_answer_that_is_no_mapping_says_what_it_must_be(own, answer, kind):
    with pytest.raises(ConfigError, match=rf"returned a {kind} for 2 .* return {{docid: verdict}}"):
        own(answer).check(a_state("g1"), TWO)


def test_documents_left_out_are_unjudged_and_others_are_passed_over(own):
    checker = own({"g1": "LOCAL", "stranger": "GREAT"})
    assert checker.check(a_state("g1"), TWO) == {"g1": "LOCAL", "g2": None}
    assert own({"g1": None}).check(a_state("g1"), TWO) == {"g1": None, "g2": None}


def test_all_else_of_a_checker_of_ones_own_is_as_it_was(own):
    checker = own({})
    assert checker.remembers is True and checker.corpus is CORPUS
    assert not hasattr(checker, "concurrent") and not hasattr(checker, "take_metrics")
    assert copy.copy(checker).corpus is CORPUS
