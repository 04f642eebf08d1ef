"""The command line, the same work as the notebooks without one: `python -m rlkit --help`.

Exit codes: 0 done, 1 `check` found a failure, `check-judge` read no label, `collect` lost questions
or `pipeline` ended at its threshold, 2 a mistake that the user can mend (one sentence on stderr),
130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlkit.config import RunConfig
from rlkit.errors import ConfigError, RlkitError

SPREAD = ("train", "sft")  # what several processes do together
SAID_BY_FIRST = 10.0  # seconds for the first process of a machine to say what all of it failed over
_DESCRIPTION = (
    "Tune the Executor of a search system on its recorded rounds, and measure what it gains."
)


def build_parser() -> argparse.ArgumentParser:
    """Every command with its options; each handler imports what it needs when it is called."""
    parser = argparse.ArgumentParser(prog="python -m rlkit", description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = _command(commands, "train", _train, "tune the Executor with GRPO, or go on with a run")
    train.add_argument("--epochs", type=int, metavar="N", help="training.num_epochs")
    train.add_argument("--resume", action="store_true", help="go on where the run's folder stands")

    evaluate = _command(commands, "eval", _eval, "compare policies on questions never trained on")
    evaluate.add_argument("--baseline", action="store_true", help="the policies without tuning")
    evaluate.add_argument(
        "--checkpoint", type=Path, nargs="+", action="extend", default=[], metavar="P",
        help="folders of checkpoints or merged models, the first brings its own run's parameters; "
        "or newest, best (on dev) or all of the run",
    )  # fmt: skip
    evaluate.add_argument(
        "--policy", nargs="+", metavar="NAME", help="default: evaluation.policies"
    )
    evaluate.add_argument(
        "--teams", action="store_true", help="let each policy's team play whole questions"
    )
    evaluate.add_argument(
        "--export", nargs=2, metavar=("FORMAT", "DIR"),
        help="write what was evaluated into a new folder, too, as browsecomp-plus lays it out",
    )  # fmt: skip

    merge = _command(commands, "merge", _merge, "merge checkpoints into the base model")
    merge.add_argument("--checkpoints", type=int, nargs="+", metavar="STEP", help="default: all")
    merge.add_argument("--output-dir", type=Path, metavar="D", help="default: merged/ of the run")
    merge.add_argument("--max-shard-size", metavar="S", help="of a file of weights; default: 5GB")

    check = _command(commands, "check", _check, "is everything there and sound, does a step work?")
    check.add_argument("--quick", action="store_true", help="load no model and take no step")
    check.add_argument("--json", action="store_true", help="one JSON list, for machines")
    judge = _command(commands, "check-judge", _check_judge, "measure how noisy the judge is")
    judge.add_argument("--samples", type=int, default=50, metavar="N", help="documents labelled")
    collect = _command(commands, "collect", _collect, "play questions and record the rounds")
    collect.add_argument(
        "--policy",
        nargs="+",
        metavar="NAME",
        help="default: data.collectors; also untouched, warm_start and tuned, of this run, and "
        "served",
    )
    collect.add_argument("--max-questions", type=int, metavar="N", help="data.max_questions")
    collect.add_argument("--output", type=Path, metavar="D", help="default: rounds/ of the run")
    _command(commands, "sft", _sft, "make the warm start: fine-tune on recorded actions")

    tune = _command(commands, "tune", _tune, "search for better parameters, trial by trial")
    tune.add_argument("--method", choices=("grid", "random", "bayesian"), help="tune.method")
    tune.add_argument("--trials", type=int, metavar="N", help="tune.trials, in all")
    tune.add_argument("--minutes", type=float, metavar="M", help="tune.minutes, in all")

    pipeline = _command(
        commands, "pipeline", _pipeline, "questions with checkable answers: SFT, then GRPO"
    )
    pipeline.add_argument(
        "--config", type=Path, metavar="F", help="the course's config.json, or a params file"
    )
    pipeline.add_argument(
        "--force", action="store_true", help="GRPO also below answers.sft_accuracy_threshold"
    )

    serve = commands.add_parser(
        "serve", help="serve a model: a merged one, a base and its adapter, or a GGUF file"
    )
    serve.add_argument(
        "--model", metavar="M", help="folder, hub id or .gguf file; default: RLKIT_MODEL, else "
        "SmolLM2-135M-Instruct by llama.cpp",
    )  # fmt: skip
    serve.add_argument("--adapter", metavar="DIR", help="an adapter that is put on the model")
    serve.add_argument("--host", help="default: 127.0.0.1; others need RLKIT_API_KEY to be set")
    serve.add_argument("--port", type=int, default=8000, metavar="P", help="0: any that is free")
    serve.add_argument("--context", type=int, metavar="N", help="tokens a request (4096)")
    serve.add_argument(
        "--parallel", type=int, metavar="N", help="requests at once (8; of a GGUF file 2)"
    )
    serve.set_defaults(handler=_serve)

    report = commands.add_parser("report", help="write the HTML report of one run, or of several")
    report.add_argument("run", nargs="+", help="a run's name, or the path of its folder")
    report.add_argument(
        "--output", type=Path, metavar="F",
        help="default: report.html in the run's folder; of several runs, beside their folders",
    )  # fmt: skip
    runs = commands.add_parser("runs", help="list the runs")
    for command, handler in ((report, _report), (runs, _runs)):
        command.add_argument("--output-root", default="outputs", metavar="D")
        command.set_defaults(handler=handler)
    return parser


def _command(commands, name: str, handler, help: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=help, description=help)
    command.add_argument("--params", type=Path, metavar="F", help="params file (default: none)")
    command.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="S.K=V", dest="changes",
        help="change single values, such as grpo.group_size=8",
    )  # fmt: skip
    command.add_argument("--debug", action="store_true", help="a run of seconds, <run_name>-debug")
    command.set_defaults(handler=handler)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parsed(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # who watches a pipe or a log sees each line
        sys.stdout.reconfigure(line_buffering=True)
    try:
        _refuse_several(options.command)
        return options.handler(options) or 0
    except RlkitError as error:
        print(f"error: {_after_the_first()}{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if not _is_another():
            print(f"\n{_how_to_go_on(options.command)}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno is None:  # not the system's own word, so it is a bug
            raise
        print(f"error: {_what_the_system_said(error)}", file=sys.stderr)
        return 2


def _refuse_several(command: str) -> None:
    processes = os.environ.get("WORLD_SIZE") or "1"
    if processes != "1" and command not in SPREAD:
        raise ConfigError(
            f"{command} is done by one process, and the launcher started {processes} (WORLD_SIZE); "
            f"start it with python -m rlkit {command}. Several do {' and '.join(SPREAD)}."
        )


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """A mistake in the usage is said by the first process of a machine alone."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        return build_parser().parse_args(arguments)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return build_parser().parse_args(arguments)
    except SystemExit:
        _after_the_first()
        raise


