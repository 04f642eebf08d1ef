"""A library of eight documents, a search backend that is a table, and a checker that counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlkit.library.bm25 import Hit
from rlkit.library.corpus import Corpus, Document
from rlkit.library.orchestrator import SearchOrchestrator
from rlkit.practice.environment import SearchRoundEnv
from rlkit.practice.reward import RewardCalculator
from rlkit.rounds.state import State

CORPUS = Corpus([Document(letter, f"Title {letter}", f"Text {letter}") for letter in "abcdefgh"])
VALUES = {
    "important_new": 2.5,
    "important_seen": 0.3,
    "local_new": 0.3,
    "local_seen": 0.1,
    "discard_new": 0.0,
    "discard_seen": -0.1,
    "invalid": -2.1,
}
VERDICTS = {"a": "IMPORTANT", "b": "IMPORTANT", "c": "LOCAL", "d": "DISCARD", "u": None}
STATE = State(
    "q1/run_001/2",
    "q1",
    "Which title?",
    2,
    "SEARCH",
    "find it",
    seen_docids=("c",),
    gold_docids=("a", "b", "e"),
    known_important=frozenset("abe"),
)


class TableBackend:
    """Finds what a table says; counts its calls."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table, self.calls = table, 0

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        self.calls += 1
        return [
            [Hit(CORPUS.position(d), 1.0) for d in self.table.get(query, "")[:top_k]]
            for query in queries
        ]


class TableChecker:
    """Labels what a table says (other documents: DISCARD); remembers what it was asked."""

    def __init__(self, verdicts: Mapping[str, Any]) -> None:
        self.verdicts, self.asked = dict(verdicts), []

    def check(self, state: State, documents: Sequence[Document]) -> dict[str, Any]:
        self.asked.append([document.docid for document in documents])
        return {d.docid: self.verdicts.get(d.docid, "DISCARD") for d in documents}


def make_env(
    table: Mapping[str, str], verdicts: Mapping[str, Any] = VERDICTS, **limits: Any
) -> SearchRoundEnv:
    env = SearchRoundEnv(
        SearchOrchestrator(CORPUS, TableBackend(table), top_k=5),
        TableChecker(verdicts),
        RewardCalculator(VALUES, max_clues=4, top_k=5),
        **limits,
    )
    env.reset(STATE)
    return env
