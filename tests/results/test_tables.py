"""Tables to read: every number carries its n and its interval."""

from __future__ import annotations

import pytest

from rlkit.results.evaluate import METRICS, Evaluation
from rlkit.results.statistics import PairedInterval
from rlkit.results.story import pick_cases
from rlkit.results.tables import case_table, differences_table, summary_table


def test_a_summary_has_a_row_a_policy_and_a_column_a_metric(toy_evaluation: Evaluation) -> None:
    table = summary_table(toy_evaluation)
    assert list(table.columns) == [metric.title for metric in METRICS.values()]
    assert list(table.index)[:2] == ["raw question", "untouched model"]
    assert table.loc["oracle", "Discovery rate"].endswith("n = 32")


def test_differences_say_what_may_be_claimed(toy_evaluation: Evaluation) -> None:
    table = differences_table(toy_evaluation)
    assert len(table) == len(toy_evaluation.pairs()) * len(METRICS)
    first = toy_evaluation.difference(*toy_evaluation.pairs()[0], "reward")
    assert table.loc[0, "verdict"] == first.verdict
    assert f"n = {first.n}" in table.loc[0, "difference"]


def test_a_verdict_is_corrected_for_the_rows_of_its_table(
    toy_evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two rows with p = 0.04 each, Holm's are 0.08."""
    near = PairedInterval(30, 0.2, 0.01, 0.39, 25, 0.04)
    assert near.verdict == "higher"
    monkeypatch.setattr(Evaluation, "difference", lambda *_: near)
    two = toy_evaluation.metrics.keys() - {"reward", "n_clues"}
    metrics = {k: v for k, v in toy_evaluation.metrics.items() if k not in two}
    monkeypatch.setattr(Evaluation, "metrics", metrics)
    monkeypatch.setattr(Evaluation, "pairs", lambda _: [("tuned", "untouched")])
    table = differences_table(toy_evaluation)
    assert table["verdict"].tolist() == ["no clear difference (Holm)"] * 2


def test_a_case_shows_clues_and_documents_with_verdicts(toy_evaluation: Evaluation) -> None:
    case = pick_cases(toy_evaluation)[0]
    table = case_table(case)
    assert list(table.index) == ["untouched model", "warm start", "tuned Executor"]
    action = case.actions[-1]
    assert table.loc["tuned Executor", "clues"] == " | ".join(action["clues"])
    assert table.loc["tuned Executor", "reward"] == action["reward"]
    for document in action["documents"]:
        assert f"({document['verdict'] or 'unjudged'})" in table.loc["tuned Executor", "documents"]
