"""A run's report: one HTML file that needs nothing else, for people who were not there.

`write_report(run_folder)` reads what the folder holds (`config.yaml`, `metrics.jsonl`,
`evaluation.json`, `lineage.json`, `status.json`; each may be missing, and the report says so) and
writes `report.html`. The same run gives the same bytes apart from the date. Everything from
documents and models is text: Jinja escapes it, and the page's own content policy forbids scripts
and requests.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError, RunError
from rlkit.files import flat, read_object, write_text
from rlkit.results import plots
from rlkit.results.evaluate import PRIMARY, REWARD_PARTS, Evaluation, load_evaluation
from rlkit.results.statistics import ENOUGH_NON_ZERO, interval_text
from rlkit.results.story import headline, known_text, pick_cases
from rlkit.run import Run
from rlkit.section import shown
from rlkit.training.alarms import said
from rlkit.yaml_text import read_yaml

FILES = {
    "config.yaml": "every parameter, resolved",
    "lineage.json": "code version, packages, device, data fingerprint, seed",
    "metrics.jsonl": "one line a step, with the alarms that began there",
    "evaluation.json": "every action of every policy with its documents and verdicts",
    "status.json": "how the run ended",
    "training_results.json": "what each stage of the pipeline came to",
    "evaluation-sft.json": "the answers before GRPO",
    "pipeline.log": "the pipeline's lines",
    "rollouts": "every action that was sampled in training, one table a step",
    "rounds": "the recorded rounds",
    "sft": "the warm start",
    "lora_checkpoints": "adapters with all that is needed to resume",
    "merged": "whole models, ready to serve",
}
_NOT_CHOICES = ("run_name", "overrides", "output_root")


def write_report(run_folder: str | Path, *, now: datetime | None = None) -> Path:
    """Write `report.html` into the run's folder and return its path.

    Raises RunError where the folder is missing, DataError where one of its files is damaged.
    """
    folder = Path(run_folder)
    if not folder.is_dir():
        raise RunError(f"{folder} is no run's folder; name a folder under outputs/ that exists.")
    page = _template().render(_content(folder), date=now or datetime.now())
    return write_text(Run(RunConfig(), folder).report_path, page)


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rlkit.results", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "signed": signed}
    return environment.get_template("report.html.j2")


def _content(folder: Path) -> dict[str, Any]:
    """All that the template shows; None stands for a part that the folder does not have."""
    run = Run(RunConfig(), folder)  # for its paths; its own parameters may be missing
    evaluation = _if_there(run.evaluation_path, load_evaluation)
    metrics = run.read_metrics()
    return {
        "name": folder.resolve().name,
        "status": run.status(),
        "changed": _if_there(run.config_path, changed_parameters),
        "lineage": _if_there(run.lineage_path, _lineage),
        "curves": _curves(pd.DataFrame(metrics)),
        "alarms": said(metrics),
        "best": best_step(metrics),
        "evaluation": evaluation,
        "results": None if evaluation is None else _results(evaluation),
        "names": evaluation.names if evaluation else {},
        "metrics": evaluation.metrics if evaluation else {},
        "parts": REWARD_PARTS,
        "enough": ENOUGH_NON_ZERO,
        "files": [(name, text) for name, text in FILES.items() if (folder / name).exists()],
    }


def _if_there(path: Path, read: Callable[[Path], Any]) -> Any:
    return read(path) if path.exists() else None


def changed_parameters(path: str | Path) -> list[dict[str, Any]]:
    """The parameters of a `config.yaml` that differ from the defaults, with unit and help."""
    values = read_yaml(path) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {shown(values)}; wanted are sections, such as `grpo:`.")
    given = flat(values)
    rows = []
    for key, default, unit, _, text in RunConfig.describe():
        value = given.get(key, default)
        if key not in _NOT_CHOICES and value != default:
            unit = "" if unit == "-" else unit
            rows.append(dict(key=key, value=value, default=default, unit=unit, help=text))
    return rows


def best_step(metrics: list[dict[str, Any]]) -> int | None:
    """The step whose checkpoint is kept as the best: the first with the highest dev reward."""
    measured = [r for r in metrics if r.get("step") and r.get("eval/reward") is not None]
    best = max(measured, key=lambda row: row["eval/reward"], default=None)
    return None if best is None else best["step"]


def number(value: float | None, digits: int = 2) -> str:
    """A number with that many digits; a dash where there is none."""
    if value is None or pd.isna(value):
        return "–"
    return f"{round(value, digits) + 0.0:.{digits}f}"


def signed(value: float | None) -> str:
    """A difference with its sign; a dash where there is none."""
    text = number(value)
    return text if text == "–" or text.startswith("-") or float(text) == 0 else f"+{text}"


def _lineage(path: Path) -> dict[str, Any]:
    """The lineage as rows: versions in one, the records of earlier sessions as their number."""
    record = read_object(path)
    versions, earlier = record.pop("versions", None) or {}, record.pop("earlier", None) or []
    if not isinstance(versions, dict) or not isinstance(earlier, list):
        raise DataError(
            f"{path}: `versions` is an object and `earlier` a list; mend or remove the file."
        )
    record["versions"] = ", ".join(f"{name} {v}" for name, v in versions.items() if v)
    record["earlier"] = len(earlier)
    return {key: value for key, value in flat(record).items() if value not in (None, "")}


def _curves(metrics: pd.DataFrame) -> list[dict[str, str]]:
    """One picture a metric, so that a phone can stack them."""
    if "step" not in metrics:
        return []
    columns = [c for c in plots.CURVES if c in metrics and metrics[c].notna().any()]
    return [
        picture(lambda c=column: plots.learning_curves(metrics, [c]), _curve_text(metrics, column))
        for column in columns
    ]


def _curve_text(metrics: pd.DataFrame, column: str) -> str:
    values = metrics[column].dropna()
    title, unit, _ = plots.CURVES[column]
    ends = f"{values.iloc[0]:.3g} at the first step, {values.iloc[-1]:.3g} at the last"
    return f"{title}, {unit}: {ends}, n = {len(values)} steps."


def picture(draw: Callable[[], Figure], alt: str) -> dict[str, str]:
    """A figure as data URIs for light and for dark pages, with the text that stands for it."""
    with plots.style():
        light = plots.svg(draw())
    return {"alt": alt, "light": _data_uri(light), "dark": _data_uri(plots.darkened(light))}


def _data_uri(image: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(image).decode('ascii')}"


def _results(evaluation: Evaluation) -> dict[str, Any]:
    found = {p: evaluation.interval(p, evaluation.primary) for p in evaluation.policies}
    pairs, title = evaluation.pairs(), evaluation.metrics[evaluation.primary].title
    search = evaluation.primary == PRIMARY
    return {
        "title": title,
        "search": search,
        "headline": headline(evaluation),
        "known": known_text(evaluation),
        "table": [_policy_row(evaluation, policy) for policy in evaluation.policies],
        "primary": picture(
            lambda: plots.metric_by_policy(evaluation),
            f"{title} by policy, mean and 95 % interval: "
            + "; ".join(f"{name} {interval_text(i)}" for name, i in found.items()),
        ),
        "components": search
        and picture(
            lambda: plots.reward_components(evaluation),
            "What each policy's reward is made of; the table below has the numbers of documents.",
        ),
        "differences": [_difference_row(evaluation, a, b) for a, b in pairs],
        "sorted": [_sorted_picture(evaluation, a, b) for a, b in pairs[:2]],
        "cases": pick_cases(evaluation),
    }


def _sorted_picture(evaluation: Evaluation, a: str, b: str) -> dict[str, str]:
    text = interval_text(evaluation.difference(a, b, evaluation.primary))
    title = evaluation.metrics[evaluation.primary].title.lower()
    return picture(
        lambda: plots.question_differences(evaluation, a, b),
        f"Difference of the {title} of each question, {a} minus {b}, sorted: mean {text}.",
    )


def _policy_row(evaluation: Evaluation, policy: str) -> dict[str, Any]:
    rows = evaluation.frame[evaluation.frame["policy"] == policy]
    has_parts = set(REWARD_PARTS) <= set(rows.columns)
    parts = [plots.part_mean(evaluation, policy, part) for part in REWARD_PARTS if has_parts]
    return {
        "policy": policy,
        "intervals": [evaluation.interval(policy, metric) for metric in evaluation.metrics],
        "n_states": len(rows),
        "unjudged": int(rows["reward"].isna().sum()),
        "parts": parts or None,
    }


def _difference_row(evaluation: Evaluation, policy: str, baseline: str) -> dict[str, Any]:
    metrics = evaluation.metrics
    intervals = [evaluation.difference(policy, baseline, metric) for metric in metrics]
    return {"policy": policy, "baseline": baseline, "intervals": intervals}
