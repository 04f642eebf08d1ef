"""A whole GRPO step of this trainer beside TRL's: time, memory, where the time goes, the limit.

    python benchmarks/grpo_step.py --peer trl --preset small-1024 --profile
    python benchmarks/grpo_step.py --peer trl --preset small-1024 --peer-variants
    python benchmarks/grpo_step.py --added small-2048-k8 small-2048

Both trainers do the same work (workload.py), each measurement in a fresh process (ours.py,
peer_trl.py), taking turns. Printed are a table and one JSON line; a preset's result is kept in
benchmarks/results/<preset>.json. benchmarks/README.md says what is compared and how the limit is
counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from benchmarks import report  # noqa: E402
from benchmarks.limit import BYTES, Shape, limit, phases  # noqa: E402
from benchmarks.machine import faster, rates_from  # noqa: E402
from benchmarks.measure import run_child  # noqa: E402
from benchmarks.peer_trl import BEST, VARIANTS  # noqa: E402
from benchmarks.workload import PRESETS, Workload, model_names, prepare_model  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
MODULES = {"ours": "benchmarks.ours", "trl": "benchmarks.peer_trl"}
LEAST_STEPS = 5  # of each trainer, for a median that is kept
# Figures of a workload that a flag may change, with the least that makes sense.
FIGURES = {"prompt_tokens": 1, "action_tokens": 2, "actions": 2, "rank": 1}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.added:
        small, large = (_load(parser, name) for name in options.added)
        print(report.added_text(small, large))
        return
    work = chosen_workload(options)
    with tempfile.TemporaryDirectory() as folder:
        model = prepare_model(work.model, Path(folder))
        job = {"workload": asdict(work), "model": str(model), "warm_up": options.warm_up}
        if options.peer_variants:
            result = report.variants_result(options, work, try_variants(job, options))
            text, name = report.variants_text(result), f"{options.preset}-trl-variants"
        else:
            answers, rates = alternate(job, options)
            table = limit(phases(Shape.of(model), work), rates_from(rates))
            result = report.result(options, work, answers, rates, table)
            text, name = report.text(result), options.preset
    print(text)
    print(json.dumps(result))
    keep(result, name, options, work)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--peer", choices=("trl", "none"), default="trl", help="the trainer to compare with")
    add("--preset", choices=tuple(PRESETS), default="small-1024", help="a committed workload")
    add("--model", choices=model_names(), help="another model than the preset's")
    add("--dtype", choices=tuple(BYTES), help="another dtype of the base than the preset's")
    add("--device", choices=("cpu", "cuda"), help="another device than the preset's")
    for name, least in FIGURES.items():
        flag = "--" + name.replace("_", "-")
        add(flag, type=_at_least(least), help="another number than the preset's")
    add("--steps", type=_at_least(1), default=5, help="counted steps a process")
    add("--warm-up", type=_at_least(0), default=1, help="steps before, which are not counted")
    add("--rounds", type=_at_least(1), default=2, help="processes of each trainer, taking turns")
    add("--threads", type=_at_least(1), default=1, help="threads of every process")
    add("--seed", type=_at_least(0), default=7, help="of the prompts; round r takes seed + r")
    add("--tries", type=_at_least(1), default=30, help="tries of every matrix product")
    add("--profile", action="store_true", help="one more process each, with phases counted")
    add("--variant", choices=tuple(VARIANTS), default=BEST, help="TRL's settings")
    add("--peer-variants", action="store_true", help="only try TRL's settings, one process each")
    add("--output", type=Path, help="where the JSON goes (a preset: benchmarks/results/)")
    add("--added", nargs=2, metavar="RESULT", help="only compare two kept results")
    return parser


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return int(text)

    return number


def chosen_workload(options: argparse.Namespace) -> Workload:
    """The preset, with what the flags change."""
    names = {field.name for field in fields(Workload)}
    given = {k: v for k, v in vars(options).items() if k in names and v is not None}
    return replace(PRESETS[options.preset], **given)


def schedule(peer: str, rounds: int) -> list[tuple[str, int]]:
    """(trainer, round) in the order of measuring: ours, peer, ours, peer, ..."""
    sides = ["ours"] if peer == "none" else ["ours", peer]
    return [(side, number) for number in range(rounds) for side in sides]


def alternate(
    job: dict[str, Any], options: argparse.Namespace
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """The answers of every trainer's processes (the last one profiled, with --profile), and the
    machine's rates, measured before and after."""
    rates = run_child("benchmarks.machine", {**job, "tries": options.tries}, options.threads)
    answers: dict[str, list[dict[str, Any]]] = {}
    rounds = options.rounds + bool(options.profile)
    for side, number in schedule(options.peer, rounds):
        profiled = number == options.rounds
        done = {
            **job,
            "seed": options.seed + number,
            "steps": options.steps,
            "profile": profiled,
            "variant": options.variant,
        }
        answer = run_child(MODULES[side], done, options.threads)
        kind = "profiled" if profiled else f"round {number + 1} of {options.rounds}"
        _say(f"{side}, {kind}: {', '.join(f'{s:.2f}' for s in answer['steps'])} s")
        answers.setdefault(side, []).append(answer)
    again = run_child("benchmarks.machine", {**job, "tries": options.tries}, options.threads)
    return answers, faster(rates, again)


def try_variants(job: dict[str, Any], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """One process for each of TRL's variants; what fails keeps the last line of its error."""
    found: dict[str, dict[str, Any]] = {}
    for name, changes in VARIANTS.items():
        if "bf16" in changes and job["workload"]["dtype"] == "float32":
            continue  # nothing to change
        done = {**job, "seed": options.seed, "steps": options.steps, "variant": name}
        try:
            found[name] = run_child(MODULES["trl"], {**done, "profile": False}, options.threads)
            _say(f"{name}: {', '.join(f'{s:.2f}' for s in found[name]['steps'])} s")
        except RuntimeError as error:
            found[name] = {"error": str(error).strip().splitlines()[-1][:200]}
            _say(f"{name}: {found[name]['error']}")
    return found


def keep(
    result: dict[str, Any], name: str, options: argparse.Namespace, work: Workload
) -> Path | None:
    """Write the JSON: to --output; or to results/, where it is the preset's own comparison, on
    one thread and with enough steps. A quick look overwrites nothing."""
    path, pure = options.output, work == PRESETS[options.preset] and options.preset != "tiny"
    pure = pure and options.variant == BEST
    enough = options.peer_variants or options.steps * options.rounds >= LEAST_STEPS
    if path is None and pure and enough and options.threads == 1 and options.peer != "none":
        path = RESULTS / f"{name}.json"
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def _load(parser: argparse.ArgumentParser, name: str) -> dict[str, Any]:
    path = Path(name) if name.endswith(".json") else RESULTS / f"{name}.json"
    if not path.is_file():
        parser.error(f"there is no result {name!r}; measure it with --preset, or give a JSON file.")
    return json.loads(path.read_text(encoding="utf-8"))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
