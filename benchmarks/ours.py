"""The steps of rlkit's GRPOTrainer, timed. A child of grpo_step.py; see workload.py and measure.py.

The timed call is `training_step` on one state with `gradient_accumulation_steps` 1: sampling,
reward, reference pass, policy pass, backward and update.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import (
    Phases,
    Stopwatch,
    answer_job,
    columns,
    common_phases,
    device_mib,
    log_prob_phase,
)
from benchmarks.workload import (
    TARGET_MODULES,
    Workload,
    load_tokenizer,
    make_prompts,
    reward,
)


@dataclass(frozen=True)
class PromptState:
    """A state that is its prompt."""

    state_id: str
    text: str
    question_id: str = "benchmark"


class PromptTask:
    """The least that a trainer needs: a state's prompt, and a reward for every completion. The
    states are handed to it step by step."""

    def states(self, split: str) -> list[PromptState]:
        return []

    def prompt(self, state: PromptState) -> list[dict[str, str]]:
        return [{"role": "user", "content": state.text}]

    def score(self, state: PromptState, completions: Sequence[str]) -> list[Any]:
        from rlkit.practice.task import Score

        return [Score(reward(text)) for text in completions]


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Time `warm_up` + `steps` steps; the warm-up is left out of what is returned.

    A job has `workload`, `model` (folder), `seed`, `warm_up`, `steps` and `profile`.
    """
    work = Workload(**job["workload"])
    trainer, count = _trainer(work, job), job["warm_up"] + job["steps"]
    prompts = make_prompts(trainer.tokenizer, work.prompt_tokens, job["seed"], count)
    states = [PromptState(f"{job['seed']}-{i}", text) for i, text in enumerate(prompts)]
    phases = Phases(work.device)
    before, rows = device_mib(work.device), []
    with _profiled(phases) if job["profile"] else nullcontext():
        for state in states:
            start = Stopwatch(work.device)
            metrics = trainer.training_step([state])
            row = {**start.read(), "phases": phases.take()}
            _check(trainer, work)
            row["shares"] = {k: v for k, v in metrics.items() if k.startswith("time/")}
            rows.append(row)
    return {
        **columns(rows[job["warm_up"] :]),
        "before_mib": before,
        "peak_mib": device_mib(work.device, peak=True),
    }


def _trainer(work: Workload, job: dict[str, Any]) -> Any:
    from rlkit.config import RunConfig
    from rlkit.training.policy import load_model_with_lora
    from rlkit.training.trainer import GRPOTrainer

    config = RunConfig.from_sections(
        seed=job["seed"],
        model={"base_model_path": job["model"], "load_in_4bit": False, "dtype": work.dtype},
        lora={
            "rank": work.rank,
            "alpha": work.alpha,
            "dropout": 0.0,
            "target_modules": list(TARGET_MODULES),
        },
        grpo={
            "group_size": work.actions,
            "max_new_tokens": work.action_tokens,
            "kl_penalty": work.kl_penalty,
            "kl_estimator": "k3",  # TRL's
            "temperature": work.temperature,
            "learning_rate": work.learning_rate,
            "max_grad_norm": work.max_grad_norm,
        },
        training={"gradient_accumulation_steps": 1, "gradient_checkpointing": False},
    )
    model, _ = load_model_with_lora(
        job["model"], config.lora, device=work.device, dtype=work.dtype, log=lambda _: None
    )
    tokenizer = load_tokenizer(job["model"])
    trainer = GRPOTrainer(config, PromptTask(), model, tokenizer, log=lambda _: None)
    trainer.ends = (model.config.vocab_size,)  # no token ends an action: all have C tokens
    return trainer


def _check(trainer: Any, work: Workload) -> None:
    """Raise ValueError unless the group had exactly the tokens that were asked for."""
    group = trainer.last_groups[0]
    found = len(group.prompt), *group.sampled.tokens.shape, bool(group.sampled.mask.all())
    wanted = work.prompt_tokens, work.actions, work.action_tokens, True
    if found != wanted:
        raise ValueError(f"the group is {found}, wanted is {wanted} (P, K, C, all sampled).")


def _profiled(phases: Phases) -> Any:
    """Count the step's phases by wrapping what the trainer calls; rlkit itself is not touched.

    Where the prompt's graph is shared (`reuse_prompt_graph`), its forward pass stands under
    `prefill`, and `policy forward` is what the actions add to it.
    """
    from rlkit.training import engines, gradients, grouping, sampling
    from rlkit.training import trainer as module

    phases.wrap(grouping, "read_prompts", lambda: "prefill")
    phases.wrap(sampling, "read_prompts", lambda: "prefill")
    phases.wrap(engines, "sample_actions", lambda: "decoding")
    phases.wrap(module, "group_log_probs", log_prob_phase)
    phases.wrap(gradients, "clip_gradients", lambda: "update")
    return common_phases(phases)


if __name__ == "__main__":
    answer_job(measure)
