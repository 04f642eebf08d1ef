"""Corpora on disk: the same as in memory, found by what they were read from, and never half."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from rlkit.errors import DataError
from rlkit.library import readers, stored
from rlkit.library.corpus import Corpus, Document
from rlkit.library.readers import read_corpus
from rlkit.library.stored import StoredCorpus, write_corpus

STRANGE = [
    Document("a", "A", "one"),
    Document("国", "", "战国无双 \U0001f600"),
    Document("c", "", "\ud800 lone"),
    Document("", "no id", ""),
]


def stored_in(folder, documents):
    folder.mkdir()
    write_corpus(documents, folder)
    return StoredCorpus(folder)


@pytest.mark.parametrize("together", [1, 3, 256])
def test_it_is_the_same_sequence_as_in_memory(tmp_path, monkeypatch, together):
    monkeypatch.setattr(stored, "_TOGETHER", together)
    ours, theirs = stored_in(tmp_path / "c", STRANGE), Corpus(STRANGE)
    assert list(ours) == list(theirs) and len(ours) == 4
    assert ours.fingerprint == theirs.fingerprint
    assert ours[-1] == theirs[-1] and ours[1:3] == theirs[1:3] and ours[np.int64(2)] == theirs[2]
    for document in STRANGE:
        assert ours.position(document.docid) == theirs.position(document.docid)
        assert ours.get(document.docid) == document
    assert "b" not in ours and 7 not in ours and ours.get("b") is None
    with pytest.raises(KeyError):
        ours.position("b")
    with pytest.raises(IndexError):
        ours[4]


def test_ids_whose_hashes_are_equal_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "_hash", lambda docid: len(docid))
    ids = [f"d{n}" for n in range(10)] + ["longer"]
    corpus = stored_in(tmp_path / "c", [Document(docid, "", docid) for docid in ids])
    assert [corpus.position(docid) for docid in ids] == list(range(11))
    assert "dx" not in corpus and corpus.get("d3").text == "d3"


def test_no_document_and_a_repeated_id_are_the_errors_of_a_corpus_in_memory(tmp_path):
    with pytest.raises(DataError, match="holds no documents"):
        stored_in(tmp_path / "a", [])
    twice = [Document(docid, "", "x") for docid in "abcdbc"]
    with pytest.raises(DataError) as ours:
        stored_in(tmp_path / "b", twice)
    with pytest.raises(DataError) as theirs:
        Corpus(twice)
    assert str(ours.value) == str(theirs.value)
    assert "'b' occurs twice (documents 2 and 5)" in str(ours.value)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LARGE", 100)
    rng, path = random.Random(1), tmp_path / "corpus.jsonl"
    rows = [{"id": str(n), "text": f"w{rng.randrange(99)} w{n}"} for n in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_large_file_is_read_once_and_opened_from_then_on(file, tmp_path, monkeypatch):
    first = read_corpus(file, tmp_path / "kept")
    assert isinstance(first, StoredCorpus) and list(first) == list(read_corpus(file))
    monkeypatch.setattr(stored, "write_corpus", None)  # writing again would now fail
    assert list(read_corpus(file, tmp_path / "kept")) == list(first)
    assert [path.name[:7] for path in (tmp_path / "kept").iterdir()] == ["corpus-"]


def test_small_files_stay_in_memory(file, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LARGE", file.stat().st_size + 1)
    assert type(read_corpus(file, tmp_path / "kept")) is Corpus
    assert not (tmp_path / "kept").exists()


def test_a_changed_file_is_never_answered_from_what_was_kept(file, tmp_path):
    read_corpus(file, tmp_path / "kept")
    stat, text = file.stat(), file.read_text()
    file.write_text(text.replace("w49", "w94"))  # as long as before, and as old
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert "w94" in read_corpus(file, tmp_path / "kept")[49].text


def test_a_file_that_changes_while_it_is_read_is_an_error_and_leaves_nothing(file, tmp_path):
    documents = read_corpus(file)

    def growing():
        yield from documents
        with open(file, "a") as more:
            more.write(json.dumps({"id": "x", "text": "y"}) + "\n")

    with pytest.raises(DataError, match="was changed while it was read"):
        stored.stored_corpus([file], growing, tmp_path / "kept", "c")
    assert list((tmp_path / "kept").iterdir()) == []


@pytest.mark.parametrize("name", ["documents.bin", "ends.npy", "order.npy", "corpus.json"])
def test_a_damaged_one_is_made_anew(file, tmp_path, name):
    whole = list(read_corpus(file, tmp_path / "kept"))
    [folder] = (tmp_path / "kept").iterdir()
    (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    assert list(read_corpus(file, tmp_path / "kept")) == whole


def test_errors_of_a_large_file_name_their_line_and_leave_nothing(file, tmp_path):
    file.write_text(file.read_text() + '{"id": "z"}\n')
    with pytest.raises(DataError, match="corpus.jsonl, line 51, field 'text'"):
        read_corpus(file, tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []
    with pytest.raises(DataError, match="cannot be read"):
        read_corpus(tmp_path / "nowhere.jsonl", tmp_path / "kept")


KILLED = """
import sys, time
from pathlib import Path
from rlkit.library.corpus import Document
from rlkit.library.stored import stored_corpus

def slow():
    for number in range(10**9):
        yield Document(str(number), "", "text " * 99)
        if number == 5000:
            print("half", flush=True)
            time.sleep(60)

stored_corpus([Path(sys.argv[1])], slow, sys.argv[2], "c")
"""


def test_a_killed_reader_leaves_nothing_that_the_next_one_would_take(file, tmp_path):
    kept = tmp_path / "kept"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file), str(kept)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "half\n"
        child.kill()
    assert all(path.name.startswith(".") for path in kept.iterdir())
    assert len(read_corpus(file, kept)) == 50
    assert [path.name[:7] for path in kept.iterdir()] == ["corpus-"]  # and nothing of the killed


def test_two_processes_that_want_it_at_once_make_it_once(file, tmp_path):
    code = (
        "import sys, time; from rlkit.library import readers, stored; readers.LARGE = 100\n"
        "written = stored.write_corpus\n"
        "def write(*arguments):\n"
        "    print('made', flush=True); time.sleep(0.5); written(*arguments)\n"
        "stored.write_corpus = write\n"
        "print(len(readers.read_corpus(sys.argv[1], sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(file), str(tmp_path / "kept")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(child.communicate(timeout=100)[0].split() for child in children)
    assert said == [["50"], ["made", "50"]]
    assert len(list((tmp_path / "kept").iterdir())) == 1
