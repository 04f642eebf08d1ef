"""The study's GRPO through TRL's GRPOTrainer: the same states in the same order, prompts, reward,
group size, learning rate, adapter and model; a part of the queue.

    python -m benchmarks.study.trl_grpo --params params/study/trl.yaml

The same: `loss_type`, `scale_rewards`, beta, temperature, clipping, warm-up, LoRA, no dropout, a
reference that is the warm start. TRL's own: its KL is k3 (ours the squared log-ratio), its sampler
and its random numbers. It runs with the settings that were fastest in benchmarks/README.md. Into
the run's folder go `metrics.jsonl`, with the time of every update (from TRL's `on_step_begin` to
its `on_step_end`, so that data loading, saving and evaluation are left out), and the greedy dev
discovery every `steps_per_epoch` updates, by this package's evaluation. It goes on from TRL's own
checkpoint, one an update.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Stopwatch
from benchmarks.peer_trl import BEST, VARIANTS
from rlkit.config import RunConfig
from rlkit.errors import RlkitError
from rlkit.files import plain
from rlkit.run import Run

CHECKPOINTS = "trl_checkpoints"


def train(config: RunConfig, log: Callable[[str], None] = print) -> Run:
    """Train `max_steps` updates, or go on; returns the run."""
    import transformers

    from rlkit.training.stages import prepare_data

    run = Run.open(config)
    with run.lock():
        task = prepare_data(config, run, log)
        evaluate = _evaluation(config, task, log)
        steps = min(config.training.max_steps, config.training.total_steps(1))
        trainer, model = _trainer(config, task, run.folder / CHECKPOINTS, steps)
        found = transformers.trainer_utils.get_last_checkpoint(str(trainer.args.output_dir))
        run.cut_metrics(int(found.rpartition("-")[2]) if found else -1)
        if not found:
            run.append_metrics({"step": 0, **evaluate(model)})
        trainer.add_callback(_recorder(run, config, evaluate, model, steps, log))
        run.write_lineage({"trainer": "trl"})
        run.set_status("running")
        trainer.train(resume_from_checkpoint=found)
        run.set_status("finished", step=steps)
    return run


def _recorder(
    run: Run, config: RunConfig, evaluate: Callable, model: Any, steps: int, log: Callable
) -> Any:
    """A callback that writes a line of metrics an update."""
    import transformers

    class Recorder(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, optimizer: Any, **kwargs: Any) -> None:
            self.rate = optimizer.param_groups[0]["lr"]
            self.watch = Stopwatch()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            spent = self.watch.read()
            row = {"step": state.global_step, "step_time": spent["steps"]}
            row |= {"cpu_time": spent["steps_cpu"], "learning_rate": self.rate}
            if state.global_step % config.training.steps_per_epoch == 0 or row["step"] == steps:
                row |= evaluate(model)
            run.append_metrics(plain(row))
            log(
                ", ".join(f"{name} {value:.4g}" for name, value in row.items() if value is not None)
            )

    return Recorder()


def _evaluation(config: RunConfig, task: Any, log: Callable) -> Callable[[Any], dict[str, Any]]:
    """Greedy dev figures of TRL's model: its adapter is put into a model of this package."""
    from rlkit.training.adapters import load_lora_checkpoint
    from rlkit.training.dev import model_evaluation
    from rlkit.training.stages import load_model
    from rlkit.training.text import token_counter

    ours, tokenizer = load_model(config, config.model.init_adapter, log)
    task.count_tokens = token_counter(tokenizer)
    greedy = model_evaluation(config, task, ours, tokenizer)

    def evaluate(model: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, selected_adapters=["default"])
            load_lora_checkpoint(ours, folder)
        return {f"eval/{name}": value for name, value in greedy().items()}

    return evaluate


