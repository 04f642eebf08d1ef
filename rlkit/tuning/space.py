"""What a study searches: `tune.space`, or its method's default, checked before anything runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlkit.answers.rewards import AnswerReward
from rlkit.answers.task import AnswerTask
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, did_you_mean
from rlkit.practice.task import SearchTask
from rlkit.section import Section, shown

_RATE, _RANK, _KL = "grpo.learning_rate", "lora.rank", "grpo.kl_penalty"
_DRAWN = {_RATE: {"low": 1e-6, "high": 1e-4, "log": True}, _KL: {"low": 0.01, "high": 0.5}}
DEFAULT_SPACES: dict[str, dict[str, Any]] = {
    "grid": {_RATE: [1e-5, 5e-5, 1e-4], _RANK: [8, 16, 32], _KL: [0.05, 0.1, 0.2]},
    "random": {**_DRAWN, _RANK: [4, 8, 16, 32, 64]},
    "bayesian": {**_DRAWN, _RANK: [8, 16, 32]},
}
_WORDS = ("values", "low", "high", "step", "log")

_NOT_MEASURED = "it changes nothing that a trial's objective measures"
_MEASURES = "it decides what the objective measures, and trials must be measured alike"
_REFUSED = {
    "tune.": _NOT_MEASURED,
    "merge.": _NOT_MEASURED,
    "monitoring.": _NOT_MEASURED,
    "model.device": _NOT_MEASURED,
    "model.vllm_base_url": _NOT_MEASURED,
    "rollout.engine": _NOT_MEASURED,
    "rollout.base_url": _NOT_MEASURED,
    "rollout.adapters_path": _NOT_MEASURED,
    "rollout.timeout": _NOT_MEASURED,
    "rollout.gpu_memory_utilization": _NOT_MEASURED,
    "training.resume": _NOT_MEASURED,
    "training.keep_last": _NOT_MEASURED,
    "training.save_every_n_steps": _NOT_MEASURED,
    "evaluation.": _MEASURES,
    "data.": _MEASURES,
    "checker.": _MEASURES,
    "answers.dataset": _MEASURES,
}
_SHAPES_REWARD = ("reward.", "answers.reward", "answers.length_", "answers.step_", "answers.max_st")
_IDLE = {"search": ("answers.",), "answers": ("search.", "reward.", "executor.served_")}


@dataclass(frozen=True)
class Dimension:
    """One key that is searched: a list of `values`, or a range from `low` to `high`."""

    key: str
    values: tuple[Any, ...] = ()
    low: float | int | None = None
    high: float | int | None = None
    step: float | int | None = None
    log: bool = False

    def suggest(self, trial: Any) -> Any:
        """The value that an Optuna trial has, or now gets, for this key."""
        if self.values:
            return self.value_of(trial.suggest_categorical(self.key, self.labels()))
        if isinstance(self.low, int):
            step = {} if self.log else {"step": self.step or 1}
            return trial.suggest_int(self.key, self.low, self.high, log=self.log, **step)
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)

    def grid(self) -> list[Any]:
        """The points of this key in a grid. Raises ConfigError for a range without a step."""
        if self.values:
            return self.labels()
        if self.step is None:
            raise ConfigError(
                f"tune.space: a grid needs the points of {self.key}; give values, or low, high and "
                "step."
            )
        return _points(self.low, self.high, self.step)

    def labels(self) -> list[Any]:
        """The values as Optuna can store them: a list becomes its JSON."""
        return [json.dumps(v) if isinstance(v, list) else v for v in self.values]

    def value_of(self, label: Any) -> Any:
        """The value behind a label; numbers of a range stand for themselves."""
        return self.values[self.labels().index(label)] if self.values else label

    def __str__(self) -> str:
        if self.values:
            return ", ".join(shown(value) for value in self.values)
        extra = " (log)" if self.log else f" in steps of {self.step}" if self.step else ""
        return f"{self.low} to {self.high}{extra}"


def read_space(config: RunConfig) -> dict[str, Dimension]:
    """{section.key: Dimension} of `tune.space`, or of the method's default where it is empty.

    Raises ConfigError for a key that is unknown or makes no sense to tune, for a value out of its
    range, and where the objective is not measured at all.
    """
    if config.evaluation.epoch_states == 0 or config.data.dev_ratio == 0:
        raise ConfigError(
            "tuning compares trials on dev states, and evaluation.epoch_states or data.dev_ratio "
            "is 0, so there are none; set both above 0."
        )
    given = config.tune.space
    if not given:  # a key that is idle here (the rank, where all weights are trained) is left out
        default = DEFAULT_SPACES[config.tune.method]
        given = {name: spec for name, spec in default.items() if _objection(config, name) is None}
    space = {name: _dimension(config, name, spec) for name, spec in given.items()}
    if config.tune.method == "grid":
        for dimension in space.values():
            dimension.grid()
    _check_objective(config, space)
    return space


def parameters_of(space: Mapping[str, Dimension], params: Mapping[str, Any]) -> dict[str, Any]:
    """{section.key: value} of an Optuna trial's `params`."""
    return {name: space[name].value_of(label) for name, label in params.items() if name in space}


