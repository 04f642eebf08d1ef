"""The command line, the same work as the notebooks without one: `python -m rlkit --help`.

Exit codes: 0 done, 1 `check` found a failure, `check-judge` read no label, `collect` lost questions
or `pipeline` ended at its threshold, 2 a mistake that the user can mend (one sentence on stderr),
130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlkit import commands as do
from rlkit.errors import ConfigError, RlkitError

SPREAD = ("train", "sft")  # what several processes do together
SAID_BY_FIRST = 10.0  # seconds for the first process of a machine to say what all of it failed over
_DESCRIPTION = (
    "Tune the Executor of a search system on its recorded rounds, and measure what it gains."
)


def build_parser() -> argparse.ArgumentParser:
    """Every command with its options."""
    parser = argparse.ArgumentParser(prog="python -m rlkit", description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_training(commands)
    _add_evaluation(commands)
    _add_checks(commands)
    _add_wholes(commands)
    _add_serving(commands)
    _add_reports(commands)
    return parser


def _add_training(commands: Any) -> None:
    train = _command(
        commands, "train", do.train, "tune the Executor with GRPO, or go on with a run"
    )
    train.add_argument("--epochs", type=int, metavar="N", help="training.num_epochs")
    train.add_argument("--resume", action="store_true", help="go on where the run's folder stands")
    _command(commands, "sft", do.sft, "make the warm start: fine-tune on recorded actions")
    collect = _command(commands, "collect", do.collect, "play questions and record the rounds")
    collect.add_argument(
        "--policy", nargs="+", metavar="NAME",
        help="default: data.collectors; also untouched, warm_start and tuned, of this run, and "
        "served",
    )  # fmt: skip
    collect.add_argument("--max-questions", type=int, metavar="N", help="data.max_questions")
    collect.add_argument("--output", type=Path, metavar="D", help="default: rounds/ of the run")


def _add_evaluation(commands: Any) -> None:
    evaluate = _command(
        commands, "eval", do.evaluate, "compare policies on questions never trained on"
    )
    evaluate.add_argument("--baseline", action="store_true", help="the policies without tuning")
    evaluate.add_argument(
        "--checkpoint", type=Path, nargs="+", action="extend", default=[], metavar="P",
        help="folders of checkpoints or merged models, the first brings its own run (parameters "
        "and folder); or newest, best (on dev) or all of the run",
    )  # fmt: skip
    evaluate.add_argument(
        "--policy", nargs="+", metavar="NAME",
        help="default: evaluation.policies; with --checkpoint, these are compared beside it",
    )  # fmt: skip
    evaluate.add_argument(
        "--teams", action="store_true", help="let each policy's team play whole questions"
    )
    evaluate.add_argument(
        "--export", nargs=2, metavar=("FORMAT", "DIR"),
        help="write what was evaluated into a new folder, too, as browsecomp-plus lays it out",
    )  # fmt: skip


def _add_checks(commands: Any) -> None:
    check = _command(
        commands, "check", do.check, "is everything there and sound, does a step work?"
    )
    check.add_argument("--quick", action="store_true", help="load no model and take no step")
    check.add_argument("--json", action="store_true", help="one JSON list, for machines")
    judge = _command(commands, "check-judge", do.check_judge, "measure how noisy the judge is")
    judge.add_argument("--samples", type=int, default=50, metavar="N", help="documents labelled")


def _add_wholes(commands: Any) -> None:
    """What goes through several trainings."""
    tune = _command(commands, "tune", do.tune, "search for better parameters, trial by trial")
    tune.add_argument("--method", choices=("grid", "random", "bayesian"), help="tune.method")
    tune.add_argument("--trials", type=int, metavar="N", help="tune.trials, in all")
    tune.add_argument("--minutes", type=float, metavar="M", help="tune.minutes, in all")
    pipeline = _command(
        commands, "pipeline", do.pipeline, "questions with checkable answers: SFT, then GRPO"
    )
    pipeline.add_argument(
        "--config", type=Path, metavar="F", help="the course's config.json, or a params file"
    )
    pipeline.add_argument(
        "--force", action="store_true", help="GRPO also below answers.sft_accuracy_threshold"
    )


def _add_serving(commands: Any) -> None:
    merge = _command(commands, "merge", do.merge, "merge checkpoints into the base model")
    merge.add_argument("--checkpoints", type=int, nargs="+", metavar="STEP", help="default: all")
    merge.add_argument("--output-dir", type=Path, metavar="D", help="default: merged/ of the run")
    merge.add_argument("--max-shard-size", metavar="S", help="of a file of weights; default: 5GB")
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
    serve.set_defaults(handler=do.serve)


def _add_reports(commands: Any) -> None:
    report = commands.add_parser("report", help="write the HTML report of one run, or of several")
    report.add_argument("run", nargs="+", help="a run's name, or the path of its folder")
    report.add_argument(
        "--output", type=Path, metavar="F",
        help="default: report.html in the run's folder; of several runs, beside their folders",
    )  # fmt: skip
    runs = commands.add_parser("runs", help="list the runs")
    for command, handler in ((report, do.report), (runs, do.runs)):
        command.add_argument("--output-root", default="outputs", metavar="D")
        command.set_defaults(handler=handler)


def _command(commands: Any, name: str, handler: Any, help: str) -> argparse.ArgumentParser:
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
        if not do.is_another():
            print(f"\n{do.how_to_go_on(options.command)}", file=sys.stderr)
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
