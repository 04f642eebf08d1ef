"""The file that keeps every verdict: across processes, kills, forks, damage and full disks."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlkit.agents.verdict_cache import Judged, VerdictCache, verdict_key
from rlkit.agents.verdict_file import WAIT
from rlkit.errors import DataError

ROOT = Path(__file__).resolve().parents[2]


def row(key: str, verdict: str = "LOCAL") -> Judged:
    return Judged(key, verdict, "judge", "q1", f"doc-{key}")


@pytest.fixture
def cache(tmp_path):
    cache = VerdictCache(tmp_path / "deep" / "verdicts.sqlite", log=pytest.fail)
    yield cache
    cache.close()


def child(code: str, path: Path, *arguments: str) -> subprocess.Popen:
    head = (
        "import os, sys; from rlkit.agents.verdict_cache import Judged, VerdictCache\n"
        "cache = VerdictCache(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", head + code, str(path), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_verdict_is_found_again_and_others_are_not(cache):
    assert cache.get_many(["a"]) == {} and len(cache) == 0
    assert cache.put_many([row("a"), row("b", "DISCARD")]) == {"a": "LOCAL", "b": "DISCARD"}
    cache.flush()
    again = VerdictCache(cache.path)
    assert again.get_many(["b", "c", "a"]) == {"a": "LOCAL", "b": "DISCARD"} and len(again) == 2


def test_the_first_verdict_holds_for_all(cache):
    cache.put_many([row("a", "IMPORTANT")])
    other = VerdictCache(cache.path)
    assert other.put_many([row("a", "DISCARD"), row("b")]) == {"a": "IMPORTANT", "b": "LOCAL"}
    assert cache.get_many(["a"]) == {"a": "IMPORTANT"}


def test_thousands_of_keys_are_looked_up_at_once(cache):
    cache.put_many([row(str(n)) for n in range(2000)])
    assert len(cache.get_many(str(n) for n in range(1000, 3000))) == 1000


def test_only_the_three_labels_can_be_kept(cache):
    with pytest.raises(DataError, match="cannot be used"):
        cache.put_many([row("a"), row("b", "UNJUDGED")])
    assert len(cache) == 0  # all of an answer, or nothing


def test_keys_differ_where_any_part_differs_and_not_by_order():
    key = verdict_key(model="m", question="q", text="t")
    assert key == verdict_key(text="t", question="q", model="m") and len(key) == 64
    others = [
        verdict_key(model="m", question="qt", text=""),
        verdict_key(model="m", question="q", text="t "),
        verdict_key(model="m", question="q", title="t"),
        verdict_key(model="m", question="q\ud800", text="t"),
    ]
    assert len({key, *others}) == 5
    # sha256 of {"a":"\u00e9","n":1}, by coreutils
    assert verdict_key(n=1, a="é").startswith("aee4f5d8aa430a9f")


def test_two_processes_write_and_read_at_once(cache):
    code = """
mine, other = sys.argv[2], {"x": "y", "y": "x"}[sys.argv[2]]
for n in range(150):
    cache.put_many([Judged(f"{mine}{n}", "LOCAL", "m", "q", "d"),
                    Judged(f"both{n}", {"x": "DISCARD", "y": "IMPORTANT"}[mine], "m", "q", "d")])
    cache.get_many([f"{other}{n}"])
print(",".join(cache.get_many([f"both{n}" for n in range(150)]).values()))
"""
    children = [child(code, cache.path, name) for name in "xy"]
    said = [process.communicate(timeout=60)[0].strip() for process in children]
    assert [process.returncode for process in children] == [0, 0]
    assert said[0] == said[1]  # both saw the same verdict wherever they disagreed
    assert len(cache) == 450


def test_what_was_put_outlives_a_process_that_is_killed(cache):
    code = """
for n in range(10_000):
    cache.put_many([Judged(str(n), "LOCAL", "m", "q", "d")])
    print(n, flush=True)
