"""`GRPOTrainer`: sample K actions a state, score them, and move the adapter. A step, in order:

    sample               Grouping.of_step          K actions a state, its prompt computed once
    judge, reward        task.score                one verdict a document, one Score an action
    advantages           _set_advantages           (K, C), of actions or of clues
    log-probabilities    _pass, log_probs          of the reference, and of the policy with a graph
    loss, backward       _pass, group_loss         sums and denominators, which wait for the move
    optimiser's step     _update, _move            once in gradient_accumulation_steps steps
    metrics              step_metrics              returned; loop.py writes them, and then calls
    rollouts             write_rollouts            every action of the step
    checkpoint           save_checkpoint           where it stands, with what waits for the move

A step samples `batch_size` groups; every `gradient_accumulation_steps` steps make an update, which
is `num_iterations` passes over their groups and as many moves of the optimiser; a visit counts how
often a state was sampled. Gradients of sums are added up together with their denominators over the
steps of an update, and over the processes (ranks.py), and divided once, when the optimiser moves.
Everything random is drawn from counters (seed, state, visit, action, token), so that a resumed run
is the run that was never interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rlkit.errors import RunError
from rlkit.training import sharding, weights
from rlkit.training.adapters import as_reference
from rlkit.training.advantages import token_advantages
from rlkit.training.caches import PromptCache
from rlkit.training.checkpointing import arithmetic
from rlkit.training.engines import check_sampler
from rlkit.training.gradients import (
    assert_gradients,
    clip_and_step,
    loss_scaler,
    trainable,
    without_dropout,
)
from rlkit.training.greedy import greedy_evaluation
from rlkit.training.grouping import Grouping
from rlkit.training.grpo import group_loss, importance_weights
from rlkit.training.logprobs import group_log_probs
from rlkit.training.metrics import clip_ratios, over_ranks, step_metrics, task_metrics
from rlkit.training.overlap import Early, visits_of
from rlkit.training.ranks import Ranks
from rlkit.training.resume import Progress, begin_training, restore_trainer, save_trainer
from rlkit.training.rollout import Group, parcel
from rlkit.training.scaling import process_warnings
from rlkit.training.schedule import learning_rate
from rlkit.training.text import completeness, encode_prompt, end_ids
from rlkit.training.zero import make_optimizer


class GRPOTrainer:
    """Trains the adapter of `model` on the states of `task`.

    `task` knows `states(split)`, `prompt(state)` and `score(state, completions)`; more it need not
    have (`rlkit.practice.task.Task`). With a `run`, metrics, rollouts and checkpoints go into its
    folder. With `ranks` of several processes, they all call the same methods with the same states;
    metrics and groups come together on the main rank.
    """

    def __init__(
        self,
        config: Any,
        task: Any,
        model: Any,
        tokenizer: Any,
        run: Any = None,
        *,
        log: Callable[[str], None] = print,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.config, self.task, self.model, self.tokenizer = config, task, model, tokenizer
        self.run, self.log = run, log
        self.settings = config.grpo
        self.parameters = trainable(model)
        self.strategy = sharding.launched_strategy()
        self.optimizer = make_optimizer(
            self.parameters.values(),
            self.settings.learning_rate,
            self.settings.weight_decay,
            self.strategy,
        )
        self.scaler = loss_scaler(model)
        self.ends = end_ids(model, tokenizer)
        self.complete = completeness(getattr(task, "complete", None), tokenizer)
        self.progress = Progress()
        self.ahead = 0  # steps counted beyond the position in the data: with fewer processes
        self.ranks.copy_(self.parameters)
        self.untrained = begin_training(self)
        self.window: list[Group] = []  # groups since the optimiser moved, for further passes
        self.early: Early | None = None  # sampled before its step
        self._checked = self._compared = self._half_done = False
        self.device = sharding.computes_on(model)
        self.grouping = Grouping(self)
        self.engine = self.grouping.engine
        if config.lora.dropout and weights.of(model) is None:
            log("lora.dropout acts in SFT only; GRPO passes have it off")
        weights.warn_of_rate(model, "grpo.learning_rate", self.settings.learning_rate, log)
        for line in process_warnings(config, self.ranks.size):
            log(line)

    def training_step(self, states: Sequence[Any], coming: Sequence[Any] = ()) -> dict[str, Any]:
        """Sample, score and learn from one group a state, of several processes each from its part
        of the states; returns the step's metrics (on the main rank, elsewhere none). `coming`: the
        states of the next step, one of which `rollout.overlap` may sample now.

        The optimiser moves when `gradient_accumulation_steps` steps have come together. Raises
        RunError where an earlier step broke off half done.
        """
        with self._whole():
            return self._step(states, coming)

    def final_update(self) -> dict[str, float]:
        """Move the optimiser with the steps that wait for it, at the end of a run; the update's
        metrics, or none where no action waits."""
        with self._whole():
            waiting = self.ranks.any(self.progress.denominator > 0)
            return self._update() if waiting else {}

    def _step(self, states: Sequence[Any], coming: Sequence[Any]) -> dict[str, Any]:
        task_metrics(self.task)  # what was counted between steps, as in an evaluation, is not ours
        begun = time.perf_counter()
        clock = {"sampling": 0.0, "environment": 0.0, "training": 0.0}
        self._refuse_uneven(len(states))
        groups, stats, visits = [], [], self._count_visits(states)
        mine = [(states[i], visits[i]) for i in self.ranks.part(len(states))]
        self.grouping.announce(mine, clock)
        # advantages look beyond the group only with scale_rewards: batch; else one group at a time
        # is sampled and learnt from, while the graph of its prompt is at hand
        batch = self.settings.scale_rewards == "batch"
        graph = not batch or len(mine) == 1
        with closing(self.grouping.of_step(mine, coming, clock, graph)) as scored:
            for part in [list(scored)] if batch else ([group] for group in scored):
                self._set_advantages(part, of_step=batch)
                start = time.perf_counter()
                stats += [self._pass(group, first=True) for group in part]
                clock["training"] += time.perf_counter() - start
                groups += part
        self.window += groups
        self.progress.step += 1
        self.progress.groups += len(states)
        start = time.perf_counter()
        busy = start - begun
        update: dict[str, float] = {}
        if self.progress.step % self.config.training.gradient_accumulation_steps == 0:
            update = self._update()
        clock["training"] += time.perf_counter() - start
        seconds = time.perf_counter() - begun
        self.last_groups = groups
        told = (busy, seconds, clock, stats, task_metrics(self.task), groups)
        return self._of_all_ranks(states, told, update)

    def _of_all_ranks(
        self, states: Sequence[Any], told: tuple[Any, ...], update: dict[str, float]
    ) -> dict[str, Any]:
        """The metrics of a step, and its groups as `last_groups`, from what the ranks tell; the
        time is that of the slowest one."""
        if not self.ranks.alone:
            told = (*told[:-1], [parcel(group) for group in told[-1]])
        everyone = self.ranks.gather(told)
        if not everyone:
            return {}
        groups = [group for one in everyone for group in one[-1]]
        for group, state in zip(groups, states, strict=True):
            group.state = state
        self.last_groups = groups
        stats = [stat for one in everyone for stat in one[3]]
        _, _, clock, *_ = max(everyone, key=lambda one: one[0])
        seconds = max(one[1] for one in everyone)
        parts = getattr(self.task, "step_metrics", {})
        metrics = step_metrics(groups, stats, update, clock, seconds, self.settings, parts)
        return metrics | over_ranks([one[4] for one in everyone])

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Work that must be done to its end: where it breaks off, some gradients are summed and
        some visits counted, and nothing may be built on them."""
        self._refuse_half_done()
        self._half_done = True
        with self.ranks.telling() if sharding.of(self.model) else nullcontext():
            yield
        self._half_done = False

    def _refuse_half_done(self) -> None:
        if self._half_done:
            raise RunError(
                "the last training step broke off half done, and some of its gradients are summed "
                "already; call load_checkpoint() to go back to the last checkpoint, or, without a "
                "run, make the model and the trainer anew."
            )

    def _refuse_uneven(self, count: int) -> None:
        """A divided model is called as often by every rank."""
        if sharding.of(self.model) and count % self.ranks.size:
            raise RunError(
                f"{count} groups do not come in {self.ranks.size} equal parts, and a divided base "
                "wants that; give a multiple of the number of processes."
            )

    def preview(self, state: Any) -> pd.DataFrame:
        """The K actions that the next visit to `state` will sample, as rows of the rollouts: text,
        reward, advantage and components. A look that changes nothing: no visit is counted, and
        sampling draws from counters, so that the run goes on as if nobody had looked.
        """
        self.engine.publish()
        clock = {"sampling": 0.0, "environment": 0.0}
        group = self.grouping.one(state, self.progress.visits.get(state.state_id, 0), clock)
        self._set_advantages([group])
        return pd.DataFrame(group.rows())

    def _count_visits(self, states: Sequence[Any]) -> list[int]:
        """The visit of each state of a step, counted alike on every rank: the state's next one, in
        this step or a later one, is another."""
        visits = visits_of(states, self.progress.visits)
        for state, visit in zip(states, visits, strict=True):
            self.progress.visits[state.state_id] = visit + 1
        return visits

    def _sample_action(self, state: Any, k: int = 0) -> list[int]:
        """The token ids of the group's k-th action, sampled by itself at the state's next visit."""
        visit = self.progress.visits.get(state.state_id, 0)
        self.engine.publish()
        return self.engine.sample(self.grouping.asked(state, visit, range(k, k + 1))).rows()[0]

    def _compute_log_probs(self, state: Any, action: Sequence[int]) -> Tensor:
        """(C,) log-probabilities of one action's token ids under the policy, with a graph."""
        prompt = encode_prompt(self.tokenizer, self.task.prompt(state), self._thinking)
        tokens = torch.tensor([list(action)], device=self.device)
        return self.log_probs(prompt, tokens)[0][0]

    def _set_advantages(self, groups: Sequence[Group], of_step: bool = False) -> None:
        """(K, C) float64 advantages of every group, in place; `of_step`: beside the groups of all
        ranks."""
        rewards = None
        if of_step:
            everyone = self.ranks.gather_all([group.rewards for group in groups])
            rewards = [reward for one in everyone for reward in one]
        found = token_advantages(groups, self.settings, self.tokenizer, rewards)
        for group, advantages in zip(groups, found, strict=True):
            group.advantages = advantages

    def _pass(self, group: Group, first: bool) -> dict[str, float]:
        """One pass over a group: reference and old log-probabilities the first time, then the
        loss, its backward, and the denominator.

        All sampled tokens are scored, for rollouts and metrics; only `mask` enters the loss.
        """
        mask = group.loss_mask(self.settings.mask_truncated)
        if first and self.settings.kl_penalty:
            with torch.no_grad(), as_reference(self.model):
                group.ref_logp, _ = self.log_probs(
                    group.prompt, group.sampled.tokens, group.sampled.mask
                )
        advantages = torch.from_numpy(group.advantages).to(self.device)
        learns = bool(mask.any()) and (
            bool((advantages != 0).any()) or bool(self.settings.kl_penalty)
        )
        shards = sharding.of(self.model)
        passes_back = shards.any(learns) if shards else learns
        with torch.set_grad_enabled(passes_back):
            logp, entropy = self.log_probs(
                group.prompt, group.sampled.tokens, group.sampled.mask, group.prefix
            )
        group.prefix = None  # its graph is used up
        if first:
            group.old_logp, group.entropy = logp.detach(), entropy
            group.weights = self._weights(group, mask)
        loss = group_loss(
            logp, group.old_logp, group.ref_logp, advantages, mask, self.settings, group.weights
        )
        self.progress.denominator += loss.denominator
        if learns:
            self.scaler.scale(loss.total).backward()
            if not self._checked:
                assert_gradients(self.model, finite=not self.scaler.is_enabled())
                self._checked = True
        elif passes_back:  # with the others
            (logp.sum() * 0).backward()
        stats = {**loss.stats, "total": float(loss.total.detach()), "denominator": loss.denominator}
        return stats

    def _weights(self, group: Group, mask: Tensor) -> Tensor | None:
        """(K, C) importance weights of a group that the policy pass's program and weights did not
        sample; of all others none."""
        if not group.off_policy:
            return None
        if self.engine.off_policy and not self._compared:
            check_sampler(group, self.config.rollout.engine)
            self._compared = True
        level, cap = self.settings.importance_level, self.config.rollout.importance_cap
        return importance_weights(group.old_logp, group.sampled.logprobs, mask, level, cap)

    def log_probs(
        self,
        prompt: list[int],
        tokens: Tensor,
        mask: Tensor | None = None,
        prefix: PromptCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(K, C) log-probabilities and entropies of a group's actions, without dropout."""
        temperature = self.settings.temperature
        with without_dropout(self.model):
            return group_log_probs(
                self.model, prompt, tokens, mask=mask, temperature=temperature, prefix=prefix
            )

    def _update(self) -> dict[str, float]:
        """Move the optimiser; with num_iterations > 1, pass over the window's groups again, and
        say what was clipped there (at the first pass the ratio is 1)."""
        update, again = self._move(), []
        if self.settings.num_iterations > 1:  # after a resume by another number of processes
            self._refuse_uneven(int(self.ranks.total(len(self.window))))
        for _ in range(self.settings.num_iterations - 1):
            again += [self._pass(group, first=False) for group in self.window]
            update = self._move()
        self.window = []
        if self.settings.num_iterations == 1:
            return update
        again = [stat for one in self.ranks.gather(again) for stat in one]
        return update | clip_ratios(again)

    def _move(self) -> dict[str, float]:
        """Sum gradients and denominators over the ranks, divide once, clip, and step. Where no
        action counted, nothing moves, AdamW's momentum included."""
        rate = learning_rate(self.settings, self.progress.moves, self.planned_moves)
        norm: float | None = 0.0
        for parameter in self.parameters.values():
            if parameter.grad is None:  # nothing to learn: a zero gradient, not a missing one
                parameter.grad = torch.zeros_like(parameter)
        denominator = self.ranks.total(self.progress.denominator)
        if denominator:
            self.ranks.sum_({name: p.grad for name, p in self.parameters.items()})
            for parameter in self.parameters.values():
                parameter.grad.div_(denominator)
            for settings in self.optimizer.param_groups:
                settings["lr"] = rate
            norm = clip_and_step(
                self.model, self.optimizer, self.scaler, self.settings.max_grad_norm
            )
            if norm is None:
                self.log(f"the gradients overflowed: scaled by {self.scaler.get_scale():g} now")
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.moves += 1
        self.progress.denominator = 0.0
        return {"grad_norm": norm, "learning_rate": rate}

    @property
    def total_steps(self) -> int:
        states = len(self.task.states("train"))
        return self.config.training.total_steps(states, self.ranks.size, self.ahead)

    @property
    def epoch_steps(self) -> int:
        return self.config.training.epoch_steps(len(self.task.states("train")), self.ranks.size)

    @property
    def position(self) -> int:
        """Where the run stands in its epochs, in steps of as many processes as there are now."""
        return self.progress.step - self.ahead

    @property
    def planned_moves(self) -> int:
        windows = math.ceil(self.total_steps / self.config.training.gradient_accumulation_steps)
        return windows * self.settings.num_iterations

    @property
    def _thinking(self) -> bool:
        return self.config.model.enable_thinking

    def evaluate(self, states: Sequence[Any]) -> dict[str, float | None]:
        """Greedy actions on `states`: mean reward, mean KL to the reference, and components."""
        return greedy_evaluation(self, states)

    def save_checkpoint(self, step: int | None = None) -> Path:
        """Write `checkpoint-<step>` whole; keeps the last `keep_last` ones and the best.
        Raises RunError where a step broke off half done."""
        self._refuse_half_done()
        return save_trainer(self, self.progress.step if step is None else step)

    def load_checkpoint(self) -> int:
        """Go on from the run's newest whole checkpoint; returns its step (0: none)."""
        step = restore_trainer(self)
        self.engine.forget()
        self._half_done = False
        return step

    def lineage(self) -> dict[str, Any]:
        """What the run's lineage.json says of data and arithmetic."""
        data = self.task.lineage() if hasattr(self.task, "lineage") else {}
        return {**data, "arithmetic": arithmetic(self.device)}

    def write_rollouts(self) -> None:
        """Keep every action of the last step in the run's folder."""
        rows = [row for group in self.last_groups for row in group.rows()]
        self.run.write_rollouts(self.progress.step, pd.DataFrame(rows))
