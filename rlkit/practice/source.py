"""Where a run's documents, questions and rounds come from, as `data` says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlkit.errors import ConfigError
from rlkit.library.corpus import Library, Question
from rlkit.library.readers import read_corpus, read_library
from rlkit.rounds.state import State


def load_library(config: Any) -> Library:
    """The library of a RunConfig: the files of `data.corpus_path` and `data.questions_path`, or
    the demo where `data.source` is demo.

    Raises ConfigError where rounds are given but no corpus that clues could be searched in.
    """
    data = config.data
    if data.source == "demo":
        from rlkit.demo.library import make_demo_library

        return make_demo_library()  # the same for every seed of a study
    if data.corpus_path is None:
        raise ConfigError(
            f"data.source is {data.source!r} and data.corpus_path is not set; recorded rounds hold "
            "no library, so give the documents that their clues are searched in."
        )
    kept = index_folder(config)
    if data.questions_path is None:
        return Library(read_corpus(data.corpus_path, kept), ())
    return read_library(data.corpus_path, data.questions_path, kept)


def index_folder(config: Any) -> Path:
    """Where indexes, and large libraries as they are kept on disk, are shared by all runs."""
    return Path(config.output_root) / ".index"


def rounds_folder(config: Any, run_folder: str | Path) -> Path:
    """Where the rounds are: `data.rounds_path`, or `rounds/` in the run's folder."""
    given = config.data.rounds_path
    return Path(given) if given is not None else Path(run_folder) / "rounds"


def chosen_questions(questions: Sequence[Question], count: int | None) -> list[Question]:
    """At most `count` questions in their own order, chosen by a hash of their ids, so that the
    choice depends neither on order nor on a seed, and a smaller one is part of a larger one."""
    chosen = chosen_ids([question.question_id for question in questions], count)
    return [question for question in questions if question.question_id in chosen]


def chosen_states(states: Sequence[State], count: int | None) -> list[State]:
    """The states of at most `count` questions, chosen as `chosen_questions` does."""
    chosen = chosen_ids([state.question_id for state in states], count)
    return [state for state in states if state.question_id in chosen]


def sample_of(states: Sequence[State], count: int | None) -> list[State]:
    """At most `count` states in their own order, spread over the questions by a hash of their
    ids; which ones does not depend on the seed."""
    chosen = chosen_ids([state.state_id for state in states], count)
    return [state for state in states if state.state_id in chosen]


def chosen_ids(ids: Sequence[str], count: int | None) -> frozenset[str]:
    """At most `count` (None: all) of the ids, those with the smallest SHA-256."""
    return frozenset(sorted(set(ids), key=lambda i: hashlib.sha256(i.encode()).digest())[:count])
