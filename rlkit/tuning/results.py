"""What came out of a study: its table, its figures, the best parameters as a params file, and the
winner's one evaluation on the test split.

The best of many trials flatters itself on the split that chose it. So the winner is evaluated on
the test split, once: the result is kept in `winner.json`, a second call shows it, and where more
trials bring another winner, the earlier look at the test split is counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import optuna
import pandas as pd
from matplotlib.figure import Figure
from optuna.trial import TrialState

from rlkit.errors import RunError
from rlkit.files import read_object, write_json, write_text
from rlkit.run import Run
from rlkit.tuning.plots import parallel_coordinates, parameter_importance, study_history
from rlkit.tuning.space import changed, in_words, parameters_of
from rlkit.yaml_text import write_yaml

_LAST = {"evaluation.checkpoint": "newest"}  # the one whose value on dev is compared
STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def trial_table(study: Any) -> pd.DataFrame:
    """One row a trial: trial, state, value (on dev; a pruned one's last), seconds, its parameters,
    run, and the reason why it was pruned or failed."""
    rows = []
    for trial in study.trials:
        state = STATES.get(trial.state)
        state = state or ("running" if study.alive(trial.number) else "broken off")
        values = parameters_of(study.space, trial.params)
        rows.append(
            {"trial": trial.number, "state": state, "value": trial.value if trial.values else None}
            | {"seconds": trial.user_attrs.get("seconds")}
            | {key: values.get(key) for key in study.space}
            | {"run": study.run_name(trial.number), "reason": trial.user_attrs.get("reason", "")}
        )
    columns = ["trial", "state", "value", "seconds", *study.space, "run", "reason"]
    return pd.DataFrame(rows, columns=columns).astype({"value": float, "seconds": float})


def best_trial(study: Any) -> Any | None:
    """The complete trial with the best objective, the earliest of equal ones; None without any."""
    complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    sign = -1 if study.config.tune.direction == "maximize" else 1
    return min(complete, key=lambda trial: sign * trial.value, default=None)


def write_table(study: Any) -> None:
    """Write `trials.csv` and, where a trial is complete, `best.yaml`: a params file that trains
    with the best parameters as it is."""
    write_text(study.folder / "trials.csv", trial_table(study).to_csv(index=False))
    best = best_trial(study)
    if best is not None:
        name = {"run_name": f"{study.name}-best"}
        config = changed(study.base, parameters_of(study.space, best.params) | name)
        objective = study.config.tune.objective
        write_yaml(
            study.folder / "best.yaml",
            config.model_dump(exclude_unset=True),
            f"trial {best.number} of {study.name}: {objective} {best.value:.6g} on dev",
        )


def study_figures(study: Any) -> dict[str, Figure]:
    """History, importance and parallel coordinates, by name; a sentence where trials are few."""
    table, objective = trial_table(study), study.config.tune.objective
    best = "max" if study.config.tune.direction == "maximize" else "min"
    complete = table[table["state"] == "complete"]
    shares: dict[str, float] = {}
    if len(complete) >= 4 and complete["value"].nunique() > 1:
        shares = optuna.importance.get_param_importances(study.optuna)
    return {
        "history": study_history(table, objective, best),
        "importance": parameter_importance(shares, len(complete)),
        "parallel": parallel_coordinates(table, list(study.space), objective),
    }


def write_figures(study: Any) -> list[Path]:
    """The figures as PNG in the study's folder."""
    paths = []
    for name, figure in study_figures(study).items():
        figure.savefig(study.folder / f"{name}.png", dpi=144)
        paths.append(study.folder / f"{name}.png")
    return paths


def evaluate_winner(
    study: Any,
    *,
    log: Callable[[str], None] = print,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any] | None:
    """Evaluate the winner on the test split, or give back what is kept; None while trials are
    still to come or under way.

    Raises RunError where no trial is complete, with the reason of the last one that failed.
    """
    if not study.done:
        return None
    best, path = best_trial(study), study.folder / "winner.json"
    if best is None:
        reasons = [t.user_attrs["reason"] for t in study.trials if "reason" in t.user_attrs]
        raise RunError(
            f"no trial of {study.folder} is complete; the last reason: {reasons[-1][:300]}"
        )
    with filelock.FileLock(study.folder / ".winner.lock"):
        kept = read_object(path) if path.exists() else None
        if kept is not None and kept["trial"] == best.number:
            return kept
        from rlkit.results.compare import evaluate_run  # torch, only now

        config = Run.at(study.root / study.run_name(best.number)).config
        policies = config.evaluation.policies
        policies = policies if "tuned" in policies else [*policies, "tuned"]
        config = changed(
            config, {"evaluation.split": "eval", "evaluation.policies": policies} | _LAST
        )
        evaluation = evaluate_run(config, log=log, progress=progress)
        record = _record(study, best, evaluation.summary(), log)
        record["earlier"] = [] if kept is None else [*kept.pop("earlier", []), kept]
        write_json(path, record)
    write_text(study.folder / "summary.md", summary_text(study, record) + "\n")
    return record


def _record(
    study: Any, best: Any, summary: pd.DataFrame, log: Callable[[str], None]
) -> dict[str, Any]:
    values = [trial.value for trial in study.trials if trial.state == TrialState.COMPLETE]
    metric = study.config.tune.objective.removeprefix("eval/")
    if metric not in set(summary["metric"]):
        log(f"the test split's summary has no {metric}, so the reward is told in its place")
        metric = "reward"
    run = Run.at(study.root / study.run_name(best.number))
    measured = [row for row in run.read_metrics() if "eval/states" in row]
    rows = summary[summary["metric"] == metric].drop(columns="metric")
    return {
        "trial": best.number,
        "run": study.run_name(best.number),
        "parameters": parameters_of(study.space, best.params),
        "objective": study.config.tune.objective,
        "dev": best.value,
        "dev_median": statistics.median(values),
        "complete": len(values),
        "dev_states": int(measured[-1]["eval/states"]),
        "metric": metric,
        "test": rows.astype(object).where(rows.notna(), None).to_dict("records"),
    }


def summary_text(study: Any, winner: dict[str, Any] | None) -> str:
    """The study in a few lines: trials by state, and the winner on dev and on test."""
    table = trial_table(study)
    counts = ", ".join(f"{n} {state}" for state, n in table["state"].value_counts().items())
    lines = [f"{study.name}: {len(table)} trials ({counts}), {table['seconds'].sum():.0f} s."]
    if winner is None:
        return lines[0]
    lines += [
        f"The winner is trial {winner['trial']}: {in_words(winner['parameters'])}.",
        f"On dev (n = {winner['dev_states']} states), {winner['objective']} is "
        f"{winner['dev']:.4g}, the best of {winner['complete']} (their median: "
        f"{winner['dev_median']:.4g}). It was chosen for this value, which therefore flatters it.",
        f"On the test split, {_told_as(winner)}:",
    ]
    for row in winner["test"]:
        lines.append(f"- {row['policy']}: {_interval(row)}")
    looks = len(winner["earlier"]) + 1
    lines.append(
        "The test split was looked at once."
        if looks == 1
        else f"The test split has been looked at {looks} times, since later trials brought another "
        "winner; it is no longer untouched."
    )
    return "\n".join(lines)


def _told_as(winner: dict[str, Any]) -> str:
    metric, objective = winner["metric"], winner["objective"]
    if objective == f"eval/{metric}":
        return metric
    return f"{metric} ({objective} is not measured there)"


def _interval(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return "nothing could be scored"
    n = f"n = {row['n_questions']} questions"
    if row["low"] is None:
        return f"{row['mean']:.4g} ({n}; {row.get('caution') or 'too few for an interval'})"
    return f"{row['mean']:.4g} (95 % interval {row['low']:.4g} to {row['high']:.4g}, {n})"
