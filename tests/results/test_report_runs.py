"""Several runs in one report: what differs, what came out, and the average over seeds."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from rlkit.results.evaluate import load_evaluation
from rlkit.results.report import write_report
from rlkit.results.report_runs import compare, differing, side_by_side
from rlkit.results.statistics import paired_interval

NOON = datetime(2026, 1, 2, 12, 0)


@pytest.fixture(scope="module")
def report(seed_runs: list[Path]) -> str:
    return write_report(*seed_runs, now=NOON).read_text(encoding="utf-8")


def run_of(name: str, evaluation, rows=(), **parameters) -> dict:
    """As much of a run's content as stands side by side."""
    return {
        "name": name, "parameters": parameters, "lineage": None, "rows": list(rows),
        "evaluation": evaluation, "names": evaluation.names if evaluation else {},
    }  # fmt: skip


def test_one_page_has_the_table_the_seeds_and_each_run_whole(report: str, seed_runs) -> None:
    assert (seed_runs[0].parent / "report-seed7-seed8.html").exists()
    for part in (
        "2 runs: seed7, seed8", "What differs", "Over the seeds", "Curves of the runs",
        'id="run-1">seed7', 'id="run-2">seed8', "averaged over 2 seeds", "tuned Executor minus",
    ):  # fmt: skip
        assert part in report, part
    assert report.count("Wins and losses, side by side") == 2


def test_what_stands_side_by_side_is_the_same_each_time(seed_runs) -> None:
    evaluation = load_evaluation(seed_runs[0] / "evaluation.json")
    rows = [{"step": n, "reward": float(n)} for n in range(1, 9)]
    runs = [run_of("one", evaluation, rows, seed=7), run_of("two", evaluation, rows, seed=8)]
    first, second = side_by_side(runs), side_by_side(runs)
    assert first["curves"] == second["curves"] and len(first["curves"]) == 1
    assert first["seeds"] == second["seeds"] and first["seeds"][0]["picture"]["light"]


def test_what_differs_is_listed_against_defaults_and_the_rest_is_not() -> None:
    one = run_of("one", None, seed=7, **{"grpo.group_size": 8, "run_name": "one"})
    two = run_of("two", None, seed=7, **{"lora.rank": 16, "run_name": "two"})
    assert differing([one, two]) == {"grpo.group_size": [8, 4]}  # 4 and 16 are the defaults


def test_the_difference_is_averaged_over_seeds_with_each_beside_it(seed_runs) -> None:
    evaluations = [load_evaluation(folder / "evaluation.json") for folder in seed_runs]
    runs = [run_of(f"s{s}", e, seed=s) for s, e in zip((7, 8), evaluations, strict=True)]
    (found,) = side_by_side(runs)["seeds"]
    each = [e.difference("tuned", "untouched", "discovery_rate") for e in evaluations]
    assert [found["interval"].per_seed[s].mean for s in (7, 8)] == [i.mean for i in each]
    # both seeds have the same questions, so that the mean of means is the mean
    assert found["interval"].mean == pytest.approx((each[0].mean + each[1].mean) / 2)
    assert f"{each[1].mean:+.2f} with seed 8" in found["sentence"]


def test_runs_with_other_parameters_are_not_averaged(seed_runs) -> None:
    evaluation = load_evaluation(seed_runs[0] / "evaluation.json")
    one = run_of("one", evaluation, seed=7, **{"grpo.beta": 1})
    two = run_of("two", evaluation, seed=8, **{"grpo.beta": 2})
    assert side_by_side([one, two])["seeds"] == []
    assert side_by_side([one, one])["seeds"] == []  # one seed is no average


def test_runs_are_compared_on_the_same_states_only(seed_runs) -> None:
    first, second = (load_evaluation(folder / "evaluation.json") for folder in seed_runs)
    values = [e.question_values("tuned", "discovery_rate") for e in (second, first)]
    assert compare(second, first) == paired_interval(*values)
    assert compare(replace(second, states=second.states[:-1]), first) is None
    (row,) = side_by_side([run_of("one", first), run_of("two", second)])["between"]
    assert row["interval"].mean < 0 and row["holm"] == row["interval"].p


def test_runs_without_evaluation_or_steps_have_a_page_that_says_so(tmp_path: Path) -> None:
    for name in ("a/new", "b/new"):
        (tmp_path / name).mkdir(parents=True)
    page = write_report(tmp_path / "a" / "new", tmp_path / "b" / "new", path=tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert "2 runs: a/new, b/new" in text and "None of the runs has been evaluated yet" in text
