"""Every run of the study is a config that loads, differs as its name says, and waits its turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.study.parts import BASE, Part, parts, processor_minutes
from rlkit.config import RunConfig

PARTS = parts()


@pytest.fixture
def output(tmp_path) -> Path:
    for seed in (7, 8, 9):
        run = tmp_path / f"study-grpo-{seed}"
        run.mkdir()
        rows = [{"step": i, "cpu_time": 30.0} for i in range(1, 11)] + [{"step": 10}]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_parameters_that_load_and_comes_after_what_it_needs(name, output):
    part, order = PARTS[name], list(PARTS)
    assert part.config(output, Path("data")).run_name == part.run
    assert all(order.index(other) < order.index(name) for other in part.after)


def test_every_seed_has_the_same_split_and_rounds(output):
    rows = [p.config(output, Path("d")) for n, p in PARTS.items() if n.startswith(("sft/", "grpo"))]
    assert {config.seed for config in rows} == {7, 8, 9}
    assert len({(c.data.split_seed, c.data.rounds_path, c.data.split) for c in rows}) == 1


def test_a_control_has_the_processor_time_of_its_seeds_grpo(output):
    assert processor_minutes(output / "study-grpo-7") == 5.0
    assert PARTS["sft-continued/7"].config(output, Path("d")).sft.cpu_minutes == 5.0
    control = PARTS["rejection/8"].config(output, Path("d"))
    assert (control.training.cpu_minutes, control.grpo.advantage) == (5.0, "best")


def test_the_test_split_is_opened_only_after_everything_was_chosen():
    trained = {n for n, p in PARTS.items() if p.command[0] in ("sft", "train")}
    trained = {name for name in trained if not name.startswith("ablation")}
    for part in PARTS.values():
        if part.test:
            assert trained <= set(part.after), part.name
        if part.name.startswith("dev/"):
            assert not part.test and part.changes["evaluation.split"] == "dev"


def test_a_part_is_done_by_what_lies_in_its_folder(output):
    train = Part("grpo/7", ("train",), "study-grpo-7")
    assert not train.is_done(output)
    status = output / "study-grpo-7" / "status.json"
    status.write_text('{"state": "stopped"}')
    assert not train.is_done(output)
    status.write_text('{"state": "finished"}')
    assert train.is_done(output)


def test_only_new_important_documents_pay_in_the_base():
    reward = RunConfig.load(BASE).reward
    values = reward.model_dump(exclude={"invalid"})
    assert {name for name, value in values.items() if value} == {"important_new"}
