"""One practice round, by hand: which documents are read, judged and rewarded."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from rlkit.agents.checker import build_checker
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError, RunError
from rlkit.library.corpus import Corpus, Document, Library
from rlkit.practice.environment import (
    RoundResult,
    SearchRoundEnv,
    clue_values,
    create_environment,
)
from rlkit.practice.reward import RewardCalculator
from rlkit.rounds.state import State
from tests.practice.toys import STATE, make_env


def docids(result: RoundResult) -> str:
    return "".join(document.docid for document in result.documents)


def test_the_action_of_the_issue_is_5_1_in_any_order_and_repetition() -> None:
    env = make_env({"one": "ab", "two": "cd", "three": "a"})
    for clues in itertools.permutations(["one", "two", "three"]):
        for repeated in (clues, (*clues, clues[0].upper()), (clues[0], *clues)):
            result = env.step(repeated)
            assert result.reward.total == 5.1
            assert result.reward.without_seen == 5.0
            assert result.important_rate == 2 / 3  # a and b of a, b, d: c is seen, so not read
            assert result.discovery_rate == 2 / 3  # a and b of a, b, e
            assert len(result.read) == 3


def test_rankings_are_merged_round_robin_and_every_finder_is_named() -> None:
    result = make_env({"one": "abd", "two": "dca"}).step(["one", "two"])
    assert docids(result) == "adbc"
    found = {document.docid: document for document in result.documents}
    assert found["a"].found_by == (0, 1) and found["a"].rank == 1
    assert found["d"].found_by == (0, 1) and found["d"].clue == "two"
    assert [document.new for document in result.documents] == [True, True, True, False]


def test_at_most_max_documents_new_ones_are_read_and_seen_ones_stay() -> None:
    result = make_env({"one": "dabc"}, max_documents=2).step(["one"])
    assert docids(result) == "dac"
    assert result.reward.total == 2.6  # new DISCARD 0, new IMPORTANT 2.5, seen LOCAL 0.1
    assert result.important_rate == 0.5


def test_only_max_clues_distinct_clues_count() -> None:
    env = make_env({"one": "a", "two": "b"}, max_clues=1)
    result = env.step(["ONE?", "?", "one", "two"])
    assert result.clues == ("ONE?",)
    assert env.step(["one", "ｏｎｅ", "two"]).clues == ("one",)


@pytest.mark.parametrize("clues", [[], ["", "  ", "?!"], ["finds nothing"]])
def test_no_valid_clue_or_no_hit_is_invalid(clues: list[str]) -> None:
    result = make_env({}).step(clues)
    assert result.reward.invalid and result.reward.total == -2.1
    assert result.documents == () and result.important_rate == 0.0
    assert result.discovery_rate == 0.0


def test_only_seen_documents_is_valid_and_reads_nothing() -> None:
    result = make_env({"one": "c"}).step(["one"])
    assert result.reward.total == 0.1 and not result.reward.invalid
    assert result.read == () and result.important_rate == 0.0


def test_unjudged_documents_add_nothing_and_all_unjudged_is_none() -> None:
    env = make_env({"one": "ad", "two": "d"}, {"a": "IMPORTANT", "d": None})
    some = env.step(["one"])
    assert (some.reward.total, some.reward.unjudged, some.important_rate) == (2.5, 1, 1.0)
    none = env.step(["two"])
    assert none.reward.total is None and not none.reward.invalid


def test_discovery_is_none_where_nothing_is_missing() -> None:
    env = make_env({"one": "a"})
    env.reset(replace(STATE, seen_docids=("a", "b", "e")))
    assert env.step(["one"]).discovery_rate is None


def test_a_group_is_one_search_and_judges_each_document_once() -> None:
    env = make_env({"one": "abc", "two": "bcd", "three": "d"})
    results = env.step_group([["one"], ["two"], ["one", "three"], []])
    assert [docids(result) for result in results] == ["abc", "bcd", "adbc", ""]
    assert env.orchestrator.backend.calls == 1
    assert [sorted(asked) for asked in env.checker.asked] == [["a", "b", "c", "d"]]
    assert [env.reset(STATE) and env.step(clues) for clues in (["one"], ["two"])] == results[:2]
    assert len(env.checker.asked) == 1  # remembered for this question and subgoal
    env.reset(replace(STATE, subgoal="another"))
    env.step(["three"])
    assert env.checker.asked[1:] == [["d"]]


def test_a_document_that_could_not_be_judged_is_asked_again() -> None:
    env = make_env({"one": "d"}, {"d": None})
    assert env.step(["one"]).reward.total is None
    env.checker.verdicts["d"] = "LOCAL"
    assert env.step(["one"]).reward.total == 0.3


def test_deep_search_goes_further_down_the_ranking() -> None:
    env = make_env({"one": "cdefgabh"})
    assert docids(env.step(["one"])) == "cdefg"
    assert docids(env.step(["one"], top_k=9)) == "cdefgabh"


def test_what_clues_added_on_an_action_of_three() -> None:
    """new: a 2.5 by clues 0 and 2, b 2.5 by 1, d 0 by 1, e LOCAL 0.3 by 2; seen: c 0.1 by 1."""
    env = make_env(
        {"one": "a", "two": "bcd", "three": "ae"},
        {"a": "IMPORTANT", "b": "IMPORTANT", "c": "LOCAL", "d": "DISCARD", "e": "LOCAL"},
    )
    result = env.step(["one", "two", "three"])
    assert result.reward.total == 5.4
    assert clue_values(result, env.calculator) == [5.4, 2.9, 0.3]
    # the same clues in another order: `three` brings a along, so `one` adds nothing after it
    assert clue_values(env.step(["three", "one", "two"]), env.calculator) == [5.4, 2.6, 2.6]
    assert clue_values(env.step([]), env.calculator) == []
    assert clue_values(env.step(["nothing", "one"]), env.calculator) == [2.5, 2.5]


def test_an_error_of_the_checker_comes_through_and_is_no_low_reward() -> None:
    class Broken:
        def check(self, state: State, documents: list[Document]) -> dict:
            raise ConnectionError("no judge")

    env = make_env({"one": "a"})
    env.checker = Broken()
    with pytest.raises(ConnectionError):
        env.step(["one"])
    env = make_env({"one": "a"}, {"a": "maybe"})
    with pytest.raises(DataError, match="'maybe'"):
        env.step(["one"])


def test_round_data_is_the_last_step_as_plain_values() -> None:
    env = make_env({"one": "ac"})
    assert env.round_data == {}
    env.step(["one"])
    data = json.loads(json.dumps(env.round_data))
    assert data["clues"] == ["one"] and data["reward"]["total"] == 2.6
    assert [row["verdict"] for row in data["results"]] == ["IMPORTANT", "LOCAL"]
    env.reset(STATE)
    assert env.round_data == {}


def test_a_step_before_reset_says_what_to_do() -> None:
    env = make_env({})
    fresh = SearchRoundEnv(env.orchestrator, env.checker, env.calculator)
    with pytest.raises(RunError, match="call reset"):
        fresh.step(["one"])


def test_a_step_takes_what_the_parser_returns_and_refuses_text() -> None:
    env = make_env({"one": "a"})
    parsed = env.parse_clues_from_output("<clue>one</clue>")
    assert list(parsed) == ["one"] and len(parsed) == 1
    assert env.step(parsed) == env.step(["one"])
    with pytest.raises(DataError, match="give a list of clues"):
        env.step("one")


LIBRARY = Library(
    Corpus([Document("a", "Alpha", "Alpha met Beta."), Document("b", "Beta", "A town.")]), ()
)


def make_checker(config: object, corpus: Corpus) -> object:
    return make_env({}).checker


def make_no_checker(config: object, corpus: Corpus) -> object:
    return object()


def test_create_environment_follows_the_parameters() -> None:
    config = RunConfig.from_sections(search={"max_clues": 2, "max_documents": 1, "top_k": 1})
    env = create_environment(config, LIBRARY)
    env.reset(replace(STATE, seen_docids=(), gold_docids=("a",), known_important=frozenset("a")))
    result = env.step(["alpha", "town", "beta"])
    assert result.clues == ("alpha", "town") and docids(result) == "a"
    assert result.reward.total == 2.5
    assert env.step(["nothing"]).reward.total == pytest.approx(2 * 1 * -0.1 - 0.1)


def test_a_checker_of_ones_own_is_named_by_dotted_path() -> None:
    def named(kind: str) -> object:
        config = RunConfig.from_sections(checker={"kind": kind})
        return build_checker(config, LIBRARY.corpus)

    assert named(f"{__name__}:make_checker").check(STATE, []) == {}
    with pytest.raises(ConfigError, match="has no check"):
        named(f"{__name__}:make_no_checker")


def own(function, invalid: float = -1.0) -> SearchRoundEnv:
    """The three clues of the test above, paid by a function."""
    env = make_env(
        {"one": "a", "two": "bcd", "three": "ae"},
        {"a": "IMPORTANT", "b": "IMPORTANT", "c": "LOCAL", "d": "DISCARD", "e": None},
    )
    values = {**env.calculator.values, "invalid": invalid}
    env.calculator = RewardCalculator(values, 4, 5, function)
    return env


def test_a_function_is_given_the_judged_documents_and_the_state() -> None:
    asked = []

    def squared(documents, state):
        asked.append((sorted(d.docid for d in documents), state.state_id))
        return 0.1 * len(documents) ** 2

    result = own(squared).step(["one", "two", "three"])
    assert asked[0] == (["a", "b", "c", "d"], STATE.state_id)  # e was not judged
    assert result.reward.total == 1.6
    assert result.reward.without_seen == 0.9  # c is seen
    assert result.reward.counts["important_new"] == 2


def test_what_clues_added_by_a_function_is_the_difference_of_its_values() -> None:
    env = own(lambda documents, state: 0.1 * len(documents) ** 2)
    result = env.step(["one", "two", "three"])
    # R(all) 1.6; before clue 0 nothing, before 1 a (.1), before 2 a, b, c, d (1.6)
    assert clue_values(result, env.calculator, STATE) == [1.6, 1.5, 0.0]


@pytest.mark.parametrize("given", [float("nan"), None, "1"])
def test_a_function_that_gives_no_number_is_an_error(given) -> None:
    with pytest.raises(DataError, match="must give a finite number"):
        own(lambda documents, state: given).step(["one"])


def test_no_valid_action_is_paid_as_little_as_an_invalid_one() -> None:
    with pytest.raises(DataError, match="gave -1 for 1 documents.*lower reward.invalid"):
        own(lambda documents, state: -1.0).step(["one"])
    assert own(lambda documents, state: -1.0, invalid=-1.1).step(["one"]).reward.total == -1.0
    assert own(lambda documents, state: -1.0).step(["nothing"]).reward.total == -1.0
