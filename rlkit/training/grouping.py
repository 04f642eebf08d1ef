"""How the groups of a step come to be: asked for, sampled by the engine, scored by the task."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

from rlkit.training.caches import PromptCache
from rlkit.training.engines import Asked, RolloutEngine, make_engine
from rlkit.training.gradients import without_dropout
from rlkit.training.overlap import early_group, scored_groups
from rlkit.training.prefix import read_prompts, shares_graphs
from rlkit.training.rollout import Group
from rlkit.training.text import decode, encode_prompt

Clock = dict[str, float]  # seconds by part of the step, added to in place


class Grouping:
    """Samples and scores the groups of a trainer, whose model, counts and settings it follows."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.engine: RolloutEngine = make_engine(trainer)

    def announce(self, mine: Sequence[tuple[Any, int]], clock: Clock) -> None:
        """Publish the weights, and let a foreign engine sample the groups of a step together."""
        start = time.perf_counter()
        self.engine.publish()
        if self.engine.off_policy:
            early = [early_group(self._trainer, *one) for one in mine]
            pairs = zip(mine, early, strict=True)
            self.engine.ask([self.asked(*one) for one, known in pairs if not known])
        clock["sampling"] += time.perf_counter() - start

    def of_step(
        self, mine: Sequence[tuple[Any, int]], coming: Sequence[Any], clock: Clock, graph: bool
    ) -> Generator[Group, None, None]:
        """The groups of a step, each sampled and scored when it is asked for, or before. `mine`:
        state and visit of each; `coming`: the states of the next step."""
        if self._trainer.config.rollout.overlap != "none":
            return scored_groups(self._trainer, mine, coming, clock, graph)
        if self._trainer.config.rollout.groups_at_once > 1:
            return self._in_batches(mine, clock, graph)
        return (self.one(state, visit, clock, graph) for state, visit in mine)

    def one(self, state: Any, visit: int, clock: Clock, graph: bool = False) -> Group:
        """A group, sampled and scored."""
        group = self.sampled(state, visit, clock, graph)
        self._score(group, clock)
        return group

    def sampled(self, state: Any, visit: int, clock: Clock, graph: bool) -> Group:
        """A group without scores. With `graph`, the prompt is read with gradients, once for
        sampling and the policy pass (`reuse_prompt_graph`)."""
        if early := early_group(self._trainer, state, visit):
            return early
        start = time.perf_counter()
        asked = self.asked(state, visit)
        prefix = self._read(asked) if graph and self._reuses_prompts else None
        sampled = self.engine.sample(asked, prefix)
        group = self._group(state, asked, sampled, prefix)
        clock["sampling"] += time.perf_counter() - start
        return group

    def asked(self, state: Any, visit: int, which: range | None = None) -> Asked:
        """What the engine is asked for: the whole group, or some of its actions."""
        trainer = self._trainer
        prompt = encode_prompt(
            trainer.tokenizer, trainer.task.prompt(state), trainer.config.model.enable_thinking
        )
        return Asked(prompt, state.state_id, visit, which or range(trainer.settings.group_size))

    def _in_batches(
        self, mine: Sequence[tuple[Any, int]], clock: Clock, graph: bool
    ) -> Generator[Group, None, None]:
        """The groups of a step, `rollout.groups_at_once` of them sampled in one batch."""
        size = self._trainer.config.rollout.groups_at_once
        graph = graph and self._reuses_prompts
        for first in range(0, len(mine), size):
            start, part = time.perf_counter(), mine[first : first + size]
            asked = [self.asked(state, visit) for state, visit in part]
            prefixes = [self._read(one) if graph else None for one in asked]
            sampled = self.engine.sample_together(asked, prefixes)
            rows = zip(part, asked, sampled, prefixes, strict=True)
            groups = [self._group(state, *rest) for (state, _), *rest in rows]
            clock["sampling"] += time.perf_counter() - start
            for group in groups:
                self._score(group, clock)
                yield group

    def _group(self, state: Any, asked: Asked, sampled: Any, prefix: PromptCache | None) -> Group:
        texts = [decode(self._trainer.tokenizer, ids) for ids in sampled.rows()]
        off_policy = self.engine.off_policy
        return Group(
            state, asked.visit, asked.prompt, sampled, texts, [], prefix=prefix,
            off_policy=off_policy,
        )  # fmt: skip

    def _score(self, group: Group, clock: Clock) -> None:
        start = time.perf_counter()
        group.scores = self._trainer.task.score(group.state, group.texts)
        clock["environment"] += time.perf_counter() - start

    @property
    def _reuses_prompts(self) -> bool:
        auto = self._trainer.settings.reuse_prompt_graph == "auto" and not self.engine.off_policy
        return auto and shares_graphs(self._trainer.model)

    def _read(self, asked: Asked) -> PromptCache | None:
        with without_dropout(self._trainer.model):
            return read_prompts(self._trainer.model, [asked.prompt])
