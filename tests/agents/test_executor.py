"""The policies that need no model: what they write, and that they use only what they may."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlkit.agents.executor import (
    OraclePolicy,
    Policy,
    QuestionFirst,
    RawQuestionPolicy,
    ScriptedPolicy,
    build_policy,
    fit_clue,
)
from rlkit.agents.parse import parse_clues_from_output
from rlkit.errors import ConfigError
from rlkit.library.corpus import Corpus, Document
from rlkit.rounds.state import DocumentRow, State

QUESTION = "Who is the mother of the director of the film Polish-Russian War?"
FIRST = State("q1/run_001/1", "q1", QUESTION, 1, "SEARCH", QUESTION)
SECOND = State(
    "q1/run_001/2",
    "q1",
    QUESTION,
    2,
    "SEARCH",
    QUESTION,
    document_table=(
        DocumentRow(
            docid="d1",
            title="Polish-Russian War (film)",
            verdict="IMPORTANT",
            summary="It is a film directed by Xawery Żuławski. It was shot near Solaris (town).",
            round=1,
        ),
    ),
    seen_docids=("d1",),
    gold_docids=("d1", "d2", "d3"),
    known_important=frozenset({"d1", "d2", "d3"}),
)
CORPUS = Corpus(
    [
        Document("d1", "Polish-Russian War (film)", "a"),
        Document("d2", "Xawery Żuławski", "b"),
        Document("d3", "", "Untitled text"),
    ]
)


def clues(policy: Policy, state: State) -> list[str]:
    return list(parse_clues_from_output(policy.write(state)).clues)


def test_the_raw_question_is_its_own_only_clue_and_searched_deeply() -> None:
    assert clues(RawQuestionPolicy(), FIRST) == [QUESTION]
    assert RawQuestionPolicy.deep
    assert not getattr(ScriptedPolicy(), "deep", False)


def test_a_long_question_is_cut_to_a_clue() -> None:
    long = replace(FIRST, question="word " * 200)
    assert clues(RawQuestionPolicy(), long) == [("word " * 60)[:-1]]  # 300 characters
    assert len(fit_clue("词" * 500)) == 128


def test_the_oracle_names_the_missing_titles_in_gold_order() -> None:
    assert clues(OraclePolicy(CORPUS), SECOND) == ["Xawery Żuławski", "Untitled text"]
    assert clues(OraclePolicy(CORPUS, max_clues=1), SECOND) == ["Xawery Żuławski"]
    done = replace(SECOND, seen_docids=("d1", "d2", "d3"))
    assert clues(OraclePolicy(CORPUS), done) == [QUESTION]


def test_the_script_searches_for_the_name_in_the_question_first() -> None:
    assert clues(ScriptedPolicy(), FIRST)[0] == "Polish-Russian War"
    assert len(clues(ScriptedPolicy(), FIRST)) == 2


def test_the_script_goes_on_with_names_that_were_read_but_not_found() -> None:
    written = {tuple(clues(ScriptedPolicy(seed=seed), SECOND)) for seed in range(20)}
    assert all("Xawery Żuławski" in one for one in written)
    assert any("Solaris (town)" in one for one in written)
    assert not any("Polish-Russian War" in one for one in written)


def test_the_script_is_deterministic_and_varies_by_state() -> None:
    many = replace(SECOND, subgoal="Anna One, Berta Two, Carl Three, Dora Four, Emil Five.")
    again = {ScriptedPolicy().write(many) for _ in range(5)}
    assert len(again) == 1
    states = [replace(many, state_id=f"q/run_001/{n}") for n in range(20)]
    written = [clues(ScriptedPolicy(), state) for state in states]
    assert len({tuple(one) for one in written}) > 5
    assert {len(one) for one in written} == {2, 3, 4}


def test_a_steady_script_writes_all_its_clues_the_most_promising_first() -> None:
    many = replace(SECOND, subgoal="", question="Anna One, Berta Two, Carl Three, Dora Four?")
    states = [replace(many, state_id=f"q/run_001/{n}") for n in range(20)]
    written = {tuple(clues(ScriptedPolicy(3, n, steady=True), s)) for n, s in enumerate(states)}
    assert written == {("Dora Four", "Carl Three", "Berta Two")}  # equal ones by name, backwards


def test_the_script_never_looks_at_gold_or_at_what_was_recorded() -> None:
    other = replace(
        SECOND, gold_docids=("x",), known_important=frozenset({"x"}), recorded_clues=("secret",)
    )
    assert ScriptedPolicy().write(other) == ScriptedPolicy().write(SECOND)


def test_the_script_falls_back_to_the_question_where_no_name_is_found() -> None:
    zh = replace(FIRST, question="谁写了这本书，他生于哪年？", subgoal="")
    assert clues(ScriptedPolicy(), zh) == ["谁写了这本书，他生于哪年？"]
    quoted = replace(FIRST, question="《活着》的导演出生在哪里？", subgoal="")
    assert clues(ScriptedPolicy(), quoted)[0] == "活着"


@pytest.mark.parametrize("layout", ["bare", "two_phase", "legacy"])
def test_every_policy_writes_the_layout_of_the_run(layout: str) -> None:
    config = SimpleNamespace(
        seed=7,
        search=SimpleNamespace(max_clues=4),
        executor=SimpleNamespace(layout=layout),
    )
    how = {"bare": "clue_tags", "two_phase": "two_phase", "legacy": "search_block"}[layout]
    for name in ("raw_question", "scripted", "oracle"):
        text = build_policy(name, config, CORPUS).write(SECOND)
        assert parse_clues_from_output(text, plain_lines=False).how == how


def make_policy(config: object, corpus: Corpus) -> Policy:
    return OraclePolicy(corpus)


def make_nothing(config: object, corpus: Corpus) -> object:
    return object()


def test_a_policy_of_ones_own_is_named_by_dotted_path() -> None:
    config = SimpleNamespace(
        seed=7, search=SimpleNamespace(max_clues=4), executor=SimpleNamespace(layout="bare")
    )
    assert isinstance(build_policy(f"{__name__}:make_policy", config, CORPUS), OraclePolicy)
    with pytest.raises(ConfigError, match="made a object, which has no write"):
        build_policy(f"{__name__}:make_nothing", config, CORPUS)
    with pytest.raises(ConfigError, match="did you mean scripted"):
        build_policy("skripted", config, CORPUS)


class Counted:
    """Writes the round of each state, and keeps how many it was asked for at once."""

    deep = True

    def __init__(self) -> None:
        self.batches: list[int] = []

    def write(self, state: State) -> str:
        return self.write_batch([state])[0]

    def write_batch(self, states: list[State]) -> list[str]:
        self.batches.append(len(states))
        return [f"<clue>round {state.round}</clue>" for state in states]


def test_a_policy_behind_the_question_writes_once_something_was_found() -> None:
    policy = Counted()
    behind = QuestionFirst(policy)
    second = replace(SECOND, seen_docids=("d1",))
    third = replace(second, round=3)
    after_a_failed_round = replace(FIRST, round=2)
    asked = f"<clue>{QUESTION}</clue>"
    assert behind.write_batch([third, FIRST, after_a_failed_round, second]) == [
        "<clue>round 3</clue>", asked, asked, "<clue>round 2</clue>",
    ]  # fmt: skip
    assert behind.write(FIRST) == behind.write_batch([FIRST])[0] == asked
    assert policy.batches == [2]  # nobody was asked while nothing was found
    assert behind.deep and not hasattr(behind, "client")


def test_behind_the_question_a_policy_without_batches_has_none() -> None:
    script, second = ScriptedPolicy(3), replace(SECOND, seen_docids=("d1",))
    behind = QuestionFirst(script)
    assert not hasattr(behind, "write_batch")
    assert behind.write(second) == script.write(second)
    assert behind.write(FIRST) == RawQuestionPolicy().write(FIRST)
