"""Errors are sentences; files are whole or absent."""

from __future__ import annotations

import os
import re

import pytest

from rlkit import files
from rlkit.errors import ConfigError, DataError, ModelError, RlkitError, RunError, nearest
from rlkit.files import (
    append_line,
    check_id,
    new_folder,
    read_json,
    read_jsonl,
    remove_leftovers,
    write_json,
    write_text,
)


def test_every_error_that_a_user_can_mend_is_an_rlkit_error():
    assert all(issubclass(e, RlkitError) for e in (ConfigError, DataError, ModelError, RunError))


def test_nearest_forgives_case_and_slips_but_does_not_guess_wildly():
    assert nearest("Learning_Rat", ["learning_rate", "temperature"]) == "learning_rate"
    assert nearest("zzz", ["learning_rate"]) is None


def test_a_written_file_is_whole_and_leaves_no_temporary_behind(tmp_path):
    write_json(tmp_path / "deep" / "a.json", {"x": [1, "é"]})
    assert read_json(tmp_path / "deep" / "a.json") == {"x": [1, "é"]}
    assert os.listdir(tmp_path / "deep") == ["a.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == 1
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_rename_that_fails_leaves_no_temporary(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_text(tmp_path / "a.txt", "x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "said",
    [
        OSError(28, "No space left on device"),
        OSError("54060 requested and 496 written"),  # numpy
        Exception("Error while serializing: I/O error: No space left (os error 28)"),  # safetensors
    ],
)
def test_a_full_disk_is_said_with_the_folder_that_was_to_be_written(tmp_path, said):
    with pytest.raises(OSError) as error, new_folder(tmp_path / "index"):
        raise said
    assert (error.value.errno, error.value.filename) == (28, str(tmp_path / "index"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("said", [OSError("odd"), Exception("no such file (os error 2)")])
def test_what_is_no_refusal_to_write_stays_as_it_is(tmp_path, said):
    with pytest.raises(type(said)) as error, new_folder(tmp_path / "index"):
        raise said
    assert error.value is said and str(said) == said.args[0]


def test_a_full_disk_is_said_with_the_file_that_was_to_be_written(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    def temporary(dir, prefix):
        raise OSError(30, "Read-only file system", f"{dir}/{prefix}x1y2z3w4")

    monkeypatch.setattr(os, "fsync", full)
    for write in (write_text, append_line):
        with pytest.raises(OSError) as error:
            write(tmp_path / "a.txt", "x")
        assert error.value.filename == str(tmp_path / "a.txt")
    monkeypatch.setattr("tempfile.mkstemp", temporary)
    with pytest.raises(OSError) as error:
        write_text(tmp_path / "a.txt", "x")
    assert (error.value.errno, error.value.filename) == (30, str(tmp_path / "a.txt"))


def test_leftovers_are_those_of_one_file_and_nothing_else(tmp_path):
    names = [".a.json.x1y2z3w4", ".a.json.bak", ".b.json.x1y2z3w4", "a.json", ".lock"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ".a.json.folder_1").mkdir()
    remove_leftovers(tmp_path / "a.json")
    assert sorted(os.listdir(tmp_path)) == sorted(names[1:])


def test_lone_surrogates_are_replaced_not_raised(tmp_path):
    write_text(tmp_path / "a.txt", "a\ud800b")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "a?b"


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), new_folder(tmp_path / "run") as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with new_folder(tmp_path / "run") as folder:
        assert not (tmp_path / "run").exists()
        (folder / "whole").write_text("x")
    assert (tmp_path / "run" / "whole").read_text() == "x"
    with pytest.raises(FileExistsError), new_folder(tmp_path / "run"):
        pass


def test_a_damaged_line_is_named_with_file_and_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 3: not a JSON object"):
        list(read_jsonl(path))
    path.write_text('{"a": 1}\n[2]\n')
    with pytest.raises(DataError, match=r"line 2: a list where an object is wanted"):
        list(read_jsonl(path))


def test_half_a_last_line_is_passed_over_only_on_request(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_line(path, '{"a": 1}')
    with open(path, "a") as file:
        file.write('{"a": 2')
    assert list(read_jsonl(path, skip_half_line=True)) == [(1, {"a": 1})]
    with pytest.raises(DataError, match="line 2"):
        list(read_jsonl(path))


def test_a_missing_and_a_damaged_json_file_are_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{\n"a": }')
    with pytest.raises(DataError, match=r"bad\.json, line 2"):
        read_json(tmp_path / "bad.json")
    (tmp_path / "latin.json").write_bytes(b'"\xe9"')
    with pytest.raises(DataError, match="not UTF-8"):
        read_json(tmp_path / "latin.json")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", ".x", "a\n", "a b", "x" * 201, None])
def test_an_id_that_could_leave_its_folder_is_refused(name):
    with pytest.raises(DataError, match="cannot be used as a folder name"):
        check_id(name, "question id")


def test_an_ordinary_id_is_returned():
    assert check_id("2hop__482757_12019", "question id") == "2hop__482757_12019"


@pytest.mark.parametrize("told", [True, False])
def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path, monkeypatch, told):
    """Whether the system tells the umask or it has to be set to be read."""
    if not told:
        monkeypatch.setattr(files, "_UMASK", re.compile("nowhere"))
    before = os.umask(0o027)
    try:
        path = files.write_text(tmp_path / "a.txt", "a")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
