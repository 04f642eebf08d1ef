"""Data, rounds and splits: what is sound, and what is told of the rest."""

from __future__ import annotations

import pytest

from rlkit.config import RunConfig
from rlkit.doctor.data import judge_gold, judge_repeats, judge_splits, library, unfindable
from rlkit.doctor.language import judge_language, looks_english, rarest_words, script
from rlkit.doctor.look import Look
from rlkit.library.bm25 import BM25sBackend
from rlkit.library.corpus import Corpus, Document
from rlkit.library.orchestrator import SearchOrchestrator
from tests.rounds.recorded import a_state


def parts(**states) -> dict:
    return {"train": [], "dev": [], "eval": []} | states


def test_sound_splits_are_green_with_their_sizes():
    sound = parts(train=[a_state("q1"), a_state("q2")], dev=[a_state("q3")], eval=[a_state("q4")])
    assert judge_splits(sound) == ("ok", "2 train, 1 dev, 1 eval states", "")


def test_the_same_question_in_other_capitals_width_and_blanks_is_leakage():
    level, text, _ = judge_splits(
        parts(
            train=[a_state("q1", question="Who, in 1815, wrote Emma?")],
            dev=[a_state("q2", question="谁写了红楼梦？")],
            eval=[a_state("q3", question="who,  in １８１５, wrote EMMA?"), a_state("q4")],
        )
    )
    assert level == "fail"
    assert text.startswith("leakage: 1 questions stand in train and in eval, such as 'Who, in 1815")


def test_questions_that_differ_in_signs_alone_are_shown_both_since_they_may_ask_for_two_things():
    level, text, todo = judge_splits(
        parts(
            train=[a_state("q1", question="Who made C++?")],
            dev=[a_state("q2")],
            eval=[a_state("q3", question="Who made C#?")],
        )
    )
    assert level == "warn" and "look whether they ask the same" in todo
    assert text.startswith(
        "1 questions of train differ from one of eval in signs alone, such as 'Who made C++?' and "
        "'Who made C#?';"
    )


@pytest.mark.parametrize(("part", "level"), [("train", "fail"), ("dev", "warn"), ("eval", "fail")])
def test_an_empty_part_is_named(part, level):
    full = parts(train=[a_state("q1")], dev=[a_state("q2")], eval=[a_state("q3")])
    assert judge_splits(full | {part: []})[:2][0] == level
    assert f"{part} holds no state" in judge_splits(full | {part: []})[1]
    done = a_state("q9", of=0)  # there is nothing to find
    text = judge_splits(full | {part: [done]})[1]
    assert f"{part} misses no known document any more" in text
    assert "(1 more miss no known document, and are left out)" in text


def test_damaged_runs_are_counted_and_the_first_is_named():
    sound = parts(train=[a_state("q1")], dev=[a_state("q2")], eval=[a_state("q3")])
    level, text, todo = judge_splits(sound, ["q7/run_001/meta.json, line 3: no JSON", "q8"])
    assert level == "warn" and todo == "restore or remove these files"
    assert text.startswith("2 damaged runs set aside, first q7/run_001/meta.json, line 3: no JSON;")


def test_questions_that_differ_by_signs_alone_are_told_before_the_split():
    assert judge_repeats(["Who wrote Emma?", "who  wrote emma?", "Who sang?"])[0] == "ok"
    level, text, _ = judge_repeats(["Who wrote Emma?", "Who wrote Emma", "Who sang?"])
    assert level == "warn" and text == (
        "leakage ahead: 1 questions differ in signs alone, such as 'who wrote emma' and "
        "'who wrote emma?'"
    )


def test_rounds_of_a_run_count_once_they_are_split_since_collecting_goes_on_until_then(tmp_path):
    look = Look(RunConfig.from_sections(output_root=str(tmp_path), run_name="half"))
    (look.folder / "rounds").mkdir(parents=True)
    assert look.rounds is None
    (look.folder / "splits.json").write_text("{}")
    assert look.rounds == look.folder / "rounds"


# Six copies of one page: with top_k 5 the last one cannot be found by anything.
PAGES = [Document(f"copy{i}", "Bell", "the bell tower of Varn") for i in range(6)]
PAGES += [Document("other", "Quay", "a stone quay built by Osk"), Document("empty", "", "")]


def test_documents_that_no_clue_finds_are_the_copies_beyond_top_k_and_the_empty_ones():
    corpus = Corpus(PAGES)
    search = SearchOrchestrator(corpus, BM25sBackend(corpus), top_k=5)
    lost = unfindable(PAGES, search)
    assert [document.docid for document in lost] == ["copy5", "empty"]
    level, text, todo = judge_gold(lost, 8)
    assert level == "fail"  # a quarter
    assert text == "no clue can find 2 of 8 known documents: 'Bell', 'empty'"
    assert "raise search.top_k" in todo
    assert judge_gold(lost, 100)[0] == "warn" and judge_gold([], 8)[0] == "ok"
    assert judge_gold([], 8, absent=1)[:2] == ("fail", "1 known documents are not in the corpus")


def test_the_rarest_words_of_a_page_are_those_that_the_fewest_others_have():
    (words,) = rarest_words([PAGES[6]], Corpus(PAGES), count=3)
    assert words == ["built", "stone", "quay"]  # each stands once; long ones first


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Who is it?", "Latin"), ("战国无双3 是谁", "Chinese"), ("これは誰の本ですか", "Japanese"),
        ("Кто это?", "Cyrillic"), ("누구의 책", "Korean"), ("42!", ""),
    ],
)  # fmt: skip
def test_the_script_of_a_text(text, name):
    assert script([text]) == name


def test_a_tokeniser_is_judged_by_what_it_finds():
    assert judge_language(36, 40, "Latin", "bm25s")[0] == "ok"
    assert judge_language(20, 40, "Latin", "bm25s")[0] == "warn"
    level, text, *_ = judge_language(19, 40, "Cyrillic", "my:search")
    assert level == "fail" and "search.backend my:search is wrong for Cyrillic text" in text
    assert "blanks" not in text  # Russian has them


def test_english_is_known_by_its_stop_words():
    assert looks_english([Document("d", "", "It is the name of a bridge in the north.")])
    assert not looks_english([Document("d", "", "Es ist der Name einer Brücke im Norden.")])


def test_rows_with_checkable_answers_are_checked_and_shared_templates_are_no_fault(tmp_path):
    well = Look(RunConfig.from_sections(task="answers"))
    assert library(well) == ("ok", "arithmetic: no problem found in its rows")
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    sick = Look(RunConfig.from_sections(task="answers", answers={"dataset": str(tmp_path)}))
    level, text, _ = library(sick)
    assert level == "warn" and "the same question stands in train and in test" in text
