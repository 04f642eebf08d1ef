"""The comparison that a run ends with: which policies, on which states, kept as evaluation.json."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from rlkit.errors import DataError, RunError
from rlkit.practice.seam import searches
from rlkit.practice.source import load_library, sample_of
from rlkit.practice.task import build_task
from rlkit.results.answer_cache import FOLDER, CachedPolicy
from rlkit.results.chosen import chosen_folders, chosen_names, warm_start_of
from rlkit.results.evaluate import (
    Evaluation,
    evaluate_policies,
    load_evaluation,
    policy_names,
)
from rlkit.results.evaluation import MAYBE_UNRECORDED
from rlkit.results.model_content import is_model_folder, weights_sum
from rlkit.results.players import build_policies, identity
from rlkit.run import Run
from rlkit.training.checkpointing import PREFIX
from rlkit.training.policy import prompt_counter

__all__ = ["build_policies", "collecting_policies", "evaluate_run", "open_run", "progress_lines",
    "wanted_policies"]  # fmt: skip
_UNLIKE = "is of another split, corpus or judge, or other states, prompts or rewards"
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

    `baseline` alone: the policies without tuning. `checkpoints` alone: these checkpoints or whole
    models (merged ones), as folders, or the words `newest`, `best` (on dev) and `all`. Both, or
    neither (then the run's `evaluation.checkpoint`, and `evaluation.models`): the whole
    comparison. With `evaluation.samples` each model is also sampled from. Returned is what was
    evaluated now; it joins `evaluation.json` in the run's folder, which is made where it is not
    there yet. Answers are kept in `answers_cache/`: what was written once is not written again.
    """
    run = open_run(config)
    task = build_task(config, run, count_tokens=prompt_counter(config))
    states = sample_of(task.states(config.evaluation.split), config.evaluation.max_states)
    if not states:
        raise RunError(
            f"the split {config.evaluation.split!r} holds no state, or none with a document left "
            "to find; give more questions, or another evaluation.split."
        )
    cache = run.folder / FOLDER if config.evaluation.cache else None
    policies, folders = _wanted(config, run, task, baseline, checkpoints, log, cache)
    evaluation = evaluate_policies(
        task,
        policies,
        states,
        split=config.evaluation.split,
        batch_size=config.evaluation.batch_size,
        samples=config.evaluation.samples,
        progress=progress or progress_lines(log),
    )
    _tell_what_was_found(policies, log)
    computed = {name: getattr(_player(p), "precision", "") for name, p in policies.items()}
    if precisions := {name: said for name, said in computed.items() if said}:
        evaluation.facts["precisions"] = precisions
    played = {
        name: {**_played(folder, run), "precision": computed[name]}
        for name, folder in folders.items()
        if name in policies
    }
    if played:
        evaluation.facts["adapters"] = played
    _keep(evaluation, run, log)
    return evaluation


def _tell_what_was_found(policies: Mapping[str, Any], log: Callable[[str], None]) -> None:
    kept = {name: p for name, p in policies.items() if isinstance(p, CachedPolicy) and p.found}
    if kept:
        told = ", ".join(f"{name} {p.found} of {p.found + p.asked}" for name, p in kept.items())
        log(f"evaluation: answers kept from before: {told}")


def _player(policy: Any) -> Any:
    return policy.policy if isinstance(policy, CachedPolicy) else policy


def _played(folder: Path, run: Run) -> dict[str, Any]:
    """Which checkpoint a policy is, from the run's folder, so that its age can be told later."""
    place, step = os.path.relpath(folder, run.folder), folder.resolve().name.removeprefix(PREFIX)
    told = {"folder": Path(place).as_posix(), "step": int(step) if step.isdigit() else None}
    told["sha256"] = weights_sum(folder)
    return told | ({"whole": True} if is_model_folder(folder) else {})


