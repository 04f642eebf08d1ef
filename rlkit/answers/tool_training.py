"""The tool's action `train`: a run of its own under `output_dir`, and its model published there.

The run's folder is `output_dir/sft` or `output_dir/grpo`: the same call goes on with it, or shows
what it came to.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlkit.answers.evaluation import NOT_SCORED, ModelSource, check_model, device_name
from rlkit.answers.tool_parameters import ToolParameters
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, RunError
from rlkit.files import read_json, read_object, write_bytes
from rlkit.practice.splits import NAME
from rlkit.run import Run

Log = Callable[[str], None]
BASE_MODEL = "Qwen/Qwen3-0.6B"  # the course's
ADAPTER, MODEL = "adapter_config.json", "config.json"  # what tells the two kinds of folder apart
# safe rates, by algorithm and use_lora
LEARNING_RATES = {
    ("sft", True): 1e-4,
    ("sft", False): 5e-6,
    ("grpo", True): 1e-5,
    ("grpo", False): 1e-6,
}
# all rows train: the tool's users evaluate on another split. A run keeps at least one question out.
_ALL = {"dev_ratio": 0.0, "train_ratio": 0.999}
_NOT_THE_MODEL = ("optimizer.safetensors", "pending.safetensors", "trainer_state.json")


def train(
    p: ToolParameters, dataset: str, reward: dict[str, Any], log: Log
) -> tuple[dict[str, Any], set[str]]:
    """Train as the call says; the result's values, and the parameters that were idle.

    Raises ConfigError, DataError, ModelError or RunError, each one sentence.
    """
    source = check_model(p.model_name or BASE_MODEL)
    _check_fits(p, source)
    config = train_config(p, source, dataset, reward)
    try:
        folder, facts = (
            trained_sft(config, log) if p.algorithm == "sft" else trained_grpo(config, log)
        )
    except (ConfigError, RunError) as error:  # the tool's users know these by other names
        text = str(error).replace("run_name", "output_dir").replace("monitoring.", "")
        raise type(error)(text) from error
    if facts.pop("state", None) == "stopped":
        facts |= {"status": "stopped", "message": "interrupted; the same call goes on."}
    values: dict[str, Any] = {"status": "success", "algorithm": p.algorithm}
    values |= {"model": p.model_name or BASE_MODEL, "output_dir": p.output_dir}
    if folder is not None:
        publish(folder, Path(p.output_dir))
        values["model_path"] = p.output_dir
    run_folder = Path(config.output_root) / config.run_name
    n_train = len(read_object(run_folder / NAME)["rows"]["train"])
    values |= {"num_epochs": p.num_epochs, "num_samples": n_train}
    values |= {"dataset_size": n_train, "learning_rate": learning_rate(p)}
    values |= facts | {"device": device_name(config), "run_folder": str(run_folder)}
    return values, {"lora_rank", "lora_alpha"} if source.adapter else set()


def train_config(
    p: ToolParameters, source: ModelSource, dataset: str, reward: dict[str, Any]
) -> RunConfig:
    """The run's parameters. A GRPO epoch is one pass over the rows, `batch_size` prompts a step;
    where a last step is not full, it begins the next pass."""
    lora = {"enabled": p.use_lora, "rank": p.lora_rank, "alpha": p.lora_alpha}
    if source.adapter:
        settings = read_object(source.adapter / ADAPTER)
        lora |= {"rank": settings.get("r"), "alpha": settings.get("lora_alpha")}
        lora |= {"target_modules": settings.get("target_modules")}
    return RunConfig.from_sections(
        run_name=p.algorithm,
        task="answers",
        seed=p.seed,
        output_root=p.output_dir,
        model={
            "base_model_path": source.base,
            "load_in_4bit": False,
            "init_adapter": str(source.adapter) if source.adapter else None,
        },
        lora=lora,
        answers={"dataset": dataset, "max_samples": p.max_samples, **reward},
        data=_ALL,
        sft={
            "num_epochs": p.num_epochs,
            "batch_size": p.batch_size,
            **({"learning_rate": learning_rate(p)} if p.algorithm == "sft" else {}),
        },
        grpo={
            "group_size": p.num_generations,
            "kl_penalty": p.kl_coef,
            "max_new_tokens": p.max_new_tokens,
            "temperature": 1.0,
            **({"learning_rate": learning_rate(p)} if p.algorithm == "grpo" else {}),
        },
        training={
            "num_epochs": p.num_epochs,
            "steps_per_epoch": None,
            "max_steps": None,
            "batch_size": p.batch_size,
            "gradient_accumulation_steps": 1,
            "save_every_n_steps": 10,
            "gradient_checkpointing": not p.use_lora,
        },
        evaluation={"policies": ["untouched", "warm_start", "tuned"]},
        monitoring={
            "use_tensorboard": p.use_tensorboard,
            "use_wandb": p.use_wandb,
            "wandb_project": p.wandb_project,
        },
    )


def learning_rate(p: ToolParameters) -> float:
    """What was given, or a rate that is safe for this algorithm and these weights."""
    return p.learning_rate or LEARNING_RATES[p.algorithm, p.use_lora]


def publish(source: Path, target: Path) -> Path:
    """Copy a trained adapter or model into the user's folder, each file whole, the one that makes
    it a model last."""
    files = [f for f in source.iterdir() if f.is_file() and f.name not in _NOT_THE_MODEL]
    for file in sorted(files, key=lambda f: f.name in (ADAPTER, MODEL)):
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            whole = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) if size else b""
            write_bytes(target / file.name, whole)  # without a model's weights in memory
    return target


def _check_fits(p: ToolParameters, source: ModelSource) -> None:
    """Refuse combinations that cannot be meant, before anything is loaded."""
    if source.adapter and p.algorithm == "sft":
        raise ConfigError(
            f"model_name {p.model_name!r} is an adapter, and SFT begins from a whole model; give "
            f"its base, {source.base!r}, or a folder that it was merged into."
        )
    if source.adapter and not p.use_lora:
        raise ConfigError(
            f"model_name {p.model_name!r} is an adapter and use_lora is false; set use_lora to "
            "true, or give a whole model's folder."
        )
    other = Path(p.output_dir) / (MODEL if p.use_lora else ADAPTER)
    if other.exists():
        kind = "a model" if p.use_lora else "an adapter"
        raise ConfigError(
            f"output_dir {p.output_dir!r} holds {kind} already, and this call (use_lora "
            f"{str(p.use_lora).lower()}) would make the other kind; give another output_dir."
        )


def trained_sft(config: RunConfig, log: Log) -> tuple[Path, dict[str, Any]]:
    """SFT alone: its folder, the number of updates, and the last one's loss."""
    from rlkit.training.stages import sft_run  # loads torch

    folder = sft_run(config, log=log)
    rows = read_json(folder / "sft_metrics.json")
    return folder, {"updates": len(rows), "final_loss": rows[-1]["loss"] if rows else None}


