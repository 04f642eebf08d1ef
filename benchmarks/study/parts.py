"""The parts of the study: each one command, what it waits for, and how it is known to be done. All
are made of params/study/base.yaml and queue.yaml.

    python benchmarks/study/parts.py        writes params/study/<part>.yaml anew, after a change
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

from rlkit.config import RunConfig  # noqa: E402
from rlkit.files import read_json, read_jsonl  # noqa: E402
from rlkit.run import Run  # noqa: E402
from rlkit.yaml_text import read_yaml  # noqa: E402

PLAN = Path(__file__).with_name("queue.yaml")
BASE = ROOT / "params" / "study" / "base.yaml"
OUTPUT, DATA = Path("outputs/study"), Path("data")  # of the params files
UNTOUCHED = "study-untouched"
ROUNDS, HOTPOTQA_ROUNDS = "study-rounds", "study-hotpotqa-rounds"
ROWS, QUEUE = "rows", "queue"  # folders of the study's output beside those of its runs
_BEST = re.compile(r"\{best:([\w.-]+)\}")
PATHS = ("data.corpus_path", "data.questions_path", "data.rounds_path", "model.init_adapter",
    "sft.start_from")  # fmt: skip
_BUDGETS = ("sft.cpu_minutes", "training.cpu_minutes")


@dataclass(frozen=True)
class Part:
    """`command` is rlkit's (of another `module`: its own) and `options` what follows it; `changes`
    are `--set`s beside those of the base. `like` names the seed whose GRPO's processor time is its
    budget: the time that GRPO's steps would take here. `test`: it opens a test set.

    In options and changes {output} and {data} are folders, {best:RUN} a run's best checkpoint."""

    name: str
    command: tuple[str, ...]
    run: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    like: int | None = None
    test: bool = False
    options: tuple[str, ...] = ()
    module: str = "rlkit"
    base: Path = BASE

    kind = property(lambda self: self.name.split("/")[0])
    slug = property(lambda self: self.name.replace("/", "-"))

    def sets(self, output: Path, data: Path) -> list[str]:
        """The values of `--set`, of paths and budget too. A run that is there keeps its spelling
        of a path."""
        changes = {
            "run_name": self.run,
            "output_root": output,
            "data.corpus_path": "{data}/2wiki/corpus.jsonl",
            "data.questions_path": "{data}/2wiki/questions.jsonl",
            "data.rounds_path": f"{{output}}/{ROUNDS}/rounds",
            **self.changes,
        }
        if self.command == ("collect",):
            del changes["data.rounds_path"]
        if self.like is not None:
            section = "sft" if _trains_sft(self) else "training"
            changes[f"{section}.cpu_minutes"] = cpu_budget(output, self.like)
        text = {key: filled(str(value), output, data) for key, value in changes.items()}
        text |= _as_spelt(text, output / self.run / "config.yaml")
        return [f"{key}={'null' if value == 'None' else value}" for key, value in text.items()]

    def arguments(self, output: Path, data: Path) -> list[str]:
        """What follows `python -m`."""
        options = [filled(option, output, data) for option in self.options]
        base = self.base.relative_to(ROOT) if self.base.is_relative_to(ROOT) else self.base
        params = ["--params", str(base), "--set", *self.sets(output, data)]
        return [self.module, *self.command, *options, *params]

    def config(self, output: Path, data: Path) -> RunConfig:
        """What it runs with."""
        return RunConfig.load(self.base, self.sets(output, data))

    def row_path(self, output: Path) -> Path | None:
        """Where what it measured is kept; None of a part that trains or collects."""
        measures = self.command[:1] == ("eval",)
        return output / ROWS / f"{self.slug}.json" if measures else None

    @property
    def writes(self) -> str:
        """The file of its run's folder that `row_path` is a copy of."""
        return "teams.json" if "--teams" in self.command else "evaluation.json"

    def is_there(self, output: Path) -> bool:
        """Whether its run's folder shows that it is finished, whoever ran it; never of a part that
        only its marker tells."""
        row = self.row_path(output)
        if row is not None:
            return row.exists()
        if self.command == ("sft",):
            return (output / self.run / "sft" / "adapter").is_dir()
        path = output / self.run / "status.json"
        finished = self.command != ("collect",) and path.exists()
        return finished and read_json(path).get("state") == "finished"

    def check_recipe(self, output: Path, data: Path) -> None:
        """Raise RunError where its run's folder holds a run with other parameters."""
        if (output / self.run / "config.yaml").exists():
            Run.open(self.config(output, data), create=False)


