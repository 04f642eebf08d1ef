"""The scan: what the serial oracle finds, however it reads, and never what is no longer so."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pydantic
import pytest

from rlkit.rounds import index, scan
from rlkit.rounds.index import GRAIN, NAME, are_current, is_settled, read_index, write_index
from rlkit.rounds.stamps import stamp_of
from tests.rounds.random_rounds import make_random
from tests.rounds.recorded import ref, write_run
from tests.rounds.serial_scan import loaded, serial_scan


@pytest.mark.parametrize("seed", range(25))
def test_random_rounds_with_damage_of_every_kind_give_what_the_oracle_finds(
    tmp_path, seed, reading
):
    make_random(tmp_path, seed)
    for options in ({}, {"min_clues": 1, "cap": 2, "seed": seed}, {"min_clues": 0, "cap": 99}):
        assert loaded(tmp_path, **options) == serial_scan(tmp_path, **options)


def test_several_processes_find_the_same_in_the_same_order(tmp_path, reading):
    make_random(tmp_path, 3, questions=70)
    assert loaded(tmp_path, processes=2) == serial_scan(tmp_path)


@pytest.fixture
def reading(monkeypatch):
    """Small folders are indexed as if their files had been left alone for long; gives the questions
    that were read, scan by scan."""
    monkeypatch.setattr(scan, "INDEX_FROM", 1)
    monkeypatch.setattr(scan, "clock_of", lambda root: time.time_ns() + 2 * GRAIN)
    scans, read_all = [], scan.read_all

    def counted(root, names, *rest):
        scans.append(list(names))
        return read_all(root, names, *rest)

    monkeypatch.setattr(scan, "read_all", counted)
    return scans


@pytest.fixture
def root(tmp_path):
    """Three questions: q1 with two runs, of which one failed, q2, and q3, which is not finished."""
    root = tmp_path / "rounds"
    write_run(root, "q1", collector="me", status="failed")
    write_run(root, "q1", collector="me")
    write_run(root, "q2", gold_docids=None)
    (write_run(root, "q3") / "meta.json").rename(root / "q3" / "meta.json")
    return root


def edit(path: Path, old: bytes, new: bytes) -> None:
    """Change a file in place; waits for the clock's next tick, as whoever edits does."""
    before = stamp_of(path)
    content = path.read_bytes()
    assert old in content
    while stamp_of(path) == before:
        time.sleep(0.002)
        with open(path, "r+b") as file:
            file.write(content.replace(old, new))


def edit_and_set_the_time_back(root):
    path = root / "q2" / "run_001" / "round_002.json"
    status = path.stat()
    edit(path, b'"g2"', b'"g9"')
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def replace(root):
    path = root / "q2" / "run_001" / "round_001.json"
    other = path.with_name("other")
    shutil.copy2(path, other)
    edit(other, b'"g1"', b'"g8"')
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(other, path)


def finish(root):
    (root / "q3" / "meta.json").rename(root / "q3" / "run_001" / "meta.json")


def link_elsewhere(root):
    shutil.move(root / "q2", root.parent / "elsewhere")
    (root / "q2").symlink_to(root.parent / "elsewhere")
    edit(root / "q2" / "run_001" / "meta.json", b"What is q2", b"What was it")


CHANGES = {
    "edited in place": (
        lambda root: edit(root / "q2" / "run_001" / "round_002.json", b'"g2"', b'"g9"'),
        ["q2"],
    ),
    "edited, size and time of change as before": (edit_and_set_the_time_back, ["q2"]),
    "replaced, size and time of change as before": (replace, ["q2"]),
    "meta edited": (
        lambda root: edit(root / "q1" / "run_002" / "meta.json", b"SEARCH", b"ANSWER"),
        ["q1"],
    ),
    "run added": (lambda root: write_run(root, "q2", refs=[ref(1)]), ["q2"]),
    "run removed": (lambda root: shutil.rmtree(root / "q1" / "run_002"), ["q1"]),
    "run renamed": (lambda root: (root / "q2/run_001").rename(root / "q2/run_004"), ["q2"]),
    "question added": (lambda root: write_run(root, "q4"), ["q4"]),
    "question removed": (lambda root: shutil.rmtree(root / "q1"), []),
    "file removed": (lambda root: (root / "q2/run_001/round_003.json").unlink(), ["q2"]),
    "run finished": (finish, ["q3"]),
    "folder linked elsewhere": (link_elsewhere, ["q2"]),
    "nothing": (lambda root: None, []),
    "another file": (lambda root: (root / "q2/run_001/notes.txt").write_text("{}"), []),
}