def _is_another() -> bool:
    """Whether this is not the main process of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


def _after_the_first() -> str:
    """Processes of one machine mostly fail alike before they have joined: the first says it, and
    the launcher then ends the others. One that fails by itself says, later, which one it is."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        return ""
    time.sleep(SAID_BY_FIRST)
    return f"rank {os.environ.get('RANK')}: "


def _what_the_system_said(error: OSError) -> str:
    """A full disk, a folder that may not be written, a file where a folder should be."""
    place = f"{error.filename}: " if error.filename is not None else ""
    return (
        f"{place}{error.strerror or error}; check the path, its permissions and the space on the "
        "disk, then give the same command again."
    )


def _how_to_go_on(command: str) -> str:
    if command == "train":
        return "stopped; the same command, or --resume, goes on from the last checkpoint, if any."
    if command in ("check", "check-judge"):
        return "interrupted; nothing of this is kept."
    return "interrupted; what is finished is kept, and the same command goes on."


def _config(options: argparse.Namespace, path: Path | None = None) -> RunConfig:
    """The parameters of a command; `path` stands in where no params file is given."""
    changes = list(options.changes)
    if getattr(options, "epochs", None) is not None:
        changes.append(f"training.num_epochs={options.epochs}")
    if getattr(options, "resume", False):
        changes.append("training.resume=true")
    if getattr(options, "max_questions", None) is not None:
        changes.append(f"data.max_questions={options.max_questions}")
    for name in ("method", "trials", "minutes"):
        if getattr(options, name, None) is not None:
            changes.append(f"tune.{name}={getattr(options, name)}")
    config = RunConfig.load(options.params or path, changes)
    if not options.debug:
        return config
    small = config.debug()  # what was asked for by name holds all the same
    return small.with_overrides(*changes, f"run_name={small.run_name}")


