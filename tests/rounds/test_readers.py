"""Several processes read; whatever happens to them, the answers are whole and in order."""

import subprocess
import sys

import pytest

from rlkit.rounds import readers
from rlkit.rounds.readers import CHUNK, available_processes, read_all
from tests.rounds.recorded import write_run


@pytest.fixture
def names(tmp_path):
    found = [f"q{n:03d}" for n in range(2 * CHUNK + 5)]
    for name in found:
        write_run(tmp_path, name, refs=[])
    return found


@pytest.fixture
def alone(tmp_path, names):
    return list(read_all(tmp_path, names, 0, 1))


@pytest.fixture
def pools(monkeypatch):
    made, init = [], readers._Pool.__init__

    def kept(self, *args):
        made.append(self)
        init(self, *args)

    monkeypatch.setattr(readers._Pool, "__init__", kept)
    return made


def test_the_children_answer_and_end_with_the_reading(tmp_path, names, alone, pools):
    # a child that could not be used would be covered by this process
    assert (
        readers._answers(child := readers._Pool(tmp_path, 0, 1).children[0], names[:3]) == alone[:3]
    )
    child.kill()
    assert list(read_all(tmp_path, names, 0, 2)) == alone
    assert [child.returncode is not None for child in pools[-1].children] == [True, True]


def test_where_children_end_or_cannot_start_this_process_reads(
    tmp_path, names, alone, monkeypatch, pools
):
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **k: popen([sys.executable, "-c", "pass"], **k)
    )
    assert list(read_all(tmp_path, names, 0, 2)) == alone

    def refused(*args, **kwargs):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refused)
    assert list(read_all(tmp_path, names, 0, 2)) == alone
    assert pools[-1].children == []


def test_a_child_that_is_killed_in_the_middle_costs_no_answer(tmp_path, names, alone, pools):
    reading = read_all(tmp_path, names, 0, 2)
    found = [next(reading)]
    pools[0].children[0].kill()
    assert found + list(reading) == alone


def test_a_reading_that_is_left_leaves_no_process(tmp_path, names, pools):
    reading = read_all(tmp_path, names, 0, 2)
    next(reading)
    reading.close()
    assert all(child.returncode is not None for child in pools[0].children)


def test_few_questions_are_read_without_a_pool(tmp_path, names, alone, pools):
    assert list(read_all(tmp_path, names, 0)) == alone
    assert pools == []


def test_the_ranks_of_a_machine_share_its_cores(monkeypatch):
    cores = {"LOCAL_WORLD_SIZE": "1"}
    monkeypatch.setattr(readers.os, "environ", cores)
    monkeypatch.setattr(readers.os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert available_processes() == 6
    cores["LOCAL_WORLD_SIZE"] = "4"
    assert available_processes() == 1
    monkeypatch.setattr(readers.os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    cores.clear()
    assert available_processes() == readers.MOST
