"""Policies side by side on held-out states: each writes one action per state, the task scores it.

    evaluation = evaluate_policies(task, {"untouched": ..., "tuned": ...}, task.states("eval"))
    evaluation.save(run.evaluation_path)

What an `Evaluation` then tells stands in evaluation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlkit.practice.seam import searches
from rlkit.results.answer_cache import content_key
from rlkit.results.evaluation import (
    BASELINES,
    METRICS,
    NAMES,
    NOT_TUNED,
    PRIMARY,
    PROMPT_SUM,
    REWARD_PARTS,
    Evaluation,
    Metric,
    load_evaluation,
    policy_names,
    policy_pairs,
    records,
)

__all__ = [
    "BASELINES", "METRICS", "NAMES", "NOT_TUNED", "PRIMARY", "REWARD_PARTS", "Evaluation",
    "Metric", "evaluate_policies", "load_evaluation", "policy_names", "policy_pairs", "records",
]  # fmt: skip


def evaluate_policies(
    task: Any,
    policies: Mapping[str, Any],
    states: Sequence[Any],
    *,
    split: str = "eval",
    batch_size: int = 8,
    samples: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Evaluation:
    """Let each policy write one action for each state, and score them all with the task.

    A policy with `write_batch` is asked for `batch_size` states at a time. One that is `deep`
    (the raw question) is searched deeply enough to read `max_documents` new documents with a
    single clue. A policy with `sample_batch(states, k)` gives `samples` further actions a state.
    One with `release` is told when it has written all. A task's own `metrics` and `primary` take
    the place of the search's. `progress(done, total, policy)` is called after each batch.
    """
    rows, sampled = [], []
    k = {
        name: samples if hasattr(policy, "sample_batch") else 0 for name, policy in policies.items()
    }
    total = len(states) * sum(1 + n for n in k.values())
    for name, policy in policies.items():
        for start in range(0, len(states), batch_size):
            batch = states[start : start + batch_size]
            for state, text in zip(batch, _write(policy, batch), strict=True):
                score = _score(task, policy, state, [text])[0]
                rows.append(_row(name, state, text, score))
            for state, texts in zip(batch, _sample(policy, batch, k[name]), strict=True):
                scores = _score(task, policy, state, texts)
                drawn = [_row(name, state, *one) for one in zip(texts, scores, strict=True)]
                sampled += [row | {"sample": number} for number, row in enumerate(drawn)]
            if progress is not None:
                progress(len(rows) + len(sampled), total, name)
        if hasattr(policy, "release"):
            policy.release()
    facts = {"split": split, **_task_facts(task, split, states)}
    kept = tuple(_state_row(state) | _prompt_sum(task, state) for state in states)
    return Evaluation.of(rows, kept, facts, sampled)


def _write(policy: Any, batch: Sequence[Any]) -> list[str]:
    if hasattr(policy, "write_batch"):
        return list(policy.write_batch(batch))
    return [policy.write(state) for state in batch]


def _sample(policy: Any, batch: Sequence[Any], k: int) -> list[list[str]]:
    return policy.sample_batch(batch, k) if k else [[] for _ in batch]


def _score(task: Any, policy: Any, state: Any, texts: Sequence[str]) -> list[Any]:
    if not texts or not getattr(policy, "deep", False):
        return task.score(state, texts) if texts else []
    top_k = len(state.seen_docids) + task.env.max_documents
    return task.score(state, texts, top_k=top_k)


def _row(policy: str, state: Any, text: str, score: Any) -> dict[str, Any]:
    place = {n: getattr(state, n, None) for n in ("state_id", "question_id", "hops", "round")}
    written = {"reward": score.reward, "completion": text}
    return {"policy": policy, **place, **score.components, **written}


def _state_row(state: Any) -> dict[str, Any]:
    """What a report shows of a state; what was missing is named here, never in a prompt."""
    missing = sorted(getattr(state, "missing", ()))
    return {
        "state_id": state.state_id,
        "question_id": state.question_id,
        "question": getattr(state, "question", ""),
        "subgoal": getattr(state, "subgoal", ""),
        "round": getattr(state, "round", None),
        "hops": getattr(state, "hops", None),
        "n_seen": len(getattr(state, "seen_docids", ())),
        "n_missing": len(missing),
        "missing": missing,
        "recorded_discovery": getattr(state, "recorded_discovery", None),
    }


def _prompt_sum(task: Any, state: Any) -> dict[str, str]:
    """The hash of what is asked in a state: its id stays the same when its record is edited."""
    if not hasattr(task, "prompt"):
        return {}
    return {PROMPT_SUM: content_key(task.prompt(state))}


def _known(states: Sequence[Any]) -> str:
    kinds = {"gold" if getattr(state, "gold_docids", ()) else "recorded" for state in states}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _task_facts(task: Any, split: str, states: Sequence[Any]) -> dict[str, Any]:
    """Split sizes; metrics of the task's own, or what only the search task has."""
    facts: dict[str, Any] = {"left_out": getattr(task, "left_out", {}).get(split, 0)}
    metrics = getattr(task, "metrics", None) or {"reward": METRICS["reward"]}
    if searches(task):
        facts["known"] = _known(states)
    else:
        facts["metrics"] = {name: list(metric) for name, metric in metrics.items()}
        facts["primary"] = getattr(task, "primary", next(iter(metrics)))
    if hasattr(task, "splits"):
        facts["split_sizes"] = task.splits.describe()
    if searches(task):
        calculator = task.env.calculator
        if calculator.function is None:
            facts["reward_values"] = {part: calculator.values[part] for part in REWARD_PARTS}
        facts |= _searched_and_judged(task)
    return facts


def _searched_and_judged(task: Any) -> dict[str, str]:
    """The corpus and the judge, where the task tells: other ones give other rewards."""
    config = getattr(task, "config", None)
    kind = None if config is None else config.checker.kind
    corpus = getattr(task, "lineage", dict)().get("corpus_fingerprint")
    judge = getattr(getattr(task.env, "checker", None), "label", kind)
    found = {"corpus_fingerprint": corpus, "judge": judge}
    return {name: value for name, value in found.items() if isinstance(value, str)}
