"""The loader: what becomes a sample, and what a damaged file costs."""

import json
import shutil

import pytest

from rlkit.errors import DataError
from rlkit.rounds.checkpoints import RLCheckpointLoader, discovery_by_round
from rlkit.rounds.split import split_states
from tests.rounds.recorded import ref, result, round_file, write_run


def loader(root, **options):
    return RLCheckpointLoader(root, **options)


def test_the_sample_of_a_round_is_the_state_in_the_previous_file(tmp_path):
    write_run(tmp_path, "q1")
    first, second, third = loader(tmp_path).extract_training_samples()
    assert [s.state_id for s in (first, second, third)] == [
        "q1/run_001/1", "q1/run_001/2", "q1/run_001/3",
    ]  # fmt: skip
    assert first.seen_docids == ()
    assert second.seen_docids == ("g1", "d1")
    assert (second.subgoal, second.recorded_clues) == ("goal 2", ("one", "two"))
    assert [row.docid for row in second.recorded_results] == ["g2"]
    assert (first.missing, second.missing, third.missing) == ({"g1", "g2"}, {"g2"}, set())
    assert first.hops == 2


def test_only_search_rounds_with_enough_clues_that_did_not_fail_are_kept(tmp_path):
    refs = [ref(1, ("only",)), ref(2, strategy="ANSWER"), ref(3, failed="no model")]
    write_run(tmp_path, "q1", refs=refs)
    write_run(tmp_path, "q2", refs=[ref(1)])
    report = loader(tmp_path).load_data()
    assert (report.too_few_clues, report.not_search, report.failed_rounds) == (1, 1, 1)
    assert (report.questions, report.runs, report.rounds, report.samples) == (2, 2, 4, 1)
    kept = loader(tmp_path, min_clues_per_round=1).extract_training_samples()
    assert [state.state_id for state in kept] == ["q1/run_001/1", "q2/run_001/1"]


def test_a_round_whose_planner_failed_has_no_strategy_and_counts_as_failed(tmp_path):
    write_run(tmp_path, "q1", refs=[ref(1), ref(2, strategy="", failed="no plan"), ref(3)])
    report = loader(tmp_path).load_data()
    assert (report.not_search, report.failed_rounds, report.samples) == (0, 1, 2)


def test_the_cap_per_question_is_a_seeded_choice(tmp_path):
    for _ in range(4):
        write_run(tmp_path, "q1")

    def ids(seed):
        options = {"max_samples_per_question": 5, "seed": seed}
        return [s.state_id for s in loader(tmp_path, **options).extract_training_samples()]

    assert len(ids(7)) == 5
    assert ids(7) == ids(7)
    assert len({tuple(ids(seed)) for seed in range(10)}) > 1


def test_without_gold_every_document_that_a_record_labels_important_is_known(tmp_path):
    write_run(tmp_path, "q1", gold_docids=None)
    files = [round_file(0), round_file(1, results=(result("x1", "IMPORTANT"), result("x2")))]
    write_run(tmp_path, "q1", gold_docids=None, refs=[ref(1)], files=files)
    states = loader(tmp_path).extract_training_samples()
    assert all(state.known_important == {"g1", "g2", "x1"} for state in states)
    assert states[0].gold_docids == ()
    assert states[0].hops is None
    assert states[0].recorded_discovery == pytest.approx(1 / 3)


def damaged_by(root, change):
    """Write a good run q1 and a run q2 that `change(folder)` damages; return what was set aside."""
    write_run(root, "q1")
    change(write_run(root, "q2"))
    scan = loader(root)
    report = scan.load_data()
    assert (report.damaged_runs, report.runs, report.questions) == (1, 1, 1)
    assert {s.question_id for s in scan.extract_training_samples()} == {"q1"}
    (damaged,) = scan.damaged
    return damaged


def test_a_truncated_round_003_costs_its_run_and_is_named(tmp_path):
    def truncate(folder):
        path = folder / "round_003.json"
        path.write_bytes(path.read_bytes()[:60])

    damaged = damaged_by(tmp_path, truncate)
    assert damaged.path == tmp_path / "q2" / "run_001" / "round_003.json"
    assert damaged.line == 5
    assert damaged.reason.startswith("not JSON (EOF while parsing")
    assert str(damaged).startswith(f"{damaged.path}, line 5: not JSON")


def test_a_missing_round_file_costs_its_run(tmp_path):
    damaged = damaged_by(tmp_path, lambda folder: (folder / "round_002.json").unlink())
    assert damaged.path.name == "round_002.json"
    assert "missing" in damaged.reason


def rewritten(name, **changes):
    def change(folder):
        row = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**row, **changes}, indent=2))

    return change


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (rewritten("round_001.json", seen_docids="g1"), 11, "seen_docids: "),
        (
            rewritten("round_001.json", results=[{"docid": "d"}, {"docid": 3}]),
            20,
            "results[1].docid",
        ),
        (rewritten("round_001.json", schema=2), 2, "schema: Input should be 1"),
        (rewritten("round_001.json", round=2), None, "holds round 2"),
        (rewritten("meta.json", schema=0), 2, "schema: "),
        (rewritten("meta.json", question_id="q9"), None, "the folder is 'q2'"),
        (rewritten("meta.json", question_id="../q2"), None, "cannot be used as a folder name"),
        (
            rewritten(
                "meta.json",
                rounds=[{"round": 1, "strategy": "SEARCH", "checkpoint": "../round_001.json"}],
            ),
            17,
            "rounds[0].checkpoint",
        ),
    ],
)
def test_wrong_content_is_named_with_line_and_field(tmp_path, change, line, reason):
    damaged = damaged_by(tmp_path, change)
    assert reason in damaged.reason
    assert damaged.line == line


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe{}", b"[1, 2]", b"null", b"[" * 200_000, b'{"a":' * 50_000, b'"\\ud800"'],
)
def test_no_content_of_a_file_ends_the_scan(tmp_path, content):
    for name in ("meta.json", "round_000.json"):
        root = tmp_path / name
        damaged_by(root, lambda folder, name=name: (folder / name).write_bytes(content))


