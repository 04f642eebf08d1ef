"""The checker's benchmark, small: what it counts is counted at the server."""

from __future__ import annotations

import json

import pytest

from benchmarks import checker
from benchmarks.checker_report import as_text


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    path = tmp_path_factory.mktemp("checker") / "deep" / "checker.json"
    flags = ["--documents", "40", "--concurrency", "4", "--seconds", "0.05", "--rounds", "1"]
    made = checker.main([*flags, "--output", str(path)])
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(made))
    return made


def test_the_ideal_is_what_the_server_takes(result):
    assert result["ideal_s"] == pytest.approx(40 / 4 * 0.05)
    assert result["ours"]["median_s"] >= result["ideal_s"] <= result["peer"]["median_s"]
    assert result["peak"] == 4


def test_a_second_pass_asks_the_server_nothing(result):
    assert result["second_pass"]["requests"] == 0


def test_a_killed_pass_asks_only_what_was_under_way_again(result):
    killed = result["killed_pass"]
    assert 0.4 * 40 <= killed["asked_before"] <= 40
    assert killed["asked_in_all"] == 40 + killed["asked_twice"] and killed["asked_twice"] <= 4
    assert killed["asked_before"] - killed["kept"] == killed["asked_twice"]


def test_the_table_says_whether_the_limit_holds(result):
    text = as_text(result | {"ours": result["ours"] | {"median_s": 0.62}})
    assert "within 1.25 times the ideal" in text and "NOT" not in text
    assert "NOT within" in as_text(result | {"ours": result["ours"] | {"median_s": 0.63}})
    assert "second pass: " in text and ", 0 requests" in text


def test_flags_that_change_the_workload_keep_nothing(tmp_path):
    assert checker.parse([]).output == checker.RESULT
    assert checker.parse(["--documents", "40"]).output is None
