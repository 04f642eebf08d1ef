"""The updates of SFT, timed: ours one by one, ours packed, and TRL's SFTTrainer. A child of sft.py.

All sides get the same token ids in the same order, and learn the completions alone with the same
adapter; the loss of the first update tells that they do the same work.
"""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.measure import Stopwatch, answer_job, columns, memory_mib
from benchmarks.workload import TARGET_MODULES, load_tokenizer

RANK, ALPHA, RATE = 16, 32, 2e-4


def rows(job: dict[str, Any], vocabulary: int) -> list[tuple[list[int], list[int]]]:
    """(prompt, completion) ids of all updates, of lengths drawn from 0.7 to 1.3 times the mean."""
    draw = np.random.default_rng([job["seed"]])
    made = []
    for _ in range(job["batch_size"] * (job["warm_up"] + job["updates"])):
        lengths = [draw.integers(round(0.7 * n), round(1.3 * n) + 1) for n in job["lengths"]]
        made.append(tuple(draw.integers(10, vocabulary, n).tolist() for n in lengths))
    return made


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Time `warm_up` + `updates` updates; the warm-up is left out, but for its first loss."""
    before = memory_mib()
    times, losses = (_trl if job["side"] == "trl" else _ours)(job)
    return {
        **columns(times[job["warm_up"] :]),
        "first_loss": losses[0],
        "before_mib": before,
        "peak_mib": memory_mib("VmHWM"),
    }


def _settings(job: dict[str, Any]) -> SimpleNamespace:
    packing = "auto" if job["side"] == "ours packed" else "never"
    return SimpleNamespace(
        learning_rate=RATE, num_epochs=1, batch_size=job["batch_size"], max_samples=None,
        max_grad_norm=1.0, warmup_steps=0, packing=packing, save_every_n_updates=10**6,
        start_from=None, evaluate_every_n_updates=None, patience=None, cpu_minutes=None,
    )  # fmt: skip


def _ours(job: dict[str, Any]) -> tuple[list[dict[str, float]], list[float]]:
    from rlkit.training.policy import load_model_with_lora
    from rlkit.training.sft import Example, train_sft

    lora = SimpleNamespace(rank=RANK, alpha=ALPHA, dropout=0.0, target_modules=TARGET_MODULES)
    model, _ = load_model_with_lora(
        job["model"], lora, device="cpu", dtype="float32", log=lambda _: None
    )
    examples = [Example(*row) for row in rows(job, model.config.vocab_size)]
    times: list[dict[str, float]] = []
    clock = [Stopwatch()]

    def progress(row: dict[str, Any]) -> None:
        times.append(clock[0].read())
        clock[0] = Stopwatch()

    found = train_sft(model, examples, _settings(job), job["seed"], progress=progress)
    return times, [row["loss"] for row in found]


def _trl(job: dict[str, Any]) -> tuple[list[dict[str, float]], list[float]]:
    import datasets
    import peft
    import torch
    import transformers
    import trl

    from rlkit.training.sft import _batches

    class InOrder(trl.SFTTrainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Times(transformers.TrainerCallback):
        rows: list[dict[str, float]] = []

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.start = Stopwatch()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.rows.append(self.start.read())

    model = transformers.AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=torch.float32, attn_implementation="sdpa"
    )
    made = rows(job, model.config.vocab_size)
    order = [i for batch in _batches(len(made), _settings(job), job["seed"]) for i in batch]
    data = datasets.Dataset.from_list(
        [
            {"input_ids": p + c, "completion_mask": [0] * len(p) + [1] * len(c)}
            for p, c in (made[i] for i in order)
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = InOrder(
            model=model,
            args=trl.SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=job["micro_batch"],
                gradient_accumulation_steps=job["batch_size"] // job["micro_batch"],
                max_length=None,
                completion_only_loss=True,
                learning_rate=RATE,
                lr_scheduler_type="constant",
                max_grad_norm=1.0,
                num_train_epochs=1,
                bf16=False,
                gradient_checkpointing=False,
                use_cpu=True,
                dataloader_num_workers=0,
                dataloader_pin_memory=False,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=job["seed"],
            ),
            train_dataset=data,
            processing_class=load_tokenizer(job["model"]),
            peft_config=peft.LoraConfig(
                r=RANK,
                lora_alpha=ALPHA,
                lora_dropout=0.0,
                target_modules=list(TARGET_MODULES),
                task_type="CAUSAL_LM",
            ),
        )
        times = Times()
        trainer.add_callback(times)
        trainer.train()
    return times.rows, [row["loss"] for row in trainer.state.log_history if "loss" in row]


if __name__ == "__main__":
    answer_job(measure)
