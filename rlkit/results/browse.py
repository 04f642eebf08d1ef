"""`browse(run)`: step through the groups of actions that a run sampled, with what each action found
and earned.

    browse("run1")                                    # in a notebook: with buttons and filters
    browse("run1", step=3, question="q12", compare=17)    # two steps of a question, side by side

Only the steps that are shown are read. Questions, documents and completions are untrusted text:
Jinja escapes them, and a terminal gets no control characters.
"""

from __future__ import annotations

import importlib.util
import math
import numbers
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from IPython.core.getipython import get_ipython
from IPython.display import display

from rlkit.errors import ConfigError, RunError
from rlkit.practice.reward import COUNT_KEYS
from rlkit.results.actions import GROUP, StoredActions, named_run
from rlkit.results.rescore import action_advantages
from rlkit.results.state_text import StateTexts
from rlkit.results.templating import template
from rlkit.run import Run

_NOT_READ = ("token_ids", "sampled_logp", "policy_logp", "reference_logp", "clue_spans")
_SHOWN_APART = {
    *GROUP, "question_id", "action", "prompt_tokens", "text", "ended", "reward", "advantage",
    "clues", "documents", "clue_values", "invalid", "unjudged", *COUNT_KEYS,
}  # fmt: skip
Bounds = tuple[float | None, float | None]


class Key(NamedTuple):
    """Which group: the step and the state that it was sampled at, and the state's visit."""

    step: int
    state_id: str
    visit: int

    def __str__(self) -> str:
        return f"step {self.step} · {self.state_id} · visit {self.visit}"


def browse(
    run: Run | str | Path,
    *,
    step: int | None = None,
    question: str | None = None,
    reward: Bounds | None = None,
    compare: int | None = None,
    task: Any = None,
    output_root: str | Path = "outputs",
    widgets: bool | None = None,
) -> Browser:
    """The groups of a run, to step through.

    `step`: that step (default: the first, or all where something else is filtered by);
    `question`: its id, or a part of its id or text; `reward`: (lowest, highest), either None, and
    some action of the group lies between. `compare`: another step at which the same question was
    sampled, shown beside the first group found. `task`: the notebook's own, where the run's is
    neither `search` nor `answers`. `widgets`: None shows them in a notebook that somebody sits
    at, and a plain table elsewhere.

    Raises ConfigError for a value of another kind, and RunError where there is no such run, step
    or group.
    """
    _check_step("compare", compare)
    browser = Browser(named_run(run, output_root), task, widgets)
    browser.select(step, question, reward)
    if not browser.keys:
        raise RunError(
            f"{browser.stored.folder}: no group fits step {step}, question {question!r} and reward "
            f"{reward}; leave one of them out."
        )
    if compare is not None:
        browser.shown = next((k for k in browser.keys if k.step != compare), browser.shown)
        browser.compare(compare)
    return browser


