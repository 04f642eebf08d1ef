"""What the notebooks share: where they work, their parameters, and displays that update in place.

    go_to_project_root()
    config = notebook_config(globals())       # the parameters cell, run by hand or by papermill

Nothing here computes anything of a run; a notebook calls `rlkit` for that.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Image, Pretty, display
from matplotlib.figure import Figure

from rlkit.config import RunConfig, as_mapping
from rlkit.errors import RunError
from rlkit.library.tokenize import folded
from rlkit.practice.source import rounds_folder
from rlkit.results.plots import learning_curves
from rlkit.rounds.split import Splits
from rlkit.run import Run

BY_HAND = "params/run1.yaml"  # the default of `params_file` in every parameters cell
_ON_TOP = ("overrides", "output_root")  # these alone do not make a set of parameters


def go_to_project_root() -> Path:
    """Make the project's root the working directory, so that `params/` and `outputs/` are found.

    Jupyter starts a kernel in the notebook's folder, papermill where it was called. The root is
    the nearest folder upwards with `pyproject.toml` and `notebooks/`; where there is none, the
    working directory stays.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "pyproject.toml").is_file() and (folder / "notebooks").is_dir():
            os.chdir(folder)
            return folder
    return here


def notebook_config(namespace: Mapping[str, Any]) -> RunConfig:
    """The parameters of a notebook; `namespace` is its `globals()`, right after the parameters
    cell (and the cell that papermill puts below it).

    - Something was given there, by papermill (`-f`, `-p`) or by hand: that is what the run uses,
      with defaults for the rest. The file `params_file` is not read.
    - Nothing was given, apart from `overrides` and `output_root`: the notebook is run by hand,
      and the file `params_file` is read.
    - `params_file` itself was given: the file is read, and whatever else was given wins over it,
      key by key.

    Prints which of them it was. Raises ConfigError for a name that is no parameter, which
    papermill only warns about, and as `RunConfig` does.
    """
    given = _given(namespace)
    path = given.pop("params_file", BY_HAND if not set(given) - set(_ON_TOP) else None)
    kept: dict[str, Any] = {}
    if path:
        kept = RunConfig.load(path).model_dump(exclude_unset=True)
    config = RunConfig.from_sections(**_merged(kept, given))
    names = ", ".join(given)
    if path:
        print(f"parameters: {path}" + (f", changed by {names}" if given else ""))
    else:
        print(f"parameters: {names or 'none'} as given, the rest are defaults")
    print(f"run: {Path(config.output_root) / config.run_name}")
    return config


