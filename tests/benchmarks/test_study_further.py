"""What the study's further figures mean: values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.study.further import (
    as_many_clues_as,
    best_of,
    best_of_samples,
    found_by_first,
    over_trainings,
    wording,
)
from benchmarks.study.rows import Rows
from rlkit.config import RunConfig
from tests.benchmarks.made_study import write

SEARCH = RunConfig.from_sections(search={"top_k": 4, "max_clues": 3}).search
STATES = {"q1/1": "q1", "q2/1": "q2"}


def greedy(*of: tuple[float, list[float]]) -> dict[str, Any]:
    """The two states' greedy actions: discovery and clue values."""
    return {
        state: {"discovery": found, "clue_values": values, "n_clues": len(values)}
        for state, (found, values) in zip(STATES, of, strict=True)
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Rows:
    """Seeds 7 and 8. The script: two clues and one, finding half of q1. GRPO: three clues, whose
    third finds half of q1 (seed 7: all of it); of two samples one finds q2. Warm start: nothing."""
    place = tmp_path_factory.mktemp("study")
    script = greedy((0.5, [2.5, 0.0]), (0.0, [0.0]))
    write(place, "test-untouched", {"scripted": script}, STATES)
    nothing = {state: ({"discovery": 0.0, "clue_values": None}, [0.0, 0.0]) for state in STATES}
    for seed, last in ((7, 1.0), (8, 0.5)):
        write(place, f"test-sft-{seed}", {"warm_start": nothing}, STATES)
        first = [5.0, 2.5, 2.5] if last == 1.0 else [2.5, 2.5, 2.5]
        tuned = greedy((last, first), (0.5, [2.5, 0.0, 0.0]))
        drawn = {state: (of, [0.0, last]) for state, of in tuned.items()}
        write(place, f"test-grpo-{seed}", {"tuned": drawn}, STATES)
    return Rows(place, (7, 8), SEARCH)


def test_what_the_first_clues_found_is_what_the_later_ones_did_not_add():
    values = [5.0, 2.5, 0.0]  # the first and the second find one document each, of four missing
    assert [found_by_first(n, 0.5, values) for n in (0, 1, 2, 3, 9)] == [0.0, 0.25, 0.5, 0.5, 0.5]
    assert found_by_first(1, 0.0, [0.0, 0.0]) == found_by_first(1, 0.0, None) == 0.0


def test_an_action_is_cut_to_the_scripts_number_of_clues(rows):
    found = as_many_clues_as(rows, "scripted")
    assert found["actions by the other's number of clues"] == {"1": 2, "2": 2}  # of two seeds
    # q1: seed 7 two of [5, 2.5, 2.5] find half of all, seed 8 of [2.5, 2.5, 2.5] nothing; q2: .5
    assert found["grpo, cut"]["mean"] == pytest.approx((0.25 + 0.5) / 2)
    assert found["minus the other"]["seeds"] == pytest.approx({"7": 0.25, "8": 0.0})


def test_the_best_of_a_states_samples_counts(rows):
    found = best_of_samples(rows)
    assert found["of 2"]["policies"]["grpo"]["mean"] == 0.75  # 1 and .5, in both questions
    assert found["of 2"]["grpo minus"]["warm_start"]["seeds"] == {"7": 1.0, "8": 0.5}
    assert found["of 1"]["policies"]["grpo"]["mean"] == 0.375
    # greedily q1 1 and .5, q2 .5 in both, and the warm start nothing
    assert found["grpo's greedy action minus the warm start's best"]["mean"] == 0.625


def test_the_best_of_k_is_the_mean_over_all_ways_to_take_k():
    values = [0.5, 0.0, 1.0]  # pairs: .5, 1, 1
    assert [best_of(k, values) for k in (1, 2, 3)] == pytest.approx([0.5, 2.5 / 3, 1.0])


def test_the_interval_over_trainings_is_students_over_the_seeds_means(rows):
    found = over_trainings(rows)["warm_start"]["sampled"]
    assert found["mean"] == pytest.approx(0.375)  # .5 and .25
    assert found["high"] - found["mean"] == pytest.approx(12.7062 * 0.125, rel=1e-4)


def test_a_wording_is_a_question_without_its_names():
    same = ("Who is the father of the director of film Palo Alto (2013 Film)?",
        "Who is the father of the director of film Love, Honor And Oh-Baby!?")  # fmt: skip
    assert {wording(question) for question in same} == {
        "who is the father of the director of film _"
    }
    assert wording("Where did Sylvia Burka's husband die?") == "where did _ s husband die"
