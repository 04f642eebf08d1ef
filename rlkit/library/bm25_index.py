"""The index of bm25s on disk: found by what it was made from, so it is never out of date.

The folder's name is a digest of the corpus, the settings, and the versions of everything that
turns text into words and scores. It appears whole or not at all, and is mapped into memory, so
that several processes share it. A damaged one is built anew. `bm25s.BM25.load` reads it, too.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bm25s

from rlkit.library.kept import kept
from rlkit.library.postings import build_index

_FORMAT = 2  # raise it when Tokenizer or the files here change


def open_index(
    words: Callable[[], Iterable[list[str]]],
    settings: dict[str, Any],
    corpus_fingerprint: str,
    cache_folder: str | Path | None,
) -> bm25s.BM25:
    """The index from the cache where it is there and whole, else built from `words` (of each
    document) and kept; `settings` holds `k1`, `b`, and what else `words` depends on besides the
    corpus. Without a cache it is held in memory, 12 bytes for each word of each document."""
    if cache_folder is None:
        with tempfile.TemporaryDirectory(prefix="rlkit-bm25s-") as folder:
            build_index(words(), settings["k1"], settings["b"], Path(folder))
            return _load(Path(folder), mmap=False)
    folder = Path(cache_folder) / f"bm25s-{_digest(corpus_fingerprint, settings)[:24]}"
    return kept(
        folder,
        partial(_load, mmap=True),
        lambda fresh: build_index(words(), settings["k1"], settings["b"], fresh),
    )


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


def _load(folder: Path, mmap: bool) -> bm25s.BM25:
    return bm25s.BM25.load(folder, mmap=mmap, load_corpus=False, show_progress=False)