def _given(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the parameters cell as it is committed, and names that are not in it."""
    defaults = {"params_file": BY_HAND} | {
        name: {} if isinstance(value, dict) else value
        for name, value in RunConfig().as_dict().items()
    }
    given = {n: namespace[n] for n in defaults if n in namespace and namespace[n] != defaults[n]}
    given = {n: v for n, v in given.items() if v is not None or n == "params_file"}
    if "config" not in namespace:  # else later cells have made variables of their own
        given |= {n: v for n, v in namespace.items() if n not in defaults and _is_data(n, v)}
    return given


def _is_data(name: str, value: Any) -> bool:
    """Whether a variable can have come from a params file, and not from IPython or an import."""
    hidden = name.startswith("_") or name in ("In", "Out")
    return not hidden and isinstance(value, (str, int, float, list, dict))


def _merged(kept: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` over `kept`; sections are merged key by key."""
    for name, value in given.items():
        value, below = as_mapping(name, value), kept.get(name)
        both = isinstance(below, dict) and isinstance(value, dict)
        kept[name] = {**below, **value} if both else value
    return kept


def existing_run(config: RunConfig, *, first: str, part: str = "config.yaml") -> Run:
    """The run of `config`, of which `part` must be there; `first` is the notebook that makes it.

    Rounds that `data.rounds_path` names count as the part `rounds`. Raises RunError that says
    what to run first.
    """
    folder = Path(config.output_root) / config.run_name
    wanted = rounds_folder(config, folder) if part == "rounds" else folder / part
    if not wanted.exists():
        raise RunError(
            f"{wanted} is not there yet; with the same parameters, first run "
            f"notebooks/{first}.ipynb, or `python -m rlkit {first}`."
        )
    return Run.open(config, create=not (folder / "config.yaml").exists())


class InPlace:
    """One output of a cell that each `show` replaces."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, thing: Any) -> None:
        if self._handle is None:
            self._handle = display(thing, display_id=True)
        else:
            self._handle.update(thing)


class LiveLine:
    """A line of text that is replaced in place; now and then it is printed, too, for those who
    watch a terminal. Call it with anything that `str` turns into a line."""

    def __init__(self, seconds: float = 30.0) -> None:
        self._place, self._seconds = InPlace(), seconds
        self._last = time.monotonic()

    def __call__(self, line: Any) -> None:
        self._place.show(Pretty(str(line)))
        if time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            print(line, flush=True)


class LiveCurves:
    """Learning curves that grow in place while a run trains, with a line about the last step.

    `rows` are the metrics that a resumed run has already; call it with each new line of metrics.
    `say` turns one into text.
    """

    COLUMNS = ("reward", "discovery_rate", "kl")
    EVERY = 5  # steps from one drawing to the next

    def __init__(
        self,
        rows: Iterable[dict[str, Any]] = (),
        *,
        say: Callable[[dict[str, Any]], str] = str,
    ) -> None:
        self.rows, self._say = list(rows), say
        self._line, self._picture = LiveLine(), InPlace()

    def __call__(self, metrics: dict[str, Any]) -> None:
        # a resumed run repeats the steps after its checkpoint
        self.rows = [row for row in self.rows if row["step"] < metrics["step"]] + [metrics]
        self._line(self._say(metrics))
        if metrics["step"] % self.EVERY == 0:
            self.draw()

    def draw(self) -> None:
        """Draw the figure now; the last call of a cell, so that it shows every step."""
        self._picture.show(picture(learning_curves(pd.DataFrame(self.rows), self.COLUMNS)))


def practice_round(task: Any, state: Any) -> pd.DataFrame:
    """What a known action of a state is worth when it is played now: the recorded clues, or the
    known solution. Prints it with its reward; the table holds the documents, or the components.
    A task without `known_action` has the empty one scored."""
    text = task.known_action(state) if hasattr(task, "known_action") else ""
    (score,) = task.score(state, [text])
    print(f"{getattr(state, 'question', '')}\n\n{text}\n\nreward: {score.reward}")
    parts = score.components
    if "documents" in parts:
        return pd.DataFrame(parts["documents"], columns=["title", "verdict", "new", "clue"])
    return pd.Series(parts, name="value").to_frame()


def picture(figure: Figure, alt: str = "") -> Image:
    """A figure as PNG inside the notebook, whatever plotting backend the kernel has.

    `alt` stands in for it where it cannot be seen; default: the titles in it.
    """
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=144)
    titles = "; ".join(ax.get_title() for ax in figure.axes if ax.get_title())
    return Image(out.getvalue(), width=round(figure.get_figwidth() * 96), alt=alt or titles)


def leakage(splits: Splits) -> pd.DataFrame:
    """One row a pair of parts: questions and known documents that stand in both."""
    parts = {name: splits.part(name) for name in ("train", "dev", "eval")}
    questions = {n: {folded(s.question) for s in p} for n, p in parts.items()}
    known = {n: {d for s in p for d in s.known_important} for n, p in parts.items()}
    rows = {
        f"{a} and {b}": {
            "questions shared": len(questions[a] & questions[b]),
            "known documents shared": len(known[a] & known[b]),
        }
        for a, b in combinations(parts, 2)
    }
    return pd.DataFrame.from_dict(rows, orient="index")
