"""A run of task `search` whose actions were stored by the trainer's own writer: recorded rounds on
disk, a search that is a table, hostile texts. Its rewards are worked out by hand in the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rlkit.config import RunConfig
from rlkit.practice.task import SearchTask
from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.rounds.split import Splits
from rlkit.rounds.state import MetaFile, RoundFile, RoundRef
from rlkit.rounds.writer import RoundWriter
from rlkit.run import Run
from rlkit.training.advantages import token_advantages
from rlkit.training.rollout import Group
from rlkit.training.sampling import SampledActions
from tests.practice.toys import make_env
from tests.results.conftest import BROKEN_CELL, SCRIPT

QUESTIONS = {"q1": f"Who built it? {SCRIPT} {BROKEN_CELL}", "q12": "谁建造了灯塔？"}
FOUND = {"gold": "a", "locals": "bef", "nobody": "gh", "chaff": "d", "known": "c"}
VERDICTS = {"a": "IMPORTANT", "b": "LOCAL", "e": "LOCAL", "f": "LOCAL", "c": "LOCAL",
            "d": "DISCARD", "g": None, "h": None}  # fmt: skip
SEEN = ("c",)


def clue(name: str) -> str:
    return f"<clue>{name}</clue>" if name else ""


def make_config(root: Path, **grpo: Any) -> RunConfig:
    return RunConfig.from_sections(run_name="stored", output_root=str(root), grpo=grpo)


def make_stored_run(
    root: Path, steps: Sequence[Mapping[str, Sequence[str]]], verdicts: Any = VERDICTS, **grpo: Any
) -> Run:
    """`steps`: for each step {question_id: the clue of each action}; "" is an empty action."""
    config = make_config(root, **grpo)
    run = Run.open(config)
    for question_id, question in QUESTIONS.items():
        _record(run, question_id, question)
    loader = RLCheckpointLoader(run.rounds_folder, min_clues_per_round=1)
    states = {state.question_id: state for state in loader.extract_training_samples()}
    splits = Splits([*states.values()], [], [], how="random", shared_gold=0)
    task = SearchTask(splits, make_env(FOUND, verdicts), config)
    visits = dict.fromkeys(QUESTIONS, 0)
    for number, groups in enumerate(steps, 1):
        made = [
            _group(task, states[name], visits[name], list(map(clue, clues)))
            for name, clues in groups.items()
        ]
        for group, advantages in zip(
            made, token_advantages(made, config.grpo, Letters()), strict=True
        ):
            group.advantages = advantages
            visits[group.state.question_id] += 1
        run.write_rollouts(number, pd.DataFrame([row for group in made for row in group.rows()]))
    return run


class Letters:
    """A tokenizer whose only token is a letter; for the pieces of an action's text."""

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "x" * len(ids)


def _group(task: SearchTask, state: Any, visit: int, texts: list[str]) -> Group:
    k = len(texts)
    sampled = SampledActions(
        torch.ones(k, 2, dtype=torch.int64),
        torch.ones(k, 2, dtype=torch.bool),
        torch.zeros(k, 2),
        torch.ones(k, dtype=torch.bool),
    )
    return Group(state, visit, [1, 2, 3], sampled, texts, task.score(state, texts))


def _record(run: Run, question_id: str, question: str) -> None:
    before = RoundFile(schema_=1, round=0, seen_docids=SEEN)
    after = RoundFile(schema_=1, round=1, strategy="SEARCH", clues=("x",), seen_docids=SEEN)
    ref = RoundRef(round=1, strategy="SEARCH", subgoal=f"find {SCRIPT}", clues=("x",),
                   checkpoint="round_001.json")  # fmt: skip
    meta = MetaFile(schema_=1, question_id=question_id, question=question, gold_docids=("a", "b"),
                    status="finished", rounds=(ref,))  # fmt: skip
    RoundWriter(run.rounds_folder).write_run(meta, [before, after])
