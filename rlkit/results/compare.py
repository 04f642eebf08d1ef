"""The comparison that a run ends with: which policies, on which states, kept as evaluation.json."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from rlkit.agents.executor import build_policy
from rlkit.agents.prompt import build_messages
from rlkit.errors import DataError, RunError
from rlkit.library.corpus import Corpus
from rlkit.practice.seam import searches
from rlkit.practice.source import load_library, sample_of
from rlkit.practice.task import build_task
from rlkit.results.evaluate import (
    NAMES,
    Evaluation,
    evaluate_policies,
    load_evaluation,
    policy_names,
)
from rlkit.run import Run
from rlkit.training.adapters import REFERENCE, add_adapter
from rlkit.training.checkpointing import PREFIX, best_folder, newest_folder
from rlkit.training.loop import load_model
from rlkit.training.policy import ModelPolicy, prompt_counter
from rlkit.training.text import token_counter
from rlkit.training.weights import TRAINED

SEARCHING = ("raw_question", "scripted", "oracle", "served")
BY_WORD = {"newest": newest_folder, "best": best_folder}  # checkpoints of the run itself


def evaluate_run(
    config: Any,
    *,
    baseline: bool = False,
    checkpoints: Sequence[str | Path] = (),
    log: Callable[[str], None] = print,
    progress: Callable[[int, int, str], None] | None = None,
) -> Evaluation:
    """Compare the policies of `evaluation.policies` on the run's held-out states, and keep it.

    `baseline` alone: the policies without tuning. `checkpoints` alone: these checkpoints, folders
    or the words `newest` and `best` (on dev). Both, or neither (then the run's
    `evaluation.checkpoint`): the whole comparison. Returned is what was evaluated now; it joins
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
    policies, adapters = wanted_policies(config, run, task, baseline, checkpoints, log)
    evaluation = evaluate_policies(
        task,
        policies,
        states,
        split=config.evaluation.split,
        batch_size=config.evaluation.batch_size,
        progress=progress or progress_lines(log),
    )
    played = {name: _played(folder, run) for name, folder in adapters.items() if name in policies}
    if played:
        evaluation.facts["adapters"] = played
    _keep(evaluation, run, log)
    return evaluation


def _played(folder: Path, run: Run) -> dict[str, Any]:
    """Which checkpoint a policy is, from the run's folder, so that its age can be told later."""
    place, step = os.path.relpath(folder, run.folder), folder.resolve().name.removeprefix(PREFIX)
    return {"folder": Path(place).as_posix(), "step": int(step) if step.isdigit() else None}


def _keep(evaluation: Evaluation, run: Run, log: Callable[[str], None]) -> None:
    """Write `evaluation.json` with the policies that were evaluated before; what cannot stand
    beside these is moved aside."""
    path = run.evaluation_path
    with filelock.FileLock(run.folder / ".evaluation.lock"):
        whole, why = evaluation, "is of other states, another split or other rewards"
        if path.exists():
            try:
                whole = evaluation.joined(load_evaluation(path))
            except DataError as error:
                whole, why = None, f"cannot be read ({error})"
            if whole is None:
                numbered = (path.with_name(f"{path.stem}-{n}.json") for n in itertools.count(1))
                aside = next(name for name in numbered if not name.exists())
                path.rename(aside)
                log(f"evaluation: what was there {why}; it is now {aside.name}")
                whole = evaluation
        whole.save(path)
    before = [name for name in whole.policies if name not in evaluation.policies]
    kept = f" (from before: {', '.join(before)})" if before else ""
    log(f"evaluation: {path}{kept}")


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
    adapters = _checkpoints(run, baseline, checkpoints, log, config.evaluation.checkpoint)
    wanted = _wanted(config, run, baseline, bool(checkpoints), list(adapters))
    if not searches(task):  # other tasks have nothing to look up
        wanted = [name for name in wanted if name not in SEARCHING]
    if "tuned" in config.evaluation.policies and not adapters and not baseline:
        name = policy_names(searches(task))["tuned"]
        log(f"evaluation: {run.folder} has no checkpoint yet, so no {name} is compared")
    corpus = task.env.orchestrator.corpus if searches(task) else None
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
    run: Run,
    baseline: bool,
    given: Sequence[str | Path],
    log: Callable[[str], None],
    which: str = "newest",
) -> dict[str, Path]:
    """{policy name: adapter folder}: the first checkpoint is `tuned`, further ones keep their
    folders' names. Without any given, and not for `baseline` alone: the run's newest or best."""
    words = [str(name) for name in given]
    if not words and not baseline and run.checkpoints_folder.is_dir():
        words = [which]
    found: dict[str, Path] = {}
    for word in words:
        folder = _folder_of(word, run, log)
        if folder is not None:
            found[_free_name(folder, found) if found else "tuned"] = folder
        elif given:
            raise RunError(f"{run.folder} has no checkpoint yet, so none is the {word}; train it.")
    return found


def _folder_of(word: str, run: Run, log: Callable[[str], None]) -> Path | None:
    if word not in BY_WORD or Path(word).is_dir():
        return Path(word)
    folder = BY_WORD[word](run.checkpoints_folder, log)
    if folder is not None:
        log(f"evaluation: the {word} checkpoint is {folder.name}")
    return folder


def _free_name(folder: Path, found: Mapping[str, Path]) -> str:
    """The folder's name; where that is taken, with its run's name before it, then counted up."""
    own = folder.resolve()
    longer = f"{own.parent.parent.name}-{own.name}"
    counted = (f"{longer}-{n}" for n in itertools.count(2))
    taken = {*NAMES, TRAINED, REFERENCE, *found}
    names = (name.replace(".", "_") for name in itertools.chain((own.name, longer), counted))
    return next(name for name in names if name not in taken)  # torch wants no dot in a name


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


def progress_lines(
    log: Callable[[str], None], seconds: float = 20.0
) -> Callable[[int, int, str], None]:
    """Say how far the evaluation is: at each policy's beginning, and now and then."""
    last_policy, last_time = "", 0.0

    def say(done: int, total: int, policy: str) -> None:
        nonlocal last_policy, last_time
        if policy != last_policy or time.monotonic() - last_time >= seconds:
            last_policy, last_time = policy, time.monotonic()
            log(f"evaluation: {policy}, {done} of {total} actions")

    return say