@pytest.mark.parametrize("help_from", [1, 9], ids=["helped", "alone"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_second_scan_reads_what_changed_and_only_that(
    root, reading, change, help_from, monkeypatch
):
    monkeypatch.setattr(scan, "HELP_FROM", help_from)
    monkeypatch.setattr(scan, "available_processes", lambda: 2)
    assert loaded(root) == serial_scan(root)
    act, changed = CHANGES[change]
    act(root)
    assert loaded(root) == serial_scan(root)
    assert reading == [["q1", "q2", "q3"], changed]
    assert loaded(root) == serial_scan(root)
    assert reading[2] == []


def test_another_process_sees_the_same_and_is_not_needed(root, reading, monkeypatch):
    loaded(root)
    lines = list(read_index(root).values())
    edit(root / "q2" / "run_001" / "round_002.json", b'"g2"', b'"g9"')
    monkeypatch.setattr(index.stamps, "is_current", None)  # would be asked without an answer
    assert are_current(root, lines) == [True, False, True]
    monkeypatch.undo()
    for executable in ("/nowhere/python", "/bin/true"):
        monkeypatch.setattr(index.sys, "executable", executable)
        assert are_current(root, lines) == [True, False, True]


def test_what_is_mended_is_read_again(root, reading):
    for name in ("round_001.json", "meta.json"):
        path = root / "q2" / "run_001" / name
        whole = path.read_bytes()
        for damage in (lambda p: p.write_bytes(b"{"), Path.unlink):
            damage(path)
            assert loaded(root)[0]["damaged_runs"] == serial_scan(root)[0]["damaged_runs"]
            path.write_bytes(whole)
            assert loaded(root) == serial_scan(root)
            assert reading[-1] == ["q2"]


def test_a_file_that_cannot_be_read_is_tried_again_at_each_scan(root, reading):
    path = root / "q2" / "run_001" / "round_001.json"
    path.unlink()
    path.mkdir()
    for _ in range(2):
        assert loaded(root) == serial_scan(root)
    assert reading[1] == ["q2"]


def test_files_that_were_just_written_are_not_yet_believed(root, reading, monkeypatch):
    monkeypatch.setattr(scan, "clock_of", index.clock_of)
    monkeypatch.setattr(index, "GRAIN", 3600 * 10**9)
    loaded(root)
    loaded(root)
    assert reading == [["q1", "q2", "q3"], ["q1", "q2"]]  # of q3 nothing was there to be written
    assert set(read_index(root)) == {"q3"}


def test_a_file_is_settled_once_the_coarsest_clock_has_moved_on(root):
    status = os.stat(root / "q2" / "run_001" / "meta.json")
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    assert is_settled(status, changed + GRAIN)
    assert not is_settled(status, changed + GRAIN - 1)
    os.utime(root / "q2" / "run_001" / "meta.json", ns=(0, changed + 10 * GRAIN))  # in the future
    assert not is_settled(os.stat(root / "q2" / "run_001" / "meta.json"), changed + 2 * GRAIN)


def test_the_index_serves_all_parameters(root, reading):
    loaded(root)
    for options in ({"min_clues": 3}, {"min_clues": 0, "cap": 1}, {"cap": 2, "seed": 8}):
        assert loaded(root, **options) == serial_scan(root, **options)
    assert reading[1:] == [[], [], []]


def test_an_index_of_another_version_is_made_anew(root, reading, monkeypatch, tmp_path):
    loaded(root)
    monkeypatch.setattr(pydantic, "VERSION", "3.0")
    loaded(root)
    for name in index._SOURCES:  # the same modules, of which one has changed
        shutil.copy(Path(index.__file__).with_name(name), tmp_path / name)
    with open(tmp_path / "state.py", "a") as file:
        file.write("# schema 2\n")
    monkeypatch.setattr(index, "__file__", str(tmp_path / "index.py"))
    loaded(root)
    loaded(root)
    assert reading == [["q1", "q2", "q3"]] * 3 + [[]]


def test_a_damaged_index_is_made_anew(root, reading):
    loaded(root)
    path = root / NAME
    whole = path.read_bytes()
    places = [0, whole.index(b"\n"), whole.index(b'"g1"') + 2, len(whole) - 2]
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in places]
    for content in (
        *damaged,
        b"",
        whole[:-1],
        whole[: whole.index(b"\n") + 1],
        whole + b"\n",
        b"\xff",
    ):
        path.write_bytes(content)
        assert loaded(root) == serial_scan(root)
        assert reading[-1] == ["q1", "q2", "q3"]
        assert path.read_bytes() == whole
    path.unlink()
    path.mkdir()
    assert loaded(root) == serial_scan(root)


def test_a_copy_on_another_machine_is_read_and_a_moved_folder_is_not(root, reading):
    loaded(root)
    copied = shutil.copytree(root, root.parent / "copied")
    assert (copied / NAME).exists()
    edit(copied / "q2" / "run_001" / "round_002.json", b'"g2"', b'"g9"')
    assert loaded(copied) == serial_scan(copied)
    moved = root.rename(root.parent / "moved")
    assert loaded(moved) == serial_scan(moved)
    assert reading[1:] == [["q1", "q2"], []]  # of q3 there is no file


def test_where_nothing_can_be_written_the_scan_goes_on_without_an_index(root, reading, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(scan, "clock_of", index.clock_of)
    monkeypatch.setattr(index.tempfile, "TemporaryFile", refused)
    assert loaded(root) == serial_scan(root)
    assert not (root / NAME).exists()
    monkeypatch.setattr(scan, "clock_of", lambda root: time.time_ns() + 2 * GRAIN)
    monkeypatch.setattr(index, "write_bytes", refused)
    assert loaded(root) == serial_scan(root)


def test_a_folder_whose_name_would_break_a_line_stays_out_of_the_index(root, reading):
    for name in ("q\t4", "q\n5", "q\u00e9"):
        shutil.copytree(root / "q2", root / name)
    loaded(root)
    assert loaded(root) == serial_scan(root)
    assert sorted(reading[1]) == ["q\t4", "q\n5", "q\u00e9"]
    assert set(read_index(root)) == {"q1", "q2", "q3"}


def test_of_two_processes_that_write_at_once_one_index_is_there_and_whole(tmp_path):
    ours, theirs = ([f"q{n}\t{who}".encode() + b"x" * 900 for n in range(300)]
                    for who in ("ours", "theirs"))  # fmt: skip
    code = (
        "import sys\nfrom pathlib import Path\nfrom rlkit.rounds.index import write_index\n"
        "lines = [f'q{n}\\ttheirs'.encode() + b'x' * 900 for n in range(300)]\n"
        "for _ in range(30): write_index(Path(sys.argv[1]), lines)\n"
    )
    write_index(tmp_path, ours)
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    met = []
    while child.poll() is None:
        met.append(list(read_index(tmp_path).values()))
        write_index(tmp_path, ours)
    met.append(list(read_index(tmp_path).values()))
    assert child.returncode == 0
    assert all(found in (ours, theirs) for found in met)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_small_folder_gets_no_index(root):
    loaded(root)
    assert not (root / NAME).exists()
