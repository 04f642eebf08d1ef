"""Writes the files of a bm25s index from a stream of documents, in bounded memory.

Documents become postings (word, document, how often) in chunks, sorted by word and put on disk
(12 bytes a posting). Then the chunks are merged and scored, one range of words at a time, and
appended to the index (12 bytes a posting). In memory at once are the vocabulary, 8 bytes a word of
it, 12 bytes a document, one chunk and one range.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import bm25s
import numpy as np

from rlkit.library.bm25 import idf

CHUNK = 2**20  # words of text that are counted together, some 50 bytes each
RANGE = 2**21  # postings that are scored together, some 60 bytes each; at least one word's


def build_index(documents: Iterable[list[str]], k1: float, b: float, folder: Path) -> None:
    """Score every word of every document in float64 by the formula of bm25.py, and write what
    `bm25s.BM25.load` reads into `folder`. Words get ids in order of appearance."""
    counted = _Counted(folder, documents)
    indptr = np.concatenate(([0], np.cumsum(counted.document_frequency)))
    lengths = np.frombuffer(counted.lengths, dtype=np.int32)
    idf = _idf(counted.document_frequency, len(lengths))
    penalty = k1 * ((1 - b) + b * lengths / lengths.mean())
    with (
        _array_file(folder / "data.csc.index.npy", np.float64, indptr[-1]) as data,
        _array_file(folder / "indices.csc.index.npy", np.int32, indptr[-1]) as indices,
    ):
        for first, end in _ranges(indptr):
            word, document, frequency = counted.postings(first, end)
            scores = idf[word] * (frequency / (penalty[document] + frequency))
            scores.tofile(data)
            document.tofile(indices)
    counted.remove()
    np.save(folder / "indptr.csc.index.npy", indptr)
    vocabulary = json.dumps(counted.vocabulary, ensure_ascii=False)
    (folder / "vocab.index.json").write_text(vocabulary, encoding="utf-8")
    _write_parameters(folder / "params.index.json", k1, b, len(lengths))


class _Counted:
    """The postings of a stream of documents, on disk; lengths and frequencies in memory."""

    def __init__(self, folder: Path, documents: Iterable[list[str]]) -> None:
        self.vocabulary: dict[str, int] = defaultdict()
        self.vocabulary.default_factory = self.vocabulary.__len__
        self.lengths = array("i")  # words (N,)
        self.document_frequency = np.zeros(0, dtype=np.int64)  # documents with each word (V,)
        self._chunks: list[Path] = []
        for words, first in self._chunks_of(documents):
            self._chunks.append(folder / f"chunk-{first}.npy")
            self._write(self._chunks[-1], words, first)

    def _chunks_of(self, documents: Iterable[list[str]]) -> Iterator[tuple[array, int]]:
        """(ids of the words of some documents in order, number of the first document)."""
        words, first = array("i"), 0
        for document in documents:
            words.extend(map(self.vocabulary.__getitem__, document))
            self.lengths.append(len(document))
            if len(words) >= CHUNK:
                yield words, first
                words, first = array("i"), len(self.lengths)
        if words:
            yield words, first

    def _write(self, path: Path, words: array, first: int) -> None:
        lengths = np.frombuffer(self.lengths, dtype=np.int32)[first:]
        document = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        keys = np.frombuffer(words, dtype=np.int32) * np.int64(len(lengths)) + document
        del lengths, document  # an array that others look into cannot grow
        keys, frequency = np.unique(keys, return_counts=True)
        word, document = np.divmod(keys, len(self.lengths) - first)
        count = np.bincount(word, minlength=len(self.vocabulary))
        count[: len(self.document_frequency)] += self.document_frequency
        self.document_frequency = count
        np.save(path, np.stack([word, document + first, frequency]).astype(np.int32))

    def postings(self, first: int, end: int) -> np.ndarray:
        """Words first to end - 1 as (word, document, frequency), int32 (3, P), sorted."""
        parts, bounds = [], np.array([first, end], dtype=np.int32)
        for path in self._chunks:
            chunk = np.load(path, mmap_mode="r")
            where = slice(*np.searchsorted(chunk[0], bounds))
            parts.append(np.array(chunk[:, where]))
        merged = np.concatenate(parts, axis=1)
        return merged[:, np.argsort(merged[0], kind="stable")]

    def remove(self) -> None:
        for path in self._chunks:
            path.unlink()


def _ranges(indptr: np.ndarray) -> Iterator[tuple[int, int]]:
    """The words in ranges of at most RANGE postings, or of one word."""
    first = 0
    while first < len(indptr) - 1:
        end = int(np.searchsorted(indptr, indptr[first] + RANGE, side="right")) - 1
        end = max(first + 1, end)
        yield first, end
        first = end


def _idf(document_frequency: np.ndarray, n_documents: int) -> np.ndarray:
    values, places = np.unique(document_frequency, return_inverse=True)
    return np.array([idf(int(n), n_documents) for n in values])[places]


def _array_file(path: Path, dtype: type, length: int):
    """A .npy file with its header, ready for `length` numbers."""
    file = open(path, "wb")
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": (int(length),)}
    np.lib.format.write_array_header_1_0(file, header)
    return file


def _write_parameters(path: Path, k1: float, b: float, n_documents: int) -> None:
    made = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float64", backend="numpy")
    names = ("k1", "b", "delta", "method", "idf_method", "dtype", "int_dtype", "backend")
    parameters = {name: getattr(made, name) for name in names}
    parameters |= {"num_docs": n_documents, "version": bm25s.__version__}
    path.write_text(json.dumps(parameters, indent=4), encoding="utf-8")
