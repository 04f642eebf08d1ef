"""BM25 with two backends behind one small interface; both rank alike and give the same scores.

    score(q, d) = sum over the words t of q of  idf(t) * tf / (tf + k1 * (1 - b + b * |d| / avg|d|))
    idf(t)      = ln(1 + (N - n + 0.5) / (n + 0.5))        never negative (N documents, n with t)

This is Lucene's BM25 ("accurate" in Kamphuis et al., ECIR 2020, table 1, with exact document
lengths and without the constant factor k1 + 1). A word that stands twice in a query counts twice.
Titles are searched together with texts. A document that shares no word with the query is no hit;
documents whose scores agree to 9 digits after the point are ranked in the order of the corpus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlkit.config import named_object
from rlkit.errors import ConfigError, DataError
from rlkit.library.corpus import Corpus
from rlkit.library.tokenize import Tokenizer

_DIGITS = 9  # float64 sums in another order differ in the 15th digit; equal scores must tie
_LEAST = 0.5 * 10.0**-_DIGITS  # what is smaller is rounded to 0
_BLOCK = 1024  # scores


class Hit(NamedTuple):
    """A document that was found: its place in the corpus, and its score (larger is better)."""

    position: int
    score: float


class SearchBackend(Protocol):
    """What a search backend must do; a user's own is named in `search.backend` as
    `module:object`, a callable (corpus, search_config) -> SearchBackend."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """For each query at most `top_k` hits, best first; [] where no document shares a word."""
        ...


class _BM25:
    """What both backends share; `tokenizer` is used for documents and queries alike."""

    def __init__(
        self,
        corpus: Corpus,
        k1: float = 0.9,
        b: float = 0.4,
        tokenizer: Tokenizer | None = None,
        cache_folder: str | Path | None = None,
    ) -> None:
        self._tokenizer = tokenizer or Tokenizer()
        self._k1, self._b = float(k1), float(b)
        self._index = self._build(corpus, cache_folder)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See SearchBackend."""
        found = (self._scores(self._tokenizer(query)) for query in queries)
        return [best_hits(scores, top_k) for scores in found]

    def _build(self, corpus: Corpus, cache_folder: str | Path | None) -> Any: ...

    def _scores(self, words: list[str]) -> np.ndarray:
        """The score of every document (N,); 0 where it shares none of the words."""
        ...


class BM25sBackend(_BM25):
    """BM25 by bm25s: scores are computed once, kept on disk, and mapped into memory; documents
    are read one after the other (postings.py), so that a library may be larger than memory."""

    def _build(self, corpus: Corpus, cache_folder: str | Path | None) -> Any:
        from rlkit.library.bm25_index import open_index

        settings = {
            "k1": self._k1,
            "b": self._b,
            "stem": self._tokenizer.stem,
            "stop_words": self._tokenizer.stop_words,
        }
        words = partial(corpus_words, corpus, self._tokenizer)
        return open_index(words, settings, corpus.fingerprint, cache_folder)

    def _scores(self, words: list[str]) -> np.ndarray:
        # Sorted, so that the words of a query in another order give the very same sums.
        word_ids = sorted(self._index.get_tokens_ids(words))
        return self._index.get_scores_from_ids(word_ids) if word_ids else np.zeros(0)


class RankBM25Backend(_BM25):
    """BM25 by rank-bm25, with an idf that is never negative; slow, but independent of bm25s."""

    def _build(self, corpus: Corpus, cache_folder: str | Path | None) -> Any:
        return _okapi(list(corpus_words(corpus, self._tokenizer)), self._k1, self._b)

    def _scores(self, words: list[str]) -> np.ndarray:
        # rank-bm25 keeps the constant factor k1 + 1 that Lucene dropped
        known = [word for word in words if word in self._index.idf]
        return self._index.get_scores(known) / (self._k1 + 1)


BACKENDS: dict[str, Callable[..., SearchBackend]] = {
    "bm25s": BM25sBackend,
    "rank-bm25": RankBM25Backend,
}


def _opensearch(corpus: Corpus, search_config: Any) -> SearchBackend:
    from rlkit.library.opensearch import OpenSearchBackend

    return OpenSearchBackend(corpus, search_config)


def build_backend(
    corpus: Corpus, search_config: Any, cache_folder: str | Path | None = None
) -> SearchBackend:
    """The backend that `search.backend` names; bm25s keeps its index in `cache_folder` (None: in
    memory only). Raises ConfigError for an unknown name."""
    known = {**BACKENDS, "opensearch": _opensearch}
    made = named_object(search_config.backend, known, "search.backend")
    if search_config.backend not in BACKENDS:
        return made(corpus, search_config)
    tokenizer = Tokenizer(stem=search_config.stem, stop_words=search_config.stop_words)
    return made(corpus, search_config.k1, search_config.b, tokenizer, cache_folder)


def idf(n: int, n_documents: int) -> float:
    """Lucene's inverse document frequency of a word that stands in n documents; above 0."""
    return math.log(1.0 + (n_documents - n + 0.5) / (n + 0.5))


def corpus_words(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[list[str]]:
    """The words of each document, title first.

    Raises DataError at the end where no document held a single word.
    """
    found = False
    for document in corpus:
        words = tokenizer(f"{document.title}\n{document.text}")
        found = found or bool(words)
        yield words
    if not found:
        raise DataError(
            f"none of the {len(corpus)} documents holds a word that can be searched for; "
            "check the corpus's title and text fields."
        )


def best_hits(scores: np.ndarray, top_k: int) -> list[Hit]:
    """The best of scores (N,) above 0, best first, ties in the order of the corpus."""
    if top_k < 1:
        raise ConfigError(f"top_k is {top_k}; at least 1 document per clue must be asked for.")
    found = _contenders(scores, top_k)
    scores = np.round(scores[found], _DIGITS)
    if len(found) > top_k:
        kept = scores >= np.partition(scores, -top_k)[-top_k]  # all ties, until they are sorted
        found, scores = found[kept], scores[kept]
    order = np.lexsort((found, -scores))[:top_k]
    return [Hit(int(found[i]), float(scores[i])) for i in order if scores[i] > 0]


def _contenders(scores: np.ndarray, top_k: int) -> np.ndarray:
    """Positions, rising, of all scores (N,) that could be among the top_k: the top_k-th highest
    peak of a block is no higher than the top_k-th best score, and few blocks reach it."""
    if not len(scores):
        return np.zeros(0, dtype=np.intp)
    peaks = np.maximum.reduceat(scores, np.arange(0, len(scores), _BLOCK))
    least = _LEAST
    if len(peaks) > top_k:
        least = max(least, np.partition(peaks, -top_k)[-top_k] - 2 * _LEAST)
    blocks = np.flatnonzero(peaks >= least)
    places = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
    places = places[places < len(scores)]
    return places[scores[places] >= least]


def _okapi(words: list[list[str]], k1: float, b: float):
    import rank_bm25

    class LuceneOkapi(rank_bm25.BM25Okapi):
        """rank-bm25's own idf is 0 or negative for words in half of the documents."""

        def _calc_idf(self, nd: dict[str, int]) -> None:
            self.idf = {word: idf(n, self.corpus_size) for word, n in nd.items()}

    # With k1 = 0 it would divide 0 by 0; so small a value changes no digit that is kept.
    return LuceneOkapi(words, k1=max(k1, 1e-12), b=b)
