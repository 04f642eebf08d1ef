"""An evaluation as pandas tables to read: means, paired differences, and what was written in
one case; each number with its n and interval."""

from __future__ import annotations

import pandas as pd

from rlkit.results.evaluate import NAMES, Evaluation
from rlkit.results.statistics import claimed, holm, interval_text
from rlkit.results.story import Case


def summary_table(evaluation: Evaluation) -> pd.DataFrame:
    """One row a policy, one column a metric: mean over questions, 95 % interval, n."""
    return pd.DataFrame(
        {
            metric.title: {
                evaluation.names.get(policy, policy): interval_text(
                    evaluation.interval(policy, name)
                )
                for policy in evaluation.policies
            }
            for name, metric in evaluation.metrics.items()
        }
    )


def differences_table(evaluation: Evaluation) -> pd.DataFrame:
    """One row a pair of policies and metric: mean difference by question, interval, and what
    Holm's p over all rows lets one claim."""
    rows, found, names = [], [], evaluation.names
    for a, b in evaluation.pairs():
        for name, metric in evaluation.metrics.items():
            found.append(evaluation.difference(a, b, name))
            row = {"policies": f"{names.get(a, a)} minus {names.get(b, b)}", "metric": metric.title}
            rows.append(row | {"difference": interval_text(found[-1])})
    verdicts = map(claimed, found, holm([interval.p for interval in found]))
    return pd.DataFrame([r | {"verdict": v} for r, v in zip(rows, verdicts, strict=True)])


def case_table(case: Case) -> pd.DataFrame:
    """What each policy wrote for one state and what came of it: one row a policy."""
    if case.actions and "clues" not in case.actions[0]:
        rows = pd.DataFrame(case.actions)
        return rows.set_index("policy")[["completion", "reward"]]
    rows = [
        {
            "policy": NAMES.get(action["policy"], action["policy"]),
            "clues": " | ".join(action["clues"]),
            "documents": "; ".join(
                f"{d['title'] or d['docid']} ({d['verdict'] or 'unjudged'})"
                for d in action["documents"]
            ),
            "discovery rate": action["discovery_rate"],
            "reward": action["reward"],
        }
        for action in case.actions
    ]
    return pd.DataFrame(rows).set_index("policy")
