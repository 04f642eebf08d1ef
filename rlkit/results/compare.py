"""The comparison that a run ends with: which policies, on which states, kept as evaluation.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlkit.agents.executor import build_policy
from rlkit.agents.prompt import build_messages
from rlkit.errors import RunError
from rlkit.library.corpus import Corpus
from rlkit.practice.source import load_library, sample_of
from rlkit.practice.task import build_task
from rlkit.results.evaluate import Evaluation, evaluate_policies
from rlkit.run import Run
from rlkit.training.adapters import REFERENCE, add_adapter
from rlkit.training.checkpointing import newest_checkpoint
from rlkit.training.loop import load_model
from rlkit.training.policy import ModelPolicy, prompt_counter
from rlkit.training.text import token_counter

SEARCHING = ("raw_question", "scripted", "oracle", "served")


def evaluate_run(
    config: Any,
    *,
    baseline: bool = False,
    checkpoints: Sequence[str | Path] = (),
    log: Callable[[str], None] = print,
    progress: Callable[[int, int, str], None] | None = None,
) -> Evaluation:
    """Compare the policies of `evaluation.policies` on the run's held-out states, and keep it.

    `baseline` alone: the policies without tuning. `checkpoints` alone: these checkpoints. Both, or
    neither (then the run's newest checkpoint): the whole comparison. Written to
    `evaluation.json` in the run's folder, which is made where it is not there yet.
    """
    run = open_run(config)
    task = build_task(config, run, count_tokens=prompt_counter(config))
    states = sample_of(task.states(config.evaluation.split), config.evaluation.max_states)
    if not states:
        raise RunError(
            f"the split {config.evaluation.split!r} holds no state, or none with a document left "
            "to find; give more questions, or another evaluation.split."
        )
    policies, _ = wanted_policies(config, run, task, baseline, checkpoints, log)
    evaluation = evaluate_policies(
        task,
        policies,
        states,
        split=config.evaluation.split,
        batch_size=config.evaluation.batch_size,
        progress=progress or _said(log),
    )
    evaluation.save(run.evaluation_path)
    log(f"evaluation: {run.evaluation_path}")
    return evaluation


def wanted_policies(
    config: Any,
    run: Run,
    task: Any,
    baseline: bool,
    checkpoints: Sequence[str | Path],
    log: Callable[[str], None] = print,
) -> tuple[dict[str, Any], dict[str, Path]]:
    """The policies to compare, by name and in order, and the adapters of those that have one; see
    `evaluate_run` for which."""
    adapters = _checkpoints(run, baseline, checkpoints, log)
    wanted = _wanted(config, run, baseline, bool(checkpoints), list(adapters))
    if not hasattr(task, "env"):  # they search; other tasks have nothing to look up
        wanted = [name for name in wanted if name not in SEARCHING]
    if "tuned" in config.evaluation.policies and not adapters and not baseline:
        log(f"evaluation: {run.folder} has no checkpoint yet, so no tuned Executor is compared")
    corpus = task.env.orchestrator.corpus if hasattr(task, "env") else None
    return build_policies(config, run, wanted, adapters, corpus, task, log), adapters


def build_policies(
    config: Any,
    run: Run,
    names: Sequence[str],
    checkpoints: Mapping[str, Path],
    corpus: Corpus | None,
    task: Any = None,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Policies by name, in order; all that a model plays share one copy of the base model.

    `checkpoints` are the adapters of names other than `untouched` and `warm_start`. Prompts are
    those of `task`; without one, the Executor's prompt of `config`.
    """
    adapters = {"untouched": None, "warm_start": REFERENCE} | {name: name for name in checkpoints}
    policies: dict[str, Any] = {}
    model = None
    for name in names:
        if name not in adapters:
            policies[name] = build_policy(name, config, corpus, prompt_counter(config))
            continue
        if model is None:
            model, tokenizer = _model_with(config, warm_start_of(run), checkpoints, log)
            prompt = _prompt(config, task, token_counter(tokenizer))
        policies[name] = ModelPolicy(
            model,
            tokenizer,
            prompt,
            max_new_tokens=config.grpo.max_new_tokens,
            adapter=adapters[name],
            batch_size=config.evaluation.batch_size,
            enable_thinking=config.model.enable_thinking,
        )
    return policies


def collecting_policies(config: Any, run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Policies that play whole questions: those without a model, and `untouched`, `warm_start`
    and `tuned` (the run's newest checkpoint) with one.

    Raises RunError where the run has no warm start or checkpoint that was asked for.
    """
    checkpoints = _checkpoints(run, "tuned" not in names, (), print)
    lacking = [n for n in names if n == "tuned" and not checkpoints]
    lacking += [n for n in names if n == "warm_start" and not warm_start_of(run)]
    if lacking:
        raise RunError(f"{run.folder} has no {lacking[0]} adapter yet; train the run first.")
    corpus = load_library(config).corpus
    return build_policies(config, run, names, checkpoints, corpus)


def _model_with(
    config: Any, warm_start: Path | None, checkpoints: Mapping[str, Path], log: Callable
) -> tuple[Any, Any]:
    """The base model with its warm start, as the reference, and the checkpoints beside it."""
    kept = warm_start if config.lora.enabled else None
    model, tokenizer = load_model(config, kept, log)
    if warm_start != kept:  # of all weights: the model itself stays the untouched one
        add_adapter(model, warm_start, REFERENCE)
    for name, folder in checkpoints.items():
        add_adapter(model, folder, name)
    return model, tokenizer


def _prompt(config: Any, task: Any, count_tokens: Callable[[str], int]) -> Callable[[Any], Any]:
    if task is None:
        return lambda state: build_messages(state, config.executor, config.search, count_tokens)
    task.count_tokens = count_tokens
    return task.prompt


def warm_start_of(run: Run) -> Path | None:
    """The adapter (or model) that the run's training starts from, the reference of its KL; None
    without."""
    folders = [run.folder / "reference_adapter", run.warm_start_folder]
    if not run.config.lora.enabled:
        given = run.config.model.init_adapter
        folders = [run.warm_start_folder if given in (None, "auto") else Path(given)]
    return next((folder for folder in folders if folder.is_dir()), None)


def open_run(config: Any) -> Run:
    """The run of `config`; its folder is made where it is not there yet."""
    there = (Path(config.output_root) / config.run_name / "config.yaml").exists()
    return Run.open(config, create=not there)


def _checkpoints(
    run: Run, baseline: bool, given: Sequence[str | Path], log: Callable[[str], None]
) -> dict[str, Path]:
    """{policy name: adapter folder}: the first checkpoint is `tuned`, further ones keep their
    folders' names. Without any given, and not for `baseline` alone: the newest of the run."""
    folders = [Path(folder) for folder in given]
    if not folders and not baseline and run.checkpoints_folder.is_dir():
        newest = newest_checkpoint(run.checkpoints_folder, log)
        folders = [newest.folder] if newest else []
    found: dict[str, Path] = {}
    for folder in folders:
        name = folder.name.replace(".", "_") if found else "tuned"  # torch wants no dot in a name
        if name in found:  # step 10 of another run
            name = f"{folder.resolve().parents[1].name}-{name}".replace(".", "_")
        found[name] = folder
    return found


def _wanted(config: Any, run: Run, baseline: bool, given: bool, tuned: Sequence[str]) -> list[str]:
    """The names to compare: of `evaluation.policies` those that can be had, with every checkpoint
    in the place of `tuned`, and those that were given in any case; only the checkpoints where they
    alone were asked for."""
    if given and not baseline:
        return list(tuned)
    names: list[str] = []
    for name in config.evaluation.policies:
        if name == "tuned":
            names += tuned
        elif name != "warm_start" or warm_start_of(run):
            names.append(name)
    return names + [name for name in tuned if given and name not in names]


def _said(log: Callable[[str], None], seconds: float = 20.0) -> Callable[[int, int, str], None]:
    """Say how far the evaluation is: at each policy's beginning, and now and then."""
    last_policy, last_time = "", 0.0

    def say(done: int, total: int, policy: str) -> None:
        nonlocal last_policy, last_time
        if policy != last_policy or time.monotonic() - last_time >= seconds:
            last_policy, last_time = policy, time.monotonic()
            log(f"evaluation: {policy}, {done} of {total} actions")

    return say