def _trainer(config: RunConfig, task: Any, folder: Path, steps: int) -> tuple[Any, Any]:
    """TRL's trainer, and the PEFT model that it trains."""
    import datasets
    import peft
    import torch
    import transformers
    import trl

    from rlkit.training.models import resolve_base_model
    from rlkit.training.precision import choose_precision
    from rlkit.training.schedule import learning_rate

    source = resolve_base_model(config.model.base_model_path)
    precision = choose_precision(config.model.device, config.model.dtype, False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(source))
    base = transformers.AutoModelForCausalLM.from_pretrained(
        str(source), dtype=precision.dtype, attn_implementation="sdpa"
    )
    model = peft.PeftModel.from_pretrained(base, config.model.init_adapter, is_trainable=True)
    for adapter in model.peft_config.values():  # a folder: saving looks for the base's config
        adapter.base_model_name_or_path = str(source)
    states = _in_order(config, task, steps)
    _check_prompts(tokenizer, task, states[:4], config)
    rows = {"prompt": [task.prompt(s) for s in states], "state_id": [s.state_id for s in states]}

    class Trainer(trl.GRPOTrainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            """Our learning rate: transformers' own warm-up begins with an update at rate 0."""
            if self.lr_scheduler is None:
                self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                    optimizer or self.optimizer,
                    lambda move: (
                        learning_rate(config.grpo, move, steps) / config.grpo.learning_rate
                    ),
                )
            return self.lr_scheduler

    trainer = Trainer(
        model=model,
        args=trl.GRPOConfig(output_dir=str(folder), **settings(config, steps)),
        reward_funcs=[_reward_of(task, tokenizer, states)],
        train_dataset=datasets.Dataset.from_dict(rows),
        processing_class=tokenizer,
    )
    return trainer, model


def settings(config: RunConfig, steps: int) -> dict[str, Any]:
    """What GRPOConfig is given."""
    grpo, training = config.grpo, config.training
    changes = {k: v for k, v in VARIANTS[BEST].items() if k != "micro_batch"}
    rows = grpo.group_size * training.batch_size
    micro_batch = math.gcd(rows, VARIANTS[BEST]["micro_batch"])
    return changes | {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": rows // micro_batch,
        "num_generations": grpo.group_size,
        "max_completion_length": grpo.max_new_tokens,
        "loss_type": grpo.loss_type,
        "scale_rewards": grpo.scale_rewards,
        "beta": grpo.kl_penalty,
        "epsilon": grpo.clip_epsilon,
        "num_iterations": grpo.num_iterations,
        "temperature": grpo.temperature,
        "learning_rate": grpo.learning_rate,
        "max_grad_norm": grpo.max_grad_norm,
        "max_steps": steps,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_dropout": True,
        "use_cpu": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "shuffle_dataset": False,
        "logging_strategy": "no",
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": config.seed,
    }


def _in_order(config: RunConfig, task: Any, steps: int) -> list[Any]:
    """The states as GRPO visits them with flat_share 1."""
    from rlkit.training.schedule import state_order

    return state_order(task.states("train"), config.seed, 0, steps * config.training.batch_size)


def _check_prompts(tokenizer: Any, task: Any, states: Sequence[Any], config: RunConfig) -> None:
    """Raise ValueError where TRL would give the model other tokens than this package."""
    from rlkit.training.text import encode_prompt

    for state in states:
        messages = task.prompt(state)
        theirs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
        ours = encode_prompt(tokenizer, messages, config.model.enable_thinking)
        if list(theirs) != list(ours):
            raise ValueError(f"{state.state_id}: TRL's prompt has other tokens than ours.")


def _reward_of(task: Any, tokenizer: Any, states: Sequence[Any]) -> Callable:
    from rlkit.training.text import decode

    by_id = {state.state_id: state for state in states}

    def study_reward(
        completion_ids: Sequence[Sequence[int]], state_id: Sequence[str], **kwargs: Any
    ) -> list[float]:
        return [
            task.score(by_id[one], [decode(tokenizer, ids)])[0].reward
            for one, ids in zip(state_id, completion_ids, strict=True)
        ]

    return study_reward


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True)
    parser.add_argument("--set", nargs="+", action="extend", default=[], dest="changes")
    options = parser.parse_args(arguments)
    try:
        train(
            RunConfig.load(options.params, options.changes),
            log=functools.partial(print, flush=True),
        )
    except RlkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last update", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
