"""The index of bm25s on disk: found by what it was made from, so it is never out of date.

The folder's name is a digest of the corpus, the settings, and the versions of everything that
turns text into words and scores. It appears whole or not at all, and is mapped into memory, so
that several processes share it. A damaged one is built anew.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import unicodedata
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bm25s

from rlkit.errors import DataError
from rlkit.files import new_folder, read_json, write_json

_FORMAT = 1  # raise it when Tokenizer or the files here change


def build_index(words: list[list[str]], k1: float, b: float) -> bm25s.BM25:
    """Score every word of every document, in float64; words get ids in order of appearance."""
    vocabulary: dict[str, int] = {}
    ids = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in document] for document in words
    ]
    index = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float64", backend="numpy")
    index.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    return index


def open_index(
    words: Callable[[], list[list[str]]],
    settings: dict[str, Any],
    corpus_fingerprint: str,
    cache_folder: str | Path | None,
) -> bm25s.BM25:
    """The index from the cache where it is there and whole, else built from `words` and kept;
    `settings` holds `k1`, `b`, and what else `words` depends on besides the corpus."""
    k1, b = settings["k1"], settings["b"]
    if cache_folder is None:
        return build_index(words(), k1, b)
    folder = Path(cache_folder) / f"bm25s-{_digest(corpus_fingerprint, settings)[:24]}"
    index = _load(folder)
    if index is None:
        index = build_index(words(), k1, b)
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one; a whole one was loaded
        _save(index, folder)
    return index


def _digest(corpus_fingerprint: str, settings: dict[str, Any]) -> str:
    made_from = {
        "format": _FORMAT,
        "corpus": corpus_fingerprint,
        "settings": settings,
        "bm25s": bm25s.__version__,
        "stemmer": version("PyStemmer") if settings["stem"] else None,
        "unicode": unicodedata.unidata_version,
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def _save(index: bm25s.BM25, folder: Path) -> None:
    try:
        with new_folder(folder) as temporary:
            index.save(temporary, show_progress=False)
            sizes = {file.name: file.stat().st_size for file in temporary.iterdir()}
            write_json(temporary / "sizes.json", sizes)
    except OSError:
        # Another process was first, which is as good; any other failure must be seen.
        if not folder.is_dir():
            raise


def _load(folder: Path) -> bm25s.BM25 | None:
    """The index, its arrays mapped into memory; None where it is not there or not whole."""
    if not folder.is_dir():
        return None
    try:
        sizes = read_json(folder / "sizes.json")
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        return bm25s.BM25.load(folder, mmap=True, load_corpus=False, show_progress=False)
    except (DataError, OSError, ValueError, KeyError, AttributeError):
        return None
