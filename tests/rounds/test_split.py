"""Splits by question."""

import random
from collections import Counter

import pytest

from rlkit.errors import ConfigError, DataError
from rlkit.library.tokenize import folded
from rlkit.rounds.split import CHOICES, split_states
from tests.rounds.recorded import a_state


def questions(states):
    return {state.question_id for state in states}


def many(count=40, rounds=3):
    return [
        a_state(f"q{i:02d}", found=i % 5, number=n + 1, hops=2 if i % 4 else 4)
        for i in range(count)
        for n in range(rounds)
    ]


@pytest.mark.parametrize("how", CHOICES)
def test_every_way_parts_whole_questions_and_loses_none(how):
    splits = split_states(many(), 0.8, 0.1, how)
    parts = [questions(part) for part in (splits.train, splits.dev, splits.eval)]
    assert [len(part) for part in parts] == [29, 3, 8]
    assert len(set.union(*parts)) == 40
    assert len(splits.train) + len(splits.dev) + len(splits.eval) == 120


@pytest.mark.parametrize("how", CHOICES)
def test_the_seed_decides_and_the_order_of_the_states_does_not(how):
    states = many()
    shuffled = random.Random(1).sample(states, len(states))
    assert split_states(states, how=how, seed=3) == split_states(shuffled, how=how, seed=3)
    assert split_states(states, how=how, seed=3) != split_states(states, how=how, seed=4)


def test_hard_questions_go_first_into_evaluation():
    splits = split_states(many(), 0.8, 0.1, "hard_first")
    assert {state.recorded_discovery for state in splits.eval} == {0.0}
    assert len({state.recorded_discovery for state in splits.dev + splits.train}) == 4


def test_questions_with_nothing_missing_are_the_easiest():
    states = [a_state("easy", of=0), a_state("half", found=2), a_state("hard", found=1)]
    assert questions(split_states(states, 0.67, 0, "hard_first").eval) == {"hard"}
    assert questions(split_states(states, 0.34, 0, "hard_first").eval) == {"hard", "half"}


def test_stratified_keeps_the_share_of_each_number_of_hops():
    splits = split_states(many(), 0.8, 0.25, "stratified")
    for part, expected in ((splits.eval, {2: 6, 4: 2}), (splits.dev, {2: 6, 4: 2})):
        hops = {state.question_id: state.hops for state in part}
        assert Counter(hops.values()) == expected


def test_one_question_text_never_stands_on_two_sides():
    states = [
        a_state(f"q{i}-{variant}", question=text)
        for i in range(10)
        for variant, text in enumerate((f"Who WAS {i} ?", f"who  was {i} ?", f"Ｗho was {i} ?"))
    ]
    for seed in range(5):
        splits = split_states(states, 0.7, 0.2, "random", seed)
        texts = [
            {folded(state.question) for state in part}
            for part in (splits.train, splits.dev, splits.eval)
        ]
        assert sum(map(len, texts)) == len(set.union(*texts)) == 10


def test_known_documents_in_more_than_one_part_are_counted():
    base = [a_state("a"), a_state("b"), a_state("c")]
    twin = a_state("a", question="another question about the same documents")
    object.__setattr__(twin, "question_id", "d")
    assert split_states(base, 0.5, 0).shared_gold == 0
    shared = {split_states([base[0], twin], 0.5, 0, "random", seed).shared_gold for seed in (1, 2)}
    assert shared == {4}


@pytest.mark.parametrize(("count", "sizes"), [(2, (1, 0, 1)), (3, (1, 1, 1)), (4, (2, 1, 1))])
def test_very_small_sets_still_split(count, sizes):
    for how in CHOICES:
        splits = split_states([a_state(f"q{i}") for i in range(count)], 0.8, 0.1, how)
        assert (len(splits.train), len(splits.dev), len(splits.eval)) == sizes


@pytest.mark.parametrize("states", [[], [a_state("q1"), a_state("q1", number=2)]])
def test_less_than_two_questions_cannot_be_split(states):
    with pytest.raises(DataError, match="at least two different questions"):
        split_states(states)


def test_wrong_arguments_are_named():
    states = [a_state("a"), a_state("b")]
    with pytest.raises(ConfigError, match="hard_first, random, stratified"):
        split_states(states, how="hard")
    with pytest.raises(ConfigError, match="train_ratio is 1"):
        split_states(states, 1)
    with pytest.raises(ConfigError, match="dev_ratio is 1"):
        split_states(states, 0.5, 1)
    with pytest.raises(ConfigError, match="train, dev, eval"):
        split_states(states).part("test")


def test_describe_counts_questions_and_states():
    described = split_states(many(10, 2), 0.8, 0.0).describe()
    assert described == {
        "train": {"questions": 8, "states": 16},
        "dev": {"questions": 0, "states": 0},
        "eval": {"questions": 2, "states": 4},
    }