"""
    process = child(code, cache.path)
    for _ in range(40):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = process.communicate()[0].split()
    told = max(last, *map(int, rest)) if rest else last
    assert len(cache) in (told + 1, told + 2)  # the last one may not have been told
    assert cache.put_many([row("next")]) == {"next": "LOCAL"}


def test_threads_share_it(cache):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: cache.put_many([row(str(n))]), range(200)))
    assert len(cache) == 200


def test_a_forked_child_has_a_connection_of_its_own(cache):
    cache.put_many([row("a")])
    child_id = os.fork()
    if child_id == 0:  # no test may go on in here
        try:
            os._exit(0 if cache.put_many([row("b")]) == {"b": "LOCAL"} else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child_id, 0)[1] == 0
    assert cache.get_many(["a", "b"]) == {"a": "LOCAL", "b": "LOCAL"}


def damage_the_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:16384] = b"\xff" * (16384 - 4096)
    path.write_bytes(content)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 100])


def zero_the_beginning(path: Path) -> None:
    path.write_bytes(bytes(4096) + path.read_bytes()[4096:])


@pytest.mark.parametrize("damage", [damage_the_middle, cut_in_half, zero_the_beginning])
def test_a_damaged_file_is_set_aside_with_a_sentence_and_work_goes_on(tmp_path, damage):
    path, said = tmp_path / "verdicts.sqlite", []
    before = VerdictCache(path)
    before.put_many([row(str(n)) for n in range(500)])
    before.close()
    damage(path)
    damaged = path.read_bytes()
    cache = VerdictCache(path, said.append)
    assert cache.get_many(["1"]) == {} and cache.put_many([row("1")]) == {"1": "LOCAL"}
    (aside,) = tmp_path.glob("verdicts.sqlite.damaged-*Z-*[0-9]")
    assert aside.read_bytes() == damaged
    assert len(said) == 1 and "was set aside as verdicts.sqlite.damaged-" in said[0]
    assert said[0].count("\n") == 0 and len(cache) == 1


def test_two_that_find_the_damage_set_aside_one_file(tmp_path):
    path, said = tmp_path / "verdicts.sqlite", []
    path.write_bytes(bytes(20_000))
    caches = [VerdictCache(path, said.append) for _ in range(4)]
    with ThreadPoolExecutor(len(caches)) as threads:
        done = [threads.submit(cache.put_many, [row(str(n))]) for n, cache in enumerate(caches)]
    for one in done:
        one.result()
    assert len(said) == 1 and [len(cache) for cache in caches] == [4] * 4


@pytest.mark.parametrize("vanishing", ["", "-wal"])
def test_a_part_that_vanishes_while_it_is_looked_at_makes_no_file_read_only(
    tmp_path, monkeypatch, vanishing
):
    """The file itself is set aside by another process, -wal goes with its last connection."""
    path = tmp_path / "verdicts.sqlite"
    other = VerdictCache(path)
    other.put_many([row("a")])
    real = os.access

    def access(part, mode):
        if str(part) == f"{path}{vanishing}":
            other.close() if vanishing else path.rename(f"{path}.damaged")
        return real(part, mode)

    monkeypatch.setattr(os, "access", access)
    cache = VerdictCache(path)
    cache.put_many([row("b")])
    assert not cache.read_only and len(cache) == (2 if vanishing else 1)


def test_another_program_s_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "theirs.sqlite"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE verdicts (key, verdict)")
    theirs.close()
    with pytest.raises(DataError, match="is no file of verdicts of schema 1; name another one"):
        VerdictCache(path).get_many(["a"])
    assert sqlite3.connect(path).execute("SELECT count(*) FROM verdicts").fetchone() == (0,)


@pytest.mark.parametrize("content", [b"my notes\n" * 100, b"x", b'{"a": 1}'])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    cache = VerdictCache(path)
    for use in (lambda: cache.get_many(["a"]), lambda: cache.put_many([row("a")])):
        with pytest.raises(DataError, match=r"notes.txt is no file of verdicts, but one of anoth"):
            use()
    assert path.read_bytes() == content
    assert not [*tmp_path.glob("*.damaged-*")]


def test_another_program_s_database_stays_as_it_was_to_the_byte(tmp_path):
    for mode in ("DELETE", "WAL"):
        path = tmp_path / f"{mode}.sqlite"
        theirs = sqlite3.connect(path)
        theirs.execute(f"PRAGMA journal_mode = {mode}")
        theirs.execute("CREATE TABLE notes (text)")
        theirs.close()
        before = path.read_bytes()
        with pytest.raises(DataError, match="is no file of verdicts of schema 1"):
            VerdictCache(path).put_many([row("a")])
        assert path.read_bytes() == before, mode


@pytest.fixture
def shared():
    """A folder that other users can look into, with a cache of one verdict."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        cache = VerdictCache(folder / "verdicts.sqlite")
        cache.put_many([row("a")])
        cache.note_served("http://127.0.0.1:8000/v1", "judge")
        yield folder, cache
        cache.close()
        folder.chmod(0o755)


