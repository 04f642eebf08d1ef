"""Every parameter of `RLTrainingTool` with default, range and help, and which of them an action
uses. `python -m rlkit.answers.tool_parameters` prints the table that docs/answers.md shows."""

from __future__ import annotations

from typing import Any, Literal

from rlkit.errors import ConfigError
from rlkit.section import Section, key, shown

ACTIONS = (
    "load_dataset",
    "create_reward",
    "train",
    "evaluate",
    "register_dataset",
    "register_reward_function",
)
METRICS = (
    "accuracy",
    "average_reward",
    "average_length",
    "format_correctness",
    "errors",
    "details",
)
# what a reward of each type is made of (answers.rewards), and the parameters that shape it
REWARDS = {
    "accuracy": ["accuracy"],
    "length_penalty": ["accuracy", "length"],
    "step": ["accuracy", "steps"],
}
SHAPES = {"length_penalty": {"penalty_weight", "max_length"}, "step": {"step_bonus"}}


class ToolParameters(Section):
    """The parameters of one call. Raises ConfigError, one sentence, for anything wrong."""

    action: str = key("train", "what to do", choices=ACTIONS)
    dataset: str = key(
        "gsm8k", "gsm8k, arithmetic, a registered name, a file or folder, or module:object",
        min_length=1,
    )  # fmt: skip
    custom_dataset: Any = key(
        None, "rows of your own in place of `dataset`", allowed="a list of dicts or Rows, {split: "
        "rows}, or a datasets.Dataset",
    )  # fmt: skip
    split: Literal["train", "test"] | None = key(
        None, "whose rows; null: test to evaluate, train to load"
    )
    max_samples: int | None = key(None, "rows used; null: all, but 100 to evaluate", "rows", ge=1)
    format: Literal["sft", "rl"] = key(
        "sft",
        "load_dataset: sft {prompt, completion, text}, or rl {prompt, ground_truth, question, "
        "full_answer}",
    )
    model_name: str | None = key(
        None,
        "train: the base model (null: Qwen/Qwen3-0.6B), or the folder of an earlier train to go on "
        "from; load_dataset: whose chat template to use (null: none)",
        min_length=1,
    )
    algorithm: Literal["sft", "grpo"] = key("sft", "how to train")
    output_dir: str = key(
        "output", "receives the trained adapter (with use_lora false: the model)", min_length=1
    )
    num_epochs: int = key(3, "passes over the rows", "epochs", ge=1)
    batch_size: int = key(
        4, "prompts an update (evaluate: written for at once); any number", "prompts", ge=1
    )
    learning_rate: float | None = key(
        None,
        "null: sft 1e-4, grpo 1e-5; with use_lora false 5e-6 and 1e-6. Safe: 1e-5 to 2e-4 for "
        "LoRA, 1e-6 to 5e-6 for full fine-tuning, which 5e-5 ruins",
        "per update",
        gt=0,
        le=1,
    )
    use_lora: bool = key(
        True, "train an adapter; false: all weights. evaluate: false leaves the adapter off"
    )
    lora_rank: int = key(16, "rank of the adapter", "dimensions", ge=1, le=1024)
    lora_alpha: int = key(32, "scale; the adapter acts with alpha / rank", ge=1, le=4096)
    num_generations: int = key(4, "grpo: completions of one prompt (the group)", ge=2, le=1024)
    kl_coef: float = key(0.05, "grpo: weight of the KL to where training began", ge=0, le=100)
    max_new_tokens: int = key(256, "longest completion", "tokens", ge=1, le=32768)
    reward_type: str | None = key(
        None,
        "accuracy, length_penalty, step, a registered name, or module:object; null: the function "
        "registered under the dataset's name, else accuracy",
        min_length=1,
    )
    custom_reward: Any = key(
        None, "reward of your own in place of `reward_type`",
        allowed="a function fn(completions, **columns) -> list of numbers",
    )  # fmt: skip
    penalty_weight: float = key(
        0.001, "length_penalty: cost of a token beyond max_length", "reward", ge=0, le=1
    )
    max_length: int = key(128, "length_penalty: tokens beyond it cost", "tokens", ge=1, le=32768)
    step_bonus: float = key(0.1, "step: a right answer's bonus a step", "reward", ge=0, le=1)
    model_path: str | None = key(
        None, "evaluate: an adapter's or model's folder, or a hub id", min_length=1
    )
    metrics: list[str] = key(
        list(METRICS), "evaluate: what to tell besides accuracy and average_reward; a text "
        "with commas is a list, too",
        choices=METRICS, min_length=1,
    )  # fmt: skip
    name: str | None = key(None, "register_...: under which name", min_length=1)
    use_tensorboard: bool = key(True, "train: write TensorBoard events, into `run_folder`")
    use_wandb: bool = key(False, "train: log to Weights & Biases")
    wandb_project: str = key("rlkit", "project there", min_length=1)
    seed: int = key(7, "seed of everything that is drawn", ge=0, le=2**32 - 1)

    @classmethod
    def read(cls, given: Any) -> ToolParameters:
        """The parameters of a call: null counts as not given, names may be in capitals, and rows
        given as `dataset` are a custom dataset. Raises ConfigError."""
        if not isinstance(given, dict):
            raise ConfigError(
                f"run wants a dict such as {{'action': 'train'}}, not {shown(given)}."
            )
        values = {name: value for name, value in given.items() if value is not None}
        if "action" not in values:
            raise ConfigError(f"'action' is missing; give one of {', '.join(ACTIONS)}.")
        for name in ("action", "algorithm", "format", "reward_type"):
            low = values[name].lower() if isinstance(values.get(name), str) else None
            if low in (*ACTIONS, "sft", "grpo", "rl", *REWARDS):
                values[name] = low
        if isinstance(values.get("metrics"), str):
            values["metrics"] = [n.strip() for n in values["metrics"].split(",") if n.strip()]
        if not isinstance(values.get("dataset", ""), (str, int)) and "custom_dataset" not in values:
            values["custom_dataset"] = values.pop("dataset")
        return cls.model_validate(values)

    def check(self) -> None:
        """Refuse an action without what it is about."""
        kind = self._registered
        if kind and (self.name is None or getattr(self, kind) is None):
            raise ConfigError(f"{self.action} wants a name and a {kind}; give both.")
        if self.action == "evaluate" and self.model_path is None:
            raise ConfigError("model_path is missing; give the folder of an adapter or a model.")

    @property
    def _registered(self) -> str | None:
        """The parameter that `register_...` makes known."""
        kinds = {"register_dataset": "custom_dataset", "register_reward_function": "custom_reward"}
        return kinds.get(self.action)

    def ignored(self, idle: set[str] = frozenset()) -> list[str]:
        """What was given and is not used by this action in this combination; `idle` names what
        the caller found out besides."""
        used = self._used() - set(idle)
        return [name for name in type(self).model_fields if name in self.model_fields_set - used]

    def _used(self) -> set[str]:
        if self._registered:
            return {"action", "name", self._registered}
        rows = {"custom_dataset" if self.custom_dataset is not None else "dataset"}
        rows |= {"max_samples", "seed"}
        reward = {"reward_type"} | SHAPES.get(self.reward_type or "", set())
        if self.custom_reward is not None:
            reward = {"custom_reward"}
        if self.action == "create_reward":
            return {"action", *reward}
        if self.action == "load_dataset":
            return {"action", "format", "split", "model_name", *rows}
        if self.action == "evaluate":
            used = {"model_path", "split", "use_lora", "metrics", "batch_size", "max_new_tokens"}
            return {"action", *used, *rows, *reward}
        used = {"algorithm", "model_name", "output_dir", "num_epochs", "batch_size", "use_lora"}
        used |= {"action", "learning_rate", "use_tensorboard", "use_wandb", *rows}
        if self.use_wandb:
            used |= {"wandb_project"}
        if self.use_lora:
            used |= {"lora_rank", "lora_alpha"}
        if self.algorithm == "grpo":
            used |= {"num_generations", "kl_coef", "max_new_tokens", *reward}
        return used


def parameter_table() -> str:
    """All parameters as a Markdown table."""
    lines = ["| parameter | default | range | what it is |", "|---|---|---|---|"]
    for row in ToolParameters.parameters():
        default = "all" if row.key == "metrics" else shown(row.default).strip("'")
        unit = "" if row.unit == "-" else f", {row.unit}"
        cells = (f"`{row.key}`", f"`{default}`", row.range + unit, row.help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(parameter_table(), end="")
