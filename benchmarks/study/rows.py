"""What the study's evaluations measured: each policy's values by question and seed, and each run's
curve of dev discovery against the time that its training took.

A value is the mean over the samples of a state (of policies that are not sampled from: the greedy
action), then over the states of a question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.study.parts import ROWS, metrics, processor_minutes
from rlkit.config import RunConfig
from rlkit.errors import DataError
from rlkit.files import read_json
from rlkit.practice.reward import COUNT_KEYS, RewardCalculator
from rlkit.results.evaluation import METRICS, Evaluation, load_evaluation
from rlkit.results.report_habits import habits
from rlkit.yaml_text import read_yaml

Values = dict[str, float]  # by question


class Row(NamedTuple):
    """A row of the table: which part's evaluation holds it ({} is a seed), as which policy, and
    whether each seed has its own (else the first seed's stands for all)."""

    title: str
    part: str
    policy: str
    seeded: bool = True


POLICIES = {
    "raw_question": Row("raw question, down its ranking", "sft-{}", "raw_question", False),
    "scripted": Row("rule-based script (made the rounds)", "untouched", "scripted", False),
    "untouched": Row("untouched", "sft-{}", "untouched", False),
    "untouched_plain": Row("untouched, untagged lines count", "untouched", "untouched", False),
    "warm_start": Row("warm start", "sft-{}", "warm_start"),
    "grpo": Row("warm start + GRPO", "grpo-{}", "tuned"),
    "sft_continued": Row("SFT continued (GRPO's time)", "sft-continued-{}", "warm_start"),
    "rejection": Row("rejection sampling (GRPO's time)", "rejection-{}", "tuned"),
    "oracle": Row("oracle clues", "sft-{}", "oracle", False),
}
# What is measured of an action beside the evaluation's own metrics; habits are those of the report.
MEASURES = {
    "reward_default": "reward with the default values",
    "per_document": "discovery per document read",
    "documents_read": "documents read",
    "repeated_clues": "repeated clues, share of those written",
    "seen_share": "documents seen before, share of those brought back",
    "only_seen": "actions that bring only seen documents",
    "local_share": "LOCAL, share of new relevant documents",
}


class Rows:
    """The evaluations kept in `rows/` of a study's output. `search` is the params section;
    `only_round` leaves out the states of other rounds."""

    def __init__(
        self, output: Path, seeds: Sequence[int], search: Any, only_round: int | None = None
    ) -> None:
        self.output, self.seeds, self.only_round = output, list(seeds), only_round
        config = RunConfig.from_sections(search=search.model_dump())
        self.defaults = RewardCalculator(config.reward, search.max_clues, search.top_k)
        self._states: dict[str, list[str]] = {}
        self.evaluation, self.actions = cache(self._load), cache(self._actions)

    def _load(self, split: str, name: str) -> Evaluation | None:
        """The evaluation `rows/<split>-<name>.json`; None where it is not there. Raises DataError
        where its states are not those of the split's other rows."""
        path = self.output / ROWS / f"{split}-{name}.json"
        if not path.exists():
            return None
        found = load_evaluation(path)
        states = sorted(state["state_id"] for state in found.states)
        if states != self._states.setdefault(split, states):
            raise DataError(f"{path} has other states than the rows beside it; evaluate it anew.")
        return found

    def _actions(
        self, split: str, name: str, policy: str, greedy: bool = False
    ) -> pd.DataFrame | None:
        """One row an action of a policy, with all that is measured of it; None without any."""
        evaluation = self.evaluation(split, name)
        if evaluation is None or policy not in evaluation.policies:
            return None
        sampled = evaluation.samples[evaluation.samples["policy"] == policy]
        frame = evaluation.frame[evaluation.frame["policy"] == policy]
        kept = frame if greedy or sampled.empty else sampled
        if self.only_round is not None:
            there = {s["state_id"] for s in evaluation.states if s["round"] == self.only_round}
            kept = kept[kept["state_id"].isin(there)]
        return measured(kept, self.defaults)

    def values(self, split: str, row: str, seed: int, metric: str, greedy: bool = False) -> Values:
        """A policy's values by question; {} where it was not evaluated, or not measured so."""
        of = POLICIES[row]
        name = of.part.format(seed if of.seeded else self.seeds[0])
        return by_question(self.actions(split, name, of.policy, greedy), metric)

    def by_seed(self, split: str, row: str, metric: str, greedy: bool = False) -> dict[int, Values]:
        """{seed: values} of the seeds that have them."""
        found = {seed: self.values(split, row, seed, metric, greedy) for seed in self.seeds}
        return {seed: values for seed, values in found.items() if values}


def measured(frame: pd.DataFrame, defaults: RewardCalculator) -> pd.DataFrame:
    """Actions with the columns `MEASURES`, as far as their counts are known."""
    frame = frame.reset_index(drop=True)
    if not set(COUNT_KEYS) <= set(frame.columns):
        return frame
    own = habits(frame)
    frame = frame.assign(**{n: own[n] for n in own if n not in frame.columns})
    counts = frame[list(COUNT_KEYS)].astype("float64").to_dict("records")
    invalid, unknown = frame["invalid"] > 0, frame["reward"].isna()
    rewards = [defaults.of_counts(row) for row in counts]
    rewards = np.where(unknown, np.nan, np.where(invalid, defaults.invalid, rewards))
    read = frame["documents_read"].astype("float64")
    seen = frame[[key for key in COUNT_KEYS if key.endswith("_seen")]].astype("float64").sum(axis=1)
    brought = frame[list(COUNT_KEYS)].astype("float64").sum(axis=1)
    return frame.assign(
        reward_default=rewards,
        per_document=(frame["discovery_rate"] / read).where(read > 0, 0.0),
        seen_share=(seen / brought).where(brought > 0),
    )


def by_question(actions: pd.DataFrame | None, metric: str) -> Values:
    """The mean within each state, then within each question."""
    if actions is None or metric not in actions.columns:
        return {}
    judged = METRICS[metric].judged if metric in METRICS else metric in MEASURES
    kept = actions[actions["reward"].notna()] if judged else actions
    kept = kept[kept[metric].notna()]
    means = kept.groupby(["question_id", "state_id"])[metric].mean().groupby("question_id").mean()
    return {str(question): float(value) for question, value in means.items()}


def averaged(by_seed: Mapping[int, Values]) -> Values:
    """Each question's mean over the seeds, of the questions that all have."""
    found = [*by_seed.values()]
    shared = [q for q in found[0] if all(q in values for values in found)] if found else []
    return {q: float(np.mean([values[q] for values in found])) for q in shared}


class Point(NamedTuple):
    """Dev discovery (greedy; None where it was not evaluated) after so many steps or updates, and
    the minutes spent in them: on the processor and on the clock, evaluations apart. Of a control
    they are minutes of the machine on which its seed's GRPO was trained."""

    step: int
    processor: float
    clock: float
    discovery: float | None


def curve(run: Path) -> list[Point]:
    """The evaluations on dev of `course`."""
    return [point for point in course(run) if point.discovery is not None]


def course(run: Path) -> list[Point]:
    """Every step of a GRPO run (or TRL's), from its metrics; every update of SFT, from the curve
    beside its adapter."""
    path = run / "sft" / "adapter" / "sft_metrics.json"
    rows = metrics(run) or (read_json(path) if path.exists() else [])
    points, processor, clock, minute = [], 0.0, 0.0, 60 * pace(run)
    for row in rows:
        processor += (row.get("cpu_time") or row.get("cpu_seconds") or 0.0) / minute
        clock += (row.get("step_time") or row.get("seconds") or 0.0) / minute
        step = int(row.get("step", row.get("update")))
        points.append(Point(step, processor, clock, row.get("eval/discovery_rate")))
    return points


def pace(run: Path) -> float:
    """How many times as long GRPO's steps take on the machine of a control as on that of its seed's
    GRPO: its budget by GRPO's minutes. 1 of a run without a budget."""
    path = run / "config.yaml"
    config = read_yaml(path) if path.exists() else {}
    budget = [(config.get(section) or {}).get("cpu_minutes") for section in ("sft", "training")]
    minutes = processor_minutes(run.parent / f"study-grpo-{config.get('seed')}")
    return next((b / minutes for b in budget if b and minutes), 1.0)


def first_reaching(points: Sequence[Point], discovery: float) -> Point | None:
    """The first point behind step 0 that is at least so high."""
    return next((p for p in points if p.step and p.discovery >= discovery - 1e-9), None)
