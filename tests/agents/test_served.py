"""The Executor behind a server: it is asked what training asked, and its failures are no clues."""

from __future__ import annotations

import time

import pytest

from rlkit.agents.executor import Policy, build_policy
from rlkit.agents.prompt import build_messages
from rlkit.agents.served import ServedPolicy, served_policy
from rlkit.config import RunConfig
from rlkit.errors import AgentError, ConfigError
from rlkit.library.corpus import Corpus, Document
from rlkit.rounds.state import ContextRow, DocumentRow, State
from tests.agents.fault_server import Answer, FaultServer

CORPUS = Corpus([Document("d", "T", "text")])


def state(number: int) -> State:
    found = DocumentRow(docid="d", title="Ada Holt", verdict="IMPORTANT", summary="s", round=1)
    return State(
        f"q{number}/run_001/2",
        f"q{number}",
        f"Who built Elm Row {number}?",
        2,
        "SEARCH",
        "find it",
        document_table=(found,),
        context_table=(ContextRow(docid="d", text="Ada Holt built much. " * 20, round=1),),
    )


def words(text: str) -> int:
    return len(text.split())


def config(server: FaultServer, **executor: object) -> RunConfig:
    return RunConfig.from_sections(
        model={"vllm_base_url": server.url, "checker_model": "the-judge"},
        executor={"layout": "bare", "max_prompt_tokens": 128, **executor},
        grpo={"max_new_tokens": 33},
        checker={"max_retries": 0, "patience": 0},
    )


def policy(server: FaultServer, **executor: object) -> ServedPolicy:
    given = config(server, served_model="toy", **executor)
    found = build_policy("served", given, CORPUS, words)
    assert isinstance(found, ServedPolicy) and isinstance(found, Policy)
    server.requests.clear()  # those of the probe
    return found


@pytest.mark.parametrize("layout", ["bare", "two_phase", "legacy"])
def test_the_server_is_sent_the_very_messages_of_training_greedily(layout):
    with FaultServer([Answer("<clue>Ada Holt</clue>")]) as server:
        served = policy(server, layout=layout)
        assert served.write(state(1)) == "<clue>Ada Holt</clue>"
        given = config(server, layout=layout)
        messages = build_messages(state(1), given.executor, given.search, words)
        assert "shortened" in str(messages)  # the budget binds, so that the count matters
        (body,) = server.requests
        assert body["messages"] == messages
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("toy", 0.0, 33)
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        assert "response_format" not in body


def test_several_states_are_asked_for_at_once_and_answered_in_their_order():
    def script(body: dict, n: int) -> Answer:
        asked = body["messages"][-1]["content"].strip()[-2]  # ... Elm Row 3?
        return Answer(f"<clue>{asked}</clue>", delay=0.3 if asked == "1" else 0.1)

    with FaultServer(script) as server:
        served = policy(server)
        texts = served.write_batch([state(number) for number in range(1, 6)])
        assert texts == [f"<clue>{number}</clue>" for number in range(1, 6)]
        assert server.peak > 1


def test_a_completion_that_does_not_come_is_an_error_and_no_empty_action():
    def script(body: dict, n: int) -> Answer:
        bad = "Elm Row 2" in body["messages"][-1]["content"]
        return Answer(status=400, error="no") if bad else Answer("<clue>x</clue>")

    with FaultServer(script) as server:
        with pytest.raises(AgentError, match="HTTP 400"):
            policy(server).write_batch([state(1), state(2), state(3)])


def test_a_prompt_that_does_not_fit_is_an_error_since_a_shorter_one_is_another_prompt():
    said = (
        "This model's maximum context length is 100 tokens. However, you requested 133 tokens "
        "(100 in the messages, 33 in the completion). Please reduce the length of the messages."
    )
    with FaultServer() as server:
        served = policy(server)
        server.script = [Answer(status=400, error=said)]
        with pytest.raises(AgentError, match="context|tokens"):
            served.write(state(1))
        assert len(server.requests) == 1


def test_among_several_models_the_executor_must_be_named():
    with FaultServer(models=["base", "tuned"]) as server:
        with pytest.raises(ConfigError, match="has 2 models: base, tuned; name the one"):
            served_policy(config(server), words, log=lambda _: None)
        with pytest.raises(AgentError, match="does not serve 'tune'.*'tuned'"):
            served_policy(config(server, served_model="tune"), words)


def test_without_a_name_the_only_model_plays_and_not_the_judges():
    with FaultServer(models=["merged"]) as server:
        served = served_policy(config(server), words, log=lambda _: None)
        served.write(state(1))
        assert served.label == server.requests[-1]["model"] == "merged"


def test_the_executor_may_have_a_server_of_its_own():
    with FaultServer(models=["judge"]) as judge, FaultServer(models=["merged"]) as own:
        given = config(judge, served_url=own.url)
        assert served_policy(given, words, log=lambda _: None).label == "merged"
        assert not judge.requests


def test_a_server_that_is_not_there_is_told_within_seconds():
    with FaultServer() as server:
        given = config(server)
    start = time.monotonic()
    with pytest.raises(AgentError, match="no server answers at .* start one with .* set executor."):
        served_policy(given, words)
    assert time.monotonic() - start < 5


def test_without_the_tokenizer_there_is_no_served_policy_whose_prompts_would_differ():
    with FaultServer() as server:
        with pytest.raises(ConfigError, match="tokenizer of model.base_model_path"):
            build_policy("served", config(server), CORPUS)


def test_thinking_is_asked_for_only_where_the_run_lets_its_model_think():
    with FaultServer([Answer("<clue>x</clue>")]) as server:
        given = config(server).with_overrides("model.enable_thinking=true")
        served_policy(given, words, log=lambda _: None).write(state(1))
        assert server.requests[-1]["chat_template_kwargs"] == {"enable_thinking": True}