def test_a_round_file_that_is_a_folder_costs_its_run(tmp_path):
    def change(folder):
        (folder / "round_001.json").unlink()
        (folder / "round_001.json").mkdir()

    assert "cannot be read" in damaged_by(tmp_path, change).reason


def test_a_run_that_asks_another_question_is_set_aside(tmp_path):
    write_run(tmp_path, "q1")
    write_run(tmp_path, "q1", question="Something else?")
    scan = loader(tmp_path)
    assert scan.load_data().damaged_runs == 1
    assert "asks another question" in scan.damaged[0].reason


def test_unfinished_runs_are_counted_not_read(tmp_path):
    write_run(tmp_path, "q1")
    (write_run(tmp_path, "q2") / "meta.json").unlink()
    report = loader(tmp_path).load_data()
    assert (report.runs, report.unfinished_runs, report.damaged_runs) == (1, 1, 0)


def test_linked_folders_are_read(tmp_path):
    write_run(tmp_path / "elsewhere", "q1")
    (tmp_path / "rounds").mkdir()
    (tmp_path / "rounds" / "q1").symlink_to(tmp_path / "elsewhere" / "q1")
    assert loader(tmp_path / "rounds").load_data().runs == 1


def test_an_empty_folder_says_what_was_looked_for(tmp_path):
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match=r"no recorded rounds; looked for <question_id>/run_001/m"):
        loader(tmp_path).load_data()
    with pytest.raises(DataError, match="cannot be read"):
        loader(tmp_path / "absent").load_data()


def test_no_usable_round_says_why(tmp_path):
    write_run(tmp_path, "q1", refs=[ref(1, ("one",))])
    shutil.copytree(tmp_path / "q1", tmp_path / "q2")
    with pytest.raises(DataError, match="at least 2 clues .1 damaged runs were set aside; the fi"):
        loader(tmp_path).extract_training_samples()


def test_where_every_question_failed_the_error_names_the_first_reason(tmp_path):
    failed = {"refs": [ref(1, (), failed="the text is refused.")], "status": "failed"}
    write_run(tmp_path, "q1", collector="me", **failed)
    write_run(tmp_path, "q2", collector="me", **failed)
    with pytest.raises(DataError, match=r"; all 2 questions failed; the first: q1: the text is re"):
        loader(tmp_path).extract_training_samples()
    write_run(tmp_path, "q3", refs=[ref(1, ("one",))])
    with pytest.raises(
        DataError,
        match=r"; 2 of 3 questions failed; .* refused\. Mend that and collect again, or l",
    ):
        loader(tmp_path).extract_training_samples()
    write_run(tmp_path, "q4", refs=[], files=[round_file(0)], status="failed")
    assert loader(tmp_path).load_data().samples == 0


def test_only_failed_runs_of_a_collector_that_played_again_are_superseded(tmp_path):
    write_run(tmp_path, "q1", collector="me", status="failed")
    write_run(tmp_path, "q1", collector="other", status="failed")
    write_run(tmp_path, "q1", status="failed")  # of another system: nobody knows whose
    write_run(tmp_path, "q1", collector="me")
    write_run(tmp_path, "q1")
    scan = loader(tmp_path, max_samples_per_question=99)
    report = scan.load_data()
    runs = {state.state_id.split("/")[1] for state in scan.extract_training_samples()}
    assert runs == {"run_002", "run_003", "run_004", "run_005"}
    assert (report.runs, report.superseded_runs, report.samples) == (4, 1, 12)


def test_a_damaged_try_takes_no_place(tmp_path):
    write_run(tmp_path, "q1", collector="me", status="failed")
    (write_run(tmp_path, "q1", collector="me") / "round_001.json").write_text("{")
    report = loader(tmp_path).load_data()
    assert (report.damaged_runs, report.superseded_runs, report.samples) == (1, 0, 3)


def test_discovery_by_round_is_averaged_within_a_question_first(tmp_path):
    write_run(tmp_path, "q1")  # round 1: 1 of 2 missing; round 2: 1 of 1; round 3: none missing
    write_run(tmp_path, "q1")
    files = [round_file(0), round_file(1)]
    write_run(tmp_path, "q2", refs=[ref(1)], files=files)
    states = loader(tmp_path).extract_training_samples()
    assert discovery_by_round(states) == {1: (0.25, 2), 2: (1.0, 1)}


def test_split_train_eval_parts_questions(tmp_path):
    for number in range(10):
        write_run(tmp_path, f"q{number}")
    train, evaluation = loader(tmp_path).split_train_eval(0.8)
    assert len({s.question_id for s in train}) == 8
    assert len({s.question_id for s in evaluation}) == 2
    states = loader(tmp_path).extract_training_samples()
    assert split_states(states, 0.8, 0.25, "hard_first", seed=7).eval == evaluation
