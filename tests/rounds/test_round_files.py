"""The two recorded files, their schemas, and `State`."""

import json

import pytest
from pydantic import ValidationError

from rlkit.rounds.schemas import generated_schema, load_schema
from rlkit.rounds.state import MetaFile, RoundFile, make_state
from tests.rounds.recorded import a_state, ref, result, round_file


@pytest.mark.parametrize("name", ["meta", "round"])
def test_committed_schemas_are_those_of_the_models(name):
    assert load_schema(name) == generated_schema(name)


def test_unknown_extra_keys_are_kept():
    raw = '{"schema": 1, "round": 0, "note": {"by": "us"}, "entity_table": []}'
    written = json.loads(RoundFile.model_validate_json(raw).model_dump_json(by_alias=True))
    assert written["note"] == {"by": "us"}
    assert written["schema"] == 1


@pytest.mark.parametrize(
    "raw",
    [
        '{"schema": 2, "round": 0}',
        '{"schema": 1, "round": "0"}',
        '{"schema": 1, "round": -1}',
        '{"schema": 1, "round": 0, "seen_docids": "d1"}',
        '{"schema": 1, "round": 0, "seen_docids": [1]}',
        '{"schema": 1, "round": 0, "results": [{"docid": "d", "verdict": "MAYBE"}]}',
        '{"schema": 1, "round": 0, "results": [{"docid": "d", "score": NaN}]}',
        '{"schema": 1, "round": 0, "document_table": [{"docid": "d"}, {"docid": "d"}]}',
    ],
)
def test_wrong_round_files_are_refused(raw):
    with pytest.raises(ValidationError):
        RoundFile.model_validate_json(raw)


def test_a_checkpoint_can_only_name_a_round_file_of_its_own_folder():
    for name in ("../round_001.json", "/etc/passwd", "round_001.json/../x", "meta.json", ""):
        with pytest.raises(ValidationError):
            ref(1).model_validate_json(
                json.dumps({"round": 1, "strategy": "SEARCH", "checkpoint": name})
            )


def test_rounds_count_up_by_one():
    fields = {"schema": 1, "question_id": "q", "question": "Q", "status": "finished"}
    with pytest.raises(ValidationError, match="round 3 follows round 1"):
        MetaFile(**fields, rounds=(ref(1), ref(3)))
    with pytest.raises(ValidationError, match="the first round is 2"):
        MetaFile(**fields, rounds=(ref(2),))


def test_missing_documents_and_recorded_discovery():
    state = make_state(
        round_file(1, seen_docids=("g1", "g1", "d1")),
        question_id="q",
        question="Q",
        run="run_001",
        strategy="SEARCH",
        subgoal="s",
        known_important=("g1", "g2", "g3"),
        recorded_results=(result("g2"), result("g1"), result("d9")),
    )
    assert state.state_id == "q/run_001/2"
    assert state.round == 2
    assert state.seen_docids == ("g1", "d1")
    assert state.missing == {"g2", "g3"}
    assert state.recorded_discovery == 0.5


def test_nothing_missing_has_no_recorded_discovery():
    assert a_state("q", of=0).recorded_discovery is None


def test_states_can_be_put_into_sets():
    assert len({a_state("q"), a_state("q"), a_state("r")}) == 2