def _train(options: argparse.Namespace) -> int:
    config = _config(options)  # first, since a slip in it should not wait for torch
    from rlkit.training.loop import train_run

    run = train_run(config, progress=_print_metrics if options.debug else None)
    if _is_another():  # main tells the rest
        return 0
    if options.debug:
        _print_actions(run)
    if run.status()["state"] == "stopped":  # the trainer took the interrupt and saved
        print(f"{run.folder}: {_how_to_go_on('train')}", file=sys.stderr)
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


def _eval(options: argparse.Namespace) -> None:
    config = _config(options, _config_of(options.checkpoint))
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
    chosen = {"baseline": options.baseline, "checkpoints": options.checkpoint}
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


def _config_of(checkpoints: Sequence[Path]) -> Path | None:
    """The parameters of the run that the first checkpoint belongs to."""
    folders = [p for p in checkpoints if str(p) not in ("newest", "best", "all") or p.is_dir()]
    for checkpoint in folders:
        if not checkpoint.is_dir():
            raise ConfigError(f"there is no checkpoint at {checkpoint}; check the path.")
    if not folders:
        return None
    found = folders[0].resolve().parent.parent / "config.yaml"  # / is its own parent
    return found if found.exists() else None


def _merge(options: argparse.Namespace) -> None:
    config = _config(options)
    from rlkit.deploy.merge import merge_run

    size = {"max_shard_size": options.max_shard_size} if options.max_shard_size else {}
    folders = merge_run(config, options.checkpoints, output_dir=options.output_dir, **size)
    for folder in folders:
        print(folder)


def _check(options: argparse.Namespace) -> int:
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


def _check_judge(options: argparse.Namespace) -> int:
    config = _config(options)
    from rlkit.results.judge_check import check_judge
    from rlkit.results.judge_text import judge_text

    check, path = check_judge(config, options.samples)
    print(f"{judge_text(check)}\n\nkept in {path}")
    return 0 if check.judged else 1


def _collect(options: argparse.Namespace) -> int:
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


def _sft(options: argparse.Namespace) -> None:
    config = _config(options)
    from rlkit.training.loop import sft_run

    folder = sft_run(config)
    if not _is_another():
        print(f"warm start: {folder}")


def _tune(options: argparse.Namespace) -> int:
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
        print(_how_to_go_on("tune"), file=sys.stderr)
        return 130
    print(f"next: python -m rlkit train --params {study.folder / 'best.yaml'}")
    return 0


def _pipeline(options: argparse.Namespace) -> int:
    from rlkit.answers.pipeline import AgenticRLPipeline

    path = options.config or options.params or Path("config.json")
    pipeline = AgenticRLPipeline(path, options.changes, debug=options.debug)
    results = pipeline.run(force=options.force)
    if pipeline.stopped:
        print(_how_to_go_on("pipeline"), file=sys.stderr)
        return 130
    return 1 if results["grpo_training"]["status"] == "not_started" else 0


def _serve(options: argparse.Namespace) -> None:
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


def _report(options: argparse.Namespace) -> None:
    from rlkit.results.report import write_report
    from rlkit.run import find_run

    folders = [find_run(run, options.output_root) for run in options.run]
    path = write_report(*folders, path=options.output)
    print(f"report: {path.resolve()}")


def _runs(options: argparse.Namespace) -> None:
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
