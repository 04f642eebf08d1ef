"""Runs appear whole or not at all."""

import json
import os

import pytest

import rlkit.rounds.writer as writer_module
from rlkit.errors import DataError
from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.rounds.writer import run_folders
from tests.rounds.recorded import ref, round_file, write_run


def test_a_run_holds_meta_and_every_round(tmp_path):
    folder = write_run(tmp_path, "q1")
    assert folder == tmp_path / "q1" / "run_001"
    assert sorted(os.listdir(folder)) == [
        "meta.json", "round_000.json", "round_001.json", "round_002.json", "round_003.json",
    ]  # fmt: skip
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["schema"] == 1
    assert meta["rounds"][0] == {
        "round": 1,
        "strategy": "SEARCH",
        "subgoal": "goal 1",
        "clues": ["one", "two"],
        "checkpoint": "round_001.json",
        "failed": None,
    }


def test_the_next_free_number_is_taken(tmp_path):
    write_run(tmp_path, "q1")
    (tmp_path / "q1" / "run_007").mkdir()
    assert write_run(tmp_path, "q1").name == "run_008"
    assert [path.name for path in run_folders(tmp_path / "q1")] == ["run_001", "run_007", "run_008"]


def test_a_number_that_another_collector_took_meanwhile_is_passed_over(tmp_path, monkeypatch):
    write_run(tmp_path, "q1")
    monkeypatch.setattr(writer_module, "_next_number", lambda folder: 1)
    assert write_run(tmp_path, "q1").name == "run_002"


class Killed(BaseException):
    """A kill signal, as Python sees it."""


def test_a_killed_writer_leaves_nothing_that_the_loader_takes_for_a_run(tmp_path, monkeypatch):
    write_run(tmp_path, "q0")
    real = writer_module._write

    def dying(path, model):
        if path.name == "round_002.json":
            raise Killed
        return real(path, model)

    monkeypatch.setattr(writer_module, "_write", dying)
    with pytest.raises(Killed):
        write_run(tmp_path, "q1")
    (tmp_path / "q1" / ".run_001.abc").mkdir()  # what a harder kill would leave
    (tmp_path / "q1" / ".run_001.abc" / "round_000.json").write_text("{")
    report = RLCheckpointLoader(tmp_path).load_data()
    assert (report.runs, report.damaged_runs, report.unfinished_runs) == (1, 0, 0)


def test_an_unsafe_question_id_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match="cannot be used as a folder name"):
        write_run(tmp_path, "../q1")
    assert list(tmp_path.iterdir()) == []


def test_rounds_must_be_those_that_meta_lists(tmp_path):
    with pytest.raises(DataError, match="write round 0"):
        write_run(tmp_path, "q1", refs=[ref(1)], files=[round_file(1)])
