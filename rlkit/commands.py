"""What each command of the command line does: it prints, and returns an exit code (None is 0).
`cli.py` reads the options. A handler imports what it needs when it is called."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlkit.config import RunConfig
from rlkit.errors import ConfigError


def is_another() -> bool:
    """Whether this is not the main process of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


def how_to_go_on(command: str) -> str:
    """What is said after an interrupt."""
    if command == "train":
        return "stopped; the same command, or --resume, goes on from the last checkpoint, if any."
    if command in ("check", "check-judge"):
        return "interrupted; nothing of this is kept."
    return "interrupted; what is finished is kept, and the same command goes on."


def _config(options: argparse.Namespace, run_folder: Path | None = None) -> RunConfig:
    """The parameters of a command; those of `run_folder` stand in where no params file is given,
    and the run is then that folder's (unless another run_name is given), from wherever it is."""
    path, changes = options.params, list(options.changes)
    if path is None and run_folder is not None:
        path = run_folder / "config.yaml"
        if not any(change.replace(" ", "").startswith("run_name=") for change in changes):
            changes = [*_place_of(run_folder), *changes]
    if getattr(options, "epochs", None) is not None:
        changes.append(f"training.num_epochs={options.epochs}")
    if getattr(options, "resume", False):
        changes.append("training.resume=true")
    if getattr(options, "max_questions", None) is not None:
        changes.append(f"data.max_questions={options.max_questions}")
    for name in ("method", "trials", "minutes"):
        if getattr(options, name, None) is not None:
            changes.append(f"tune.{name}={getattr(options, name)}")
    config = RunConfig.load(path, changes)
    if not options.debug:
        return config
    small = config.debug()  # what was asked for by name holds all the same
    return small.with_overrides(*changes, f"run_name={small.run_name}")


def train(options: argparse.Namespace) -> int:
    """GRPO, or go on with a run."""
    config = _config(options)  # first, since a slip in it should not wait for torch
    from rlkit.training.loop import train_run

    run = train_run(config, progress=_print_metrics if options.debug else None)
    if is_another():  # main tells the rest
        return 0
    if options.debug:
        _print_actions(run)
    if run.status()["state"] == "stopped":  # the trainer took the interrupt and saved
        print(f"{run.folder}: {how_to_go_on('train')}", file=sys.stderr)
        return 130
    print(f"the run's folder: {run.folder}")
    print(f"next: python -m rlkit eval, then python -m rlkit report {run.folder}")
    return 0


def _print_metrics(metrics: dict[str, Any]) -> None:
    """Every metric of a step, for --debug."""
    print(f"step {metrics['step']}:")
    for name, value in metrics.items():
        print(f"    {name:<32} {f'{value:.6g}' if isinstance(value, float) else value}")


def _print_actions(run: Any) -> None:
    """Every action of a run, for --debug."""
    for row in run.read_rollouts().itertuples():
        print(
            f"step {row.step}, {row.state_id}, action {row.action}: reward {row.reward}, "
            f"advantage {row.advantage:.3g}, {row.text!r}"
        )


def evaluate(options: argparse.Namespace) -> None:
    """Compare policies on states, or teams over whole questions."""
    config = _config(options, _run_of(options.checkpoint))
    if options.policy:
        config = config.with_overrides(f"evaluation.policies=[{', '.join(options.policy)}]")
    if options.export:
        form, folder = options.export
        if form != "browsecomp-plus":
            raise ConfigError(f"--export writes browsecomp-plus, and no format {form!r}.")
        if Path(folder).exists():
            raise ConfigError(
                f"--export: {folder} exists already and is never overwritten; name another folder."
            )
        if options.teams:
            raise ConfigError(
                "--export writes the actions of an evaluation, and --teams plays whole questions "
                "instead; give one of the two."
            )
    named = bool(options.policy and options.checkpoint)  # both were asked for, so both are played
    chosen = {"baseline": options.baseline or named, "checkpoints": options.checkpoint}
    if options.teams:
        from rlkit.agents.recording import now_and_then
        from rlkit.results.team_run import compare_teams

        teams = compare_teams(config, **chosen, progress=now_and_then(print))
        print(teams.text())
        return
    from rlkit.results.compare import evaluate_run

    evaluation = evaluate_run(config, **chosen)
    print(evaluation.summary().to_string())
    if options.export:
        from rlkit.results.browsecomp import export_browsecomp

        search = f"{config.search.backend} (k1 {config.search.k1}, b {config.search.b})"
        tokens = config.grpo.max_new_tokens
        print(export_browsecomp(evaluation, folder, retriever=search, max_tokens=tokens))


def _run_of(checkpoints: Sequence[Path]) -> Path | None:
    """The folder of the run that the first checkpoint belongs to; None where it is of none."""
    folders = [p for p in checkpoints if str(p) not in ("newest", "best", "all") or p.is_dir()]
    for checkpoint in folders:
        if not checkpoint.is_dir():
            raise ConfigError(f"there is no checkpoint at {checkpoint}; check the path.")
    if not folders:
        return None
    found = folders[0].resolve().parent.parent  # / is its own parent
    return found if (found / "config.yaml").exists() else None


def _place_of(run_folder: Path) -> list[str]:
    """The changes that make the parameters of a run's folder open that folder from here.

    Raises ConfigError where it is not called as its run is: another run would be opened, or made.
    """
    saved = RunConfig.load(run_folder / "config.yaml")
    if saved.run_name != run_folder.name:
        raise ConfigError(
            f"the checkpoint's run is called {saved.run_name!r}, and its folder is {run_folder}; "
            "give the folder that name, or --params or --set run_name=... for another run."
        )
    root = run_folder.parent
    there = Path(saved.output_root).resolve() == root
    return [] if there else [f"output_root={json.dumps(str(root))}"]


