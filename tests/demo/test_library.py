"""The demo library: what is promised of it, measured with the default search settings."""

import subprocess
import sys
from collections import Counter

import pytest

from rlkit.demo.library import make_demo_library
from rlkit.library.bm25 import BM25sBackend
from rlkit.library.orchestrator import SearchOrchestrator

SEED_7 = "9d99e2c30084"


@pytest.fixture(scope="module")
def library():
    return make_demo_library(7)


@pytest.fixture(scope="module")
def orchestrator(library):
    return SearchOrchestrator(library.corpus, BM25sBackend(library.corpus), top_k=5)


@pytest.fixture(scope="module")
def raw(library, orchestrator):
    """The ten best document ids of each raw question."""
    texts = [[question.text] for question in library.questions]
    return [[d.docid for d in found] for found in orchestrator.search_many(texts, top_k=10)]


def test_its_size_is_as_promised(library):
    assert len(library.corpus) >= 2000
    assert Counter(question.hops for question in library.questions) == {2: 180, 3: 120, 4: 60}
    lengths = [len(document.text.split()) for document in library.corpus]
    assert min(lengths) >= 25 and max(lengths) <= 60
    assert len({document.title for document in library.corpus}) == len(library.corpus)


def test_a_seed_gives_the_same_library_in_every_process(library):
    program = (
        "from rlkit.demo.library import make_demo_library as make;"
        "library = make(7); print(library.corpus.fingerprint, library.questions[5])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == f"{library.corpus.fingerprint} {library.questions[5]}"
    assert library.corpus.fingerprint.startswith(SEED_7)
    assert make_demo_library(8).corpus.fingerprint != library.corpus.fingerprint


def test_the_raw_question_seldom_finds_all_gold(library, raw):
    """Under 30 % is promised; with seed 7 it is 1 of 360."""
    complete = [set(q.gold_docids) <= set(r) for q, r in zip(library.questions, raw, strict=True)]
    assert sum(complete) / len(complete) < 0.30


def test_the_raw_question_usually_finds_its_start_and_nothing_further(library, raw):
    pairs = list(zip(library.questions, raw, strict=True))
    starts = [question.gold_docids[0] in found[:5] for question, found in pairs]
    assert sum(starts) / len(starts) >= 0.90
    second = [question.gold_docids[1] in found for question, found in pairs]
    assert sum(second) / len(second) <= 0.05


def test_gold_titles_as_clues_find_all_gold(library, orchestrator):
    """At least 95 % is promised within 8 documents, 5 per clue; with seed 7 it is 98 %."""
    titles = [[library.corpus.get(d).title for d in q.gold_docids] for q in library.questions]
    found = orchestrator.search_many(titles)
    complete = [
        set(question.gold_docids) <= {document.docid for document in documents[:8]}
        for question, documents in zip(library.questions, found, strict=True)
    ]
    assert sum(complete) / len(complete) >= 0.95


def test_each_page_names_the_next_and_no_later_page_names_an_earlier(library):
    for question in library.questions:
        pages = [library.corpus.get(docid) for docid in question.gold_docids]
        for page, following in zip(pages, pages[1:], strict=False):
            assert following.title in page.text
            assert pages[0].title not in following.text
        assert question.hops == len(pages)


def test_questions_name_their_start_and_no_later_page_nor_the_answer(library):
    for question in library.questions:
        start, *later = (library.corpus.get(d).title.split(" (")[0] for d in question.gold_docids)
        assert start in question.text
        assert not any(name in question.text for name in later)
        assert question.answer not in question.text
        assert question.answer in library.corpus.get(question.gold_docids[-1]).text


def test_no_two_questions_are_alike(library):
    assert len({question.gold_docids for question in library.questions}) == 360
    assert len({question.text for question in library.questions}) == 360
    assert len({question.gold_docids[0] for question in library.questions}) == 360


def test_there_are_namesakes_and_near_misses(library):
    titles = [document.title for document in library.corpus]
    namesakes = Counter(title.split(" (")[0] for title in titles if "(" in title)
    assert sum(count > 1 for count in namesakes.values()) >= 50
    borrowed = [t for t in titles if t.startswith(("Friends of ", "In the Steps of "))]
    assert len(borrowed) >= 100
