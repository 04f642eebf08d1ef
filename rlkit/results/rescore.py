"""What the stored actions of a run would have earned with other reward values: from the counts of
verdicts that were stored with them, with no model, checker or search.

    found = rescore("run1", {"important_new": 3.0, "local_new": 0.1})
    print(found)        # how many groups would rank their actions differently
    found.groups        # which
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlkit.config import RunConfig
from rlkit.errors import RunError
from rlkit.practice.reward import COUNT_KEYS, RewardCalculator, compute_group_advantages
from rlkit.results.actions import GROUP, StoredActions, named_run
from rlkit.run import Run
from rlkit.section import shown

_COLUMNS = ["state_id", "question_id", "visit", "action", "reward", "advantage", "invalid"]


@dataclass(frozen=True)
class Rescored:
    """Stored actions under other reward values.

    `actions`: one row an action with `reward`, `advantage` and `new_reward`, `new_advantage`; NaN
    where no document could be judged, before and after. `groups`: one row a group: `n` actions
    with a reward, whether rewards `differ` and would (`new_differ`), and, of those that differ
    both times, whether the set of the best actions changes (`first_changed`) or any pair's order
    does (`order_changed`; a tie is an order, too). `summary`: counts of groups and of how many.
    """

    values: dict[str, tuple[float, float]]  # what changed: stored, new
    actions: pd.DataFrame
    groups: pd.DataFrame

    @property
    def summary(self) -> pd.DataFrame:
        """One row a question asked of the groups: how many, of `n`."""
        before, after = self.groups["differ"], self.groups["new_differ"]
        both = self.groups[before & after]
        rows = {
            "rewards differ": (before.sum(), len(before)),
            "rewards would differ": (after.sum(), len(before)),
            "gain variance": ((~before & after).sum(), len(before)),
            "lose variance": ((before & ~after).sum(), len(before)),
            "another first choice": (both["first_changed"].sum(), len(both)),
            "another order": (both["order_changed"].sum(), len(both)),
        }
        return pd.DataFrame(rows, index=["groups", "n"]).T.astype(int)

    def __str__(self) -> str:
        changed = [f"{key} {old:g} -> {new:g}" for key, (old, new) in self.values.items()]
        count, unjudged = self.summary["groups"], int(self.actions["reward"].isna().sum())
        return (
            f"{', '.join(changed) or 'the same values'}: of {len(self.groups)} groups "
            f"({len(self.actions)} actions, {unjudged} without a reward) "
            f"{count['gain variance']} would gain variance and {count['lose variance']} lose it; "
            f"of the {self.summary['n']['another order']} whose rewards differ both times "
            f"{count['another first choice']} would have another first choice, "
            f"{count['another order']} another order."
        )

    __repr__ = __str__


def rescore(
    run: Run | str | Path,
    values: Mapping[str, float | None],
    *,
    steps: Iterable[int] | None = None,
    output_root: str | Path = "outputs",
) -> Rescored:
    """Rewards and advantages of a run's stored actions with other reward values.

    `values` are keys of the params section `reward`; the rest stay. The reward of an invalid
    action is worked out anew unless it is among them; a value that the run was given stays while
    it is low enough. The same values give the stored rewards and advantages, bit for bit. With
    `grpo.credit: clue` advantages are those of the whole actions, and `advantage` is worked out
    from the stored rewards: the stored one belongs to an action's first token.

    Raises ConfigError for a value that is none, RunError where the actions have no documents
    (answers have none) or were not scored with the run's values.
    """
    run = named_run(run, output_root)
    config = _changed(run.config, values)
    if run.config.reward.function is not None:
        raise RunError(
            f"{run.folder}: its actions were scored by reward.function "
            f"{run.config.reward.function}, and counts alone cannot tell what other values would "
            "make of them; only runs without a reward of one's own can be scored again."
        )
    stored = StoredActions(run)
    frame = stored.frame(_with_counts(stored), steps).astype({"reward": float})  # all may be None
    scale = config.grpo.scale_rewards
    frame["new_reward"] = _rewards(frame, run.config)
    _refuse_other_scores(frame)
    if config.grpo.credit == "clue":
        frame["advantage"] = action_advantages(frame, "reward", scale)
    frame["new_reward"] = _rewards(frame, config)
    frame["new_advantage"] = action_advantages(frame, "new_reward", scale)
    old, new = (c.reward.model_dump() for c in (run.config, config))
    return Rescored(
        {key: (old[key], new[key]) for key in old if old[key] != new[key]},
        frame.drop(columns=["invalid", *COUNT_KEYS]),
        _groups(frame),
    )


def _changed(config: RunConfig, values: Mapping[str, float | None]) -> RunConfig:
    if not values:
        return config
    changes = [f"reward.{key}={shown(value)}" for key, value in values.items()]
    if "invalid" in values:
        return config.with_overrides(*changes)
    changed = config.with_overrides(*changes, "reward.invalid=null")
    if "invalid" in config.reward.model_fields_set:  # the run's own, while it is low enough
        lowest = min(config.reward.invalid, changed.reward.invalid)
        return config.with_overrides(*changes, f"reward.invalid={lowest}")
    return changed


def _with_counts(stored: StoredActions) -> list[str]:
    lacking = [k for k in ("invalid", *COUNT_KEYS) if k not in stored.columns(stored.steps[0])]
    if lacking:
        raise RunError(
            f"{stored.folder}: these actions have no counts of judged documents "
            f"({lacking[0]} and others are missing), as those of task answers have none; only "
            "actions of task search can be scored with other reward values."
        )
    return [*_COLUMNS, *COUNT_KEYS]


def _rewards(frame: pd.DataFrame, config: RunConfig) -> list[float | None]:
    """As `RewardCalculator.compute_reward` has it, from the counts; an action without a reward
    has none under any values."""
    search = config.search
    calculator = RewardCalculator(config.reward, search.max_clues, search.top_k)
    counted = frame[list(COUNT_KEYS)].to_dict("records")  # ints of Python: numpy rounds otherwise
    return [
        np.nan if unknown else calculator.invalid if invalid else calculator.of_counts(counts)
        for unknown, invalid, counts in zip(
            frame["reward"].isna(), frame["invalid"], counted, strict=True
        )
    ]


def _refuse_other_scores(frame: pd.DataFrame) -> None:
    other = frame[frame["reward"].notna() & (frame["reward"] != frame["new_reward"])]
    if len(other):
        first = other.iloc[0]
        raise RunError(
            f"{len(other)} of {len(frame)} stored rewards are not what the run's reward values "
            f"give (first {first['reward']:g} for {first['state_id']} at step {first['step']}, "
            f"where they give {first['new_reward']:g}): the task scores in another way, or "
            "config.yaml was changed; restore it."
        )


def action_advantages(frame: pd.DataFrame, column: str, scale: str) -> np.ndarray:
    """The advantage of every action, by the trainer's own formula, step by step. `frame`: whole
    steps, with `step`, `state_id`, `visit` and the rewards in `column` (NaN: none)."""
    result, steps, rewards = (
        np.zeros(len(frame)),
        frame["step"].to_numpy(),
        frame[column].to_numpy(),
    )
    for _, groups in groupby(_places(frame), key=lambda at: steps[at[0]]):
        step = list(groups)
        known = [[None if np.isnan(r) else float(r) for r in rewards[at]] for at in step]
        for at, advantages in zip(step, _of_step(known, scale), strict=True):
            result[at] = advantages
    return result


def _places(frame: pd.DataFrame) -> list[np.ndarray]:
    """Where each group's actions stand in the frame, the groups as they were sampled."""
    number = frame.groupby(GROUP, sort=False).ngroup().to_numpy()
    order = np.argsort(number, kind="stable")
    return np.split(order, np.bincount(number).cumsum()[:-1])


