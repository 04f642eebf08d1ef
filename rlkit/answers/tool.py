"""`RLTrainingTool`, as the Hello-Agents course has it: data, rewards, training and evaluation
behind one call.

    tool = RLTrainingTool()
    result = tool.run({"action": "train", "algorithm": "sft", "output_dir": "models/sft"})
    result["status"], json.loads(result)["final_loss"]

Parameters: tool_parameters.py, and docs/answers.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from functools import cached_property
from typing import Any

from rlkit.answers.datasets import load_rows, register_dataset
from rlkit.answers.evaluation import NOT_SCORED, check_model, evaluate_model
from rlkit.answers.rewards import AnswerReward, check_reward_function
from rlkit.answers.tool_data import dataset_name, described, loaded, own_rows, reward_settings
from rlkit.answers.tool_parameters import REWARDS, ToolParameters
from rlkit.answers.tool_training import train
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError, RlkitError
from rlkit.files import plain

RESULT_KEYS = (
    "status", "format", "split", "dataset_size", "sample_keys", "algorithm", "model", "model_path",
    "output_dir", "num_epochs", "num_samples", "final_loss", "accuracy", "average_reward",
    "average_length", "format_correctness", "errors", "details", "device",
)  # fmt: skip
EVALUATED = 100  # questions of an evaluation that names no number


class ToolResult(str):
    """The result of a call: JSON text, which can also be read as a mapping by its keys. Numbers
    and slices index the text; `in` asks for a key where a key of results is given, else whether
    the text holds it."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> ToolResult:
        """The result with these values; NaN becomes null."""
        return cls(json.dumps(plain(values), ensure_ascii=False, indent=2))

    @cached_property
    def _values(self) -> dict[str, Any]:
        return json.loads(str(self))

    def __getitem__(self, index: Any) -> Any:
        return self._values[index] if isinstance(index, str) else super().__getitem__(index)

    def __contains__(self, item: Any) -> bool:
        if item in RESULT_KEYS or item in self._values:
            return item in self._values
        return super().__contains__(item)

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def keys(self) -> KeysView[str]:
        return self._values.keys()

    def values(self) -> ValuesView[Any]:
        return self._values.values()

    def items(self) -> ItemsView[str, Any]:
        return self._values.items()


class RLTrainingTool:
    """See the head of this file. `log` hears how far a call is."""

    name = "rl_training"
    description = (
        "Loads questions with checkable answers, makes rewards, trains a model with SFT or GRPO, "
        "and evaluates it."
    )

    def __init__(self, log: Callable[[str], None] = print) -> None:
        self.log = log
        self.rewards: dict[str, Callable[..., Any]] = {}

    def run(self, parameters: dict[str, Any]) -> ToolResult:
        """Do what `action` says. A mistake in the call, in a file or of the system is a result
        with status `error` and one sentence as its `message`; anything else is a bug, and
        raised."""
        try:
            p = ToolParameters.read(parameters)
            values, idle = getattr(self, f"_{p.action}")(p)
        except RlkitError as error:
            return ToolResult.of({"status": "error", "message": str(error)})
        except OSError as error:
            if error.errno is None:  # not the system's own word
                raise
            place = f"{error.filename}: " if error.filename else ""
            return ToolResult.of({"status": "error", "message": f"{place}{error.strerror}"})
        ignored = p.ignored(idle)
        return ToolResult.of(values | ({"ignored": ignored} if ignored else {}))

    def register_dataset(self, name: str, dataset: Any) -> None:
        """Make rows (a list of dicts, {split: list}, a datasets.Dataset) known as `name`. Raises
        ConfigError for a bad name, DataError for bad rows."""
        register_dataset(name, dataset if callable(dataset) else own_rows(dataset, str(name)))

    def register_reward_function(self, name: str, reward_fn: Callable[..., Any]) -> None:
        """Make `fn(completions, **columns) -> list of numbers` known as `name`, for `reward_type`;
        under a dataset's name it is that dataset's reward. Raises ConfigError."""
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{name!r} is no name of a reward function; give a text.")
        if name in REWARDS:
            raise ConfigError(
                f"{name} is a built-in reward ({', '.join(REWARDS)}); give yours another name."
            )
        check_reward_function(getattr(reward_fn, "__name__", name), reward_fn)
        self.rewards[name] = reward_fn

    def _load_dataset(self, p: ToolParameters) -> tuple[dict[str, Any], set[str]]:
        return loaded(p), set()

    def _create_reward(self, p: ToolParameters) -> tuple[dict[str, Any], set[str]]:
        settings, kind = reward_settings(p, self.rewards)
        AnswerReward(RunConfig.from_sections(answers=settings).answers)  # whether it can be made
        shape = {name: value for name, value in settings.items() if name != "rewards"}
        values = {"status": "success", "reward_type": kind, "parameters": shape}
        return values | {"description": described(settings, kind)}, set()

    def _train(self, p: ToolParameters) -> tuple[dict[str, Any], set[str]]:
        settings, kind = reward_settings(p, self.rewards) if p.algorithm == "grpo" else ({}, None)
        values, idle = train(p, dataset_name(p), settings, self.log)
        return values | ({"reward_type": kind} if kind else {}), idle

    def _evaluate(self, p: ToolParameters) -> tuple[dict[str, Any], set[str]]:
        source = check_model(p.model_path)
        split, name = p.split or "test", dataset_name(p)
        settings, _ = reward_settings(p, self.rewards)
        config = RunConfig.from_sections(
            task="answers",
            seed=p.seed,
            model={"load_in_4bit": False},
            answers={"dataset": name, **settings},
            grpo={"max_new_tokens": p.max_new_tokens},
            evaluation={"batch_size": p.batch_size},
        )
        rows = load_rows(name, split, p.max_samples or EVALUATED, p.seed)
        if not rows:
            raise DataError(
                f"the dataset {name!r} has no rows in its split {split}; give it as {{'train': "
                "..., 'test': ...}, or take another split."
            )
        found = evaluate_model(p.model_path, rows, config, use_adapter=p.use_lora, log=self.log)
        kept = {"accuracy", "average_reward", "accuracy_interval", "num_samples", "num_judged"}
        kept, figures = kept | {*p.metrics}, found.figures()
        values = {name: value for name, value in figures.items() if name in kept}
        unscored = figures["errors"]["unscored"]
        if unscored:
            values["reward_note"] = f"{unscored} of {len(rows)} answers {NOT_SCORED}"
            self.log(values["reward_note"])
        if "details" in p.metrics:
            values["details"] = found.details()
            if len(rows) > len(values["details"]):
                values["details_note"] = f"the first {len(values['details'])} of {len(rows)} rows"
        start = {"status": "success", "model_path": p.model_path, "dataset": name, "split": split}
        idle = set() if source.adapter else {"use_lora"}
        return start | values | {"device": found.device}, idle

    def _register_dataset(self, p: ToolParameters) -> tuple[dict[str, Any], set[str]]:
        self.register_dataset(p.name, p.custom_dataset)
        rows = [] if callable(p.custom_dataset) else load_rows(p.name, "train")
        size = {"dataset_size": len(rows), "sample_keys": list(rows[0].fields())} if rows else {}
        return {"status": "success", "name": p.name, **size}, set()

    def _register_reward_function(self, p: ToolParameters) -> tuple[dict[str, Any], set[str]]:
        self.register_reward_function(p.name, p.custom_reward)
        return {"status": "success", "name": p.name}, set()
