"""Prompts that a run never trained on, for the certificate of its merged models."""

from __future__ import annotations

from collections.abc import Callable

from rlkit.config import RunConfig
from rlkit.deploy.probe import Prompt
from rlkit.errors import RlkitError
from rlkit.practice.source import sample_of
from rlkit.practice.splits import NAME
from rlkit.practice.task import build_task
from rlkit.run import Run
from rlkit.training.policy import prompt_counter


def held_out_prompts(
    config: RunConfig, run: Run, count: int = 8, log: Callable[[str], None] = print
) -> dict[str, Prompt] | None:
    """{state id: chat messages} of at most `count` states of the run's eval split.

    None where the run has no split, or what it was made of is gone, which `log` hears. No server
    is asked: a judge is of no use here.
    """
    if not (run.folder / NAME).exists():
        return None
    try:
        quiet = config.with_overrides("checker.kind=gold")
        task = build_task(quiet, run)
        task.count_tokens = prompt_counter(config)  # as in training: the same prompts
        states = sample_of(task.states("eval"), count)
        return {state.state_id: task.prompt(state) for state in states} or None
    except RlkitError as error:
        log(f"no held-out prompts ({error}); built-in ones are taken")
        return None