def filled(text: str, output: Path, data: Path) -> str:
    """With {output}, {data} and {best:RUN} filled in."""
    text = text.replace("{output}", str(output)).replace("{data}", str(data))
    return _BEST.sub(lambda found: str(best_checkpoint(output / found[1])), text)


def best_checkpoint(run: Path) -> Path:
    """The checkpoint with the first highest discovery on dev, as `evaluation.checkpoint: best`."""
    name = "eval/discovery_rate"
    rows = [row for row in metrics(run) if row.get("step") and row.get(name) is not None]
    best = max(rows, key=lambda row: row[name], default={"step": "none-yet"})
    return run / "lora_checkpoints" / f"checkpoint-{best['step']}"


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; none where it has not begun."""
    path = run / "metrics.jsonl"
    return [row for _, row in read_jsonl(path, skip_half_line=True)] if path.exists() else []


def processor_minutes(run: Path) -> float:
    """Processor time of a run's training steps, evaluations apart."""
    return sum(row.get("cpu_time") or 0.0 for row in metrics(run)) / 60


def slowdown(output: Path, seed: int) -> float:
    """How many times as long GRPO's first steps took in this output's clock/<seed> as in its
    grpo/<seed>, which may have been trained on another machine and brought here; 1 without."""
    runs = (output / name.format(seed) for name in ("study-clock-{}", "study-grpo-{}"))
    here, there = ([row["cpu_time"] for row in metrics(run) if row.get("cpu_time")] for run in runs)
    n = min(len(here), len(there))
    return sum(here[:n]) / sum(there[:n]) if n else 1.0


def cpu_budget(output: Path, seed: int) -> float:
    """Processor minutes that GRPO's steps of a seed would take here."""
    minutes = processor_minutes(output / f"study-grpo-{seed}") * slowdown(output, seed)
    return round(max(minutes, 0.01), 3)


def parts(plan_path: Path = PLAN) -> dict[str, Part]:
    """All parts by name, in the order in which they run: first what the primary result needs, then
    its rows of the test, then controls, further tests, TRL and ablations."""
    plan = read_yaml(plan_path)
    base = (plan_path.parent / plan["base"]).resolve()
    seeds, found = plan["seeds"], [Part("collect", ("collect",), ROUNDS)]
    for seed in seeds:
        sft = Part(f"sft/{seed}", ("sft",), f"study-sft-{seed}", {"seed": seed}, ("collect",))
        grpo = Part(f"grpo/{seed}", ("train",), f"study-grpo-{seed}", _grpo(seed, plan),
            (sft.name,))  # fmt: skip
        found += [sft, grpo, *(_evaluation(part, "dev", seeds) for part in (sft, grpo))]
    found.append(_untrained("dev", plan, ("collect",)))
    chosen = tuple(part.name for part in found)  # no test set is opened before
    primary = [part for part in found if part.kind in ("sft", "grpo")]
    found += [_evaluation(part, "test", seeds, chosen) for part in primary]
    found.append(_untrained("test", plan, chosen))
    for seed in seeds:
        found.append(_clock(seed, plan))
        for control in _controls(seed, plan):
            dev = _evaluation(control, "dev", seeds)
            found += [control, dev, _evaluation(control, "test", seeds, (*chosen, dev.name))]
    found += [_team(seed, plan, chosen) for seed in seeds]
    found.append(_untrained("teams", plan, chosen))
    found.append(Part("hotpotqa-rounds", ("collect",), HOTPOTQA_ROUNDS, plan["hotpotqa"]["data"]))
    found += [_hotpotqa(seed, plan, chosen) for seed in seeds]
    found.append(_trl(seeds[0], plan))
    found += _ablations(seeds, plan)
    return {part.name: _after_rounds(replace(part, base=base)) for part in found}


