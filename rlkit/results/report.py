"""The report of a run, or of several: one HTML file that needs nothing else, for people who were
not there.

`write_report(run_folder)` reads what the folder holds (`config.yaml`, `metrics.jsonl`, rollouts,
`evaluation.json`, `lineage.json`, `status.json`; each may be missing, and the report says so) and
writes `report.html`. The same run gives the same bytes apart from the date. Everything from
documents and models is text: Jinja escapes it, and the page's own content policy forbids scripts
and requests.

    report_facts.py     what was run: parameters, lineage, time and cost
    report_training.py  learning curves, health, habits over the steps
    report_results.py   the evaluation; report_habits.py measures what hacks a reward
    report_runs.py      several runs side by side
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from rlkit.config import RunConfig
from rlkit.errors import DataError, RunError
from rlkit.files import write_text
from rlkit.results import plots
from rlkit.results.evaluation import load_evaluation
from rlkit.results.report_facts import FILES, changed_parameters, lineage, parameters, time_and_cost
from rlkit.results.report_habits import habits_over_steps
from rlkit.results.report_page import page as report_page
from rlkit.results.report_results import results
from rlkit.results.report_runs import side_by_side
from rlkit.results.report_training import training
from rlkit.results.statistics import ENOUGH_NON_ZERO
from rlkit.run import Run

# the parameters that say where a run's warm start is, what its best step is, and what servers take
_READ_BY = ("lora.enabled", "training.best", "monitoring.price_in", "monitoring.price_out")


def write_report(
    run_folder: str | Path,
    *others: str | Path,
    path: str | Path | None = None,
    now: datetime | None = None,
) -> Path:
    """Write the report of one run, or of several side by side, and return its path.

    Default `path`: `report.html` in the run's folder; of several, `report-<names>.html` beside the
    first one's folder. Raises RunError where a folder is missing, DataError or ConfigError where
    what its claims rest on is damaged (evaluation, metrics, parameters); where another file is, the
    report says so and goes on without it.
    """
    folders = list(dict.fromkeys(Path(folder) for folder in (run_folder, *others)))
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder} is no run's folder; name one under outputs/ that exists.")
    runs = [_content(folder) for folder in folders]
    _name_apart(runs, folders)
    page = report_page().render(
        runs=runs,
        several=side_by_side(runs) if len(runs) > 1 else None,
        enough=ENOUGH_NON_ZERO,
        curve_titles=plots.CURVES,
        date=now or datetime.now(),
    )
    return write_text(path or _place(runs, folders), page)


def _place(runs: list[dict[str, Any]], folders: list[Path]) -> Path:
    if len(folders) == 1:
        return Run(RunConfig(), folders[0]).report_path
    names = "-".join(run["name"].replace("/", "-") for run in runs)
    return folders[0].parent / f"report-{names[:120]}.html"


def _name_apart(runs: list[dict[str, Any]], folders: list[Path]) -> None:
    """Runs of one name in different folders are called by folder and name."""
    names = [run["name"] for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if names.count(run["name"]) > 1:
            run["name"] = "/".join(folder.resolve().parts[-2:])


def _content(folder: Path) -> dict[str, Any]:
    """All that the template shows of a run; None stands for a part that its folder lacks."""
    given = _if_there(Run(RunConfig(), folder).config_path, parameters) or {}
    run = Run(_read_of(given), folder)
    evaluation = _if_there(run.evaluation_path, load_evaluation)
    steps, damaged = run.read_metrics(), {}  # an ordered set of sentences

    def part(read: Callable[[], Any], instead: Any) -> Any:
        """What a part is, or `instead` where its file is damaged, which is then said."""
        try:
            return read()
        except (DataError, RunError) as error:
            damaged[f"Left out, since it is damaged: {error}"] = None
            return instead

    actions = part(lambda: habits_over_steps(run.rollouts_folder), pd.DataFrame())
    return {
        "name": folder.resolve().name,
        "damaged": damaged,
        "status": part(run.status, {"state": "unknown"}),
        "changed": _if_there(run.config_path, changed_parameters),
        "parameters": given,
        "lineage": part(lambda: _if_there(run.lineage_path, lineage), None),
        "cost": part(lambda: time_and_cost(run, steps), []),
        "training": training(steps, actions),
        "best": best_step(steps, run.config.training.best),
        "best_by": run.config.training.best.replace("_", " "),
        "steps": steps,
        "evaluation": evaluation,
        "results": None if evaluation is None else results(evaluation),
        "names": evaluation.names if evaluation else {},
        "metrics": evaluation.metrics if evaluation else {},
        "files": [(name, text) for name, text in FILES.items() if (folder / name).exists()],
    }


def _if_there(path: Path, read: Callable[[Path], Any]) -> Any:
    return read(path) if path.exists() else None


def _read_of(given: dict[str, Any]) -> RunConfig:
    """Of a run's parameters those that say how its folder is read; what else it holds may be of
    another version of this project."""
    return RunConfig().with_overrides(
        *(f"{key}={json.dumps(given[key])}" for key in _READ_BY if key in given)
    )


def best_step(steps: list[dict[str, Any]], metric: str = "reward") -> int | None:
    """The step whose checkpoint is kept as the best: the first with the highest `metric` on dev
    (`training.best`)."""
    name = f"eval/{metric}"
    measured = [r for r in steps if r.get("step") and r.get(name) is not None]
    best = max(measured, key=lambda row: row[name], default=None)
    return None if best is None else best["step"]
