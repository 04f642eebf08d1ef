"""The controls of `browse` in a notebook: filters, one group after the other, and two of them side
by side."""

from __future__ import annotations

from typing import Any

import ipywidgets as w

from rlkit.errors import RlkitError
from rlkit.results.browse import Browser, Key

_WIDE, _NARROW = w.Layout(width="26em"), w.Layout(width="11em")


class _View:
    """Widgets around one Browser; every change selects or shows anew."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        steps = [("all", None), *((str(step), step) for step in browser.stored.steps)]
        step, question, reward = browser.filters
        low, high = ("" if b is None else f"{b:g}" for b in reward or (None, None))
        self.step = w.Dropdown(options=steps, value=step, description="step", layout=_NARROW)
        self.question = w.Text(
            value=question or "",
            description="question",
            placeholder="id or text",
            continuous_update=False,
        )
        self.low = w.Text(
            value=low, description="reward from", continuous_update=False, layout=_NARROW
        )
        self.high = w.Text(value=high, description="to", continuous_update=False, layout=_NARROW)
        self.group = w.Dropdown(description="group", layout=_WIDE)
        self.back, self.on = w.Button(description="◀ previous"), w.Button(description="next ▶")
        self.compare = w.Checkbox(description="beside another step", indent=False, layout=_NARROW)
        self.beside = w.Dropdown(description="beside", layout=_WIDE)
        self.said, self.page = w.Label(), w.HTML()
        self._busy = False
        self._list_groups()
        if browser.beside is not None:
            self.compare.value = True
            self._list_others(browser.beside)
        self._watch()
        self.draw()

    def _watch(self) -> None:
        for control in (self.step, self.question, self.low, self.high):
            control.observe(lambda _: self._quietly(self._select), "value")
        self.group.observe(lambda _: self._quietly(self._show), "value")
        self.compare.observe(lambda _: self._quietly(self._list_others), "value")
        self.beside.observe(lambda _: self._quietly(self._show_beside), "value")
        self.back.on_click(lambda _: self._quietly(lambda: self._move(-1)))
        self.on.on_click(lambda _: self._quietly(lambda: self._move(1)))

    def _quietly(self, change: Any) -> None:
        """Do it once: what it sets in other controls is no further change; say what went wrong."""
        if self._busy:
            return
        self._busy = True
        try:
            change()
            self.draw()
        except (RlkitError, ValueError) as error:
            self.said.value = str(error)
        finally:
            self._busy = False

    def _select(self) -> None:
        bounds = tuple(float(b.value) if b.value.strip() else None for b in (self.low, self.high))
        reward = None if bounds == (None, None) else bounds
        step, question = self.step.value, self.question.value.strip()
        if step is None and not question and reward is None:
            reward = (None, None)  # all groups, also those without a reward
        self.browser.select(step, question, reward)
        self._list_groups()

    def _list_groups(self) -> None:
        self.group.options = [(str(key), key) for key in self.browser.keys]
        self.group.value = self.browser.shown
        if self.compare.value:
            self._list_others()

    def _list_others(self, chosen: Key | None = None) -> None:
        on = self.compare.value and self.browser.shown is not None
        others = self.browser.others(self.browser.shown) if on else []
        self.beside.options = [("nothing", None), *((str(key), key) for key in others)]
        self.beside.value = self.browser.beside = chosen or next(iter(others), None)

    def _show(self) -> None:
        self.browser.shown, self.browser.beside = self.group.value, None
        self._list_others()

    def _show_beside(self) -> None:
        self.browser.beside = self.beside.value

    def _move(self, by: int) -> None:
        """To the next group, and from the last one of a step to the next step."""
        keys, at = self.browser.keys, self.group.index
        if at is not None and 0 <= at + by < len(keys):
            self.group.value = keys[at + by]
            self._show()
        elif self.step.value is not None and 1 <= self.step.index + by < len(self.step.options):
            self.step.index += by
            self._select()
            if by < 0 and self.browser.keys:
                self.group.value = self.browser.keys[-1]
                self._show()

    def draw(self) -> None:
        keys = self.browser.keys
        at = self.group.index
        self.said.value = f"{at + 1} of {len(keys)} groups" if keys else "no group fits"
        self.page.value = self.browser.page() if keys else ""


def widget_view(browser: Browser) -> w.Widget:
    """The browser as widgets."""
    view = _View(browser)
    box = w.VBox(
        [
            w.HBox([view.step, view.question, view.low, view.high]),
            w.HBox([view.back, view.on, view.group, view.said]),
            w.HBox([view.compare, view.beside]),
            view.page,
        ]
    )
    box.view = view  # keeps it alive, and tests find the controls there
    return box
