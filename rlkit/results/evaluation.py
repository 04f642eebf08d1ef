"""What came of policies on held-out states, kept as `evaluation.json`.

    evaluation = load_evaluation(run.evaluation_path)
    evaluation.summary()        # per policy and metric: mean over questions, 95 % interval, n
    evaluation.differences()    # tuned minus the others, paired by question
    evaluation.by("hops")       # the primary metric by hops, round or difficulty (breakdown.py)

A metric is averaged within a question first, then over questions. Actions whose reward is None
(nothing could be judged) are counted as unjudged and enter no average of what was found. The
discovery rate leaves out states with nothing missing, and counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rlkit.errors import DataError
from rlkit.files import read_json, write_json
from rlkit.practice.reward import COUNT_KEYS
from rlkit.results import breakdown
from rlkit.results.statistics import (
    SHARE,
    Bounds,
    Interval,
    PairedInterval,
    holm,
    mean_interval,
    paired_interval,
)

SCHEMA = 1
BASELINES = ("untouched", "warm_start", "raw_question")
NOT_TUNED = (*BASELINES, "scripted", "oracle")
NAMES = {
    "raw_question": "raw question",
    "untouched": "untouched model",
    "warm_start": "warm start",
    "scripted": "scripted Executor",
    "tuned": "tuned Executor",
    "served": "served Executor",
    "oracle": "oracle",
}
REWARD_PARTS = COUNT_KEYS


class Metric(NamedTuple):
    """A column of the evaluation: its title, its unit, whether it needs a judged action, and
    whether it is 0 or 1 for each, so that its mean is a share with an exact interval."""

    title: str
    unit: str
    judged: bool
    share: bool = False


METRICS = {
    "reward": Metric("Reward", "per action", True),
    "reward_without_seen": Metric("Reward without seen documents", "per action", True),
    "important_rate": Metric("Important rate", "share of documents read", True),
    "discovery_rate": Metric("Discovery rate", "share of missing documents", True),
    "n_clues": Metric("Clues", "per action", False),
    "invalid": Metric("Invalid actions", "share of actions", False),
}
PRIMARY = "discovery_rate"
_COLUMNS = ("policy", "state_id", "question_id", "completion")
_SAMPLE_COLUMNS = ("policy", "state_id", "question_id", "sample", "completion")
# of the search's samples, where they are known: what an action read and repeated
_SAMPLE_COUNTS = (*COUNT_KEYS, "documents_read", "distinct_clue_ratio")
_SEARCH_COLUMNS = ("hops", "round", "unjudged", "documents_read", "clues", "documents")
_STATE_KEYS = (
    "state_id", "question_id", "question", "subgoal", "round", "hops", "n_seen", "n_missing",
    "missing",
)  # fmt: skip
PROMPT_SUM = "prompt_sha256"  # of a state; files of before lack it
_WORKED_OUT = ("schema", "n_questions", "n_states", "nothing_missing", "summary", "differences",
    "breakdowns")  # fmt: skip
MAYBE_UNRECORDED = ("corpus_fingerprint", "judge")  # facts that files of before lack
_BY_POLICY = ("adapters", "precisions")  # facts that each policy has for itself
_WHOLE = ("hops", "round", "unjudged", "documents_read")


@dataclass(frozen=True)
class Evaluation:
    """One row a (policy, state) in `frame`, what each state showed in `states`, and the `facts`;
    in `samples` one row a (policy, state, sample), of policies that were sampled from as well.

    facts: `split`, `split_sizes`, for the search task `known` (gold, recorded or mixed),
    `reward_values`, `corpus_fingerprint`, `judge`, and `left_out`, the split's states that the task
    never gave, since they have nothing missing; for other tasks `metrics` and `primary`, where they
    have their own; `adapters`, {policy: {folder, step, sha256, precision}} of those that a
    checkpoint or a whole model (`whole`: True) plays, from the run's folder; and `precisions`,
    {policy: words} of all that a model plays here.
    """

    frame: pd.DataFrame
    states: tuple[dict[str, Any], ...]
    facts: dict[str, Any] = field(default_factory=dict)
    samples: pd.DataFrame = field(default_factory=lambda: _sample_frame([], {}))

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Any]],
        states: Sequence[dict[str, Any]],
        facts: Mapping[str, Any],
        samples: Sequence[Mapping[str, Any]] = (),
    ) -> Evaluation:
        """An evaluation of plain rows. Raises ValueError where a number is none."""
        frames = _frame(rows, facts), _sample_frame(samples, facts)
        return cls(frames[0], tuple(states), dict(facts), frames[1])

    @property
    def policies(self) -> list[str]:
        """The policies' names in the order in which they were evaluated."""
        return list(dict.fromkeys(self.frame["policy"]))

    @property
    def metrics(self) -> dict[str, Metric]:
        """The columns that are compared, by name."""
        own = self.facts.get("metrics")
        return {name: Metric(*row) for name, row in own.items()} if own else METRICS

    @property
    def primary(self) -> str:
        """The metric of the headline."""
        return self.facts.get("primary", PRIMARY)

    @property
    def names(self) -> dict[str, str]:
        """What the policies are called in words."""
        return policy_names("metrics" not in self.facts)

    @property
    def n_questions(self) -> int:
        return len({state["question_id"] for state in self.states})

    @property
    def nothing_missing(self) -> int:
        """States that the discovery rate leaves out, since they have nothing missing; those that
        the task had left out of the split before are among them."""
        return self.facts.get("left_out", 0) + sum(s["n_missing"] == 0 for s in self.states)

    @property
    def has_prompts(self) -> bool:
        """Whether every state tells what its prompt was."""
        return all(PROMPT_SUM in state for state in self.states)

    def judged_rows(self, policy: str, metric: str) -> pd.DataFrame:
        """The policy's rows that have a value of the metric (see the head of this file)."""
        rows = self.frame[self.frame["policy"] == policy]
        if self.metrics[metric].judged:
            rows = rows[rows["reward"].notna()]
        return rows[rows[metric].notna()]

    def question_values(self, policy: str, metric: str) -> dict[str, float]:
        """The metric of each question: the mean over its states, in the order of the ids."""
        rows = self.judged_rows(policy, metric)
        return rows.groupby("question_id")[metric].mean().to_dict()

    def interval(self, policy: str, metric: str) -> Interval:
        """Mean over questions of the metric, with its 95 % interval."""
        return mean_interval(self.question_values(policy, metric).values(), self.bounds(metric))

    def bounds(self, metric: str) -> Bounds:
        """Between what the metric's values lie."""
        found = self.metrics[metric]
        return SHARE if found.share else breakdown.bounds_of(metric, found.unit)

    def paired(self, policy: str, baseline: str, metric: str) -> tuple[dict, dict]:
        """Both policies' values by question, over the states that count under both."""
        ours, theirs = (self.judged_rows(name, metric) for name in (policy, baseline))
        both = set(ours["state_id"]) & set(theirs["state_id"])
        values = (
            rows[rows["state_id"].isin(both)].groupby("question_id")[metric].mean().to_dict()
            for rows in (ours, theirs)
        )
        return tuple(values)

    def difference(self, policy: str, baseline: str, metric: str) -> PairedInterval:
        """Mean of policy - baseline over questions, with its 95 % interval; of a share p is that
        of McNemar's exact test."""
        pair, most = self.paired(policy, baseline, metric), self.largest_difference(metric)
        return paired_interval(*pair, self.metrics[metric].share, most)

    def largest_difference(self, metric: str) -> float:
        """By how much two values of the metric can differ at most."""
        low, high = self.bounds(metric)
        return high - low

    def by(self, column: str, metric: str | None = None) -> pd.DataFrame:
        """A metric (default: the primary one) by `hops`, `round`, `difficulty` or another column of
        the states, see `breakdown.by`."""
        return breakdown.by(self, column, metric)

    def breakdowns(self) -> dict[str, list[dict[str, Any]]]:
        """By each of `breakdown.COLUMNS`: the rows of `by`, of the primary metric and reward."""
        wanted = dict.fromkeys([self.primary, "reward"])
        return {
            column: [row for metric in wanted for row in records(self.by(column, metric))]
            for column in breakdown.COLUMNS
            if column == "difficulty" or (self.states and column in self.states[0])
        }

    def summary(self) -> pd.DataFrame:
        """One row a (policy, metric): mean, low, high, n_questions, caution (why it has no
        interval), n_states, unjudged_actions. Below them, where there are samples, those of
        `breakdown.sampled_rows`."""
        rows = []
        for policy in self.policies:
            unjudged = int(self.frame.loc[self.frame["policy"] == policy, "reward"].isna().sum())
            for metric in self.metrics:
                found = breakdown.columns_of(self.interval(policy, metric))
                n_states = len(self.judged_rows(policy, metric))
                counts = {"n_states": n_states, "unjudged_actions": unjudged}
                rows.append({"policy": policy, "metric": metric} | found | counts)
        return pd.DataFrame(rows + breakdown.sampled_rows(self))

    def pairs(self) -> list[tuple[str, str]]:
        """Whom to compare with whom: `policy_pairs`, and last each whole model with the tuned
        policy, which shows whether merging lost anything."""
        played = self.facts.get("adapters", {})
        whole = [name for name in self.policies if played.get(name, {}).get("whole")]
        merged = [(name, "tuned") for name in whole if "tuned" in self.policies]
        return policy_pairs(self.policies) + merged

    def differences(self) -> pd.DataFrame:
        """One row a (pair, metric): mean of policy - baseline by question, interval, p, verdict,
        caution; `p_holm` is p, adjusted for all rows of the table (Holm)."""
        rows = []
        for policy, baseline in self.pairs():
            for metric in self.metrics:
                interval = self.difference(policy, baseline, metric)
                row = {"policy": policy, "baseline": baseline, "metric": metric}
                said = {"verdict": interval.verdict, "caution": interval.caution}
                rows.append(row | interval._asdict() | said)
        columns = ["policy", "baseline", "metric", *PairedInterval._fields, "verdict", "caution"]
        table = pd.DataFrame(rows, columns=columns)
        adjusted = pd.Series(holm([row["p"] for row in rows]), dtype="float64")
        table.insert(table.columns.get_loc("p") + 1, "p_holm", adjusted)
        return table

    def joined(self, earlier: Evaluation) -> Evaluation | None:
        """This evaluation with the policies that only an earlier one has; None where they cannot
        stand side by side, since states or facts differ. Samples of before stay where none are
        drawn anew, and the policy is played by the same checkpoint and writes the same."""
        if _comparable(self, earlier) != _comparable(earlier, self):
            return None
        frames = {name: e.frame for e in (earlier, self) for name in e.policies}
        names = sorted(frames, key="oracle".__eq__)  # what could be had at most stays last
        rows = [row for n in names for row in records(frames[n][frames[n]["policy"] == n])]
        played = {
            fact: {n: v for n, v in earlier.facts.get(fact, {}).items() if n not in self.policies}
            | self.facts.get(fact, {})
            for fact in _BY_POLICY
            if fact in earlier.facts or fact in self.facts
        }
        others = [n for n in earlier.samples["policy"].unique() if self._plays_as(earlier, n)]
        before = earlier.samples[earlier.samples["policy"].isin(others)]
        samples = [*records(before), *records(self.samples)]
        return Evaluation.of(rows, self.states, self.facts | played, samples)

    def _plays_as(self, earlier: Evaluation, policy: str) -> bool:
        """Whether the earlier samples of a policy still are what it samples."""
        if policy not in self.policies:
            return True
        before, now = (e.facts.get("adapters", {}).get(policy, {}) for e in (earlier, self))
        both = before.keys() & now.keys()
        compared = both - ({"folder", "step"} if "sha256" in both else set())  # it may have moved
        same = all(before[key] == now[key] for key in compared)
        sampled = policy in set(self.samples["policy"])
        return same and not sampled and self._written(policy) == earlier._written(policy)

    def _written(self, policy: str) -> dict[str, str]:
        rows = self.frame[self.frame["policy"] == policy]
        return dict(zip(rows["state_id"], rows["completion"], strict=True))

    def save(self, path: str | Path) -> Path:
        """Write `evaluation.json` (schema 1) so that it appears whole; NaN becomes null."""
        return write_json(
            path,
            {
                "schema": SCHEMA,
                **self.facts,
                "n_questions": self.n_questions,
                "n_states": len(self.states),
                "nothing_missing": self.nothing_missing,
                "summary": records(self.summary()),
                "differences": records(self.differences()),
                "breakdowns": self.breakdowns(),
                "states": list(self.states),
                "rows": records(self.frame),
                "samples": records(self.samples),
            },
        )


