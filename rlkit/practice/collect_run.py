"""Collects a run's rounds: plays a question set with one team for each collector.

    python -m rlkit collect --params params/run1.yaml

Stopping is safe: every finished question is whole on disk, and a second call plays only what is
not there yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlkit.agents.checker import DocumentChecker, build_checker
from rlkit.agents.entities import build_entities
from rlkit.agents.executor import Policy, build_policy
from rlkit.agents.planner import build_planner
from rlkit.agents.prompt import CountTokens
from rlkit.agents.recording import CollectReport, collect
from rlkit.agents.team import Team
from rlkit.errors import DataError
from rlkit.library.bm25 import build_backend
from rlkit.library.corpus import Library
from rlkit.library.orchestrator import SearchOrchestrator
from rlkit.practice.source import chosen_questions, index_folder, load_library


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

    `policies` are names (raw_question, scripted, served, module:object), or {name: Policy} for
    models; None: `data.collectors`. `progress` is called with the report so far, question after
    question and now and then in between; `count_tokens` measures the prompts of `served`. Raises
    DataError where there are no questions to play, and AgentError where a server is not there.
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
        library.corpus,
        build_backend(library.corpus, search, index_folder(config)),
        search.top_k,
    )
    reports = []
    with ExitStack() as closing:  # also at an interrupt: it ends what threads still wait for
        checker = build_checker(config, library.corpus)
        closing.callback(close, checker)
        for name, policy in _policies(config, library, policies, count_tokens).items():
            team = build_team(config, policy, orchestrator, checker, name)
            mine = () if isinstance(policies, Mapping) else (policy,)
            for agent in (team.planner, team.entities, *mine):
                closing.callback(close, agent)
            reports.append(collect(team, questions, folder, progress))
    return reports


def build_team(
    config: Any,
    policy: Policy,
    orchestrator: SearchOrchestrator,
    checker: DocumentChecker,
    collector: str = "team",
) -> Team:
    """The team of a RunConfig around an Executor. Checker, planner and entity manager, where a
    server's model plays them, share a client, so that `checker.concurrency` bounds all of them."""
    corpus, search = orchestrator.corpus, config.search
    client = checker.client if config.checker.kind == "llm" else None
    if client is None and "llm" in (config.data.planner, config.data.entities):
        from rlkit.agents.llm import ChatClient  # brings the openai client along

        client = ChatClient.from_config(config)
    return Team(
        policy,
        orchestrator,
        checker,
        build_planner(config, corpus, client),
        build_entities(config, corpus, client),
        max_rounds=config.data.max_rounds,
        max_clues=search.max_clues,
        max_documents=search.max_documents,
        plain_lines=config.executor.plain_lines,
        collector=collector,
        concurrency=config.checker.concurrency,
        prices=(config.monitoring.price_in, config.monitoring.price_out),
    )


def close(agent: object) -> None:
    """Close an agent, or the client that it asks a server through; most have neither."""
    owner = agent if hasattr(agent, "close") else getattr(agent, "client", None)
    if owner is not None:
        owner.close()


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