class Browser:
    """The groups that were selected (`keys`), and the one that is shown (`shown`), beside another
    (`beside`) where two are compared. The last line of a cell shows it."""

    def __init__(self, run: Run, task: Any = None, widgets: bool | None = None) -> None:
        self.run, self.stored, self.texts = run, StoredActions(run), StateTexts(run, task)
        self.widgets = widgets
        self.keys: list[Key] = []
        self.filters: tuple[int | None, str | None, Bounds | None] = (None, None, None)
        self.shown: Key | None = None
        self.beside: Key | None = None
        self.by_clue = run.config.grpo.credit == "clue"
        self._step = lru_cache(8)(self._read)
        self._index: dict[int | None, pd.DataFrame] = {}

    def select(
        self,
        step: int | None = None,
        question: str | None = None,
        reward: Bounds | None = None,
    ) -> list[Key]:
        """The groups that fit, see `browse`; the first is then shown."""
        _check_step("step", step)
        if not isinstance(question, str | None):
            raise ConfigError(
                f"question is {question!r}; give a question's id, or a part of its id or text, in "
                "quotes."
            )
        reward = _checked_bounds(reward)
        if step is None and not question and reward is None:
            step = self.stored.steps[0]
        found = self.index(step)
        if question:
            found = found[self._asked(found, question)]
        self.filters = (step, question, reward)
        low, high = reward or (None, None)
        if low is not None or high is not None:
            low, high = -math.inf if low is None else low, math.inf if high is None else high
            inside = found["rewards"].map(lambda rs: any(low <= r <= high for r in rs))
            found = found[inside.astype(bool)]
        self.keys = [Key(*row) for row in found[GROUP].itertuples(index=False)]
        self.shown, self.beside = next(iter(self.keys), None), None
        return self.keys

    def index(self, step: int | None = None) -> pd.DataFrame:
        """One row a group of a step (None: of all steps, read once): its key, its question's id,
        and its rewards that are known."""
        if step not in self._index:
            columns = ["state_id", "visit", "question_id", "reward"]
            frame = self.stored.frame(columns, None if step is None else [step])
            groups = frame.groupby([*GROUP, "question_id"], sort=False)["reward"]
            rewards = groups.agg(lambda values: values.dropna().tolist())
            self._index = {k: v for k, v in self._index.items() if k is None}
            self._index[step] = rewards.rename("rewards").reset_index()
        return self._index[step]

    def _asked(self, found: pd.DataFrame, question: str) -> pd.Series:
        if (exact := found["question_id"] == question).any():
            return exact
        wanted = question.casefold()
        first = found.drop_duplicates("question_id")
        fits = {
            row.question_id
            for row in first.itertuples()
            if wanted in row.question_id.casefold()
            or wanted in self.texts.question(row.state_id).casefold()
        }
        return found["question_id"].isin(fits)

    def others(self, key: Key) -> list[Key]:
        """The other groups of the same question, by step."""
        found = self.index()
        mine = found.loc[(found[GROUP] == list(key)).all(axis=1), "question_id"]
        rows = found.loc[found["question_id"].isin(mine), GROUP].itertuples(index=False)
        return [other for other in (Key(*row) for row in rows) if other != key]

    def compare(self, step: int) -> None:
        """Show the question's group at another step beside the one shown, of the same state where
        there is one. Raises RunError where the question was not sampled then."""
        others = self.others(self.shown)
        there = sorted((k for k in others if k.step == step), key=self._is_other_state)
        if not there:
            steps = ", ".join(str(s) for s in sorted({key.step for key in others})) or "none"
            raise RunError(
                f"the question of {self.shown} was not sampled at step {step}; other steps that "
                f"have it: {steps}."
            )
        self.beside = there[0]

    def _is_other_state(self, key: Key) -> bool:
        return key.state_id != self.shown.state_id

    def _read(self, step: int) -> list[dict[str, Any]]:
        """A step's actions. With `grpo.credit: clue` the stored advantage is that of an action's
        first token, and the action's own is worked out from the rewards."""
        rows = self.stored.rows(step, without=_NOT_READ)
        if self.by_clue:
            frame = pd.DataFrame(rows, columns=[*GROUP, "reward"]).assign(step=step)
            scale = self.run.config.grpo.scale_rewards
            own = action_advantages(frame.astype({"reward": float}), "reward", scale)
            return [row | {"advantage": float(a)} for row, a in zip(rows, own, strict=True)]
        return rows

    def actions(self, key: Key) -> list[dict[str, Any]]:
        """The actions of a group as plain values, all columns but tokens and log-probabilities."""
        rows = self._step(key.step)
        return [r for r in rows if (r["state_id"], r["visit"]) == (key.state_id, key.visit)]

    def table(self, key: Key | None = None) -> pd.DataFrame:
        """A group (default: the one shown) as a plain table, one row an action."""
        rows = [_row(action) for action in self.actions(key or self.shown)]
        return pd.DataFrame(rows).set_index("action")

    def page(self) -> str:
        """What is shown, as HTML that stands by itself."""
        keys = [key for key in (self.shown, self.beside) if key is not None]
        groups = [
            {
                "key": key,
                "state": self.texts.of(key.state_id),
                "actions": [self._explained(action) for action in self.actions(key)],
            }
            for key in keys
        ]
        return _template().render(groups=groups)

    def _explained(self, action: dict[str, Any]) -> dict[str, Any]:
        values = self.run.config.reward
        counts = {key: action.get(key) for key in COUNT_KEYS}
        own = values.function is not None  # then it is no sum of terms
        terms = [(n, key, getattr(values, key)) for key, n in counts.items() if n and not own]
        clues = action.get("clues") or []
        documents = [
            d | {"clue": clues.index(d["clue"]) + 1 if d["clue"] in clues else None}
            for d in action.get("documents") or ()
        ]
        judged = self.by_clue and action["reward"] is not None
        worth = action.get("clue_values") if judged else None
        credited = list(zip(clues, [*(worth or ()), *([None] * len(clues))], strict=False))
        shown = {"terms": terms, "components": _components(action), "documents": documents}
        shown["credited"] = credited
        return {"clues": None, "invalid": 0, "unjudged": 0} | action | shown

    def _repr_html_(self) -> str:
        return self.page()

    def __repr__(self) -> str:
        """The group as a table for a terminal."""
        parts = [f"{self.run.folder.name}: groups selected: {len(self.keys)}"]
        for key in (self.shown, self.beside):
            if key is not None:
                state = self.texts.of(key.state_id)
                table = self.table(key).map(_printable).to_string(max_colwidth=70)
                parts += [f"\n{_printable(key)}\n{_printable(state.question)[:300]}", table]
        return "\n".join(parts)

    def _ipython_display_(self) -> None:
        shown = widgets_can_be_shown() if self.widgets is None else self.widgets
        bundle = {"text/plain": repr(self), "text/html": self.page()}
        if shown:
            from rlkit.results.browse_widgets import widget_view  # not everybody has ipywidgets

            bundle = widget_view(self)._repr_mimebundle_() | bundle
        display(bundle, raw=True)


