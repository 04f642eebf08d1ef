"""Plays whole questions with one team for each policy, all else the same, and compares the teams.

    python -m rlkit eval --teams --policy raw_question served --params params/live.yaml

Games are recorded under `teams/` in the run's folder, as `collect` records rounds: stopping is
safe, and a second call plays only what is not there yet. The comparison is kept as `teams.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlkit.agents.executor import QuestionFirst
from rlkit.agents.recording import CollectReport, collect, now_and_then
from rlkit.agents.served import served_policy
from rlkit.errors import RunError
from rlkit.library.corpus import Question
from rlkit.practice.collect_run import build_team, close
from rlkit.practice.source import chosen_questions, load_library
from rlkit.practice.task import build_search_task
from rlkit.results.compare import open_run, wanted_policies
from rlkit.results.players import identity
from rlkit.results.teams import Game, TeamComparison, final_answer, game_row
from rlkit.rounds.reading import DamagedFile, read_recorded
from rlkit.rounds.state import FINISHED, MetaFile, RoundFile, State
from rlkit.rounds.writer import META_NAME, round_name, run_folders
from rlkit.training.policy import prompt_counter

NAME = "teams.json"


def compare_teams(
    config: Any,
    *,
    baseline: bool = False,
    checkpoints: Sequence[str | Path] = (),
    log: Callable[[str], None] = print,
    progress: Callable[[CollectReport], None] | None = None,
) -> TeamComparison:
    """Let the teams of `evaluation.policies` play the questions of `evaluation.split`, and keep
    the comparison in the run's folder. Planner, judge and entity manager are those of `config`.

    `baseline` and `checkpoints` choose among the policies as in `evaluate_run`. Raises RunError
    where the split holds no question, and, before anything is played, AgentError where the server
    of `served`, or its model, is not there.
    """
    if "served" in config.evaluation.policies and (baseline or not checkpoints):
        close(served_policy(config, prompt_counter(config), log=lambda line: None))
    run = open_run(config)
    task = build_search_task(
        config, run, progress=now_and_then(log), count_tokens=prompt_counter(config)
    )
    states = task.splits.part(config.evaluation.split)
    questions = split_questions(config, states)
    if not questions:
        raise RunError(
            f"the split {config.evaluation.split!r} holds no question; give more questions, or "
            "another evaluation.split."
        )
    policies, checkpoints_of = wanted_policies(config, run, task, baseline, checkpoints, log)
    games: dict[str, dict[str, Game]] = {}
    root = run.folder / "teams"
    with ExitStack() as closing:
        for name, policy in policies.items():
            player = identity(name, policy, checkpoints_of.get(name))
            if config.evaluation.question_first:
                policy = QuestionFirst(policy, config.executor.layout)
                player = f"{player} behind the question"
            team = build_team(config, policy, task.env.orchestrator, task.env.checker, player)
            for agent in (policy, team.planner, team.entities, team.checker):
                closing.callback(close, agent)
            log(str(collect(team, questions, root, progress)))
            games[name] = recorded_games(root, questions, team.collector)
    comparison = compared(config, games, questions, states)
    log(f"teams: {comparison.save(run.folder / NAME)}")
    return comparison


def compared(
    config: Any,
    games: Mapping[str, Mapping[str, Game]],
    questions: Sequence[Question],
    states: Sequence[State],
) -> TeamComparison:
    """The rows of all games, and what was asked of everybody."""
    known = known_documents(states)
    rows = []
    for team, played in games.items():
        answers = any(final_answer(game) for game in played.values())
        rows += [
            game_row(team, game, known[question], config.data.max_rounds, answers)
            for question, game in played.items()
        ]
    kinds = {"gold" if state.gold_docids else "recorded" for state in states}
    facts = {
        "split": config.evaluation.split,
        "known": kinds.pop() if len(kinds) == 1 else "mixed",
        "questions": len(questions),
        "max_rounds": config.data.max_rounds,
        "question_first": config.evaluation.question_first,
        "planner": config.data.planner,
        "entities": config.data.entities,
        "checker": config.checker.kind,
    }
    return TeamComparison.of(rows, facts)


def known_documents(states: Sequence[State]) -> dict[str, frozenset[str]]:
    """By question: the gold documents, or those that any record of it labels IMPORTANT."""
    known: dict[str, frozenset[str]] = {}
    for state in states:
        known[state.question_id] = known.get(state.question_id, frozenset()) | state.known_important
    return known


def split_questions(config: Any, states: Sequence[State]) -> list[Question]:
    """The questions of a split, at most `evaluation.max_questions`; their answers are known where
    the library holds the questions."""
    library = load_library(config)
    asked = {question.question_id: question for question in library.questions}
    known, found = known_documents(states), {}
    for state in states:
        gold = state.gold_docids or tuple(sorted(known[state.question_id]))
        answer = getattr(asked.get(state.question_id), "answer", None)
        found[state.question_id] = Question(
            state.question_id, state.question, answer, gold, state.hops
        )
    return chosen_questions(list(found.values()), config.evaluation.max_questions)


def recorded_games(root: Path, questions: Sequence[Question], collector: str) -> dict[str, Game]:
    """By question: what a collector recorded last, a finished game before a failed one."""
    games: dict[str, Game] = {}
    for question in questions:
        for folder in run_folders(root / question.question_id):
            game = _game(folder)
            if game is None or game.meta.collector != collector:
                continue
            kept = games.get(question.question_id)
            if kept is None or game.meta.status == FINISHED or kept.meta.status != FINISHED:
                games[question.question_id] = game
    return games


def _game(folder: Path) -> Game | None:
    """One recorded run; None where a file of it is damaged."""
    try:
        meta = read_recorded(folder / META_NAME, MetaFile)
        names = [round_name(0), *(ref.checkpoint for ref in meta.rounds)]
        return Game(meta, [read_recorded(folder / name, RoundFile) for name in names])
    except DamagedFile:
        return None
