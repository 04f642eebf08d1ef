"""A whole study in miniature, on the demo library and a random model: every part really runs, in
its own process, and the table is made of what they leave. Nothing is learnt in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.study import run, table
from benchmarks.study.ledger import Ledger
from benchmarks.study.parts import BASE, PLAN, parts
from rlkit.demo.library import make_demo_library

pytestmark = pytest.mark.slow
SMALL = {
    "model": {"base_model_path": "debug", "dtype": "float32"},
    "lora": {"rank": 4},
    "executor": {"max_prompt_tokens": 128},
    "sft": {"num_epochs": 1, "max_samples": 8, "evaluate_every_n_updates": 1,
        "save_every_n_updates": 1},
    "grpo": {"group_size": 4, "max_new_tokens": 8, "warmup_steps": 1},
    "training": {"batch_size": 2, "steps_per_epoch": 1, "num_epochs": 2, "stop_on": []},
    "evaluation": {"epoch_states": 4, "samples": 2, "max_states": 6, "batch_size": 4},
    "data": {"train_ratio": 0.6, "dev_ratio": 0.3, "max_rounds": 2},
    "monitoring": {"use_tensorboard": False},
}  # fmt: skip


def write_library(folder: Path, questions: int) -> None:
    """The demo library as files, with its first questions."""
    library = make_demo_library()
    folder.mkdir(parents=True)
    documents = [{"id": d.docid, "title": d.title, "text": d.text} for d in library.corpus]
    asked = [
        {"id": q.question_id, "question": q.text, "answer": q.answer, "gold": list(q.gold_docids)}
        for q in library.questions[:questions]
    ]
    for name, rows in (("corpus", documents), ("questions", asked)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def write_plan(folder: Path) -> Path:
    """The study's plan with one seed and one ablation, on a base made small."""
    base = yaml.safe_load(BASE.read_text(encoding="utf-8"))
    for section, values in SMALL.items():
        base[section] = base.get(section, {}) | values
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    plan = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    plan |= {"base": "base.yaml", "seeds": [7], "of_ablations": {"training.max_steps": 1}}
    plan["ablations"] = {"all-states": {"training.flat_share": 1}}
    plan["controls"]["sft-continued"]["sft.num_epochs"] = 1
    plan["controls"]["rejection"]["training.num_epochs"] = 2
    plan["teams"]["evaluation.max_questions"] = 2
    plan["hotpotqa"]["states"] |= {"data.train_ratio": 0.5}
    plan["trl"]["training.max_steps"] = 2
    path = folder / "queue.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("study")
    write_library(place / "data" / "2wiki", 16)
    write_library(place / "data" / "hotpotqa100", 6)
    write_plan(place)
    return place


def arguments(folder: Path, *more: str) -> list[str]:
    paths = ["--data", str(folder / "data"), "--out", str(folder / "out")]
    return [*paths, "--plan", str(folder / "queue.yaml"), *more]


def test_every_part_runs_once_and_the_table_is_made_of_what_they_leave(folder, capsys):
    assert run.main(arguments(folder, "--only", "collect", "sft/7")) == 0
    code = run.main(arguments(folder))
    assert run.main(arguments(folder, "--list")) == 0
    said = capsys.readouterr().out
    assert code == 0, said
    found = parts(folder / "queue.yaml")
    assert all(part.name in said for part in found.values())
    assert said.count(" done ") >= len(found) and " failed " not in said

    opened = [line["row"] for line in Ledger(folder / "out").lines() if line["what"] == "opened"]
    assert sorted(opened) == sorted(part.name for part in found.values() if part.test)

    table.main(["--out", str(folder / "out"), "--plan", str(folder / "queue.yaml")])
    result = json.loads((folder / "out" / "study.json").read_text())
    test = result["policies"]["test"]
    assert {"raw_question", "warm_start", "grpo", "sft_continued", "rejection"} <= set(test)
    assert test["oracle"]["discovery_rate"]["mean"] > 0.5
    assert test["grpo"]["documents_read"]["mean"] <= 8  # of counts, which samples keep
    assert not [row for row in result["targets"] if row["said"].endswith("not run yet")]
    assert result["trl"]["seconds an update"].keys() == {"study-ablation-all-states", "study-trl-7"}
    teams = result["teams"]["policies"]
    assert {"raw_question", "scripted", "untouched", "untouched_plain", "tuned"} <= set(teams)
    first = {name: team["after round"]["1"] for name, team in teams.items()}
    del first["raw_question"]  # reads down its ranking
    assert len({*first.values()}) == 1 and first["tuned"] > 0  # the question was everybody's clue
    assert result["controls"].keys() == {"grpo/7", "sft-continued/7", "rejection/7"}
    assert len(list((folder / "out").glob("*.png"))) == 2
    assert "### Test: " in (folder / "out" / "study.md").read_text()


def test_trl_goes_on_from_its_last_update(folder):
    from benchmarks.study.trl_grpo import train

    part = parts(folder / "queue.yaml")["trl/7"]
    if not (folder / "out" / "study-sft-7" / "sft" / "adapter").is_dir():
        pytest.skip("the study of the test before is not there")
    config = part.config(folder / "out", folder / "data").with_overrides("run_name=trl-again")
    train(config.with_overrides("training.max_steps=1"))
    run = train(config)
    rows = run.read_metrics()
    assert [row["step"] for row in rows] == [0, 1, 2]
    # ours, with one warm-up step: transformers' own would begin at 0
    assert [row["learning_rate"] for row in rows[1:]] == [config.grpo.learning_rate] * 2
    assert run.status()["state"] == "finished"


def test_a_second_call_has_nothing_to_do(folder):
    before = {p: p.stat().st_mtime_ns for p in (folder / "out" / "queue").glob("*.json")}
    if not before:
        pytest.skip("the study of the test before is not there")
    assert run.main(arguments(folder)) == 0
    assert {p: p.stat().st_mtime_ns for p in (folder / "out" / "queue").glob("*.json")} == before
