"""The benchmark of scans, small: what it makes, what its sides find, what its table says."""

from __future__ import annotations

import json

import pytest

from benchmarks import checkpoints
from benchmarks.checkpoints_sides import plain_loop, scan
from benchmarks.recorded_rounds import ROUNDS, make_rounds
from rlkit.rounds.checkpoints import RLCheckpointLoader


def test_made_rounds_are_whole_of_the_stated_size_and_the_same_for_the_same_seed(tmp_path):
    size = make_rounds(tmp_path / "a", 5, seed=1)
    assert 18_000 < size / (5 * ROUNDS) < 26_000
    loader = RLCheckpointLoader(tmp_path / "a")
    report = loader.load_data()
    assert (report.questions, report.rounds, report.samples) == (5, 5 * ROUNDS, 5 * ROUNDS)
    assert (loader.damaged, report.questions_without_gold) == ([], 0)
    assert make_rounds(tmp_path / "b", 5, seed=1) == size != make_rounds(tmp_path / "c", 5, seed=2)
    one, other = (sorted((tmp_path / name).rglob("*.json")) for name in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_the_plain_loop_finds_the_samples_that_the_loader_finds(tmp_path):
    make_rounds(tmp_path, 4)
    meta = tmp_path / "q00001" / "run_001" / "meta.json"
    row = json.loads(meta.read_text())
    row["rounds"][1]["strategy"] = "ANSWER"
    row["rounds"][2]["clues"] = ["one"]
    meta.write_text(json.dumps(row))
    found = [plain_loop(tmp_path, True), plain_loop(tmp_path, False), scan(tmp_path, 1)]
    assert found == [4 * ROUNDS - 2] * 3


def test_the_result_and_the_table_of_a_small_run(tmp_path, capsys):
    output = tmp_path / "result.json"
    arguments = ["--questions", "250", "--passes", "1", "--output", str(output)]
    result = checkpoints.main(arguments)
    assert json.loads(output.read_text()) == json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {side["samples"] for side in result["sides"].values()} == {1000}
    result["sides"]["first scan, two processes"] |= {"median_s": 4.0, "rounds_a_second": 2500.0}
    result["sides"]["first scan, one process"]["median_s"] = 6.0
    result["sides"]["second scan"]["median_s"] = 0.5
    result["sides"]["plain loop, keeps its samples"]["median_s"] = 10.0
    two, second = checkpoints.as_text(result).splitlines()[-2:]
    assert two == "two processes: 2,500 rounds a second (wanted 2,000), 2.5 times the plain loop"
    assert "8.0 times as fast as the first by two processes, 12.0 times as by one" in second


def test_only_the_defaults_are_kept():
    assert checkpoints.parse([]).output == checkpoints.RESULT
    assert checkpoints.parse(["--questions", "10000"]).output == checkpoints.RESULT
    assert checkpoints.parse(["--questions", "10"]).output is None
    with pytest.raises(SystemExit):
        checkpoints.parse(["--questions", "many"])
