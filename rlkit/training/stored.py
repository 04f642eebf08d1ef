"""The groups of a run's `rollouts/*.parquet`, rebuilt as they were trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rlkit.errors import DataError, RunError
from rlkit.practice.seam import Score
from rlkit.run import Run
from rlkit.training.rollout import Group
from rlkit.training.sampling import SampledActions
from rlkit.training.text import encode_prompt

STEPS = 2  # enough for a hint; in a comparison of losses each group costs some backward passes


def chosen_actions(run: Run, steps: Sequence[int] | None) -> pd.DataFrame:
    """The actions of some steps, in the order in which they were sampled; by default the last
    STEPS steps in which rewards differ within a group, or just the last ones where none is such.

    Raises RunError where the run has none."""
    if steps is not None:
        return pd.concat([run.read_rollouts(step) for step in steps], ignore_index=True)
    rollouts = run.read_rollouts()
    if rollouts.empty:
        raise RunError(f"{run.rollouts_folder} holds no actions yet; train first.")
    rewards = rollouts.groupby(["step", "state_id", "visit"])["reward"].nunique()
    differ = sorted(set(rewards[rewards > 1].index.get_level_values("step")))
    kept = differ[-STEPS:] or sorted(set(rollouts["step"]))[-STEPS:]
    return rollouts[rollouts["step"].isin(kept)]


def stored_groups(
    actions: pd.DataFrame, task: Any, tokenizer: Any, config: Any, device: Any = "cpu"
) -> list[Group]:
    """The groups of one step, rebuilt from its rows of the rollouts, in their order.

    Raises DataError where `task` does not have a state, or gives it a prompt of another length.
    """
    states = {state.state_id: state for state in task.states("train")}
    groups = []
    for (state_id, visit), rows in actions.groupby(["state_id", "visit"], sort=False):
        if state_id not in states:
            raise DataError(
                f"the state {state_id!r} of the stored actions is not among the task's training "
                "states; give the task of the run."
            )
        messages = task.prompt(states[state_id])
        prompt = encode_prompt(tokenizer, messages, config.model.enable_thinking)
        if len(prompt) != rows["prompt_tokens"].iloc[0]:
            raise DataError(
                f"the prompt of {state_id!r} has {len(prompt)} tokens, and had "
                f"{rows['prompt_tokens'].iloc[0]} when its actions were sampled; give the task, "
                "the tokenizer and the token counter of the run."
            )
        groups.append(_group(states[state_id], int(visit), prompt, rows, device))
    return groups


def _group(state: Any, visit: int, prompt: list[int], rows: pd.DataFrame, device: Any) -> Group:
    lengths = [len(ids) for ids in rows["token_ids"]]
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]  # (K, C)

    def padded(name: str, dtype: torch.dtype) -> Tensor | None:
        if name not in rows or rows[name].isna().any():
            return None
        table = torch.zeros(mask.shape, dtype=dtype)
        table[mask] = torch.from_numpy(np.concatenate(rows[name].tolist())).to(dtype)
        return table.to(device)

    sampled = SampledActions(
        padded("token_ids", torch.int64),
        mask.to(device),
        padded("sampled_logp", torch.float32),
        torch.tensor(rows["ended"].tolist()),
    )
    scores = [
        Score(None if pd.isna(row["reward"]) else float(row["reward"]), row)
        for row in rows.to_dict("records")
    ]
    group = Group(state, visit, prompt, sampled, rows["text"].tolist(), scores)
    group.old_logp = padded("policy_logp", torch.float64)
    group.ref_logp = padded("reference_logp", torch.float64)
    group.weights = padded("importance_weight", torch.float64)
    return group
