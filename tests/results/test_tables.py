"""Tables to read: every number carries its n and its interval."""

from __future__ import annotations

from rlkit.results.evaluate import METRICS, Evaluation
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


def test_a_case_shows_clues_and_documents_with_verdicts(toy_evaluation: Evaluation) -> None:
    case = pick_cases(toy_evaluation)[0]
    table = case_table(case)
    assert list(table.index) == ["untouched model", "warm start", "tuned Executor"]
    action = case.actions[-1]
    assert table.loc["tuned Executor", "clues"] == " | ".join(action["clues"])
    assert table.loc["tuned Executor", "reward"] == action["reward"]
    for document in action["documents"]:
        assert f"({document['verdict'] or 'unjudged'})" in table.loc["tuned Executor", "documents"]
