"""The headline against figures worked out by hand, and which cases are shown."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from rlkit.results.evaluate import METRICS, Evaluation
from rlkit.results.story import headline, known_text, pick_cases


def made(discovery: dict[str, list[float | None]], split: str = "eval") -> Evaluation:
    """One state a question; `discovery` lists each policy's rate by question."""
    rows = [
        {
            "policy": policy, "state_id": f"q{i}/run_001/1", "question_id": f"q{i}", "reward": rate,
            "reward_without_seen": rate, "important_rate": rate, "discovery_rate": rate,
            "n_clues": 1, "invalid": 0, "documents": [], "clues": [], "completion": "",
        }
        for policy, rates in discovery.items()
        for i, rate in enumerate(rates)
    ]  # fmt: skip
    frame = pd.DataFrame(rows).astype(dict.fromkeys(METRICS, "float64"))
    ids = dict.fromkeys(zip(frame["state_id"], frame["question_id"], strict=True))
    states = tuple({"state_id": s, "question_id": q, "n_missing": 1} for s, q in ids)
    return Evaluation(frame, states, {"split": split, "known": "gold"})


def test_headline_carries_n_interval_and_the_differing_questions() -> None:
    # differences 0, .5, 0, .5: mean .25, s = .2887, t(.975, 3) = 3.1824, half = .4594
    evaluation = made({"untouched": [0, 0.5, 0, 0], "tuned": [0, 1, 0, 0.5]})
    (sentence,) = headline(evaluation)
    assert "finds 0.38 of the missing documents where the untouched model finds 0.12" in sentence
    assert "+0.25 (95 % interval -0.21 to +0.71, n = 4 held-out questions, of which 2" in sentence
    assert "Too few to say" in sentence


@pytest.mark.parametrize(("sign", "said"), [(1, "This is a rise."), (-1, "This is a fall.")])
def test_an_effect_is_claimed_only_with_twenty_questions_that_differ(sign: int, said: str) -> None:
    low, high = [0.0] * 20, [0.4, 0.6] * 10
    before, after = (low, high) if sign > 0 else (high, low)
    assert headline(made({"untouched": before, "tuned": after}))[0].endswith(said)
    (few,) = headline(made({"untouched": before[:19], "tuned": after[:19]}))
    assert "Too few to say" in few


def right_and_wrong(**right: list[int]) -> Evaluation:
    """Each policy's answers, one a question."""
    facts = {"split": "eval", "primary": "accuracy",
             "metrics": {"accuracy": ["Accuracy", "share", False, True],
                         "reward": ["Reward", "", True, False]}}  # fmt: skip
    rows = [
        {"policy": policy, "state_id": f"q{i}", "question_id": f"q{i}", "completion": "",
         "accuracy": value, "reward": value}
        for policy, values in right.items()
        for i, value in enumerate(values)
    ]  # fmt: skip
    n = len(right["tuned"])
    states = [{"state_id": f"q{i}", "question_id": f"q{i}", "n_missing": 0} for i in range(n)]
    return Evaluation.of(rows, states, facts)


def test_the_headline_of_a_share_claims_no_more_than_the_exact_test() -> None:
    # 17 better, 7 worse: 2 · P(at most 7 of 24) = 2 · 536155 / 2^24 = .0639
    before, after = [0] * 17 + [1] * 7 + [0] * 276, [1] * 17 + [0] * 283
    evaluation = right_and_wrong(untouched=before, tuned=after)
    (sentence,) = headline(evaluation)
    assert "a rise" not in sentence
    assert sentence.endswith("p is 0.0639 (McNemar's exact test), so no difference is claimed.")
    table = evaluation.differences().set_index("metric")
    assert table.loc["accuracy", "p"] == pytest.approx(2 * 536155 / 2**24)
    assert table.loc["accuracy", "method"] == "mcnemar" and table.loc["reward", "method"] == "t"
    # the reward's p, Student's .041, is the smaller of two: doubled it is above the other
    assert table.loc["accuracy", "p_holm"] == pytest.approx(2 * table.loc["reward", "p"])


def test_a_rise_is_claimed_only_where_it_outlasts_the_correction_for_all_pairs() -> None:
    # 18 better, 6 worse: 2 · P(at most 6 of 24) = 2 · 190051 / 2^24 = .02266; the warm start's
    # answers are the untouched model's, so of three p-values two are .02266 (times 3: .068), one 1
    before, after = [0] * 18 + [1] * 6 + [0] * 36, [1] * 18 + [0] * 42
    (alone,) = headline(right_and_wrong(untouched=before, tuned=after))
    assert alone.endswith("This is a rise.")
    sentences = headline(right_and_wrong(untouched=before, warm_start=before, tuned=after))
    assert len(sentences) == 2
    for sentence in sentences:
        assert sentence.endswith(
            "The interval leaves 0 out, but corrected for the 3 comparisons p is 0.068 (Holm), so "
            "no difference is claimed."
        )


def test_an_interval_that_holds_zero_claims_nothing() -> None:
    evaluation = made({"untouched": [0, 1] * 12, "tuned": [1, 0] * 12})
    assert "no difference is claimed" in headline(evaluation)[0]


def test_warm_start_gets_a_sentence_of_its_own() -> None:
    evaluation = made({"untouched": [0, 0], "warm_start": [1, 0], "tuned": [1, 1]})
    sentences = headline(evaluation)
    assert len(sentences) == 2 and "where the warm start finds 0.50" in sentences[1]


def test_headline_says_what_is_missing() -> None:
    assert "No tuned policy" in headline(made({"untouched": [0.0]}))[0]
    assert "Neither" in headline(made({"tuned": [0.0]}))[0]
    assert "cannot be compared" in headline(made({"untouched": [None], "tuned": [None]}))[0]
    assert "no interval" in headline(made({"untouched": [0.0], "tuned": [1.0]}))[0]
    assert "questions (dev)" in headline(made({"untouched": [0.0], "tuned": [1.0]}, "dev"))[0]


def test_cases_are_a_win_a_loss_and_a_tie_of_different_questions() -> None:
    evaluation = made({"untouched": [0, 1, 0.5, 0], "tuned": [0.5, 0, 0.5, 1]})
    cases = pick_cases(evaluation)
    assert [(case.kind, case.state["question_id"]) for case in cases] == [
        ("win", "q3"), ("loss", "q1"), ("tie", "q2"),
    ]  # fmt: skip
    assert [(case.before, case.primary) for case in cases] == [
        ("untouched", 1.0), ("untouched", -1.0), ("untouched", 0.0),
    ]  # fmt: skip
    assert [action["policy"] for action in cases[0].actions] == ["untouched", "tuned"]


def test_without_losses_other_states_stand_in() -> None:
    cases = pick_cases(made({"untouched": [0, 0, 0], "tuned": [1, 0.5, 0.2]}))
    assert [case.kind for case in cases] == ["win", "another", "another"]
    assert len({case.state["question_id"] for case in cases}) == 3


def test_without_a_tuned_policy_there_are_no_cases() -> None:
    assert pick_cases(made({"untouched": [0.0]})) == []


def test_reports_say_what_known_means(toy_evaluation: Any) -> None:
    assert known_text(toy_evaluation) == "the question's gold documents"
    recorded = Evaluation(toy_evaluation.frame, (), {"known": "recorded"})
    assert "any record" in known_text(recorded)
