"""Every run of the study is a config that loads, differs as its name says, and waits its turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.study import parts as study_parts
from benchmarks.study.parts import (
    BASE,
    DATA,
    OUTPUT,
    Part,
    best_checkpoint,
    params_files,
    params_text,
    parts,
)
from benchmarks.study.parts import processor_minutes as minutes
from rlkit.config import RunConfig

PARTS = parts()
FILES = params_files(PARTS)


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
    assert minutes(output / "study-grpo-7") == 5.0
    assert PARTS["sft-continued/7"].config(output, Path("d")).sft.cpu_minutes == 5.0
    control = PARTS["rejection/8"].config(output, Path("d"))
    assert (control.training.cpu_minutes, control.grpo.advantage) == (5.0, "best")


def test_where_grpos_first_steps_take_twice_as_long_so_does_a_control(output):
    clock = output / "study-clock-7" / "metrics.jsonl"
    clock.parent.mkdir()
    clock.write_text('{"step": 1, "cpu_time": 60.0}\n')  # 30 where GRPO was trained
    assert PARTS["rejection/7"].config(output, Path("d")).training.cpu_minutes == 10.0
    assert PARTS["rejection/8"].config(output, Path("d")).training.cpu_minutes == 5.0
    # one that has begun keeps what it began with
    PARTS["rejection/7"].config(output, Path("d")).save(output / "study-rejection-7/config.yaml")
    clock.write_text('{"step": 1, "cpu_time": 30.0}\n')
    assert PARTS["rejection/7"].config(output, Path("d")).training.cpu_minutes == 10.0


def test_the_primary_result_comes_first_and_no_test_before_its_choices():
    order = list(PARTS)
    assert order[1:5] == ["sft/7", "grpo/7", "dev/sft-7", "dev/grpo-7"]
    chosen = {f"{kind}/{seed}" for kind in ("sft", "grpo") for seed in (7, 8, 9)}
    chosen |= {f"dev/{name.replace('/', '-')}" for name in chosen}
    for part in PARTS.values():
        if part.test:
            assert chosen <= {part.name, *part.after}, part.name
        if part.kind == "dev":
            assert not part.test and part.changes["evaluation.split"] == "dev"
    assert "dev/rejection-7" in PARTS["test/rejection-7"].after
    kinds = [part.kind for part in PARTS.values()]
    assert kinds.index("test") < kinds.index("rejection") < kinds.index("ablation")


def test_a_part_is_there_by_what_lies_in_its_folder(output):
    train = Part("grpo/7", ("train",), "study-grpo-7")
    assert not train.is_there(output)
    status = output / "study-grpo-7" / "status.json"
    status.write_text('{"state": "stopped"}')
    assert not train.is_there(output)
    status.write_text('{"state": "finished"}')
    assert train.is_there(output)
    assert not PARTS["collect"].is_there(output)  # its marker tells


def test_the_best_checkpoint_is_the_first_highest_on_dev_behind_step_0(tmp_path):
    values = {0: 0.9, 10: 0.4, 20: 0.6, 30: 0.6}
    rows = [{"step": step, "eval/discovery_rate": value} for step, value in values.items()]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert best_checkpoint(tmp_path).name == "checkpoint-20"


def test_a_run_that_found_nothing_on_dev_has_a_best_checkpoint_too(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "eval/discovery_rate": 0.0}\n')
    assert best_checkpoint(tmp_path).name == "checkpoint-10"


def test_a_run_keeps_its_spelling_of_a_path_that_is_the_same(output):
    there = str(output / "x" / ".." / "data")
    config = f"data: {{corpus_path: {there}/2wiki/corpus.jsonl, questions_path: other}}\n"
    (output / "study-sft-7").mkdir()
    (output / "study-sft-7" / "config.yaml").write_text(config)
    sets = PARTS["sft/7"].sets(output, output / "data")
    assert f"data.corpus_path={there}/2wiki/corpus.jsonl" in sets
    assert f"data.questions_path={output}/data/2wiki/questions.jsonl" in sets


def test_only_new_important_documents_pay_in_the_base():
    reward = RunConfig.load(BASE).reward
    values = reward.model_dump(exclude={"invalid"})
    assert {name for name, value in values.items() if value} == {"important_new"}


@pytest.mark.parametrize("name", FILES)
def test_a_params_file_is_its_part(name):
    """Otherwise: python benchmarks/study/parts.py, which writes them anew."""
    written = (BASE.parent / name).read_text(encoding="utf-8")
    assert written == params_text(FILES[name])
    config = RunConfig.load(BASE.parent / name)
    if FILES[name].like is None:
        assert config == FILES[name].config(OUTPUT, DATA).with_overrides()


def test_no_params_file_is_left_over():
    assert {path.name for path in BASE.parent.glob("*.yaml")} == {"base.yaml", *FILES}


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["--out", "x"], 2), (["x"], 2)])
def test_a_question_about_the_script_rewrites_no_params_file(
    arguments, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(study_parts, "BASE", tmp_path / "base.yaml")
    with pytest.raises(SystemExit) as ended:
        study_parts.main(arguments)
    assert ended.value.code == code and not list(tmp_path.iterdir())
    study_parts.main([])
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    assert capsys.readouterr().out.count(str(tmp_path)) == len(FILES)