def trained_grpo(config: RunConfig, log: Log) -> tuple[Path | None, dict[str, Any]]:
    """GRPO: the folder of its newest checkpoint that is whole, `_grpo_facts`, and its state."""
    from rlkit.training.checkpointing import newest_folder
    from rlkit.training.loop import train_run

    run = train_run(config, log=log)
    facts = _grpo_facts(run) | {"state": run.status()["state"]}
    if "reward_note" in facts:
        log(facts["reward_note"])
    return newest_folder(run.checkpoints_folder, log), facts


def _grpo_facts(run: Run) -> dict[str, Any]:
    """The last step's loss, and over the last epoch's steps the mean reward and accuracy of what
    was sampled, with a note where some of it could not be scored."""
    from rlkit.training.rollout import mean  # loads torch

    rows = [row for row in run.read_metrics() if row["step"]]
    last = [row for row in rows if row["epoch"] > rows[-1]["epoch"] - 1 + 1e-9]
    facts = {"final_loss": rows[-1].get("loss") if rows else None, "num_steps": len(rows)}
    facts |= {
        name: mean([row.get(key) for row in last])
        for name, key in (("average_reward", "reward"), ("accuracy", "accuracy"))
    }
    unscored = mean([row.get("unjudged_share") for row in last])
    note = f"{unscored or 0:.1%} of the last epoch's answers {NOT_SCORED}, nor in what is learnt"
    return facts | ({"reward_note": note} if unscored else {})