def merge(options: argparse.Namespace) -> None:
    """Merge checkpoints into the base model."""
    config = _config(options)
    from rlkit.deploy.merge import merge_run

    size = {"max_shard_size": options.max_shard_size} if options.max_shard_size else {}
    folders = merge_run(config, options.checkpoints, output_dir=options.output_dir, **size)
    for folder in folders:
        print(folder)


def check(options: argparse.Namespace) -> int:
    """Is everything there and sound, does a step work?"""
    from rlkit.doctor import Finding, full_check, line_of, quick_check

    found: list[Finding] = []
    try:
        config = _config(options)
        findings = quick_check(config) if options.quick else full_check(config)
    except ConfigError as error:
        findings = iter([Finding("fail", "parameters", str(error))])
    try:
        for one in findings:
            found.append(one)
            if not options.json:
                print(line_of(one, colour=sys.stdout.isatty()), flush=True)
    finally:  # whatever breaks off, what was found is told
        if options.json:
            print(json.dumps([one.as_dict() for one in found], ensure_ascii=False, indent=1))
    return 1 if any(one.level == "fail" for one in found) else 0


def check_judge(options: argparse.Namespace) -> int:
    """How noisy is the judge?"""
    config = _config(options)
    from rlkit.results.judge_check import check_judge
    from rlkit.results.judge_text import judge_text

    check, path = check_judge(config, options.samples)
    print(f"{judge_text(check)}\n\nkept in {path}")
    return 0 if check.judged else 1


def collect(options: argparse.Namespace) -> int:
    """Play questions and record the rounds."""
    config = _config(options)
    from rlkit.agents.recording import now_and_then
    from rlkit.practice.collect_run import collect_run
    from rlkit.practice.source import rounds_folder
    from rlkit.run import Run

    run = Run.open(config)
    folder = options.output or rounds_folder(config, run.folder)
    policies, names = options.policy, options.policy or config.data.collectors
    if set(names) & {"untouched", "warm_start", "tuned", "served"}:
        from rlkit.results.compare import collecting_policies

        policies = collecting_policies(config, run, names)
    reports = collect_run(config, folder, policies, progress=now_and_then(print))
    for report in reports:
        if report.skipped == report.questions:  # the progress had nothing to say
            print(report)
    print(f"rounds: {folder}")
    return 1 if any(report.failed for report in reports) else 0


def sft(options: argparse.Namespace) -> None:
    """The warm start alone."""
    config = _config(options)
    from rlkit.training.stages import sft_run

    folder = sft_run(config)
    if not is_another():
        print(f"warm start: {folder}")


def tune(options: argparse.Namespace) -> int:
    """A study of parameters, trial by trial."""
    config = _config(options)
    from rlkit.tune import Study, evaluate_winner, summary_text, write_figures

    study = Study(config, lambda line: print(line, flush=True))
    ended = study.run()
    figures = write_figures(study)
    winner = evaluate_winner(study)
    print(f"\n{study.table().drop(columns='run').to_string(index=False)}\n")
    print(summary_text(study, winner))
    print(f"the study's folder: {study.folder} ({', '.join(path.name for path in figures)})")
    if ended == "stopped":
        print(how_to_go_on("tune"), file=sys.stderr)
        return 130
    print(f"next: python -m rlkit train --params {study.folder / 'best.yaml'}")
    return 0


def pipeline(options: argparse.Namespace) -> int:
    """Questions with checkable answers: SFT, then GRPO."""
    from rlkit.answers.pipeline import AgenticRLPipeline

    path = options.config or options.params or Path("config.json")
    pipeline = AgenticRLPipeline(path, options.changes, debug=options.debug)
    results = pipeline.run(force=options.force)
    if pipeline.stopped:
        print(how_to_go_on("pipeline"), file=sys.stderr)
        return 130
    return 1 if results["grpo_training"]["status"] == "not_started" else 0


def serve(options: argparse.Namespace) -> None:
    """Serve a folder, or a GGUF file by llama.cpp."""
    model = options.model or os.environ.get("RLKIT_MODEL")
    limits = {"context": options.context, "parallel": options.parallel}
    if model and not model.endswith(".gguf") and not Path(model).is_file():
        from rlkit.deploy.serve import serve as serve_folder

        serve_folder(
            options.host or "127.0.0.1", options.port, lambda line: print(line, flush=True),
            model=options.model, adapter=options.adapter, **limits,
        )  # fmt: skip
        return
    if options.adapter or options.host:
        raise ConfigError("--adapter and --host are for a model's folder; give it as --model.")
    from rlkit.deploy.llama_server import serve

    limits = {name: value for name, value in limits.items() if value is not None}
    serve(model, port=options.port, log=lambda line: print(line, flush=True), **limits)


def report(options: argparse.Namespace) -> None:
    """The HTML report of a run, or of several."""
    from rlkit.results.report import write_report
    from rlkit.run import find_run

    folders = [find_run(run, options.output_root) for run in options.run]
    path = write_report(*folders, path=options.output)
    print(f"report: {path.resolve()}")


def runs(options: argparse.Namespace) -> None:
    """A line for each run."""
    from rlkit.run import list_runs

    rows = list_runs(options.output_root)
    if not rows:
        print(f"no runs under {options.output_root}")
        return
    print(f"{'run':<28} {'state':<12} {'step':>6}  {'updated':<21} report")
    for row in rows:
        step, updated = row["step"], row["updated"] or ""
        print(
            f"{row['run_name']:<28} {row['state']:<12} {'' if step is None else step:>6}  "
            f"{updated:<21} {row['report'] or ''}"
        )
