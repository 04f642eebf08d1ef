"""Merging the rankings of several clues."""

import itertools
import random

import pytest

from rlkit.demo.library import make_demo_library
from rlkit.errors import ConfigError
from rlkit.library.bm25 import BM25sBackend, Hit
from rlkit.library.corpus import Corpus, Document
from rlkit.library.orchestrator import RankedDocument, SearchOrchestrator


class Fixed:
    """A backend with fixed rankings (positions), that counts its calls."""

    def __init__(self, **rankings):
        self.rankings, self.calls = rankings, []

    def search(self, queries, top_k):
        self.calls.append(list(queries))
        return [[Hit(p, 9.0 - r) for r, p in enumerate(self.rankings[q][:top_k])] for q in queries]


CORPUS = Corpus(Document(f"d{i}", "", "x") for i in range(6))


def test_first_hits_come_first_and_each_document_once():
    orchestrator = SearchOrchestrator(CORPUS, Fixed(a=[0, 1, 2], b=[3, 0], c=[]), top_k=3)
    assert orchestrator.search(["a", "b", "c"]) == [
        RankedDocument("d0", "a", 0, 1, 9.0, (0, 1)),
        RankedDocument("d3", "b", 1, 1, 9.0, (1,)),
        RankedDocument("d1", "a", 0, 2, 8.0, (0,)),
        RankedDocument("d2", "a", 0, 3, 7.0, (0,)),
    ]


def test_many_sets_make_one_call_with_each_clue_once():
    backend = Fixed(a=[0], b=[1], c=[2])
    orchestrator = SearchOrchestrator(CORPUS, backend, top_k=1)
    found = orchestrator.search_many([["a", "b"], ["b", "b"], [], ["c"]])
    assert [[d.docid for d in documents] for documents in found] == [
        ["d0", "d1"],
        ["d1"],
        [],
        ["d2"],
    ]
    assert backend.calls == [["a", "b", "c"]]
    assert found[1][0].found_by == (0, 1)


def test_no_clues_ask_nothing():
    backend = Fixed()
    assert SearchOrchestrator(CORPUS, backend, 5).search([]) == []
    assert SearchOrchestrator(CORPUS, backend, 5).search_many([]) == []
    assert backend.calls == []


def test_top_k_is_checked_clipped_and_can_be_given_per_search():
    orchestrator = SearchOrchestrator(CORPUS, Fixed(a=[0, 1, 2]), top_k=2)
    assert len(orchestrator.search(["a"])) == 2
    assert len(orchestrator.search(["a"], top_k=99)) == 3
    with pytest.raises(ConfigError, match="top_k is 0"):
        orchestrator.search(["a"], top_k=0)


def test_order_and_repetition_of_clues_do_not_change_the_set():
    library = make_demo_library()
    orchestrator = SearchOrchestrator(library.corpus, BM25sBackend(library.corpus), top_k=5)
    rng = random.Random(3)
    for _ in range(20):
        clues = [rng.choice(library.corpus).title for _ in range(3)]
        expected = {document.docid for document in orchestrator.search(clues)}
        variants = [*map(list, itertools.permutations(clues)), [*clues, *clues[::-1]]]
        for found in orchestrator.search_many(variants):
            assert {document.docid for document in found} == expected
            assert len(found) == len(expected)
