"""The Executor that collects the study's rounds: the raw question first, then names of the state,
so that a second round's state shows what the question itself found."""

from __future__ import annotations

from typing import Any

from rlkit.agents.executor import RawQuestionPolicy, ScriptedPolicy
from rlkit.library.corpus import Corpus
from rlkit.rounds.state import State


class QuestionFirst:
    """Not deep: the question brings back `search.top_k` documents, as any clue does."""

    def __init__(self, config: Any) -> None:
        layout = config.executor.layout
        self.first = RawQuestionPolicy(layout)
        self.later = ScriptedPolicy(config.search.max_clues, config.seed, layout)

    def write(self, state: State) -> str:
        """See rlkit.agents.executor.Policy."""
        return (self.first if state.round == 1 else self.later).write(state)


def question_first(config: Any, corpus: Corpus) -> QuestionFirst:
    """For `data.collectors`."""
    return QuestionFirst(config)
