"""BM25: hand-worked scores, the agreement of the backends, published figures, the cache."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from rlkit.errors import ConfigError, DataError
from rlkit.library import bm25_index
from rlkit.library.bm25 import (
    BACKENDS,
    BM25sBackend,
    Hit,
    RankBM25Backend,
    best_hits,
    build_backend,
    idf,
)
from rlkit.library.corpus import Corpus, Document
from rlkit.library.qrels import read_qrels
from rlkit.library.readers import read_library
from rlkit.library.tokenize import Tokenizer

FRUIT = Corpus(
    [
        Document("d0", "", "apple banana"),
        Document("d1", "", "apple apple cherry"),
        Document("d2", "", "cherry"),
    ]
)
BOTH = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS.keys())


def config(**changes):
    defaults = {"backend": "bm25s", "k1": 0.9, "b": 0.4, "stem": False, "stop_words": True}
    return SimpleNamespace(**(defaults | changes))


@BOTH
def test_scores_worked_out_by_hand(backend):
    """idf(apple) = ln(1 + 1.5/2.5) = 0.4700036; average length 2.
    d0: 1 / (1 + 0.9 * (0.6 + 0.4 * 2/2)) = 0.5263158, times idf 0.2473703
    d1: 2 / (2 + 0.9 * (0.6 + 0.4 * 3/2)) = 0.6493506, times idf 0.3051972"""
    [hits] = backend(FRUIT).search(["Apple"], 10)
    assert [hit.position for hit in hits] == [1, 0]
    assert [hit.score for hit in hits] == pytest.approx([0.3051972, 0.2473703], abs=1e-6)


@BOTH
def test_words_count_as_often_as_they_stand_in_the_query(backend):
    [once], [twice] = (backend(FRUIT).search([q], 1) for q in ("apple", "apple apple"))
    assert twice[0].score == pytest.approx(2 * once[0].score, abs=1e-9)


@BOTH
def test_words_in_most_documents_still_count(backend):
    corpus = Corpus([Document(str(i), "", "common" + " rare" * (i == 3)) for i in range(5)])
    [hits] = backend(corpus).search(["common"], 5)
    assert len(hits) == 5 and all(hit.score > 0 for hit in hits)
    assert idf(5, 5) == pytest.approx(math.log(1 + 0.5 / 5.5))


@BOTH
def test_empty_and_unknown_queries_have_no_hits_and_k_is_clipped(backend):
    searched = backend(FRUIT).search(["", "the of", "zebra", "?!", "cherry zebra"], 1000)
    assert searched[:4] == [[], [], [], []]
    assert [hit.position for hit in searched[4]] == [2, 1]  # d0 shares no word: no hit
    assert backend(FRUIT).search([], 5) == []
    with pytest.raises(ConfigError, match="top_k is 0"):
        backend(FRUIT).search(["apple"], 0)


@BOTH
def test_ties_are_broken_by_document_order(backend):
    corpus = Corpus([Document(f"d{i}", "", f"tie filler{i}") for i in range(30)])
    [hits] = backend(corpus).search(["tie"], 7)
    assert [hit.position for hit in hits] == list(range(7))


@BOTH
def test_sums_in_another_order_tie_all_the_same(backend):
    texts = ["p q r s", "s r q p", "x q y s", "p x r y"]
    corpus = Corpus([Document(str(i), "", text) for i, text in enumerate(texts)])
    [hits] = backend(corpus).search(["s y r x q p"], 4)
    assert [h.position for h in hits] == sorted(range(4), key=lambda i: (-hits_score(hits, i), i))


def hits_score(hits, position):
    return next(hit.score for hit in hits if hit.position == position)


def test_a_hair_of_rounding_does_not_order_documents():
    third = 0.1 + 0.2
    assert best_hits(np.array([0.3, third, 0.0, -1.0]), 3) == [Hit(0, 0.3), Hit(1, 0.3)]
    assert best_hits(np.array([third, 0.3]), 1) == [Hit(0, 0.3)]


@pytest.mark.parametrize("top_k", [1, 3, 7, 40, 5000])
def test_the_best_of_many_blocks_are_those_of_a_full_sort(top_k):
    rng = np.random.default_rng(top_k)
    for n, share in [(1, 1.0), (1023, 0.5), (1024, 0.01), (5000, 0.3), (40_000, 0.001)]:
        scores = np.where(rng.random(n) < share, rng.integers(1, 40, n) / 7, 0.0)  # many ties
        scores *= 1 + rng.choice([0, 1e-15], n)  # and a hair between them
        order = sorted(range(n), key=lambda i: (-round(scores[i], 9), i))
        wanted = [Hit(i, round(scores[i], 9)) for i in order[:top_k] if scores[i] > 0]
        assert best_hits(scores, top_k) == wanted


def test_scores_that_round_to_nothing_are_no_hits():
    assert best_hits(np.array([4e-10, 6e-10]), 2) == [Hit(1, 1e-9)]
    assert best_hits(np.zeros(3000), 2) == [] and best_hits(np.zeros(0), 2) == []


@BOTH
def test_a_corpus_without_words_is_an_error(backend):
    with pytest.raises(DataError, match="none of the 2 documents holds a word"):
        backend(Corpus([Document("a", "", "?"), Document("b", "!", "the")]))


@BOTH
def test_titles_are_searched_and_strange_text_does_no_harm(backend, tmp_path):
    corpus = Corpus(
        [
            Document("a", "Lighthouse", ""),
            Document("b", "", "\ud800\x00 lone \udfff"),
            Document("c", "", "…"),
            Document("d", "__proto__ 国", "constructor " + "long " * 10_000),
        ]
    )
    searched = backend(corpus, cache_folder=tmp_path).search(
        ["lighthouse", "LONE", "国", "proto"], 3
    )
    assert [[hit.position for hit in hits] for hits in searched] == [[0], [1], [3], [3]]


def made_up_corpus(n=300, seed=1):
    rng = random.Random(seed)
    words = [f"w{int(rng.paretovariate(0.6)) % 150}" for _ in range(n * 12)]
    return Corpus(
        Document(str(i), "", " ".join(words[i * 12 : i * 12 + rng.randrange(13)]) or "w")
        for i in range(n)
    )


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (0.0, 0.5), (1.5, 1.0), (1.2, 0.0)])
def test_backends_agree_on_scores_and_order(k1, b):
    corpus, rng = made_up_corpus(), random.Random(2)
    queries = [
        " ".join(f"w{rng.randrange(150)}" for _ in range(rng.randrange(9))) for _ in range(60)
    ]
    ours = BM25sBackend(corpus, k1, b).search(queries, 10)
    theirs = RankBM25Backend(corpus, k1, b).search(queries, 10)
    assert [[h.position for h in hits] for hits in ours] == [
        [h.position for h in hits] for hits in theirs
    ]
    flat = [hit.score for hits in ours for hit in hits]
    assert flat == pytest.approx([hit.score for hits in theirs for hit in hits], abs=2e-9)


def ndcg(ranking, grades, k=10):
    """Järvelin and Kekäläinen's nDCG with gains 2^grade - 1, as trec_eval's ndcg_cut for 0/1."""
    gain = sum((2 ** grades.get(d, 0) - 1) / math.log2(r + 2) for r, d in enumerate(ranking[:k]))
    best = sorted(grades.values(), reverse=True)[:k]
    return gain / sum((2**g - 1) / math.log2(r + 2) for r, g in enumerate(best))


def test_scifact_reaches_the_published_figures_and_backends_rank_it_alike(shared_data):
    folder = shared_data / "scifact"
    library, qrels = read_library(folder, folder), read_qrels(folder / "qrels.test.txt")
    tokenizer = Tokenizer(stem=True)
    queries = [question.text for question in library.questions]
    searched = BM25sBackend(library.corpus, 0.9, 0.4, tokenizer).search(queries, 100)
    runs = [[library.corpus[hit.position].docid for hit in hits] for hits in searched]
    scores = [ndcg(r, qrels[q.question_id]) for r, q in zip(runs, library.questions, strict=True)]
    recalls = [
        len(set(q.gold_docids).intersection(r)) / len(q.gold_docids)
        for r, q in zip(runs, library.questions, strict=True)
    ]
    assert len(queries) == 300
    assert np.mean(scores) == pytest.approx(0.6789, abs=0.01)  # Anserini, flat index
    assert np.mean(recalls) == pytest.approx(0.9253, abs=0.01)
    theirs = RankBM25Backend(library.corpus, 0.9, 0.4, tokenizer).search(queries, 10)
    assert [[h.position for h in hits[:10]] for hits in searched] == [
        [h.position for h in hits] for hits in theirs
    ]


def test_chinese_passages_are_found_with_the_default_settings(shared_data):
    folder = shared_data / "cmrc2018_dev"
    library = read_library(folder, folder)
    backend = build_backend(library.corpus, config())
    searched = backend.search([question.text for question in library.questions], 1)
    found = [
        bool(hits) and library.corpus[hits[0].position].docid in question.gold_docids
        for hits, question in zip(searched, library.questions, strict=True)
    ]
    assert len(found) == 1500 and np.mean(found) >= 0.95


def test_the_index_is_loaded_from_the_cache_and_gives_the_same(tmp_path, monkeypatch):
    corpus = made_up_corpus()
    fresh = build_backend(corpus, config(), tmp_path).search(["w1 w2", "w3"], 5)
    monkeypatch.setattr(bm25_index, "build_index", None)  # building again would now fail
    cached = build_backend(corpus, config(), tmp_path)
    assert cached.search(["w1 w2", "w3"], 5) == fresh
    assert isinstance(cached._index.scores["data"], np.memmap)
    assert [path.name[:6] for path in tmp_path.iterdir()] == ["bm25s-"]  # nothing half-written


def test_another_corpus_or_setting_never_uses_a_stale_index(tmp_path):
    corpus = made_up_corpus()
    changed = Corpus([*corpus[:-1], Document("299", "", "zebra")])
    build_backend(corpus, config(), tmp_path)
    assert build_backend(changed, config(), tmp_path).search(["zebra"], 5)[0][0].position == 299
    others = [{"k1": 1.2}, {"b": 0.75}, {"stem": True}, {"stop_words": False}]
    for change in others:
        build_backend(corpus, config(**change), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 + len(others)


@pytest.mark.parametrize("damage", ["cut", "remove", "scramble"])
def test_a_damaged_index_is_built_anew(tmp_path, damage):
    fresh = build_backend(FRUIT, config(), tmp_path).search(["apple"], 5)
    [folder] = tmp_path.iterdir()
    data = folder / "data.csc.index.npy"
    if damage == "cut":
        data.write_bytes(data.read_bytes()[:-9])
    elif damage == "remove":
        data.unlink()
    else:
        (folder / "sizes.json").write_text("{")
    assert build_backend(FRUIT, config(), tmp_path).search(["apple"], 5) == fresh
    assert isinstance(build_backend(FRUIT, config(), tmp_path)._index.scores["data"], np.memmap)


def test_nothing_is_printed(tmp_path, capfd):
    build_backend(FRUIT, config(), tmp_path).search(["apple"] * 3, 2)
    build_backend(FRUIT, config(backend="rank-bm25")).search(["apple"], 2)
    assert capfd.readouterr() == ("", "")


class OneHit:
    """A user's own backend: always the first document."""

    def __init__(self, corpus, search_config):
        self.corpus = corpus

    def search(self, queries, top_k):
        return [[Hit(0, 1.0)] for _ in queries]


def test_a_users_own_backend_is_named_by_path(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "my_search", SimpleNamespace(OneHit=OneHit))
    assert isinstance(build_backend(FRUIT, config(backend="my_search:OneHit")), OneHit)
    with pytest.raises(
        ConfigError, match="allowed are bm25s, rank-bm25, opensearch, or module:object"
    ):
        build_backend(FRUIT, config(backend="lucene"))
