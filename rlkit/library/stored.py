"""A corpus on disk: a document is read when it is asked for, so that a library may be larger than
memory.

    documents.bin   id, title and text of each document in UTF-8, one after the other
    ends.npy        where each of these three ends (3 N, int64)
    hashes.npy      64-bit hashes of the ids, sorted, and beside them
    order.npy       the positions that they belong to
    corpus.json     the number of documents and the corpus's fingerprint

It takes 40 bytes a document beside the texts, mapped into memory; 60 while it is written.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from rlkit.errors import DataError
from rlkit.files import read_object, write_json
from rlkit.library.corpus import Corpus, Document, add_to_fingerprint, encoded, repeated_id
from rlkit.library.kept import kept

_FORMAT = 1  # raise it when the readers, `clean_text` or the files here change
_TOGETHER = 256  # documents that are read at once where all are


class StoredCorpus(Corpus):
    """The documents of a folder that `write_corpus` filled."""

    def __init__(self, folder: Path) -> None:
        about = read_object(folder / "corpus.json")
        self._count = int(about["documents"])
        self.fingerprint = str(about["fingerprint"])
        self._ends, self._hashes, self._order = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("ends", "hashes", "order")
        )
        self._file = open(folder / "documents.bin", "rb")  # stays, also where the folder goes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._count)))
        position = range(self._count)[index]
        return self._documents(position, position + 1)[0]

    def __iter__(self) -> Iterator[Document]:
        for first in range(0, self._count, _TOGETHER):
            yield from self._documents(first, min(first + _TOGETHER, self._count))

    def _find(self, docid: object) -> int | None:
        if not isinstance(docid, str):
            return None
        wanted = _hash(docid.encode("utf-8", errors="surrogatepass"))
        place = int(np.searchsorted(self._hashes, np.uint64(wanted)))
        while place < self._count and self._hashes[place] == wanted:
            position = int(self._order[place])
            if self[position].docid == docid:  # else two ids have one hash
                return position
            place += 1
        return None

    def _documents(self, first: int, end: int) -> list[Document]:
        start = int(self._ends[3 * first - 1]) if first else 0
        ends = (self._ends[3 * first : 3 * end] - start).tolist()
        raw = os.pread(self._file.fileno(), ends[-1], start)
        starts = [0, *ends[:-1]]
        parts = [
            raw[a:b].decode("utf-8", errors="surrogatepass")
            for a, b in zip(starts, ends, strict=True)
        ]
        return [Document(*parts[i : i + 3]) for i in range(0, len(parts), 3)]


def write_corpus(documents: Iterable[Document], folder: Path, source: str = "the corpus") -> None:
    """Write documents into a folder for StoredCorpus, one after the other.

    Raises DataError where there is none, or where two have the same id.
    """
    digest, ends, hashes, end = hashlib.sha256(), array("q"), array("Q"), 0
    with open(folder / "documents.bin", "wb") as file:
        for document in documents:
            parts = encoded(document)
            add_to_fingerprint(digest, parts)
            hashes.append(_hash(parts[0]))
            for part in parts:
                file.write(part)
                end += len(part)
                ends.append(end)
    if not hashes:
        raise DataError(f"{source} holds no documents; at least one is needed.")
    order = np.argsort(np.frombuffer(hashes, dtype=np.uint64), kind="stable").astype(np.int32)
    np.save(folder / "ends.npy", np.frombuffer(ends, dtype=np.int64))
    np.save(folder / "order.npy", order)
    np.save(folder / "hashes.npy", np.frombuffer(hashes, dtype=np.uint64)[order])
    about = {"documents": len(hashes), "fingerprint": digest.hexdigest()}
    write_json(folder / "corpus.json", about)
    _check_ids(StoredCorpus(folder), source)


def stored_corpus(
    files: Sequence[Path],
    documents: Callable[[], Iterable[Document]],
    folder: str | Path,
    source: str,
) -> StoredCorpus:
    """The corpus of `files`, as `documents()` reads them, kept below `folder` under a digest of
    their bytes, so that it is read once and never out of date.

    Raises DataError where a file changes while it is read.
    """
    before = _stamps(files)
    digest = hashlib.sha256(f"{_FORMAT}".encode())
    for file in files:
        digest.update(f"\n{file.name} ".encode() + _digest(file))

    def write(fresh: Path) -> None:
        write_corpus(documents(), fresh, source)
        if _stamps(files) != before:
            raise DataError(f"{source} was changed while it was read; start again when it is done.")

    return kept(Path(folder) / f"corpus-{digest.hexdigest()[:24]}", StoredCorpus, write)


def _check_ids(corpus: StoredCorpus, source: str) -> None:
    hashes, order = np.asarray(corpus._hashes), np.asarray(corpus._order)
    alike = np.flatnonzero(hashes[1:] == hashes[:-1])
    for place in alike[np.argsort(order[alike + 1], kind="stable")]:
        docid, position = corpus[order[place + 1]].docid, int(order[place + 1])
        if (first := corpus._find(docid)) != position:
            raise repeated_id(source, docid, first, position)


def _hash(docid: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(docid, digest_size=8).digest(), "little")


def _digest(file: Path) -> bytes:
    try:
        with open(file, "rb") as raw:
            return hashlib.file_digest(raw, "sha256").digest()
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); check the path.") from error


def _stamps(files: Sequence[Path]) -> list[tuple[int, int, int]]:
    return [(s.st_size, s.st_mtime_ns, s.st_ino) for s in map(os.stat, files)]
