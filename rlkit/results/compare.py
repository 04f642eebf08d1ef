"""The comparison that a run ends with: which policies, on which states, kept as evaluation.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlkit.agents.executor import build_policy
from rlkit.errors import RunError
from rlkit.practice.task import build_search_task
from rlkit.results.evaluate import Evaluation, evaluate_policies
from rlkit.run import Run
from rlkit.training.checkpointing import newest_checkpoint
from rlkit.training.loop import load_model
from rlkit.training.policy import REFERENCE, ModelPolicy, check_adapter


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
    run = Run.open(config, create=not _there(config))
    task = build_search_task(config, run)
    states = task.states(config.evaluation.split)[: config.evaluation.max_states]
    if not states:
        raise RunError(
            f"the split {config.evaluation.split!r} holds no state with a document left to find; "
            "give more questions, or another evaluation.split."
        )
    adapters = _checkpoints(run, baseline, checkpoints, log)
    wanted = _wanted(config, run, baseline, bool(checkpoints), list(adapters))
    policies = build_policies(config, run, task, wanted, adapters, log)
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


def build_policies(
    config: Any,
    run: Run,
    task: Any,
    names: Sequence[str],
    checkpoints: Mapping[str, Path],
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Policies by name, in order; all that a model plays share one copy of the base model.

    `checkpoints` are the adapters of names that are not in `untouched`, `warm_start`.
    """
    adapters = {"untouched": None, "warm_start": REFERENCE} | {name: name for name in checkpoints}
    model = tokenizer = None
    if set(names) & set(adapters):
        model, tokenizer = load_model(config, warm_start_of(run), log)
        task.count_tokens = lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
    for name, folder in checkpoints.items():
        check_adapter(folder, model.get_base_model(), config.model.base_model_path)
        model.load_adapter(str(folder), adapter_name=name, is_trainable=False)
    return {
        name: ModelPolicy(
            model,
            tokenizer,
            task.prompt,
            max_new_tokens=config.grpo.max_new_tokens,
            adapter=adapters[name],
            batch_size=config.evaluation.batch_size,
            enable_thinking=config.model.enable_thinking,
        )
        if name in adapters
        else build_policy(name, config, task.env.orchestrator.corpus)
        for name in names
    }


def warm_start_of(run: Run) -> Path | None:
    """The adapter that the run's training starts from, the reference of its KL; None without."""
    for folder in (run.folder / "reference_adapter", run.sft_folder / "adapter"):
        if folder.is_dir():
            return folder
    return None


def _there(config: Any) -> bool:
    return (Path(config.output_root) / config.run_name / "config.yaml").exists()


def _checkpoints(
    run: Run, baseline: bool, given: Sequence[str | Path], log: Callable[[str], None]
) -> dict[str, Path]:
    """{policy name: adapter folder}: the first checkpoint is `tuned`, further ones keep their
    folders' names. Without any given, and not for `baseline` alone: the newest of the run."""
    folders = [Path(folder) for folder in given]
    if not folders and not baseline and run.checkpoints_folder.is_dir():
        newest = newest_checkpoint(run.checkpoints_folder, log)
        folders = [newest.folder] if newest else []
    names = ["tuned", *(folder.name for folder in folders[1:])]
    return dict(zip(names[: len(folders)], folders, strict=True))


def _wanted(config: Any, run: Run, baseline: bool, given: bool, tuned: Sequence[str]) -> list[str]:
    """The names to compare: of `evaluation.policies` those that can be had, with every checkpoint
    in the place of `tuned`; only the checkpoints where they alone were asked for."""
    if given and not baseline:
        return list(tuned)
    names: list[str] = []
    for name in config.evaluation.policies:
        if name == "tuned":
            names += tuned
        elif name != "warm_start" or warm_start_of(run):
            names.append(name)
    return names + [name for name in tuned if name not in names]


def _said(log: Callable[[str], None]) -> Callable[[int, int, str], None]:
    last = ""

    def say(done: int, total: int, policy: str) -> None:
        nonlocal last
        if policy != last:
            last = policy
            log(f"evaluation: {policy} ({done} of {total})")

    return say