def changed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """A copy of `config` with {section.key: value}; raises ConfigError as RunConfig does."""
    return config.with_overrides(*(f"{name}={json.dumps(value)}" for name, value in values.items()))


def in_words(values: Mapping[str, Any]) -> str:
    """{section.key: value} as a line; numbers with four digits."""
    return ", ".join(f"{k} {f'{v:.4g}' if isinstance(v, float) else v}" for k, v in values.items())


def _check_objective(config: RunConfig, space: Mapping[str, Dimension]) -> None:
    """Refuse an objective that not every trial measures. A task of the user's own tells only when
    it runs; its first trial finds out."""
    rewards = space.get("answers.rewards", Dimension("answers.rewards")).values
    trials = [changed(config, {"answers.rewards": names}) for names in rewards] or [config]
    parts = [_parts(trial) for trial in trials]
    if None in parts:
        return
    shared = [name for name in parts[0] if all(name in others for others in parts)]
    names = [f"eval/{name}" for name in ("reward", "kl", *shared)]
    if config.tune.objective not in names:
        raise ConfigError(
            f"tune.objective is {config.tune.objective!r}; measured on dev are {', '.join(names)}"
            + did_you_mean(config.tune.objective, names)
        )


def _parts(config: RunConfig) -> list[str] | None:
    """The parts of a reward that are measured on dev; None for a task of the user's own."""
    if config.task == "search":
        return [*SearchTask.step_metrics]
    if config.task == "answers":
        return [*AnswerTask.step_metrics, *AnswerReward(config.answers).own]
    return None


def _dimension(config: RunConfig, name: str, spec: Any) -> Dimension:
    _check_key(config, name)
    spec = {"values": spec} if isinstance(spec, list) else spec
    if not isinstance(spec, dict) or not (spec.get("values") or {"low", "high"} & set(spec)):
        raise ConfigError(
            f"tune.space: {name} is {shown(spec)}; give a list of values, or low and high."
        )
    for word in spec:
        if word not in _WORDS:
            hint = did_you_mean(str(word), _WORDS, f"; allowed are {', '.join(_WORDS)}.")
            raise ConfigError(f"tune.space: {name} has no {str(word)[:60]!r}{hint}")
    if "values" in spec:
        return _choice(config, name, spec)
    return _range(config, name, spec)


def _choice(config: RunConfig, name: str, spec: dict[str, Any]) -> Dimension:
    values, extra = spec["values"], sorted(set(spec) - {"values"})
    if not isinstance(values, list) or extra:
        what = f"{extra[0]} beside values" if extra else f"values {shown(values)}"
        raise ConfigError(f"tune.space: {name} has {what}; give values: [...] alone.")
    accepted = [_accepted(config, name, value) for value in values]
    if any(value in accepted[:i] for i, value in enumerate(accepted)):
        raise ConfigError(f"tune.space: a value of {name} stands twice; give each one once.")
    return Dimension(name, tuple(accepted))


