"""The Executor that collects the study's rounds: the raw question first, then names of the state,
so that a second round's state shows what the question itself found."""

from __future__ import annotations

from typing import Any

from rlkit.agents.executor import QuestionFirst, ScriptedPolicy
from rlkit.library.corpus import Corpus


def question_first(config: Any, corpus: Corpus) -> QuestionFirst:
    """For `data.collectors`. The question brings back `search.top_k` documents, like any clue."""
    layout = config.executor.layout
    return QuestionFirst(ScriptedPolicy(config.search.max_clues, config.seed, layout), layout)