def _check_step(name: str, step: Any) -> None:
    """Raises ConfigError for anything but a whole number or None."""
    if step is not None and (not isinstance(step, numbers.Integral) or isinstance(step, bool)):
        raise ConfigError(f"{name} is {step!r}; give the number of a step, such as {name}=12.")


def _checked_bounds(reward: Any) -> Bounds | None:
    """The bounds as a tuple. Raises ConfigError for anything but two of them, in order."""
    if reward is None:
        return None
    if not isinstance(reward, tuple | list) or len(reward) != 2 or not all(map(_is_end, reward)):
        raise ConfigError(
            f"reward is {reward!r}; give two numbers, (lowest, highest), either of them None: "
            "reward=(2.5, None) is 2.5 or more."
        )
    low, high = reward
    if low is not None and high is not None and low > high:
        raise ConfigError(
            f"reward is {reward!r}, whose lowest is above its highest; give ({high!r}, {low!r})."
        )
    return low, high


def _is_end(value: Any) -> bool:
    if value is None:
        return True
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and not math.isnan(value)


def widgets_can_be_shown() -> bool:
    """Whether ipywidgets is there, and a notebook with somebody at it: papermill and nbconvert
    do not let a cell ask anything, and would leave a widget that nobody can click."""
    if importlib.util.find_spec("ipywidgets") is None:
        return False
    kernel = getattr(get_ipython(), "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", False))


def _row(action: dict[str, Any]) -> dict[str, Any]:
    row = {name: action[name] for name in ("action", "reward", "advantage")}
    if "clues" not in action:
        return row | _components(action) | {"text": action["text"]}
    documents = [
        f"{d['title'] or d['docid']} ({d['verdict'] or 'unjudged'}{'' if d['new'] else ', seen'})"
        for d in action.get("documents") or ()
    ]
    return row | {"clues": " | ".join(action["clues"] or ()), "documents": "; ".join(documents)}


def _components(action: dict[str, Any]) -> dict[str, Any]:
    """What else was measured of an action: its single values."""
    return {
        name: number(value) if isinstance(value, float) else value
        for name, value in action.items()
        if name not in _SHOWN_APART and value is not None and not isinstance(value, (list, dict))
    }


def _printable(value: Any) -> str:
    """A value for a terminal: untrusted text must not move its cursor."""
    text = number(value) if isinstance(value, float) or value is None else str(value)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def number(value: float | None) -> str:
    """A number with at most six digits, a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.6g}"


@lru_cache(1)
def _template() -> jinja2.Template:
    return template("browse.html.j2", number=number)
