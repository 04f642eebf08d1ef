"""Turns a set of clues into one ranked list of documents, each once, that says by which clue
and at which rank it was found."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from rlkit.errors import ConfigError
from rlkit.library.bm25 import Hit, SearchBackend
from rlkit.library.corpus import Corpus


class RankedDocument(NamedTuple):
    """A document that a set of clues brought back.

    clue, clue_index, rank, score: of the clue that brought it into the merged list, the rank
    counted from 1 among that clue's own hits; found_by: the indices of all clues that found it.
    """

    docid: str
    clue: str
    clue_index: int
    rank: int
    score: float
    found_by: tuple[int, ...]


def documents_taken(
    ranking: Sequence[RankedDocument], seen: Collection[str], max_documents: int
) -> list[RankedDocument]:
    """The documents seen before and the first `max_documents` new ones, in the ranking's order."""
    new = [row.docid for row in ranking if row.docid not in seen][:max_documents]
    return [row for row in ranking if row.docid in seen or row.docid in new]


class SearchOrchestrator:
    """Searches clues in a corpus. `top_k` documents are asked for per clue."""

    def __init__(self, corpus: Corpus, backend: SearchBackend, top_k: int = 5) -> None:
        self.corpus, self.backend, self.top_k = corpus, backend, top_k

    def search(self, clues: Sequence[str], top_k: int | None = None) -> list[RankedDocument]:
        """One set of clues, merged: all first hits in the order of the clues, then all second
        hits, and so on, each document where it comes first."""
        return self.search_many([clues], top_k)[0]

    def search_many(
        self, clue_sets: Sequence[Sequence[str]], top_k: int | None = None
    ) -> list[list[RankedDocument]]:
        """Several sets of clues with a single call of the backend, each clue looked up once.

        Raises ConfigError where top_k is below 1.
        """
        top_k = self.top_k if top_k is None else top_k
        if top_k < 1:
            raise ConfigError(f"top_k is {top_k}; at least 1 document per clue must be asked for.")
        distinct = list(dict.fromkeys(clue for clues in clue_sets for clue in clues))
        hits = self.backend.search(distinct, min(top_k, len(self.corpus))) if distinct else []
        found = dict(zip(distinct, hits, strict=True))
        return [self._merge(clues, found) for clues in clue_sets]

    def _merge(self, clues: Sequence[str], found: dict[str, list[Hit]]) -> list[RankedDocument]:
        rankings = [found[clue] for clue in clues]
        finders: dict[int, list[int]] = {}
        for index, hits in enumerate(rankings):
            for hit in hits:
                finders.setdefault(hit.position, []).append(index)
        merged: dict[int, RankedDocument] = {}
        for place in range(max(map(len, rankings), default=0)):
            for index, hits in enumerate(rankings):
                if place < len(hits) and hits[place].position not in merged:
                    position, score = hits[place]
                    merged[position] = RankedDocument(
                        self.corpus[position].docid,
                        clues[index],
                        index,
                        place + 1,
                        score,
                        tuple(finders[position]),
                    )
        return list(merged.values())
