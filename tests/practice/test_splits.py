"""The kept split: its states stay the same however many rounds come later, whoever is first."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlkit.config import RunConfig
from rlkit.errors import DataError
from rlkit.practice.splits import NAME, PARTS, kept_splits
from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.rounds.split import Splits
from tests.rounds.recorded import ref, result, round_file, write_run

QUESTIONS = [f"q{number}" for number in range(4)]


def config(**data: object) -> RunConfig:
    return RunConfig.from_sections(data={"split": "random", **data})


def split(root: Path, config: RunConfig) -> Splits:
    data = config.data
    loader = RLCheckpointLoader(
        root / "rounds", data.min_clues_per_round, data.max_samples_per_question, config.seed
    )
    return kept_splits(root / "run", loader, config)


def ids(splits: Splits) -> list[list[str]]:
    return [[state.state_id for state in splits.part(part)] for part in PARTS]


def record(root: Path, questions: list[str] = QUESTIONS, **fields: object) -> None:
    for question in questions:
        write_run(root / "rounds", question, **fields)


@pytest.mark.parametrize("data", [{"max_samples_per_question": 2}, {"max_questions": 3}, {}])
def test_a_kept_split_holds_its_states_however_many_rounds_come_later(tmp_path, data):
    record(tmp_path)
    first = split(tmp_path, config(**data))
    record(tmp_path)
    record(tmp_path, [f"r{number}" for number in range(6)])
    again = split(tmp_path, config(**data))
    assert ids(again) == ids(first)
    assert [again.part(part) for part in PARTS] == [first.part(part) for part in PARTS]


def another_find(root: Path, **fields: object) -> None:
    """A run of q0 that finds x1, which nobody knew, and labels nothing else IMPORTANT."""
    files = [round_file(0), round_file(1, results=(result("x1", "IMPORTANT"),))]
    write_run(root / "rounds", "q0", refs=[ref(1)], files=files, **fields)


@pytest.mark.parametrize("gold", [None, ("g1", "x1")])
def test_what_was_known_without_gold_is_kept_with_the_split(tmp_path, gold):
    record(tmp_path, gold_docids=None)
    first = split(tmp_path, config())
    before = [first.part(part) for part in PARTS]
    assert {s.known_important for part in before for s in part} == {frozenset({"g1", "g2"})}
    another_find(tmp_path, gold_docids=gold)
    again = [split(tmp_path, config()).part(part) for part in PARTS]
    assert again == before
    for state, old in zip(sum(again, []), sum(before, []), strict=True):
        assert (state.gold_docids, state.missing) == ((), old.missing)
        assert state.recorded_discovery == old.recorded_discovery
    fresh = RLCheckpointLoader(tmp_path / "rounds").extract_training_samples()
    assert "x1" in fresh[0].missing


def test_what_was_known_stays_known_where_the_run_that_found_it_is_gone(tmp_path):
    record(tmp_path, gold_docids=None)
    another_find(tmp_path, gold_docids=None)
    first = split(tmp_path, config(max_samples_per_question=3))
    path = tmp_path / "run" / NAME
    kept = json.loads(path.read_text())
    kept["states"] = {p: [i for i in rows if "run_001" in i] for p, rows in kept["states"].items()}
    path.write_text(json.dumps(kept))
    for file in (tmp_path / "rounds" / "q0" / "run_002").iterdir():
        file.unlink()
    again = split(tmp_path, config(max_samples_per_question=3))
    missing = {s.state_id: s.missing for part in PARTS for s in first.part(part)}
    assert missing["q0/run_001/2"] == {"g2", "x1"}
    for state in (s for part in PARTS for s in again.part(part)):
        assert state.missing == missing[state.state_id]


def test_a_split_that_was_kept_without_what_was_known_is_read_as_before(tmp_path):
    record(tmp_path, gold_docids=None)
    first = split(tmp_path, config())
    path = tmp_path / "run" / NAME
    kept = json.loads(path.read_text())
    assert set(kept.pop("known")) == set(QUESTIONS)
    path.write_text(json.dumps(kept))
    assert ids(split(tmp_path, config())) == ids(first)
    path.write_text(json.dumps({**kept, "known": {"q0": "g1"}}))
    with pytest.raises(DataError, match="`known` must hold a list of document ids"):
        split(tmp_path, config())


def test_of_two_that_split_at_once_both_have_the_split_of_the_first(tmp_path):
    record(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda seed: split(tmp_path, config(split_seed=seed)), range(8)))
    kept = json.loads((tmp_path / "run" / NAME).read_text())["states"]
    assert len({json.dumps(ids(splits)) for splits in found}) == 1
    assert ids(found[0]) == [kept[part] for part in PARTS]