def policy_names(search: bool) -> dict[str, str]:
    """What the policies of the search task, or of another, are called in words."""
    return NAMES if search else NAMES | {"tuned": "tuned model"}


def policy_pairs(policies: Sequence[str]) -> list[tuple[str, str]]:
    """Which of the policies are compared: each tuned one with each baseline, the warm start with
    the untouched model, and the served Executor with the same one at home."""
    tuned = [name for name in policies if name not in NOT_TUNED]
    wanted = [(policy, base) for policy in tuned for base in BASELINES]
    wanted += [("warm_start", "untouched"), ("served", "tuned")]
    return [pair for pair in wanted if set(pair) <= set(policies)]


def load_evaluation(path: str | Path) -> Evaluation:
    """Read what `Evaluation.save` wrote.

    Raises DataError where the file is missing, damaged, or of another schema.
    """
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise DataError(f"{path} has schema {found!r}, not {SCHEMA}; evaluate the run again.")
    data.setdefault("samples", [])  # files of before have none
    lists = ("rows", "states", "samples")
    if not all(isinstance(data.get(name), list) for name in lists):
        raise DataError(f"{path} lacks its lists 'rows' and 'states'; evaluate the run again.")
    facts = {k: v for k, v in data.items() if k not in (*_WORKED_OUT, *lists)}
    needed = zip(lists, (_columns(facts), _STATE_KEYS, _sample_columns(facts)), strict=True)
    for kind, wanted in needed:
        for number, row in enumerate(data[kind]):
            missing = [k for k in wanted if k not in row] if isinstance(row, dict) else wanted
            if missing:
                raise DataError(
                    f"{path}: {kind}[{number}] lacks {missing[0]!r}; evaluate the run again."
                )
    try:
        return Evaluation.of(data["rows"], data["states"], facts, data["samples"])
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: a value in its rows is no number ({error}); evaluate the run again."
        ) from error


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The frame's rows as plain JSON values: numpy scalars become Python's, NaN becomes None."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _comparable(evaluation: Evaluation, other: Evaluation) -> tuple[Any, Any]:
    """What must be equal for two evaluations to stand side by side. What the other did not record
    cannot be compared."""
    left_out = {*_BY_POLICY, *(k for k in MAYBE_UNRECORDED if k not in other.facts)}
    prompts = [PROMPT_SUM] * (evaluation.has_prompts and other.has_prompts)
    wanted = *_STATE_KEYS, *prompts
    states = [{key: state.get(key) for key in wanted} for state in evaluation.states]
    return states, {k: v for k, v in evaluation.facts.items() if k not in left_out}


def _columns(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """What every row has: the metrics, and for the search task what it found."""
    own = facts.get("metrics")
    return (*_COLUMNS, *own) if own else (*_COLUMNS, *METRICS, *_SEARCH_COLUMNS)


def _frame(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> pd.DataFrame:
    columns = _columns(facts)
    extra = dict.fromkeys(key for row in rows for key in row if key not in columns)
    frame = pd.DataFrame(list(rows), columns=[*columns, *extra])
    numbers = dict.fromkeys(facts.get("metrics") or METRICS, "float64")
    return frame.astype(numbers | {name: "Int64" for name in _WHOLE if name in columns})


def _sample_columns(facts: Mapping[str, Any]) -> tuple[str, ...]:
    return (*_SAMPLE_COLUMNS, *(facts.get("metrics") or METRICS))


def _sample_frame(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> pd.DataFrame:
    """Of samples only numbers are kept, and what was written."""
    counts = [name for name in _SAMPLE_COUNTS if any(name in row for row in rows)]
    frame = pd.DataFrame(list(rows), columns=[*_sample_columns(facts), *counts])
    return frame.astype(dict.fromkeys([*(facts.get("metrics") or METRICS), *counts], "float64"))
