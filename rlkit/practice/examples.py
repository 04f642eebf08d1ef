"""What the warm start learns from: recorded actions that found something, and whose words stand
in the state, so that a model learns to read the state and not to invent names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlkit.agents.clues import format_clues
from rlkit.agents.prompt import shown_text
from rlkit.library.tokenize import Tokenizer, folded
from rlkit.rounds.state import State


def search_examples(states: Sequence[State], config: Any) -> list[tuple[State, str]]:
    """(state, completion) of every recorded action that is worth imitating.

    An action counts if one of its clues brought back a known IMPORTANT document that was missing.
    Of it, the clues are kept whose words all stand in the state; a clue that is the question
    itself is no example of a search clue and is left out, too.
    """
    examples = []
    for state in states:
        clues = grounded_clues(state)[: config.search.max_clues]
        if clues and _found_something(state, clues):
            examples.append((state, format_clues(clues, config.executor.layout)))
    return examples


def grounded_clues(state: State) -> list[str]:
    """The recorded clues whose words all stand in what the state shows, the question left out."""
    words = Tokenizer(stop_words=False)
    shown = set(words(shown_text(state)))
    return [
        clue
        for clue in state.recorded_clues
        if (inside := words(clue))
        and shown.issuperset(inside)
        and folded(clue) != folded(state.question)
    ]


def _found_something(state: State, clues: Sequence[str]) -> bool:
    """Whether one of these clues brought back a document that the state misses."""
    kept, missing = {folded(clue) for clue in clues}, state.missing
    return any(row.docid in missing and folded(row.clue) in kept for row in state.recorded_results)
