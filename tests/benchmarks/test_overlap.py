"""The benchmark of overlap, small: what is exact in it, and what its table says."""

from __future__ import annotations

import json

import pytest

from benchmarks import overlap


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    path = tmp_path_factory.mktemp("overlap") / "overlap.json"
    flags = "--model tiny --prompt-tokens 8 --action-tokens 4 --actions 2 --steps 2 --warm-up 1"
    flags += f" --seconds 0.05 --output {path}"
    made = overlap.main(flags.split())
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(made))
    return made


def test_only_ahead_learns_something_else(result):
    same = {(c["groups"], c["overlap"]): c["same_adapter"] for c in result["cases"]}
    assert same == {(4, "none"): True, (4, "update"): True, (4, "ahead"): False,
                    (1, "none"): True, (1, "ahead"): False}  # fmt: skip


def test_every_batch_takes_what_the_judge_takes_and_nothing_is_hidden_without_overlap(result):
    for case in result["cases"]:
        s = case["median_s"]
        assert s["environment"] + s["environment_hidden"] >= 0.05 * case["groups"]
        assert (case["hidden_share"] == 0) == (case["overlap"] == "none")
        assert case["n"] == 2 and case["ideal_s"] >= 0.05 * case["groups"]


def test_the_table_has_a_row_a_setting(result):
    rows = overlap.as_text(result).splitlines()[-len(overlap.CASES) :]
    assert [tuple(row.split()[:2]) for row in rows] == [(str(n), name) for n, name in overlap.CASES]
    assert "tiny, P 8, C 4, K 2; 50 ms a batch of 4 documents, 2 batches a group" in (
        overlap.as_text(result)
    )


def test_flags_that_change_the_workload_keep_nothing():
    assert overlap.parse([]).output == overlap.RESULT
    assert overlap.parse(["--steps", "3"]).output is None
