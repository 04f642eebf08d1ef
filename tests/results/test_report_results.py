"""What a report tells of an evaluation, against rows counted by hand."""

from __future__ import annotations

from rlkit.results.evaluate import Evaluation
from rlkit.results.report_results import reward_parts


def test_a_task_without_documents_shows_the_numbers_beside_its_metrics() -> None:
    """q1: -0.2; q2: (0 - 0.2) / 2 = -0.1, so that the mean over questions is -0.15."""
    metrics = {"reward": ["Reward", "per answer", False], "accuracy": ["Accuracy", "share", False]}
    rows = [
        {"policy": "tuned", "state_id": f"{question}-{n}", "question_id": question, "round": n,
         "hops": None, "completion": "", "reward": 1.0, "accuracy": 1.0, "length_penalty": penalty}
        for n, (question, penalty) in enumerate((("q1", -0.2), ("q2", 0.0), ("q2", -0.2)))
    ]  # fmt: skip
    found = reward_parts(Evaluation.of(rows, [], {"metrics": metrics, "primary": "accuracy"}))
    assert list(found) == ["length_penalty"]
    interval = found["length_penalty"]["tuned"]
    assert (interval.n, round(interval.mean, 9)) == (2, -0.15)
