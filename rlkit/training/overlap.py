"""Sampling while the environment judges (`rollout.overlap`).

A live checker keeps a step waiting. With overlap, a thread scores the groups in their order, and
the main thread samples the next one and learns from the last one meanwhile:

    main      sample 0   sample 1   pass 0, sample 2   pass 1, sample of the next step   pass 2
    judge                score 0    score 1            score 2

`update` looks no further than the weights stay as they are: over the groups of a step, and into the
next step of the same update. What is sampled, learnt and moved is bitwise what it is without.
`ahead` looks past the update, too: beside the last group's score, the next step's first group is
sampled under the weights of before, one update (`num_iterations` moves) older than those that learn
from it, never more. It is off-policy, and its policy term has importance weights (grpo.py).

The thread lives within a step: evaluations and the counts of a checker meet nobody, and nothing is
scored before its step. What was sampled ahead is kept in checkpoints as token ids and
log-probabilities, since its weights are gone. At most two groups hold graphs of their prompts.

Clock: `time/environment` is what the step waited for scores; `time/environment_hidden` is the rest
of the time that they took, in which the step did what counts as sampling or training.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from rlkit.practice.seam import Score
from rlkit.training.rollout import Group
from rlkit.training.sampling import SampledActions
from rlkit.training.text import decode, encode_prompt

PATIENCE = 5.0  # seconds in which a judge may end where the step broke off
Scored = Future[tuple[list[Score], float]]  # scores, and the seconds that they took


@dataclass(frozen=True)
class Early:
    """A group that was sampled before its step, when the optimiser had moved so often."""

    group: Group
    moves: int


def scored_groups(
    trainer: Any,
    mine: Sequence[tuple[Any, int]],
    coming: Sequence[Any],
    clock: dict[str, float],
    graph: bool,
) -> Iterator[Group]:
    """The groups of a step, one after the other, sampled and scored. `mine`: state and visit of
    each; `coming`: the states of the next step, of all ranks. Close it where the step breaks off.

    Raises what a score raised, when its group's turn comes.
    """
    judge, waiting = _Judge(trainer.task), deque[tuple[Group, Scored]]()
    try:
        for state, visit in mine:
            group = trainer.grouping.sampled(state, visit, clock, graph)
            trainer.early = None  # taken, or of no use
            waiting.append((group, judge.submit(group)))
            if len(waiting) == 2:
                yield _scored(*waiting.popleft(), clock)
        if mine:
            trainer.early = _sampled_early(trainer, coming, clock, graph)
        while waiting:
            yield _scored(*waiting.popleft(), clock)
    finally:
        judge.close()


def _scored(group: Group, scored: Scored, clock: dict[str, float]) -> Group:
    start = time.perf_counter()
    group.scores, taken = scored.result()
    waited = time.perf_counter() - start
    clock["environment"] += waited
    hidden = clock.get("environment_hidden", 0.0)
    clock["environment_hidden"] = hidden + max(taken - waited, 0.0)
    return group


def _sampled_early(
    trainer: Any, coming: Sequence[Any], clock: dict[str, float], graph: bool
) -> Early | None:
    """This rank's first group of the next step, where it may be sampled now."""
    config, progress = trainer.config, trainer.progress
    moves_first = (progress.step + 1) % config.training.gradient_accumulation_steps == 0
    place = trainer.ranks.part(len(coming)).start
    if place >= len(coming) or (moves_first and config.rollout.overlap != "ahead"):
        return None
    visit = visits_of(coming[: place + 1], progress.visits)[-1]
    group = trainer.grouping.sampled(coming[place], visit, clock, graph and not moves_first)
    return Early(group, progress.moves)


def visits_of(states: Sequence[Any], before: Mapping[str, int]) -> list[int]:
    """The visit of each state of a step, from how often each was visited before it."""
    counts, visits = dict[str, int](), []
    for state in states:
        count = counts.get(state.state_id, before.get(state.state_id, 0))
        visits.append(count)
        counts[state.state_id] = count + 1
    return visits


def early_group(trainer: Any, state: Any, visit: int) -> Group | None:
    """A copy of what was sampled ahead for this visit, as it may be learnt from now; None where
    nothing was, or where the weights moved unforeseen."""
    early = trainer.early
    if early is None or (early.group.state.state_id, early.group.visit) != (state.state_id, visit):
        return None
    if early.moves == trainer.progress.moves:
        return replace(early.group)
    if trainer.config.rollout.overlap != "ahead":
        return None
    return replace(early.group, off_policy=True, prefix=None)  # a graph of other weights


# ---- in a checkpoint


def kept_early(early: Early | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a checkpoint keeps of it: plain values for its state file, and tensors by name."""
    if early is None:
        return {}, {}
    group = early.group
    known = {"state": group.state.state_id, "visit": group.visit, "moves": early.moves}
    tensors = {f"early/{name}": t.cpu().contiguous() for name, t in vars(group.sampled).items()}
    return {"early": {**known, "off_policy": group.off_policy}}, tensors


def restored_early(
    trainer: Any, waiting: Mapping[str, Any], pending: Mapping[str, Tensor], prefix: str
) -> Early | None:
    """What `kept_early` kept; the names of its tensors begin with `prefix`."""
    known = waiting.get("early")
    by_id = {state.state_id: state for state in trainer.task.states("train")} if known else {}
    state = by_id.get(known["state"]) if known else None
    if state is None:
        return None
    prompt = encode_prompt(
        trainer.tokenizer, trainer.task.prompt(state), trainer.config.model.enable_thinking
    )
    names = SampledActions.__dataclass_fields__
    sampled = SampledActions(**{n: pending[prefix + n].to(trainer.device) for n in names})
    texts = [decode(trainer.tokenizer, ids) for ids in sampled.rows()]
    off_policy = known["off_policy"]
    group = Group(state, known["visit"], prompt, sampled, texts, [], off_policy=off_policy)
    return Early(group, known["moves"])


# ---- the thread


class _Judge:
    """A thread that scores groups in their order, and ends with the first that fails."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._todo: SimpleQueue[tuple[Group, Scored] | None] = SimpleQueue()
        self._closed = False
        # a daemon: a judge that hangs keeps no interrupted program alive
        self._thread = threading.Thread(target=self._work, name="rlkit-judge", daemon=True)
        self._thread.start()

    def submit(self, group: Group) -> Scored:
        scored: Scored = Future()
        self._todo.put((group, scored))
        return scored

    def _work(self) -> None:
        for group, scored in iter(self._todo.get, None):
            if self._closed:
                return
            start = time.perf_counter()
            try:
                scores = self._task.score(group.state, group.texts)
            except BaseException as error:  # raised where it is waited for
                scored.set_exception(error)
                return
            scored.set_result((scores, time.perf_counter() - start))

    def close(self) -> None:
        """Score nothing more, and end; a judge that hangs is not waited for longer than PATIENCE:
        what it says then goes nowhere."""
        self._closed = True
        self._todo.put(None)
        self._thread.join(PATIENCE)
