"""Collects a run's rounds: plays a question set with one team for each collector.

    python -m rlkit collect --params params/run1.yaml

Stopping is safe: every finished question is whole on disk, and a second call plays only what is
not there yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlkit.agents.checker import build_checker
from rlkit.agents.executor import Policy, build_policy
from rlkit.agents.prompt import CountTokens
from rlkit.agents.recording import CollectReport, collect
from rlkit.agents.team import Team
from rlkit.errors import DataError
from rlkit.library.bm25 import build_backend
from rlkit.library.corpus import Library
from rlkit.library.orchestrator import SearchOrchestrator
from rlkit.practice.source import chosen_questions, load_library


def collect_run(
    config: Any,
    folder: str | Path,
    policies: Sequence[str] | Mapping[str, Policy] | None = None,
    *,
    library: Library | None = None,
    orchestrator: SearchOrchestrator | None = None,
    progress: Callable[[CollectReport], None] | None = None,
    count_tokens: CountTokens | None = None,
) -> list[CollectReport]:
    """Play the config's questions with each policy and record the rounds below `folder`.

    `policies` are names (raw_question, scripted, served, module:object), or {name: Policy} for models;
    None: `data.collectors`. `progress` is called with the report so far, batch after batch;
    `count_tokens` measures the prompts of `served`.
    Raises DataError where there are no questions to play.
    """
    library = library or load_library(config)
    questions = chosen_questions(library.questions, config.data.max_questions)
    if not questions:
        raise DataError(
            "there are no questions to play, so no rounds can be collected; set "
            "data.questions_path, or give recorded rounds as data.rounds_path."
        )
    if config.checker.kind == "gold" and not any(q.gold_docids for q in questions):
        raise DataError(
            f"none of the {len(questions)} questions has gold documents, so the gold checker can "
            "label nothing; give gold_docids, or name another checker in checker.kind."
        )
    search = config.search
    orchestrator = orchestrator or SearchOrchestrator(
        library.corpus, build_backend(library.corpus, search), search.top_k
    )
    checker = build_checker(config, library.corpus)
    reports = []
    for name, policy in _policies(config, library, policies, count_tokens).items():
        team = Team(
            policy,
            orchestrator,
            checker,
            max_rounds=config.data.max_rounds,
            max_clues=search.max_clues,
            max_documents=search.max_documents,
            plain_lines=config.executor.plain_lines,
            collector=name,
        )
        reports.append(collect(team, questions, folder, progress))
    return reports


def _policies(
    config: Any,
    library: Library,
    policies: Sequence[str] | Mapping[str, Policy] | None,
    count_tokens: CountTokens | None,
) -> dict[str, Policy]:
    if isinstance(policies, Mapping):
        return dict(policies)
    names = config.data.collectors if policies is None else policies
    return {name: build_policy(name, config, library.corpus, count_tokens) for name in names}
