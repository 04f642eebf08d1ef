"""`GRPOTrainer`: sample K actions a state, score them, and move the adapter (DESIGN, section 9).

One step is `batch_size` groups. For each: sample (prompt computed once), score in the task's
environment, reference pass, policy pass, backward. Gradients of sums are added up together with
their denominators over `gradient_accumulation_steps` steps and divided once, when the optimiser
moves. Everything random is drawn from counters (seed, state, visit, action, token), so that a
resumed run is the run that was never interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rlkit.training.adapters import as_reference, load_lora_checkpoint, save_lora_checkpoint
from rlkit.training.advantages import token_advantages
from rlkit.training.attention import PromptCache
from rlkit.training.checkpointing import (
    PREFIX,
    arithmetic,
    newest_checkpoint,
    optimizer_tensors,
    prune_checkpoints,
    restore_optimizer,
    tidy_checkpoints,
    write_checkpoint,
)
from rlkit.training.gradients import assert_gradients, clip_gradients, trainable, without_dropout
from rlkit.training.grpo import group_loss, k3
from rlkit.training.logprobs import group_log_probs
from rlkit.training.metrics import clip_ratios, step_metrics
from rlkit.training.prefix import decoder_and_head, read_prompts
from rlkit.training.rollout import Group, group_from_tensors, group_tensors, mean
from rlkit.training.sampling import SampledActions, sample_actions, uniform_numbers
from rlkit.training.schedule import learning_rate
from rlkit.training.text import decode, encode_prompt, end_ids


@dataclass
class Progress:
    """Where a run stands: what a checkpoint keeps besides adapter and optimiser."""

    step: int = 0
    moves: int = 0
    denominator: float = 0.0
    visits: dict[str, int] = field(default_factory=dict)
    best_step: int | None = None
    best_value: float | None = None


class GRPOTrainer:
    """Trains the adapter of `model` on the states of `task`.

    `task` knows `states(split)`, `prompt(state)` and `score(state, completions)`; nothing else of
    it is used. With a `run`, metrics, rollouts and checkpoints go into its folder.
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
    ) -> None:
        self.config, self.task, self.model, self.tokenizer = config, task, model, tokenizer
        self.run, self.log = run, log
        self.settings = config.grpo
        self.parameters = trainable(model)
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()),
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
        )
        self.ends = end_ids(model, tokenizer)
        self.progress = Progress()
        self._untrained = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.window: list[Group] = []  # groups since the optimiser moved, for further passes
        self._checked = False
        self.device = next(model.parameters()).device
        if config.lora.dropout:
            log("lora.dropout acts in SFT only; GRPO passes have it off")

    # -- one step ---------------------------------------------------------------------------

    def training_step(self, states: Sequence[Any]) -> dict[str, Any]:
        """Sample, score and learn from one group a state; returns the step's metrics.

        The optimiser moves when `gradient_accumulation_steps` steps have come together.
        """
        begun = time.perf_counter()
        clock = {"sampling": 0.0, "environment": 0.0, "training": 0.0}
        groups, stats = [], []
        # advantages look beyond the group only with scale_rewards: batch; else one group at a time
        # is sampled and learnt from, while the graph of its prompt is at hand
        batch = self.settings.scale_rewards == "batch"
        for part in [list(states)] if batch else [[state] for state in states]:
            sampled = [self._sample_group(s, clock, graph=len(part) == 1) for s in part]
            self._set_advantages(sampled)
            start = time.perf_counter()
            stats += [self._pass(group, first=True) for group in sampled]
            clock["training"] += time.perf_counter() - start
            groups += sampled
        for group in groups:
            self.progress.visits[group.state.state_id] = group.visit + 1
        self.window += groups
        self.progress.step += 1
        start = time.perf_counter()
        update: dict[str, float] = {}
        if self.progress.step % self.config.training.gradient_accumulation_steps == 0:
            update = self._update()
        clock["training"] += time.perf_counter() - start
        self.last_groups = groups
        return step_metrics(
            groups, stats, update, clock, time.perf_counter() - begun, self.settings
        )

    def preview(self, state: Any) -> pd.DataFrame:
        """The K actions that the next visit to `state` will sample, as rows of the rollouts: text,
        reward, advantage and components. A look that changes nothing: no visit is counted, and
        sampling draws from counters, so that the run goes on as if nobody had looked.
        """
        group = self._sample_group(state, {"sampling": 0.0, "environment": 0.0})
        self._set_advantages([group])
        return pd.DataFrame(group.rows())

    def _sample_group(self, state: Any, clock: dict[str, float], graph: bool = False) -> Group:
        """Sample and score a group. With `graph`, the prompt is read with gradients, once for
        sampling and the policy pass (`reuse_prompt_graph`)."""
        start = time.perf_counter()
        visit = self.progress.visits.get(state.state_id, 0)
        prompt = encode_prompt(self.tokenizer, self.task.prompt(state), self._thinking)
        prefix = self._read_prompt(prompt) if graph and self._reuses_prompts else None
        sampled = self._sample(prompt, state, visit, range(self.settings.group_size), prefix)
        texts = [decode(self.tokenizer, ids) for ids in sampled.rows()]
        middle = time.perf_counter()
        scores = self.task.score(state, texts)
        clock["sampling"] += middle - start
        clock["environment"] += time.perf_counter() - middle
        return Group(state, visit, prompt, sampled, texts, scores, prefix=prefix)

    @property
    def _reuses_prompts(self) -> bool:
        """With gradient checkpointing no graph of the prompt is kept that could be shared."""
        decoder, _ = decoder_and_head(self.model)
        auto = self.settings.reuse_prompt_graph == "auto"
        return auto and not decoder.is_activation_checkpointing

    def _read_prompt(self, prompt: list[int]) -> PromptCache | None:
        with without_dropout(self.model):
            return read_prompts(self.model, [prompt])

    def _sample(
        self,
        prompt: list[int],
        state: Any,
        visit: int,
        which: range,
        prefix: PromptCache | None = None,
    ) -> SampledActions:
        settings = self.settings
        uniforms = uniform_numbers(
            self.config.seed, state.state_id, visit, settings.group_size, settings.max_new_tokens
        )
        return sample_actions(
            self.model,
            [prompt],
            len(which),
            settings.max_new_tokens,
            end_ids=self.ends,
            temperature=settings.temperature,
            uniforms=uniforms[which.start : which.stop],
            prefix=prefix,
        )

    def _sample_action(self, state: Any, k: int = 0) -> list[int]:
        """The token ids of the group's k-th action, sampled by itself at the state's next visit."""
        prompt = encode_prompt(self.tokenizer, self.task.prompt(state), self._thinking)
        visit = self.progress.visits.get(state.state_id, 0)
        return self._sample(prompt, state, visit, range(k, k + 1)).rows()[0]

    def _compute_log_probs(self, state: Any, action: Sequence[int]) -> Tensor:
        """(C,) log-probabilities of one action's token ids under the policy, with a graph."""
        prompt = encode_prompt(self.tokenizer, self.task.prompt(state), self._thinking)
        tokens = torch.tensor([list(action)], device=self.device)
        return self._log_probs(prompt, tokens)[0][0]

    def _set_advantages(self, groups: Sequence[Group]) -> None:
        """(K, C) float64 advantages of every group, in place."""
        found = token_advantages(groups, self.settings, self.tokenizer)
        for group, advantages in zip(groups, found, strict=True):
            group.advantages = advantages

    def _pass(self, group: Group, first: bool) -> dict[str, float]:
        """One pass over a group: reference and old log-probabilities the first time, then the
        loss, its backward, and the denominator."""
        mask = group.loss_mask(self.settings.mask_truncated)
        if first and self.settings.kl_penalty:
            with torch.no_grad(), as_reference(self.model):
                group.ref_logp, _ = self._log_probs(
                    group.prompt, group.sampled.tokens, group.sampled.mask
                )
        advantages = torch.from_numpy(group.advantages).to(self.device)
        learns = bool(mask.any()) and (
            bool((advantages != 0).any()) or bool(self.settings.kl_penalty)
        )
        with torch.set_grad_enabled(learns):
            logp, entropy = self._log_probs(
                group.prompt, group.sampled.tokens, group.sampled.mask, group.prefix
            )
        group.prefix = None  # its graph is used up
        if first:
            group.old_logp, group.entropy = logp.detach(), entropy
        loss = group_loss(logp, group.old_logp, group.ref_logp, advantages, mask, self.settings)
        self.progress.denominator += loss.denominator
        if learns:
            loss.total.backward()
            if not self._checked:
                assert_gradients(self.model)
                self._checked = True
        stats = {**loss.stats, "total": float(loss.total.detach()), "denominator": loss.denominator}
        return stats | self._distances(group, logp.detach())

    def _distances(self, group: Group, logp: Tensor) -> dict[str, float]:
        """Sums over the sampled tokens: k3 to the reference, entropy, and the difference between
        the log-probabilities of sampling (cached decoding) and of the policy pass."""
        real = group.sampled.mask
        sums = {
            "real_tokens": float(real.sum()),
            "entropy": float(group.entropy[real].sum()),
            "sampling_difference": float((logp - group.sampled.logprobs)[real].abs().sum()),
        }
        if group.ref_logp is not None:
            sums["kl"] = float(k3((group.ref_logp - logp)[real]).sum())
        return sums

    def _log_probs(
        self,
        prompt: list[int],
        tokens: Tensor,
        mask: Tensor | None = None,
        prefix: PromptCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        temperature = self.settings.temperature
        with without_dropout(self.model):
            return group_log_probs(
                self.model, prompt, tokens, mask=mask, temperature=temperature, prefix=prefix
            )

    # -- the optimiser ----------------------------------------------------------------------

    def _update(self) -> dict[str, float]:
        """Move the optimiser; with num_iterations > 1, pass over the window's groups again, and
        say what was clipped there (at the first pass the ratio is 1)."""
        update, again = self._move(), []
        for _ in range(self.settings.num_iterations - 1):
            again += [self._pass(group, first=False) for group in self.window]
            update = self._move()
        self.window = []
        return update | (clip_ratios(again) if again else {})

    def _move(self) -> dict[str, float]:
        """Divide the summed gradients by their denominators, clip, and step. Where no action
        counted, nothing moves, AdamW's momentum included."""
        rate, norm = learning_rate(self.settings, self.progress.moves, self.planned_moves), 0.0
        if self.progress.denominator:
            for parameter in self.parameters.values():
                if parameter.grad is None:  # flat groups alone: a zero gradient, not a missing one
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.div_(self.progress.denominator)
            norm = clip_gradients(self.model, self.settings.max_grad_norm)
            for settings in self.optimizer.param_groups:
                settings["lr"] = rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.moves += 1
        self.progress.denominator = 0.0
        return {"grad_norm": norm, "learning_rate": rate}

    @property
    def total_steps(self) -> int:
        training = self.config.training
        return min(training.max_steps, training.num_epochs * training.steps_per_epoch)

    @property
    def planned_moves(self) -> int:
        windows = math.ceil(self.total_steps / self.config.training.gradient_accumulation_steps)
        return windows * self.settings.num_iterations

    @property
    def _thinking(self) -> bool:
        return self.config.model.enable_thinking

    # -- evaluation -------------------------------------------------------------------------

    def evaluate(self, states: Sequence[Any]) -> dict[str, float | None]:
        """Greedy actions on `states`: mean reward, mean KL (k3, per token) to the reference, and
        the means of the numeric reward components."""
        prompts = [
            encode_prompt(self.tokenizer, self.task.prompt(s), self._thinking) for s in states
        ]
        scores, kl, tokens = [], 0.0, 0.0
        size = self.config.evaluation.batch_size
        for start in range(0, len(states), size):
            part = range(start, min(start + size, len(states)))
            sampled = sample_actions(
                self.model,
                [prompts[i] for i in part],
                1,
                self.settings.max_new_tokens,
                end_ids=self.ends,
            )
            for i, ids in zip(part, sampled.rows(), strict=True):
                scores += self.task.score(states[i], [decode(self.tokenizer, ids)])
                kl += self._kl_sum(prompts[i], ids)
                tokens += len(ids)
        names = ("important_rate", "discovery_rate", "invalid")
        parts = {name: mean([s.components.get(name) for s in scores]) for name in names}
        return {
            "reward": mean([score.reward for score in scores]),
            "kl": kl / tokens if tokens else None,
            **parts,
            "states": float(len(states)),
        }

    @torch.no_grad()
    def _kl_sum(self, prompt: list[int], ids: list[int]) -> float:
        tokens = torch.tensor([ids], device=self.device)
        policy, _ = self._log_probs(prompt, tokens)
        with as_reference(self.model):
            reference, _ = self._log_probs(prompt, tokens)
        return float(k3(reference - policy).sum())

    # -- checkpoints ------------------------------------------------------------------------

    def save_checkpoint(self, step: int | None = None) -> Any:
        """Write `checkpoint-<step>` whole; keeps the last `keep_last` ones and the best."""
        step = self.progress.step if step is None else step
        folder = self.run.checkpoints_folder / f"{PREFIX}{step}"
        state = {
            **vars(self.progress),
            "arithmetic": arithmetic(self.device),
            "window": [g.state.state_id for g in self.window],
            "base_model": self.config.model.base_model_path,
        }
        write_checkpoint(
            folder,
            lambda path: save_lora_checkpoint(self.model, path),
            state,
            optimizer_tensors(self.optimizer, list(self.parameters)),
            self._pending(),
        )
        best = {self.progress.best_step} - {None}
        prune_checkpoints(self.run.checkpoints_folder, self.config.training.keep_last, best)
        return folder

    def _pending(self) -> dict[str, Tensor]:
        """Gradients that wait for the optimiser, and, for further passes, their groups."""
        tensors = {
            f"gradient/{name}": parameter.grad.detach().cpu().contiguous()
            for name, parameter in self.parameters.items()
            if parameter.grad is not None
        }
        if self.settings.num_iterations > 1:
            for i, group in enumerate(self.window):
                tensors |= {f"group/{i}/{k}": v for k, v in group_tensors(group).items()}
        return tensors

    def load_checkpoint(self) -> int:
        """Go on from the newest whole checkpoint of the run's folder; returns its step (0: none).

        What was written after it (metrics, rollouts) is cut off, so that nothing is there twice;
        what this trainer did after it, in a kernel that was interrupted, is forgotten.
        """
        tidy_checkpoints(self.run.checkpoints_folder)
        found = newest_checkpoint(self.run.checkpoints_folder, self.log)
        if found is None:
            self._forget()
            self.run.cut_metrics(-1)
            return 0
        load_lora_checkpoint(self.model, found.folder)
        restore_optimizer(self.optimizer, self.parameters, found.optimizer)
        state = found.state
        self.progress = Progress(**{name: state[name] for name in vars(Progress())})
        for name, parameter in self.parameters.items():
            gradient = found.pending.get(f"gradient/{name}")
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        by_id = {s.state_id: s for s in self.task.states("train")} if state["window"] else {}
        self.window = [
            group_from_tensors(by_id[state_id], found.pending, i, self.device)
            for i, state_id in enumerate(state["window"])
            if self.settings.num_iterations > 1
        ]
        changed = [k for k, v in arithmetic(self.device).items() if state["arithmetic"].get(k) != v]
        if changed:
            self.log(f"not bitwise: the run goes on with another {', '.join(changed)}")
        self.run.cut_metrics(self.progress.step)
        return self.progress.step

    @torch.no_grad()
    def _forget(self) -> None:
        """Be as new: an interrupt before the first checkpoint leaves half a step behind."""
        if self.progress == Progress():
            return
        for name, parameter in self.parameters.items():
            parameter.copy_(self._untrained[name])
        self.optimizer.state.clear()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress, self.window = Progress(), []

    def lineage(self) -> dict[str, Any]:
        """What the run's lineage.json says of data and arithmetic."""
        data = self.task.lineage() if hasattr(self.task, "lineage") else {}
        return {**data, "arithmetic": arithmetic(self.device)}

    def write_rollouts(self) -> None:
        """Keep every action of the last step in the run's folder."""
        rows = [row for group in self.last_groups for row in group.rows()]
        self.run.write_rollouts(self.progress.step, pd.DataFrame(rows))
