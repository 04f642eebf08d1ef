"""Rewards of answers, worked out by hand; a user's own functions; one sentence for each fault."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rlkit.answers import rewards
from rlkit.answers.rewards import AnswerReward, register_reward_function
from rlkit.config import RunConfig
from rlkit.errors import ConfigError
from rlkit.practice.task import Score

RIGHT = "48 / 2 = 24\n48 + 24 = 72\n\n\nFinal Answer: 72"
WRONG = "48 / 2 = 24\n48 + 24 = 72\n\n\nFinal Answer: 71"


def settings(**answers: Any) -> Any:
    return RunConfig.from_sections(task="answers", answers=answers).answers


def scored(texts: list[str], own: tuple = (), lengths: list[int] | None = None, **answers: Any):
    columns: dict[str, list[Any]] = {"ground_truth": ["72"] * len(texts)}
    if lengths is not None:
        columns["lengths"] = lengths
    return AnswerReward(settings(**answers), own)(texts, columns)


def totals(scores: list[Score]) -> list[float | None]:
    return [score.reward for score in scores]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("my_rewards")
    monkeypatch.setitem(sys.modules, "my_rewards", made)
    return made


def test_accuracy_is_one_or_nothing() -> None:
    assert totals(scored([RIGHT, WRONG, "", "72.0", "144/2"])) == [1.0, 0.0, 0.0, 1.0, 1.0]


def test_every_component_is_logged_unweighted() -> None:
    (score,) = scored(
        [RIGHT],
        lengths=[300],
        rewards=["accuracy", "length", "steps"],
        reward_weights=[2.0, 0.5, 3.0],
    )
    assert score.components == {
        "accuracy": 1.0,
        "format": 1.0,
        "length_penalty": pytest.approx(-0.044),  # 44 tokens beyond 256, at 0.001
        "step_reward": 0.2,
        "answer": "72",
        "extracted_how": "final_answer",
        "length": 300,
    }
    assert score.reward == round(2.0 - 0.5 * 0.044 + 3.0 * 0.2, 6)


def test_a_part_that_is_not_asked_for_is_logged_and_adds_nothing() -> None:
    (score,) = scored([RIGHT], lengths=[10_000])
    assert score.components["length_penalty"] == -1.0 and score.reward == 1.0


def test_a_wrong_answer_earns_nothing_for_its_length_its_steps_or_its_newlines() -> None:
    parts = {"rewards": ["accuracy", "length", "steps"]}
    short, long = scored([WRONG, WRONG + "\n" * 500], lengths=[10, 5000], **parts)
    assert short.reward == long.reward == 0.0
    assert long.components["length_penalty"] == long.components["step_reward"] == 0.0


def test_newlines_repetition_and_false_equations_earn_a_right_answer_nothing() -> None:
    texts = [RIGHT, RIGHT + "\n" * 99, "48/2 = 24\n" * 50 + RIGHT, "1 + 1 = 3\n" + RIGHT]
    assert len(set(totals(scored(texts, rewards=["accuracy", "steps"])))) == 1


def test_steps_are_capped() -> None:
    text = "".join(f"{n} + 1 = {n + 1}\n" for n in range(50)) + "Final Answer: 72"
    (score,) = scored([text], rewards=["accuracy", "steps"], max_steps_rewarded=3)
    assert score.reward == 1.3


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 9.0], [0.1, 5.0]])
def test_no_length_makes_a_right_answer_worse_than_nothing(weights: list[float]) -> None:
    parts = {"rewards": ["accuracy", "length"], "reward_weights": weights}
    (score,) = scored([RIGHT], lengths=[100_000], **parts)
    assert score.reward == 0.0


def test_a_longer_right_answer_earns_less_only_beyond_the_limit() -> None:
    parts = {"rewards": ["accuracy", "length"], "length_limit": 100, "length_penalty": 0.01}
    found = totals(scored([RIGHT] * 4, lengths=[1, 100, 101, 150], **parts))
    assert found == [1.0, 1.0, 0.99, 0.5]


def test_words_are_counted_where_nothing_counts_tokens() -> None:
    assert scored(["the answer is 72"])[0].components["length"] == 4


def test_equal_components_have_equal_rewards_in_any_order_of_the_parts() -> None:
    one = scored([RIGHT], rewards=["accuracy", "steps"], reward_weights=[0.1, 0.7])
    two = scored([RIGHT], rewards=["steps", "accuracy"], reward_weights=[0.7, 0.1])
    assert one[0].reward == two[0].reward == 0.24


def test_a_function_of_ones_own_is_named_by_its_path_and_weighted(module: ModuleType) -> None:
    def polite(completions: list[str], **columns: Any) -> list[float]:
        assert set(columns) == {"ground_truth", "lengths"}
        return [float("please" in text) for text in completions]

    module.polite = polite
    parts = {"rewards": ["accuracy", "my_rewards:polite"], "reward_weights": [1.0, 0.25]}
    found = scored(["please: 72", "72", "please"], **parts)
    assert totals(found) == [1.25, 1.0, 0.25]
    assert found[0].components["polite"] == 1.0


def test_a_function_without_columns_gets_those_that_it_names() -> None:
    def same(completions: list[str], ground_truth: list[str], other: int = 3) -> list[float]:
        assert other == 3
        return [float(text == gold) for text, gold in zip(completions, ground_truth, strict=True)]

    assert totals(scored(["72", "so 72"], own=(same,))) == [2.0, 1.0]


def test_a_function_with_trls_signature_is_called_as_trl_calls_it() -> None:
    def named(prompts, completions, completion_ids, **kwargs):
        assert completion_ids is None and kwargs["lengths"] == [3, 1]
        return [float(len(text)) for text in completions]

    def by_default(prompts, completions, completion_ids="not given", ground_truth=None):
        return [float(completion_ids == "not given")] * len(completions)

    columns = {"ground_truth": ["72"] * 2, "prompts": [[]] * 2, "lengths": [3, 1]}
    found = AnswerReward(settings(), (named, by_default))(["a b c", ""], columns)
    assert [score.components["named"] for score in found] == [5.0, 0.0]
    assert [score.components["by_default"] for score in found] == [1.0, 1.0]


def test_a_completion_can_be_read_as_trls_chat_message_and_is_still_a_text() -> None:
    def chat(completions, **kwargs):  # as TRL's documentation has it for conversations
        assert all(completion[0]["role"] == "assistant" for completion in completions)
        contents = [completion[0]["content"] for completion in completions]
        return [1.0 if re.search("72", content) else -float(len(content)) for content in contents]

    def last(completions, **kwargs):
        return [float(completion[-1]["content"] == completion) for completion in completions]

    def signs(completions, **kwargs):
        return [float(completion[0] == "i" and completion[-1] == "2") for completion in completions]

    found = scored(["it is 72", ""], own=(chat, last, signs))
    parts = [[score.components[name] for name in ("chat", "last", "signs")] for score in found]
    assert parts == [[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]


def test_none_of_ones_own_makes_the_reward_none() -> None:
    found = scored([RIGHT, RIGHT], own=(lambda completions: [None, 0.5],))
    assert totals(found) == [None, 1.5]
    assert found[0].components["accuracy"] == 1.0


def test_arrays_and_numpy_numbers_are_taken() -> None:
    assert totals(scored([RIGHT], own=(lambda completions: np.array([0.5]),))) == [1.5]
    assert totals(scored([RIGHT], own=(lambda completions: [np.float32(0.5)],))) == [1.5]


def test_names_of_functions_replace_no_other_column() -> None:
    def accuracy(completions: list[str]) -> list[float]:
        return [7.0]

    (score,) = scored([RIGHT], own=(accuracy, accuracy))
    assert (score.components["accuracy"], score.components["accuracy_2"]) == (1.0, 7.0)
    assert score.components["accuracy_3"] == 7.0 and score.reward == 15.0


def faulty(result: Any):
    def mine(completions: list[str]) -> Any:
        return result

    return mine


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([1.0, 2.0], "mine returned 2 for 1 completions"),
        (None, "mine returned no list for 1 completions"),
        ([float("nan")], "mine returned 'nan'; it must return finite numbers"),
        ([float("inf")], "mine returned 'inf'"),
        (["1"], "mine returned '1'"),
        ([[1]], r"mine returned '\[1\]'"),
    ],
)
def test_a_result_that_is_no_reward_is_one_sentence(result: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scored([RIGHT], own=(faulty(result),))


def test_a_function_that_cannot_be_called_so_is_one_sentence(module: ModuleType) -> None:
    module.number = 3
    with pytest.raises(ConfigError, match="number is of type int; give a function"):
        scored([RIGHT], rewards=["my_rewards:number"])
    with pytest.raises(ConfigError, match="has no parameter named completions"):
        scored([RIGHT], own=(lambda texts: [1.0],))
    with pytest.raises(ConfigError, match="wants gold, which is no column; there are"):
        scored([RIGHT], own=(lambda completions, gold: [1.0],))
    with pytest.raises(ConfigError, match="my_rewards has no missing"):
        scored([RIGHT], rewards=["my_rewards:missing"])


def test_an_error_of_the_function_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        scored([RIGHT], own=(lambda completions: [1 / 0],))


def test_length_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="length alone"):
        scored([RIGHT], rewards=["length"])


def test_a_registered_function_has_a_path_that_the_parameters_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rewards, "registered", type(rewards.registered)())
    path = register_reward_function("seven", lambda completions: [7.0] * len(completions))
    assert totals(scored([WRONG], rewards=[path])) == [7.0]
    for name in ("1st", "a b", "_hidden", ""):
        with pytest.raises(ConfigError, match="no name of a reward function"):
            register_reward_function(name, len)
    with pytest.raises(ConfigError, match="mine is of type int"):
        register_reward_function("mine", 3)


def test_what_no_answer_can_equal_is_unscorable_and_not_wrong():
    given = rewards.accuracy()(["Final Answer: 1"] * 3, ground_truth=["yes", "", "1"])
    assert given == [None, None, 1.0]
    reward = AnswerReward(settings(rewards=["accuracy", "steps"]))
    assert reward(["Final Answer: 1"], {"ground_truth": ["abc"]})[0].reward is None
