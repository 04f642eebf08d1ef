"""The streamed index: bm25s's own numbers, whatever the sizes of chunks and ranges."""

import random
import subprocess
import sys

import bm25s
import numpy as np
import pytest

from rlkit.library import postings
from rlkit.library.bm25 import BM25sBackend
from rlkit.library.corpus import Corpus, Document
from rlkit.library.postings import build_index

NAMES = ("data", "indices", "indptr")


def texts(n=200, seed=3):
    rng = random.Random(seed)
    return [
        [f"w{int(rng.paretovariate(0.6)) % 90}" for _ in range(rng.randrange(15))] for _ in range(n)
    ] + [["long"] * 70_000, []]


def built(folder, documents, k1=0.9, b=0.4):
    folder.mkdir()
    build_index(iter(documents), k1, b, folder)
    return bm25s.BM25.load(folder, mmap=True, show_progress=False)


@pytest.mark.parametrize(("chunk", "rows"), [(2**20, 2**21), (1, 1), (40, 17), (2**20, 5)])
@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 1.0), (1.2, 0.0)])
def test_the_arrays_are_those_that_bm25s_computes_itself(tmp_path, monkeypatch, chunk, rows, k1, b):
    monkeypatch.setattr(postings, "CHUNK", chunk)
    monkeypatch.setattr(postings, "RANGE", rows)
    ours = built(tmp_path / "index", texts(), k1, b)
    vocabulary = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in text] for text in texts()]
    theirs = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float64")
    theirs.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    assert ours.vocab_dict == vocabulary and ours.scores["num_docs"] == 202
    for name in NAMES:
        np.testing.assert_array_equal(ours.scores[name], theirs.scores[name])


def test_nothing_but_the_index_stays_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(postings, "CHUNK", 10)
    built(tmp_path / "index", texts())
    assert len(list((tmp_path / "index").iterdir())) == 5


def test_documents_are_taken_one_after_the_other_and_never_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(postings, "CHUNK", 64)
    alive, most = set(), 0

    class Watched(list):
        def __del__(self):
            alive.discard(id(self))

    def stream():
        nonlocal most
        for number in range(1000):
            words = Watched([f"w{number % 7}", "x"])
            alive.add(id(words))
            most = max(most, len(alive))
            yield words

    built(tmp_path / "index", stream())
    assert most <= 3


KILLED = """
import sys, time
from rlkit.library import postings
from rlkit.library.bm25 import BM25sBackend
from rlkit.library.corpus import Corpus, Document
corpus = Corpus(Document(str(n), "", f"w{n} x") for n in range(300))
postings.CHUNK = 100


def merge(*arguments):
    print("half", flush=True)
    time.sleep(60)


postings._Counted.postings = merge
BM25sBackend(corpus, cache_folder=sys.argv[1])
"""


def test_a_killed_build_leaves_nothing_that_the_next_one_would_take(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "half\n"
        child.kill()
    assert any(tmp_path.iterdir()) and all(path.name.startswith(".") for path in tmp_path.iterdir())
    corpus = Corpus(Document(str(n), "", f"w{n} x") for n in range(300))
    [[hit]] = BM25sBackend(corpus, cache_folder=tmp_path).search(["w7"], 3)
    assert hit.position == 7
    assert [path.name[:6] for path in tmp_path.iterdir()] == ["bm25s-"]
