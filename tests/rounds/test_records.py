"""States whose tables stay on the disk: as whole ones to whoever asks, and small."""

import copy
import pickle
import tracemalloc
from dataclasses import replace

import pytest

from rlkit.errors import DataError
from rlkit.rounds import records
from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.rounds.state import ContextRow
from tests.rounds.recorded import ref, result, round_file, write_run
from tests.rounds.serial_scan import serial_scan


@pytest.fixture
def states(tmp_path):
    write_run(tmp_path, "q1")
    return RLCheckpointLoader(tmp_path).extract_training_samples()


def test_a_lazy_state_is_the_whole_one_copied_pickled_or_changed(tmp_path, states):
    whole = serial_scan(tmp_path)[1]
    for lazy, state in zip(states, whole, strict=True):
        assert lazy == state
        assert repr(lazy) == repr(state)
        assert hash(lazy) == hash(state)
        assert (lazy.missing, lazy.recorded_discovery) == (state.missing, state.recorded_discovery)
        assert pickle.loads(pickle.dumps(lazy)) == copy.copy(lazy) == replace(lazy) == state
    changed = replace(states[0], known_important=frozenset({"g9"}))
    assert changed.missing == {"g9"}
    assert changed.recorded_discovery == 0.0


def test_what_a_state_does_not_have_is_an_attribute_error(states):
    for name in ("clues", "_repr_html_", "__wrapped__"):
        assert not hasattr(states[0], name)
        assert not hasattr(replace(states[0]), name)


@pytest.mark.parametrize("name", ["meta.json", "round_000.json", "round_001.json"])
def test_tables_of_a_file_that_has_changed_are_refused_by_name(tmp_path, states, name):
    path = tmp_path / "q1" / "run_001" / name
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"goal 1", b"goal 9") if name == "meta.json" else whole + b" ")
    with pytest.raises(DataError, match=rf"{name} is not what it was .*changed.*start again\."):
        _ = states[0].context_table
    path.unlink()
    with pytest.raises(DataError, match=rf"{name} is not what it was .*the file is missing"):
        _ = states[0].context_table
    path.write_bytes(whole)
    assert states[0].context_table == ()


def test_a_run_may_be_marked_as_failed_while_its_states_are_in_use(tmp_path, states):
    path = tmp_path / "q1" / "run_001" / "meta.json"
    path.write_bytes(path.read_bytes().replace(b"finished", b"failed"))
    assert states[0].subgoal == "goal 1"


def test_only_the_last_states_keep_their_tables(tmp_path, states, monkeypatch):
    records._load.cache_clear()
    reads, read_file = [], records.read_file
    monkeypatch.setattr(
        records, "read_file", lambda path: reads.append(path.name) or read_file(path)
    )
    for _ in range(3):
        assert (states[1].subgoal, states[1].seen_docids) == ("goal 2", ("g1", "d1"))
    assert reads == ["meta.json", "round_001.json", "round_002.json"]
    for state in RLCheckpointLoader(tmp_path).extract_training_samples() * (
        records.LOADED // 3 + 1
    ):
        _ = state.subgoal
    assert records._load.cache_info().currsize <= records.LOADED


def test_the_memory_of_a_scan_does_not_grow_with_the_texts(tmp_path):
    def kept(name, length):
        texts = (ContextRow(docid="d1", text="x" * length),)
        files = [round_file(0), *(round_file(n, context_table=texts, results=(result("g1"),))
                                  for n in (1, 2, 3))]  # fmt: skip
        for number in range(10):
            write_run(tmp_path / name, f"q{number}", refs=[ref(1), ref(2), ref(3)], files=files)
        loader = RLCheckpointLoader(tmp_path / name)
        loader.load_data()
        tracemalloc.start()
        loader.load_data()
        now, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(loader.extract_training_samples()) == 30
        return now, peak

    (small, small_peak), (large, large_peak) = kept("small", 10), kept("large", 100_000)
    assert large < small + 10_000
    assert large_peak < small_peak + 500_000  # one file at a time, of the 3,000,000 that there are
