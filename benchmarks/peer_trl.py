"""The steps of TRL's GRPOTrainer, timed. A child of grpo_step.py; see workload.py and measure.py.

A step is counted from TRL's `on_step_begin` to its `on_step_end` (data loading and logging are
left out, in its favour). `VARIANTS` are the settings that could make it faster on a CPU;
`grpo_step.py --peer-variants` tries each once, benchmarks/README.md has the table, and `BEST` is
what the comparison runs with.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
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

BEST = "micro-batches of 2, static cache"
# Changes to GRPOConfig; `micro_batch` (rows of a training pass) and `attention`, which are not its.
VARIANTS: dict[str, dict[str, Any]] = {
    "whole group at once": {},
    "micro-batches of 1": {"micro_batch": 1},
    "micro-batches of 2": {"micro_batch": 2},
    "static cache": {"cache_implementation": "static"},
    BEST: {"micro_batch": 2, "cache_implementation": "static"},
    "eager attention": {"attention": "eager"},
    "continuous batching": {  # it knows no min_new_tokens
        "use_transformers_continuous_batching": True,
        "generation_kwargs": {"eos_token_id": -1},
    },
    "torch.compile": {"torch_compile": True},
    "no autocast": {"bf16": False},
    "gradient checkpointing": {"gradient_checkpointing": True},
}


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Time `warm_up` + `steps` steps; the warm-up is left out of what is returned.

    A job has `workload`, `model` (folder), `seed`, `warm_up`, `steps`, `profile` and `variant`, a
    name of VARIANTS.
    """
    import transformers

    class StepTimes(transformers.TrainerCallback):
        """Takes the time of every step, and the phases counted in it."""

        def __init__(self) -> None:
            self.rows: list[dict[str, Any]] = []

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.start = Stopwatch(work.device)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.rows.append({**self.start.read(), "phases": phases.take()})

    work, times = Workload(**job["workload"]), StepTimes()
    phases = Phases(work.device)
    with tempfile.TemporaryDirectory() as folder:
        trainer, settings = _trainer(work, job, folder)
        trainer.add_callback(times)
        before = device_mib(work.device)
        with _profiled(phases, trainer) if job["profile"] else nullcontext():
            trainer.train()
    _check_tokens(trainer, work, job["warm_up"] + job["steps"])
    return {
        **columns(times.rows[job["warm_up"] :]),
        "settings": settings,
        "before_mib": before,
        "peak_mib": device_mib(work.device, peak=True),
    }


def _trainer(work: Workload, job: dict[str, Any], folder: str) -> tuple[Any, dict[str, Any]]:
    import datasets
    import peft
    import torch
    import transformers
    import trl

    changes = dict(VARIANTS[job["variant"]])
    attention = changes.pop("attention", "sdpa")
    micro_batch = math.gcd(work.actions, changes.pop("micro_batch", work.actions))
    steps = job["warm_up"] + job["steps"]
    tokenizer = load_tokenizer(job["model"])
    settings = {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": work.actions // micro_batch,
        "num_generations": work.actions,
        "max_completion_length": work.action_tokens,
        "generation_kwargs": {"min_new_tokens": work.action_tokens},
        "loss_type": "grpo",
        "scale_rewards": "group",
        "beta": work.kl_penalty,
        "epsilon": 0.2,
        "num_iterations": 1,
        "temperature": work.temperature,
        "learning_rate": work.learning_rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": work.max_grad_norm,
        "max_steps": steps,
        "bf16": work.dtype == "bfloat16",
        "gradient_checkpointing": False,
        "disable_dropout": True,
        "use_cpu": work.device == "cpu",
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "shuffle_dataset": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": job["seed"],
    } | changes
    prompts = make_prompts(tokenizer, work.prompt_tokens, job["seed"], steps)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=getattr(torch, work.dtype), attn_implementation=attention
    )
    lora = peft.LoraConfig(
        r=work.rank,
        lora_alpha=work.alpha,
        lora_dropout=0.0,
        target_modules=list(TARGET_MODULES),
        task_type="CAUSAL_LM",
    )
    trainer = trl.GRPOTrainer(
        model=model,
        args=trl.GRPOConfig(output_dir=folder, **settings),
        reward_funcs=[_reward_of(work)],
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        peft_config=lora,
    )
    return trainer, {"attention": attention, **settings}


def _reward_of(work: Workload) -> Any:
    def rewards(
        completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **kwargs: Any
    ) -> list[float]:
        lengths = {len(ids) for ids in completion_ids}
        if lengths != {work.action_tokens}:
            raise ValueError(f"completions have {lengths} tokens, wanted {work.action_tokens}.")
        return [reward(text) for text in completions]

    return rewards


def _check_tokens(trainer: Any, work: Workload, steps: int) -> None:
    """Raise ValueError unless every step had K rows of exactly P + C tokens."""
    wanted = steps * work.actions * (work.prompt_tokens + work.action_tokens)
    seen = trainer.state.num_input_tokens_seen
    if seen != wanted:
        raise ValueError(f"TRL counted {seen} tokens in {steps} steps, wanted {wanted}.")


def _profiled(phases: Phases, trainer: Any) -> Any:
    """Count the step's phases by wrapping what the trainer calls; in `decoding`, calls of the
    decoder that read more than one token a row are `prefill`."""
    phases.wrap(trainer, "_generate", lambda: "decoding")
    phases.wrap(trainer, "_get_per_token_logps_and_entropies", log_prob_phase)
    inside: list[bool] = []

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        inside.append(phases.current == "decoding" and ids is not None and ids.shape[1] > 1)
        if inside[-1]:
            phases.begin("prefill")

    def after(module: Any, args: Any, output: Any) -> None:
        if inside.pop():
            phases.end()

    decoder = trainer.model.get_base_model().get_decoder()
    decoder.register_forward_pre_hook(before, with_kwargs=True)
    decoder.register_forward_hook(after)
    return common_phases(phases)


if __name__ == "__main__":
    answer_job(measure)
