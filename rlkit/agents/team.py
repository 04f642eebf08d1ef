"""The team around one library. Any `Policy` can be the Executor; all other agents are frozen.
`game.py` plays one question, `side_by_side.py` many at once, `recording.py` records them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rlkit.agents.checker import DocumentChecker
from rlkit.agents.entities import EntityManager, RuleEntityManager
from rlkit.agents.executor import Policy
from rlkit.agents.game import Recorded
from rlkit.agents.planner import Planner, RulePlanner
from rlkit.agents.side_by_side import play_each
from rlkit.errors import RlkitError
from rlkit.library.corpus import Question
from rlkit.library.orchestrator import RankedDocument, SearchOrchestrator, documents_taken
from rlkit.rounds.state import State


@dataclass(slots=True)
class Team:
    """The agents around one library.

    `max_rounds` per question, `max_clues` per round, `max_documents` new documents read per
    round; more than `max_failed_rounds` rounds that failed end a question. `collector` names who
    wrote the clues; it stands in every run's `meta.json`.

    Up to `concurrency` questions are played at once, in as many threads, where an agent says
    `concurrent = True`: that it may be called from several threads at once, as one does that
    waits for a server. Every other agent is called by one thread at a time. `prices` are those of
    a million tokens in prompts and in replies, where agents ask a server for money.
    """

    executor: Policy
    orchestrator: SearchOrchestrator
    checker: DocumentChecker
    planner: Planner = field(default_factory=RulePlanner)
    entities: EntityManager = field(default_factory=RuleEntityManager)
    max_rounds: int = 3
    max_clues: int = 4
    max_documents: int = 8
    plain_lines: bool = True
    collector: str = "team"
    concurrency: int = 16
    max_failed_rounds: int = 2
    prices: tuple[float, float] = (0.0, 0.0)
    _turns: dict[int, AbstractContextManager] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def agents(self) -> tuple[object, ...]:
        """Everybody who is called in a round, each with `concurrent` or without."""
        return (self.planner, self.executor, self.orchestrator.backend, self.checker, self.entities)

    @property
    def clients(self) -> list[Any]:
        """What the agents ask their servers through, each once; it counts tokens in `usage`."""
        clients = [getattr(agent, "client", None) for agent in self.agents]
        return list({id(client): client for client in clients if client is not None}.values())

    @property
    def waits(self) -> bool:
        """Whether an agent is `concurrent`: mostly it waits for a server."""
        return any(map(is_concurrent, self.agents))

    @property
    def threads(self) -> int:
        """How many questions can be played at once to any use."""
        return self.concurrency if self.waits else 1

    @property
    def writes_in_batches(self) -> bool:
        """Whether the Executor is a model in this process that writes for many states at once."""
        return hasattr(self.executor, "write_batch") and not is_concurrent(self.executor)

    def turn(self, agent: object) -> AbstractContextManager:
        """What a call of this agent stands in: a lock, unless it is `concurrent`."""
        if is_concurrent(agent):
            return nullcontext()
        return self._turns.setdefault(id(agent), threading.RLock())

    def play(self, question: Question) -> Recorded:
        """Play one question to its end; see `Game` for agents that fail."""
        return self.play_many([question])[0]

    def play_many(self, questions: Sequence[Question]) -> list[Recorded]:
        """Play several questions side by side, so that a model writes for all of them at once."""
        played: dict[int, Recorded] = {}
        play_each(self, questions, played.__setitem__, batch_size=len(questions))
        return [played[index] for index in range(len(questions))]

    def write(self, states: Sequence[State]) -> list[str | RlkitError]:
        """What the Executor writes for each state, or why it could not."""
        try:
            with self.turn(self.executor):
                if len(states) > 1 and hasattr(self.executor, "write_batch"):
                    return list(self.executor.write_batch(states))
                return [self.executor.write(state) for state in states]
        except RlkitError as error:
            return [error] * len(states)

    def search(self, clues: Sequence[str], seen: frozenset[str]) -> list[RankedDocument]:
        """The seen documents and the first `max_documents` new ones that the clues bring back.

        A policy with `deep` set writes one clue and is searched deeply enough to read as many.
        """
        deep = getattr(self.executor, "deep", False)
        top_k = len(seen) + self.max_documents if deep else None
        with self.turn(self.orchestrator.backend):
            ranking = self.orchestrator.search(clues, top_k)
        return documents_taken(ranking, seen, self.max_documents)


def is_concurrent(agent: object) -> bool:
    """Whether an agent may be called from several threads at once."""
    return getattr(agent, "concurrent", False) is True
