"""What the probe finds out, and how it says so."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from rlkit.agents import llm_faults, llm_probe
from rlkit.agents.llm import ChatClient
from rlkit.agents.llm_faults import RefusedError
from rlkit.errors import AgentError
from tests.agents.fault_server import Answer, FaultServer

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(llm_faults, "FIRST_WAIT", 0.02)
    for name in llm_faults.KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def client():
    made = []

    def make(url, model=None, **options):
        made.append(ChatClient(url, model, **({"log": make.lines.append} | options)))
        return made[-1]

    make.lines = []
    yield make
    for each in made:
        each.close()


def enforcing(body, n):
    """A server that writes what the schema wants, whatever it was asked."""
    if "response_format" not in body:
        return Answer("Hello!")
    schema = body["response_format"]["json_schema"]["schema"]
    values = {name: entry["enum"][0] for name, entry in schema["properties"].items()}
    return Answer(json.dumps(values))


def test_a_server_that_enforces_schemas_is_noticed_and_used(client):
    with FaultServer(enforcing, models=["judge"]) as server:
        server.context = 2048
        chat = client(server.url)
        report = chat.probe()
        assert (report.model, report.models, report.context) == ("judge", ("judge",), 2048)
        assert report.schema and report.thinks == 0.0
        assert "context 2048 tokens; JSON schema enforced; no thinking" in str(report)
        chat.chat(HELLO, schema={"type": "object", "properties": {}})
        assert "response_format" in server.requests[-1]
        assert chat.model == "judge"


def test_a_server_that_ignores_schemas_is_noticed_and_not_asked_again(client):
    with FaultServer([Answer('{"label": "LOCAL"}')]) as server:
        chat = client(server.url)
        assert chat.probe().schema is False
        chat.chat(HELLO, schema={"type": "object"})
        assert "response_format" not in server.requests[-1]


def test_a_server_that_refuses_schemas_still_answers(client):
    def script(body, n):
        if "response_format" in body:
            return Answer(status=422, error="grammar failed")
        return Answer("Hello!")

    with FaultServer(script) as server:
        assert client(server.url).probe().schema is False


def test_a_model_that_still_thinks_is_told_with_how_often(client):
    def script(body, n):
        if "Australia" in body["messages"][0]["content"]:
            return Answer("no")
        return Answer("", reasoning="let me see") if n % 2 else Answer("<think>let me")

    with FaultServer(script) as server:
        report = client(server.url).probe()
    assert report.thinks == pytest.approx(2 / 3)
    assert "still thinks, in 2 of 3 replies" in str(report)


def test_a_server_that_is_not_there_is_told_within_seconds_with_the_command(client):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        began = time.monotonic()
        with pytest.raises(AgentError) as error:
            client(url, patience=600.0).probe()
    assert time.monotonic() - began < 5.0
    for words in (url, "python -m rlkit serve", "vllm serve", "model.vllm_base_url"):
        assert words in str(error.value)


def test_a_server_that_hangs_is_told_within_seconds(client):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        began = time.monotonic()
        with pytest.raises(AgentError, match="no answer within"):
            client(f"http://127.0.0.1:{deaf.getsockname()[1]}/v1").probe()
    assert time.monotonic() - began < 15.0


def test_https_to_a_plain_port_is_told_within_seconds(client):
    with FaultServer() as server:
        began = time.monotonic()
        with pytest.raises(RefusedError, match="speaks plain http; write http:// in place of"):
            client(server.url.replace("http://", "https://")).probe()
    assert time.monotonic() - began < 15.0


def test_a_port_that_answers_tls_with_http_is_told_and_not_waited_for(client):
    with socket.socket() as plain:
        plain.bind(("127.0.0.1", 0))
        plain.listen()

        def answer():
            connection, _ = plain.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        chat = client(f"https://127.0.0.1:{plain.getsockname()[1]}/v1", "toy", patience=600.0)
        with pytest.raises(RefusedError, match="plain http, or a wrong certificate"):
            chat.chat(HELLO)


def test_a_model_that_is_slow_to_answer_is_told_of(client, monkeypatch):
    monkeypatch.setattr(llm_probe, "_SILENT", 0.2)
    with FaultServer([Answer(delay=1.0)]) as server:
        client(server.url).probe()
    assert client.lines == [
        f"{server.url} is there; toy has not answered short questions yet, and has 60 s for each."
    ]


def test_a_model_that_is_not_there_is_told_with_the_nearest_name(client):
    with FaultServer(models=["Qwen/Qwen3-8B", "other"]) as server:
        with pytest.raises(AgentError) as error:
            client(server.url, "qwen/qwen3-8b").probe()
        assert server.requests == []
    assert "serves Qwen/Qwen3-8B, other" in str(error.value)
    assert "did you mean 'Qwen/Qwen3-8B'?" in str(error.value)
    assert "vllm serve qwen/qwen3-8b" in str(error.value)


def test_of_several_models_the_first_is_asked_and_named(client):
    with FaultServer(models=["base", "adapter"]) as server:
        assert client(server.url).probe().model == "base"
        assert "serves base, adapter; base is asked" in client.lines[0]
        assert {body["model"] for body in server.requests} == {"base"}
        assert client(server.url).chat(HELLO).text == "ok"  # without a probe, too
        assert server.requests[-1]["model"] == "base"


def test_a_server_without_a_list_of_models_needs_a_name(client):
    with FaultServer() as server:
        server.models_answer = Answer(status=404, error="Not Found")
        assert client(server.url, "mine").probe().context is None
        with pytest.raises(AgentError, match="model.checker_model"):
            client(server.url).probe()
        server.models_answer = Answer(raw='{"data": []}')
        with pytest.raises(AgentError, match="lists no model"):
            client(server.url).chat(HELLO)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_told_with_where_it_comes_from(client, status):
    with FaultServer([Answer(status=status)]) as server:
        server.models_answer = Answer(status=status, error="Unauthorized")
        with pytest.raises(AgentError, match="Unauthorized.*RLKIT_API_KEY"):
            client(server.url).probe()