def _keep(evaluation: Evaluation, run: Run, log: Callable[[str], None]) -> None:
    """Write `evaluation.json` with the policies that were evaluated before; what cannot stand
    beside these is moved aside."""
    path = run.evaluation_path
    with filelock.FileLock(run.folder / ".evaluation.lock"):
        whole, why = evaluation, _UNLIKE
        if path.exists():
            try:
                earlier = load_evaluation(path)
                whole = evaluation.joined(earlier)
            except DataError as error:
                whole, why = None, f"cannot be read ({error})"
            if whole is None:
                numbered = (path.with_name(f"{path.stem}-{n}.json") for n in itertools.count(1))
                aside = next(name for name in numbered if not name.exists())
                path.rename(aside)
                log(f"evaluation: what was there {why}; it is now {aside.name}")
                whole = evaluation
            else:
                _tell_what_is_doubtful(evaluation, earlier, whole, log)
        whole.save(path)
    before = [name for name in whole.policies if name not in evaluation.policies]
    kept = f" (from before: {', '.join(before)})" if before else ""
    log(f"evaluation: {path}{kept}")


def _tell_what_is_doubtful(
    evaluation: Evaluation, earlier: Evaluation, whole: Evaluation, log: Callable[[str], None]
) -> None:
    """What an earlier evaluation does not record, and samples of it that do not hold any more."""
    recorded = [name for name in MAYBE_UNRECORDED if name in evaluation.facts]
    unknown = [name for name in recorded if name not in earlier.facts]
    if evaluation.has_prompts and not earlier.has_prompts:
        unknown.append("prompts")
    if unknown:
        log(
            f"evaluation: what was there does not record its {' and '.join(unknown)}; it is taken "
            "to be the same"
        )
    before, kept = (dict.fromkeys(e.samples["policy"]) for e in (earlier, whole))
    if lost := [name for name in before if name not in kept]:
        log(
            f"evaluation: samples of {', '.join(lost)} are dropped, since other weights or another "
            "precision play it, or it writes something else now; give evaluation.samples to draw "
            "new ones"
        )


def wanted_policies(
    config: Any,
    run: Run,
    task: Any,
    baseline: bool,
    checkpoints: Sequence[str | Path],
    log: Callable[[str], None] = print,
) -> tuple[dict[str, Any], dict[str, Path]]:
    """The policies to compare, by name and in order, and the checkpoints of those that have one;
    see `evaluate_run` for which."""
    policies, folders = _wanted(config, run, task, baseline, checkpoints, log)
    return policies, {name: f for name, f in folders.items() if not is_model_folder(f)}


def _wanted(
    config: Any,
    run: Run,
    task: Any,
    baseline: bool,
    checkpoints: Sequence[str | Path],
    log: Callable[[str], None],
    cache: Path | None = None,
) -> tuple[dict[str, Any], dict[str, Path]]:
    """The same, with the folders of whole models, too; with `cache` answers are kept there."""
    wanted = config.evaluation
    which = wanted.checkpoint if "tuned" in wanted.policies else None
    folders = chosen_folders(run, baseline, checkpoints, log, which, wanted.models)
    names = chosen_names(config, run, baseline, bool(checkpoints), list(folders))
    if not searches(task):  # other tasks have nothing to look up
        names = [name for name in names if name not in SEARCHING]
    if "tuned" in wanted.policies and not folders and not baseline:
        name = policy_names(searches(task))["tuned"]
        log(f"evaluation: {run.folder} has no checkpoint yet, so no {name} is compared")
    corpus = task.env.orchestrator.corpus if searches(task) else None
    return build_policies(config, run, names, folders, corpus, task, log, cache), folders


def collecting_policies(config: Any, run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Policies that play whole questions: those without a model, and `untouched`, `warm_start`
    and `tuned` (the run's newest checkpoint) with one. The last is called by its checkpoint, too,
    so that after more training it plays anew.

    Raises RunError where the run has no warm start or checkpoint that was asked for.
    """
    checkpoints = chosen_folders(run, "tuned" not in names, (), print)
    lacking = [n for n in names if n == "tuned" and not checkpoints]
    lacking += [n for n in names if n == "warm_start" and not warm_start_of(run)]
    if lacking:
        raise RunError(f"{run.folder} has no {lacking[0]} adapter yet; train the run first.")
    corpus = load_library(config).corpus
    policies = build_policies(config, run, names, checkpoints, corpus)
    return {identity(n, p, checkpoints[n]) if n in checkpoints else n: p
        for n, p in policies.items()}  # fmt: skip


def open_run(config: Any) -> Run:
    """The run of `config`; its folder is made where it is not there yet."""
    there = (Path(config.output_root) / config.run_name / "config.yaml").exists()
    return Run.open(config, create=not there)


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