def _range(config: RunConfig, name: str, spec: dict[str, Any]) -> Dimension:
    if not {"low", "high"} <= set(spec):
        raise ConfigError(f"tune.space: {name} has only one of low and high; give both.")
    low, high = (_accepted(config, name, spec[end]) for end in ("low", "high"))
    log, step = spec.get("log", False), spec.get("step")
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (low, high))
    if not numbers or not isinstance(log, bool):
        raise ConfigError(
            f"tune.space: {name} is {shown(spec)}; low and high are numbers, log is true or false; "
            "for anything else give values."
        )
    if not low < high:
        raise ConfigError(f"tune.space: {name} has low {low} and high {high}; low must be below.")
    if log and (low <= 0 or step is not None):
        raise ConfigError(f"tune.space: {name} has log, which wants low above 0 and no step.")
    if step is not None:
        step = _step(name, step, isinstance(low, int))
        high = _points(low, high, step)[-1]
    return Dimension(name, (), low, high, step, log)


def _points(low: float | int, high: float | int, step: float | int) -> list[Any]:
    """From low to at most high; floats without the noise of adding up."""
    steps = range(math.floor((high - low) / step + 1e-9) + 1)
    return [
        low + i * step if isinstance(low, int) else float(f"{low + i * step:.12g}") for i in steps
    ]


def _step(name: str, given: Any, whole: bool) -> float | int:
    try:
        step = float(given)  # YAML 1.1 reads 1e-5 as text
    except (TypeError, ValueError):
        step = math.nan
    if not (math.isfinite(step) and step > 0) or (whole and not step.is_integer()):
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"tune.space: {name} has step {shown(given)}; give {kind} above 0.")
    return int(step) if whole else step


def _accepted(config: RunConfig, name: str, value: Any) -> Any:
    """The value as RunConfig takes it (text that is a number becomes one)."""
    try:
        section, _, inner = name.partition(".")
        return getattr(getattr(changed(config, {name: value}), section), inner)
    except ConfigError as error:
        raise ConfigError(f"tune.space: {error}") from None
    except TypeError:
        raise ConfigError(f"tune.space: {name} holds {shown(value)}, which is no value.") from None


def _check_key(config: RunConfig, name: str) -> None:
    if "." not in str(name):
        top = name in RunConfig.model_fields
        why = "belongs to the whole study" if top else "is no section.key"
        raise ConfigError(
            f"tune.space: {str(name)[:60]} {why}; tune keys such as grpo.learning_rate."
        )
    section, _, inner = name.partition(".")
    owner = getattr(config, section, None)
    if not isinstance(owner, Section):
        raise ConfigError(f"tune.space: {RunConfig.unknown(section)}")
    if inner not in type(owner).model_fields:
        raise ConfigError(f"tune.space: {owner.unknown(inner)}")
    why = _objection(config, name)
    if why is not None:
        raise ConfigError(f"tune.space: {name} is not tuned: {why}; leave it out.")


def _objection(config: RunConfig, name: str) -> str | None:
    """Why it makes no sense to tune this key here; None where it does."""
    for start, why in _REFUSED.items():
        if name == start or (start[-1] == "." and name.startswith(start)):
            return why
    if name.startswith(_SHAPES_REWARD) and config.tune.objective == "eval/reward":
        return "it decides what eval/reward is worth; set tune.objective to another metric"
    if name.startswith(_IDLE.get(config.task, ())):
        return f"task {config.task} does not read it"
    if name.startswith("lora.") and name != "lora.enabled" and not config.lora.enabled:
        return "lora.enabled is false"
    start = config.model.init_adapter
    if name.startswith("sft.") and start != "auto":
        return "no warm start is made, since model.init_adapter is not auto"
    if name.startswith("lora.") and start not in (None, "auto"):
        return "model.init_adapter names an adapter, which has its own"
    return None
