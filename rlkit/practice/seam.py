"""The seam between training and what is learnt: a `Task` gives states, prompts and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlkit.agents.prompt import Messages


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of one action, None where it cannot be scored, and what it is made of."""

    reward: float | None
    components: dict[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """All that the trainers know of what is learnt: three methods.

    What else a task may have, for training:
      examples()      (state, completion) pairs: what SFT learns
      count_tokens    set to the model's own count of a text's tokens once it is loaded
      step_metrics    {component: metric}: numbers whose means stand in `metrics.jsonl`
      take_metrics()  what else stands there
      lineage()       what the data was, for `lineage.json`
      damaged         files that were set aside, told at the start
      complete        (text) -> whether an action needs no more tokens; None: it ends by itself
    For the evaluation:
      metrics         {component: (title, unit, needs a reward, is a share)}: its columns
      primary         the one of the headline
      splits          whose `describe()` gives the sizes of the parts
      left_out        {part: number of states that `states` does not give}
      searches        true: it has `env`, a search round whose documents are read and judged, and
                      `score` takes `top_k`; the policies that search are compared, too
    """

    def states(self, split: str) -> list[Any]:
        """The states of train, dev or eval; each has a `state_id` that is unique."""
        ...

    def prompt(self, state: Any) -> Messages:
        """The prompt of a state as chat messages."""
        ...

    def score(self, state: Any, completions: Sequence[str]) -> list[Score]:
        """One Score for each completion, in order."""
        ...


def searches(task: Any) -> bool:
    """Whether a task says that it searches, see `Task`."""
    return getattr(task, "searches", False)