def _after_rounds(part: Part) -> Part:
    """What it needs is there only once the rounds are: they may have to be collected again while
    trainings that learnt from them were brought here (kept.py)."""
    rounds = [name for name in ("collect",) if part.kind not in (name, "hotpotqa-rounds")]
    return replace(part, after=(*rounds, *(name for name in part.after if name not in rounds)))


def _warm_start(seed: int) -> str:
    return f"{{output}}/study-sft-{seed}/sft/adapter"


def _grpo(seed: int, plan: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": seed, "model.init_adapter": _warm_start(seed), **plan["grpo"]}


def _trains_sft(part: Part) -> bool:
    return part.run.startswith("study-sft")


def _clock(seed: int, plan: Mapping[str, Any]) -> Part:
    """The first steps of a seed's GRPO once more, where its controls are to be trained."""
    changes = _grpo(seed, plan) | plan["clock"]
    return Part(f"clock/{seed}", ("train",), f"study-clock-{seed}", changes, (f"grpo/{seed}",))


def _controls(seed: int, plan: Mapping[str, Any]) -> list[Part]:
    after, like = (f"grpo/{seed}", f"clock/{seed}"), seed
    start, controls = _warm_start(seed), plan["controls"]
    return [
        Part(f"sft-continued/{seed}", ("sft",), f"study-sft-continued-{seed}",
            {"seed": seed, "sft.start_from": start, **controls["sft-continued"]}, after, like),
        Part(f"rejection/{seed}", ("train",), f"study-rejection-{seed}",
            {**_grpo(seed, plan), **controls["rejection"]}, after, like),
    ]  # fmt: skip


def _evaluation(part: Part, split: str, seeds: list[int], after: tuple[str, ...] = ()) -> Part:
    """Of one trained row; policies without training are evaluated with the first warm start."""
    own = "warm_start" if _trains_sft(part) else "tuned"
    first = part.name == f"sft/{seeds[0]}"
    changes = {
        **part.changes,
        "evaluation.policies": ["raw_question", "untouched", own, "oracle"] if first else [own],
        "evaluation.split": "eval" if split == "test" else split,
    }
    best = own == "tuned" and part.kind != "ablation"  # of an ablation the newest is judged
    return Part(f"{split}/{part.slug}", ("eval",), part.run, changes,
        (part.name, *(name for name in after if name != part.name)), part.like,
        test=split == "test", options=_best_of(part.run) if best else ())  # fmt: skip


def _best_of(run: str) -> tuple[str, str]:
    """The best checkpoint by its path: one that was brought here (kept.py) has its adapter alone,
    and counts as no checkpoint of the run that could go on."""
    return "--checkpoint", f"{{best:{run}}}"


def _untrained(kind: str, plan: Mapping[str, Any], after: tuple[str, ...]) -> Part:
    """What no training stands behind, beside what the seeds' own parts have: the untouched model
    with untagged lines read as clues, and the script that wrote the rounds."""
    teams = kind == "teams"
    changes = {
        "evaluation.policies": ["untouched", "scripted", *["raw_question"] * teams],
        "evaluation.split": "dev" if kind == "dev" else "eval",
        **plan["untouched"],
        **(plan["teams"] if teams else {}),
        "model.init_adapter": None,
    }
    return Part(f"{kind}/untouched", ("eval", *["--teams"] * teams), UNTOUCHED, changes,
        after, test=kind != "dev")  # fmt: skip


def _team(seed: int, plan: Mapping[str, Any], after: tuple[str, ...]) -> Part:
    changes = {
        **_grpo(seed, plan),
        "evaluation.policies": ["untouched", "warm_start", "tuned"],
        "evaluation.split": "eval",
        **plan["teams"],
    }
    run = f"study-grpo-{seed}"
    return Part(f"teams/{seed}", ("eval", "--teams"), run, changes, after,
        test=True, options=("--baseline", *_best_of(run)))  # fmt: skip


def _hotpotqa(seed: int, plan: Mapping[str, Any], after: tuple[str, ...]) -> Part:
    """Warm start and tuned Executor of the study, as checkpoints of another run."""
    changes = {
        "seed": seed,
        "data.rounds_path": f"{{output}}/{HOTPOTQA_ROUNDS}/rounds",
        "evaluation.policies": ["raw_question", "tuned", "oracle"],
        "evaluation.split": "eval",
        **plan["hotpotqa"]["data"],
        **plan["hotpotqa"]["states"],
    }
    adapters = ("--checkpoint", f"{{best:study-grpo-{seed}}}", _warm_start(seed))
    return Part(f"hotpotqa/{seed}", ("eval",), f"study-hotpotqa-{seed}", changes,
        ("hotpotqa-rounds", *after), test=True, options=("--baseline", *adapters))  # fmt: skip


def _trl(seed: int, plan: Mapping[str, Any]) -> Part:
    return Part(f"trl/{seed}", (), f"study-trl-{seed}", _grpo(seed, plan) | plan["trl"],
        (f"sft/{seed}",), module="benchmarks.study.trl_grpo")  # fmt: skip


def _ablations(seeds: list[int], plan: Mapping[str, Any]) -> list[Part]:
    found, seed = [], seeds[0]
    for name, changes in plan["ablations"].items():
        base = _grpo(seed, plan) | plan["of_ablations"]
        train = Part(f"ablation/{name}", ("train",), f"study-ablation-{name}", base | changes,
            (f"sft/{seed}",))  # fmt: skip
        found += [train, _evaluation(train, "dev", seeds)]
    return found


def _as_spelt(changes: Mapping[str, str], saved: Path) -> dict[str, str]:
    """The paths among the changes as a run's config.yaml spells them, where they are the same; and
    the budget that it began with."""
    if not saved.exists():
        return {}
    before, found = read_yaml(saved), {}
    for key in (*PATHS, *_BUDGETS):
        section, _, name = key.partition(".")
        value = (before.get(section) or {}).get(name)
        if key in changes and key in _BUDGETS and value is not None:
            found[key] = str(value)
        elif key in changes and isinstance(value, str):
            if (ROOT / value).resolve() == (ROOT / changes[key]).resolve():
                found[key] = value
    return found


def params_text(part: Part) -> str:
    """A params file that does what the part does, with the folders `outputs/study` and `data`."""
    import yaml

    values = read_yaml(part.base)
    given = replace(part, like=None).sets(OUTPUT, DATA)
    changed = RunConfig.load(part.base, given).as_dict()
    for change in given:
        section, _, name = change.partition("=")[0].rpartition(".")
        if section:
            values.setdefault(section, {})[name] = changed[section][name]
        else:
            values[name] = changed[name]
    head = f"# {part.name} of the study, made by benchmarks/study/parts.py of base.yaml and "
    line = f"#   python -m {' '.join([part.module, *part.command, *part.options])} --params F\n"
    line = _BEST.sub("CHECKPOINT", line.replace("{output}", str(OUTPUT)))
    budget = "# its processor time is that of the seed's GRPO: --set ...cpu_minutes=M\n"
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100)
    return f"{head}queue.yaml\n{line}{budget if part.like else ''}{text}"


def params_files(found: Mapping[str, Part]) -> dict[str, Part]:
    """The parts that have a params file, by its name: of several seeds the first, and of what was
    trained the training (an evaluation is `eval` on the same file); what was not trained has its
    evaluation on dev."""
    files: dict[str, Part] = {}
    for part in found.values():
        name = part.slug if part.kind == "ablation" else part.kind
        if part.run == UNTOUCHED:
            files.setdefault("teams-" * (name == "teams") + "untouched.yaml", part)
        elif part.kind not in ("dev", "test"):
            files.setdefault(f"{name}.yaml", part)
    return files


def main(arguments: list[str] | None = None) -> None:
    """Write the params files anew; there is nothing to choose."""
    argparse.ArgumentParser(
        prog="python benchmarks/study/parts.py",
        description="Write params/study/<part>.yaml anew, of its base.yaml and of queue.yaml.",
    ).parse_args(arguments)
    for name, part in params_files(parts()).items():
        (BASE.parent / name).write_text(params_text(part), encoding="utf-8")
        print(BASE.parent / name)


if __name__ == "__main__":
    main()
