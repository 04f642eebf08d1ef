"""The Hello-Agents course's `config.json`, as it is, as the parameters of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from rlkit.config import RunConfig
from rlkit.errors import ConfigError
from rlkit.files import read_object
from rlkit.section import Section, key, shown


class CourseModel(Section):
    title: ClassVar[str] = "model"
    base_model: str = key("Qwen/Qwen3-0.6B", "model.base_model_path", min_length=1)


class CourseData(Section):
    title: ClassVar[str] = "data"
    max_samples: int | None = key(None, "answers.max_samples", "rows", ge=1)
    dataset: str = key("gsm8k", "answers.dataset", min_length=1)


class CourseSft(Section):
    title: ClassVar[str] = "sft"
    output_dir: str | None = key(None, "receives a copy of the SFT adapter", min_length=1)
    num_epochs: int = key(3, "sft.num_epochs", "epochs", ge=1)
    batch_size: int = key(8, "sft.batch_size", "samples", ge=1)
    learning_rate: float = key(1e-4, "sft.learning_rate", "per update", gt=0, le=1)


class CourseGrpo(Section):
    title: ClassVar[str] = "grpo"
    output_dir: str | None = key(None, "receives a copy of the GRPO adapter", min_length=1)
    num_epochs: int = key(3, "training.num_epochs; each passes once over the rows", "epochs", ge=1)
    batch_size: int = key(4, "training.batch_size", "prompts", ge=1)
    learning_rate: float = key(1e-5, "grpo.learning_rate", "per update", gt=0, le=1)
    num_generations: int = key(4, "grpo.group_size", "completions", ge=2, le=1024)
    kl_coef: float = key(0.05, "grpo.kl_penalty", ge=0, le=100)
    max_new_tokens: int = key(256, "grpo.max_new_tokens", "tokens", ge=1, le=32768)


class CourseEval(Section):
    title: ClassVar[str] = "eval"
    max_samples: int | None = key(None, "evaluation.max_states", "questions", ge=1)
    sft_accuracy_threshold: float = key(0.4, "answers.sft_accuracy_threshold", "share", ge=0, le=1)


class CourseMonitoring(Section):
    title: ClassVar[str] = "monitoring"
    use_wandb: bool = key(False, "monitoring.use_wandb")
    use_tensorboard: bool = key(True, "monitoring.use_tensorboard")
    wandb_project: str = key("agentic-rl-pipeline", "monitoring.wandb_project", min_length=1)


class CourseConfig(Section):
    """The whole file. Raises ConfigError for an unknown key or a value out of range."""

    model: CourseModel = Field(default_factory=CourseModel)
    data: CourseData = Field(default_factory=CourseData)
    sft: CourseSft = Field(default_factory=CourseSft)
    grpo: CourseGrpo = Field(default_factory=CourseGrpo)
    eval: CourseEval = Field(default_factory=CourseEval)
    monitoring: CourseMonitoring = Field(default_factory=CourseMonitoring)

    def run_config(self, run_name: str) -> RunConfig:
        """The same as parameters of a run, in `outputs/<run_name>`."""
        return RunConfig.from_sections(
            run_name=run_name,
            task="answers",
            model={
                "base_model_path": self.model.base_model,
                "load_in_4bit": False,
                "init_adapter": "auto",
            },
            answers={
                "dataset": self.data.dataset,
                "max_samples": self.data.max_samples,
                "sft_accuracy_threshold": self.eval.sft_accuracy_threshold,
            },
            data={"dev_ratio": 0.05},
            sft={
                name: getattr(self.sft, name)
                for name in ("num_epochs", "batch_size", "learning_rate")
            },
            grpo={
                "group_size": self.grpo.num_generations,
                "kl_penalty": self.grpo.kl_coef,
                "learning_rate": self.grpo.learning_rate,
                "max_new_tokens": self.grpo.max_new_tokens,
                "temperature": 1.0,
            },
            training={
                "num_epochs": self.grpo.num_epochs,
                "steps_per_epoch": None,  # one pass over the rows
                "max_steps": None,
                "batch_size": self.grpo.batch_size,
                "gradient_accumulation_steps": 1,
                "save_every_n_steps": 25,
            },
            evaluation={
                "policies": ["untouched", "warm_start", "tuned"],
                "max_states": self.eval.max_samples,
                "batch_size": 32,
            },
            monitoring=self.monitoring.model_dump(),
        )

    @property
    def copies(self) -> dict[str, Path]:
        """Where copies of the adapters go, by the stage that makes them."""
        given = {"sft_training": self.sft.output_dir, "grpo_training": self.grpo.output_dir}
        return {stage: Path(folder) for stage, folder in given.items() if folder}


def read_course_config(path: str | Path) -> CourseConfig:
    """Read a `config.json`; raises ConfigError naming the file and the key."""
    given = read_object(path)
    for name, section in given.items():
        if name in CourseConfig.model_fields and not isinstance(section, Mapping):
            raise ConfigError(f"{path}: {name} is {shown(section)}; it holds keys and values.")
    try:
        return CourseConfig.model_validate(given)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def run_name_of(path: str | Path) -> str:
    """`pipeline` for `config.json`, else the file's own name."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem).lstrip(".-")[:100]
    return "pipeline" if name in ("", "config") else name


def course_table() -> str:
    """Every key of the file and what it becomes, as a Markdown table."""
    lines = ["| key | default | becomes |", "|---|---|---|"]
    for field in CourseConfig.model_fields.values():
        for row in field.annotation.parameters():
            default = shown(row.default).strip("'")
            lines.append(f"| `{row.key}` | `{default}` | {row.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(course_table(), end="")
