"""The dev split during training: GRPO's evaluation, which remembers the best step, and SFT's."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rlkit.errors import ConfigError
from rlkit.practice.source import sample_of
from rlkit.training.greedy import greedy_evaluation
from rlkit.training.ranks import Ranks
from rlkit.training.text import completeness, end_ids


def dev_evaluation(trainer: Any) -> dict[str, Any]:
    """Greedy evaluation on some dev states, always the same; the best step is remembered.

    Raises ConfigError where `training.best` is no metric of the task.
    """
    states = sample_of(trainer.task.states("dev"), trainer.config.evaluation.epoch_states)
    if not states:
        return {}
    start = time.perf_counter()
    found = trainer.ranks.broadcast(trainer.evaluate(states))  # all judge alike which is best
    metric = trainer.config.training.best
    if metric not in found:
        raise ConfigError(
            f"training.best is {metric!r}, which the task does not measure; choose one of "
            f"{', '.join(found)}."
        )
    value, best = found[metric], trainer.progress.best_value
    if value is not None and (best is None or value > best) and trainer.progress.step:
        trainer.progress.best_step, trainer.progress.best_value = trainer.progress.step, value
    return {f"eval/{k}": v for k, v in found.items()} | {
        "eval/seconds": time.perf_counter() - start
    }


def sft_evaluation(
    config: Any, task: Any, model: Any, tokenizer: Any
) -> Callable[[], dict[str, Any]] | None:
    """Greedy evaluation on dev states during SFT; None where it is off, or there are none."""
    if config.sft.evaluate_every_n_updates is None:
        return None
    return model_evaluation(config, task, model, tokenizer)


def model_evaluation(
    config: Any, task: Any, model: Any, tokenizer: Any
) -> Callable[[], dict[str, Any]] | None:
    """Greedy evaluation of a model that has no trainer on the dev states, without a KL; None where
    there are none."""
    states = sample_of(task.states("dev"), config.evaluation.epoch_states)
    if not states:
        return None
    writer = SimpleNamespace(
        config=config,
        settings=config.grpo,
        task=task,
        model=model,
        tokenizer=tokenizer,
        ends=end_ids(model, tokenizer),
        complete=completeness(getattr(task, "complete", None), tokenizer),
        ranks=Ranks(),
    )
    return functools.partial(greedy_evaluation, writer, states)