def told_by_another_user(work) -> str:
    """What `work()` returns, or its DataError, in a process that owns nothing (if this one may
    change its user; else it is the owner, whom the modes of files bind as well)."""
    reader, writer = os.pipe()
    child_id = os.fork()
    if child_id == 0:  # no test may go on in here
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            try:
                said = str(work())
            except DataError as error:
                said = str(error)
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        said = pipe.read()
    os.waitpid(child_id, 0)
    return said


def replay(path: Path):
    def work() -> tuple:
        cache = VerdictCache(path)
        found = cache.get_many(["a", "b"])
        cache.note_served("http://127.0.0.1:8000/v1", "other")  # kept nowhere, and no error
        cache.flush()
        return found, cache.served_model("http://127.0.0.1:8000/v1"), cache.read_only

    return work


def close_to_writing(folder: Path, closed: str) -> None:
    for part in folder.iterdir():
        part.chmod(0o444)
    folder.chmod(0o777 if closed == "file" else 0o555)


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_a_read_only_cache_is_replayed_from_and_leaves_no_trace(shared, closed):
    folder, cache = shared
    cache.close()
    path = cache.path
    close_to_writing(folder, closed)
    before = {part.name: part.read_bytes() for part in folder.iterdir()}
    said = told_by_another_user(replay(path))
    assert said == "({'a': 'LOCAL'}, 'judge', True)"
    start = time.monotonic()
    said = told_by_another_user(lambda: VerdictCache(path).put_many([row("b")]))
    assert said.startswith(
        f"{path} or its folder is read-only, so that new verdicts cannot be kept"
    )
    assert "name the copy as checker.cache_path" in said and time.monotonic() - start < WAIT / 2
    assert {part.name: part.read_bytes() for part in folder.iterdir()} == before


def test_what_its_owner_writes_meanwhile_is_read_from_a_read_only_cache(shared):
    folder, cache = shared  # still open: the verdict stands in the WAL
    close_to_writing(folder, "folder")
    assert told_by_another_user(replay(cache.path)) == "({'a': 'LOCAL'}, 'judge', True)"


def test_a_folder_that_cannot_be_written_is_named_at_once(shared):
    folder, _ = shared
    folder.chmod(0o555)
    for path in (folder / "new.sqlite", folder / "deep" / "new.sqlite"):
        start = time.monotonic()
        said = told_by_another_user(lambda path=path: VerdictCache(path).get_many(["a"]))
        assert said == (
            f"verdicts cannot be kept in {path}, since {path.parent} cannot be written to; name a "
            "file in a folder that can be written as checker.cache_path."
        )
        assert time.monotonic() - start < WAIT / 2


def test_a_file_where_its_folder_should_be_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="since .* exists; name a file|since Not a directory"):
        VerdictCache(tmp_path / "file" / "verdicts.sqlite").get_many(["a"])


def test_a_folder_in_its_place_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="where verdicts are kept, cannot be used"):
        VerdictCache(tmp_path).get_many(["a"])


def test_a_full_disk_names_the_file_and_loses_nothing(cache):
    cache.put_many([row("a")])
    connection = cache._open[1]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own full disk
    with pytest.raises(OSError) as caught:
        cache.put_many([row("k" * 400 + str(n)) for n in range(200)])
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(cache.path)
    assert len(cache) == 1


def test_the_model_that_an_address_served_last_is_remembered_without_the_address(cache):
    address = "http://user:geheim@127.0.0.1:8000/v1"
    assert cache.served_model(address) is None
    cache.note_served(address, "one")
    cache.note_served(address, "two")
    assert cache.served_model(address) == "two" and cache.served_model("http://x/v1") is None
    cache.close()
    for path in cache.path.parent.iterdir():
        assert b"geheim" not in path.read_bytes()