def _of_step(rewards: Sequence[Sequence[float | None]], scale: str) -> list[np.ndarray]:
    if scale == "group":
        return [compute_group_advantages(group) for group in rewards]
    from rlkit.training.grpo import scaled_advantages, step_divisor  # loads torch

    divisor = step_divisor(rewards, scale)
    return [scaled_advantages(group, divisor) for group in rewards]


def _groups(frame: pd.DataFrame) -> pd.DataFrame:
    places, rewards = _places(frame), frame[["reward", "new_reward"]].to_numpy()
    keys = frame.iloc[[at[0] for at in places]][[*GROUP, "question_id"]].reset_index(drop=True)
    return keys.join(pd.DataFrame([_compared(*rewards[at].T) for at in places]))


def _compared(rewards: np.ndarray, new_rewards: np.ndarray) -> dict[str, Any]:
    """One group under both sets of values."""
    known = ~np.isnan(rewards)
    old, new = (np.unique(r[known], return_inverse=True)[1] for r in (rewards, new_rewards))
    differ, new_differ = bool(old.any()), bool(new.any())  # ranks, from 0
    both = differ and new_differ
    return {
        "n": int(known.sum()),
        "differ": differ,
        "new_differ": new_differ,
        "first_changed": both and not np.array_equal(old == old.max(), new == new.max()),
        "order_changed": both and not np.array_equal(old, new),
    }
