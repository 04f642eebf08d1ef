"""The parts of the study: each one command of rlkit, what it waits for, and how it is known to be
done. All are made of params/study/base.yaml and queue.yaml, so that `--list` shows every change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlkit.config import RunConfig
from rlkit.files import read_json, read_jsonl

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "params" / "study" / "base.yaml"
PLAN = Path(__file__).with_name("queue.yaml")
ROUNDS, STEPS_OF_ABLATIONS = "study-rounds", 60


@dataclass(frozen=True)
class Part:
    """`command` is rlkit's; `changes` are `--set`s beside those of the base. `like` names the GRPO
    run whose processor time is its budget. `test`: it opens the test split."""

    name: str
    command: tuple[str, ...]
    run: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    like: str | None = None
    test: bool = False

    def sets(self, output: Path, data: Path) -> list[str]:
        """The values of `--set`, of paths and budget too."""
        changes = {
            "run_name": self.run,
            "output_root": output,
            "data.corpus_path": data / "2wiki" / "corpus.jsonl",
            "data.questions_path": data / "2wiki" / "questions.jsonl",
            **({} if self.run == ROUNDS else {"data.rounds_path": output / ROUNDS / "rounds"}),
            **self.changes,
        }
        if self.like is not None:
            minutes = max(processor_minutes(output / self.like), 0.01)
            section = "sft" if self.command[0] == "sft" else "training"
            changes[f"{section}.cpu_minutes"] = round(minutes, 3)
        text = {k: str(v).replace("{output}", str(output)) for k, v in changes.items()}
        text = {k: v.replace("{data}", str(data)) for k, v in text.items()}
        return [f"{k}={'null' if v == 'None' else v}" for k, v in text.items()]

    def config(self, output: Path, data: Path) -> RunConfig:
        """What it runs with."""
        return RunConfig.load(BASE, self.sets(output, data))

    def is_done(self, output: Path) -> bool:
        """Whether it is finished, by what lies in its run's folder."""
        folder = output / self.run
        if self.command[0] == "collect":
            return (folder / "done").exists()
        if self.command[0] == "sft":
            return (folder / "sft" / "adapter").is_dir()
        if self.command[0] == "train":
            path = folder / "status.json"
            return path.exists() and read_json(path).get("state") == "finished"
        return marker(folder, self).exists()


def marker(folder: Path, part: Part) -> Path:
    """The file that says that an evaluation was made: of the test, that it was opened."""
    return folder / f"done-{part.name.rpartition('/')[2]}"


def processor_minutes(run: Path) -> float:
    """Processor time of a run's training steps, evaluations apart."""
    rows = [row for _, row in read_jsonl(run / "metrics.jsonl", skip_half_line=True)]
    return sum(row.get("cpu_time") or 0.0 for row in rows) / 60


def parts(plan_path: Path = PLAN) -> dict[str, Part]:
    """All parts by name, in the order in which they run."""
    plan = yaml.safe_load(plan_path.read_text(encoding="utf-8"))
    seeds = plan["seeds"]
    found = [Part("collect", ("collect",), ROUNDS)]
    for seed in seeds:
        found.append(Part(f"sft/{seed}", ("sft",), f"study-sft-{seed}", {"seed": seed},
            ("collect",)))  # fmt: skip
    for seed in seeds:
        changes = {"seed": seed, "model.init_adapter": _warm_start(seed), **plan["grpo"]}
        found.append(Part(f"grpo/{seed}", ("train",), f"study-grpo-{seed}", changes,
            (f"sft/{seed}",)))  # fmt: skip
    for seed in seeds:
        found += _controls(seed, plan["controls"])
    rows = [part for part in found if part.command[0] in ("sft", "train")]
    found += [_evaluation(part, "dev") for part in rows]
    everything = tuple(part.name for part in found)  # nothing is opened before all is chosen
    found += [_evaluation(part, "test", everything) for part in rows]
    found += [_teams(seed, everything) for seed in seeds]
    found += _ablations(seeds[0], plan["ablations"])
    return {part.name: part for part in found}


def _warm_start(seed: int) -> str:
    return f"{{output}}/study-sft-{seed}/sft/adapter"


def _controls(seed: int, plan: Mapping[str, Mapping[str, Any]]) -> list[Part]:
    after, like = (f"grpo/{seed}",), f"study-grpo-{seed}"
    start = _warm_start(seed)
    return [
        Part(f"sft-continued/{seed}", ("sft",), f"study-sft-continued-{seed}",
            {"seed": seed, "sft.start_from": start, **plan["sft-continued"]}, after, like),
        Part(f"rejection/{seed}", ("train",), f"study-rejection-{seed}",
            {"seed": seed, "model.init_adapter": start, **plan["rejection"]}, after, like),
    ]  # fmt: skip


def _evaluation(part: Part, split: str, after: tuple[str, ...] = ()) -> Part:
    """Of one trained row; policies without training are those of the first warm start."""
    own = "warm_start" if part.command[0] == "sft" else "tuned"
    policies = [own]
    if part.name == "sft/7":
        policies = ["raw_question", "untouched", own, "oracle"]
    changes = {
        **part.changes,
        "evaluation.policies": policies,
        "evaluation.split": "eval" if split == "test" else split,
    }
    return Part(f"{split}/{part.name.replace('/', '-')}", ("eval",), part.run, changes,
        (part.name, *after), part.like, test=split == "test")  # fmt: skip


def _teams(seed: int, after: tuple[str, ...]) -> Part:
    changes = {
        "seed": seed,
        "model.init_adapter": _warm_start(seed),
        "evaluation.policies": ["untouched", "warm_start", "tuned"],
        "evaluation.split": "eval",
        "evaluation.max_questions": 100,
    }
    return Part(f"teams/{seed}", ("eval", "--teams"), f"study-grpo-{seed}", changes, after,
        test=True)  # fmt: skip


def _ablations(seed: int, plan: Mapping[str, Mapping[str, Any]]) -> list[Part]:
    found = []
    for name, changes in plan.items():
        base = {
            "seed": seed,
            "model.init_adapter": _warm_start(seed),
            "training.max_steps": STEPS_OF_ABLATIONS,
        }
        train = Part(f"ablation/{name}", ("train",), f"study-ablation-{name}", base | changes,
            (f"sft/{seed}",))  # fmt: skip
        found += [train, _evaluation(train, "dev")]
    return found
