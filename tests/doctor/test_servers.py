"""The look before a run, at the servers that the run will ask; absent ones too."""

from __future__ import annotations

import json
import socket
import time

import pytest

from rlkit.config import RunConfig
from rlkit.doctor import CHECKS, quick_check
from tests.agents.fault_server import Answer, FaultServer

LIVE = ("live agents", "served")


@pytest.fixture(autouse=True)
def only_servers(monkeypatch):
    """The other checks load packages, models and data."""
    monkeypatch.setattr("rlkit.doctor.CHECKS", {name: CHECKS[name] for name in LIVE})


def enforcing(body: dict, n: int) -> Answer:
    """A judge that writes what a schema wants."""
    if "response_format" not in body:
        return Answer("Hello.")
    schema = body["response_format"]["json_schema"]["schema"]
    return Answer(json.dumps({name: e["enum"][0] for name, e in schema["properties"].items()}))


def found(url: str = "http://127.0.0.1:9/v1", *, kind: str = "llm", **sections) -> dict:
    """subject -> (level, sentence) of what is said of servers."""
    model = {"vllm_base_url": url, "base_model_path": "debug"} | sections.pop("model", {})
    config = RunConfig.from_sections(model=model, checker={"kind": kind}, **sections)
    return {f.subject: (f.level, f.text) for f in quick_check(config) if f.subject in LIVE}


def test_nothing_is_said_of_servers_where_none_is_asked():
    assert found(kind="gold") == {}


def test_the_judge_is_told_with_its_model_thinking_and_schema():
    with FaultServer(enforcing, models=["Qwen/Qwen3-8B"]) as server:
        said = found(server.url, data={"planner": "llm"})
    assert said == {
        "live agents": (
            "ok",
            f"judge, planner: Qwen/Qwen3-8B at {server.url}: context unknown; "
            "JSON schema enforced; no thinking",
        )
    }


def test_a_judge_that_thinks_is_a_warning():
    with FaultServer([Answer("<think>Hm.</think>Hello.")]) as server:
        level, text = found(server.url)["live agents"]
    assert level == "warn" and "still thinks, in 3 of 3 replies" in text


@pytest.mark.parametrize(
    ("answer", "said"),
    [(Answer(status=401, error="no"), "RLKIT_API_KEY"), (None, "does not serve 'other'")],
)
def test_a_judge_that_refuses_is_a_failure(answer, said):
    with FaultServer() as server:
        server.models_answer = answer
        level, text = found(server.url, model={"checker_model": "other"})["live agents"]
    assert level == "fail" and said in text


def test_absent_servers_are_warnings_with_the_command_and_the_parameter_of_each():
    said = found(
        executor={"served_url": "http://127.0.0.1:9/mine"}, data={"collectors": ["served"]}
    )
    assert {level for level, _ in said.values()} == {"warn"}
    judge, served = said["live agents"][1], said["served"][1]
    assert "python -m rlkit serve" in judge and "set model.vllm_base_url" in judge
    assert "127.0.0.1:9/mine" in served and "set executor.served_url" in served
    assert "vllm_base_url" not in served


def test_the_served_executor_must_be_named_among_several_models():
    with FaultServer(enforcing, models=["base", "tuned"]) as server:
        policies = {"evaluation": {"policies": ["served"]}}
        level, text = found(server.url, kind="gold", **policies)["served"]
        assert level == "fail" and "has 2 models: base, tuned" in text
        tuned = {"executor": {"served_model": "tuned"}}
        level, text = found(server.url, kind="gold", **policies, **tuned)["served"]
        assert level == "ok" and text.startswith(f"tuned at {server.url}")


def test_a_server_that_takes_connections_and_never_answers_costs_seconds():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        began = time.monotonic()
        level, text = found(f"http://127.0.0.1:{deaf.getsockname()[1]}/v1")["live agents"]
    assert level == "warn" and "no answer within 5 s" in text
    assert time.monotonic() - began < 15.0


def test_a_model_that_never_answers_costs_seconds():
    with FaultServer([Answer(delay=30.0)]) as server:
        began = time.monotonic()
        level, text = found(server.url)["live agents"]
    assert level == "warn" and "no answer within 4.5 s" in text
    assert time.monotonic() - began < 15.0
