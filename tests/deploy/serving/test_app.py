"""The server's paths over a real socket: what is answered, and what is refused with which words."""

from __future__ import annotations

import json
import math
import socket
import time
from dataclasses import replace

import httpx
import pytest

from rlkit.deploy.inference import write
from rlkit.training.sampling import sample_actions
from rlkit.training.text import decode, encode_prompt

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Where is the tower?"}]

IMAGE = {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}


def said(content):
    return {"role": "user", "content": content}


def part(text):
    return {"type": "text", "text": text}


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def wait_until(true, seconds=30.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_generate_gives_the_models_text_and_the_confidence_that_transformers_gives(live, served):
    body = {"text": HELLO[0]["content"], "max_tokens": 12, "temperature": 0}
    answer = live.ask("/generate", body).json()
    expected = write(served.model, served.tokenizer, HELLO, max_tokens=12)
    assert answer["text"] == expected.text and answer["completion_tokens"] == 12
    assert answer["confidence"] == pytest.approx(expected.confidence, rel=1e-4)
    assert answer["finish_reason"] == "length"
    assert answer["prompt_tokens"] == len(encode_prompt(served.tokenizer, HELLO))


def test_a_raw_text_is_the_prompt_itself_and_no_part_of_the_answer(live, served):
    prompt = served.tokenizer("<clue>towers")["input_ids"]
    ids = sample_actions(served.model, [prompt], 1, 9, end_ids=served.ends).rows()[0]
    body = {"text": "<clue>towers", "raw": True, "max_tokens": 9, "temperature": 0}
    answer = live.ask("/generate", body).json()
    assert answer["text"] == decode(served.tokenizer, ids) and answer["prompt_tokens"] == 12


def test_an_executors_clues_are_read_and_others_have_none(live, monkeypatch):
    body = {"text": "a", "max_tokens": 3, "temperature": 0}
    asked = []
    batcher = live.batcher
    monkeypatch.setattr(
        batcher, "served", replace(batcher.served, clues=lambda t: asked.append(t) or ["a tower"])
    )
    answer = live.ask("/generate", body).json()
    assert answer["clues"] == ["a tower"] and asked == [answer["text"]]
    monkeypatch.setattr(batcher, "served", replace(batcher.served, clues=None))
    assert live.ask("/generate", body).json()["clues"] is None


def test_an_answer_ends_before_a_stop_string(live, served):
    body = {"text": "a", "max_tokens": 200, "temperature": 1, "seed": 4}
    text = live.ask("/generate", body).json()["text"]
    letter = next(c for c in text[5:] if c.isascii() and c.isprintable())
    answer = live.ask("/generate", body | {"stop": letter}).json()
    assert answer["text"] == text[: text.index(letter)] and answer["finish_reason"] == "stop"


def test_the_default_of_max_tokens_is_512_and_gives_way_to_the_context(serving):
    server = serving(context=100)
    answer = server.ask("/generate", {"text": "abc", "temperature": 0, "raw": True}).json()
    assert answer["completion_tokens"] == 97 and answer["finish_reason"] == "length"
    schema = server.ask("/openapi.json").json()["components"]["schemas"]["GenerateRequest"]
    assert schema["properties"]["max_tokens"]["default"] == 512
    assert schema["properties"]["temperature"]["default"] == 0.7


@pytest.mark.parametrize(
    ("path", "body", "status", "field", "words"),
    [
        ("/generate", {}, 422, "text", "Field required"),
        ("/generate", {"text": ""}, 422, "text", "at least 1"),
        ("/generate", {"text": "\ud800"}, 422, "text", "surrogate"),
        ("/generate", {"text": "a", "max_tokens": 0}, 422, "max_tokens", "greater than"),
        ("/generate", {"text": "a", "max_tokens": "8"}, 422, "max_tokens", "valid integer"),
        ("/generate", {"text": "a", "max_tokens": 9999}, 422, "max_tokens", "4096 tokens"),
        ("/generate", {"text": "a", "temperature": -1}, 422, "temperature", "greater than"),
        ("/generate", {"text": "a", "beams": 4}, 422, "beams", "unknown or not supported"),
        ("/generate", {"text": "a" * 5000}, 422, "text", "context length is 4096 tokens"),
        ("/generate", {"text": "a" * 200_000}, 422, "text", "context length is 4096 tokens"),
        ("/generate", [1], 422, "body", "dictionary"),
        (CHAT, {"messages": []}, 422, "messages", "at least 1"),
        (CHAT, {"messages": [{"role": "x", "content": "a"}]}, 422, "messages.0.role", "'user'"),
        (CHAT, {"messages": [said("\udfff")]}, 422, "messages.0.content", "surrogate"),
        (CHAT, {"messages": [said([part("\udfff")])]}, 422, "messages.0.content.0.text", "surrog"),
        (CHAT, {"messages": [said("a") | {"name": "\ud800"}]}, 422, "messages.0.name", "surrogate"),
        (CHAT, {"messages": HELLO, "user": "\ud800"}, 422, "user", "surrogate"),
        (CHAT, {"messages": HELLO, "model": "\ud800"}, 422, "model", "surrogate"),
        (CHAT, {"messages": HELLO, "stop": ["a", "\ud800"]}, 422, "stop.1", "surrogate"),
        (CHAT, {"messages": HELLO, "stop": [""]}, 422, "stop.0", "at least 1"),
        (CHAT, {"messages": HELLO, "stop": [5]}, 422, "stop.0", "valid string"),
        (CHAT, {"messages": HELLO, "stop": ["a"] * 17}, 422, "stop", "at most 16"),
        (CHAT, {"messages": HELLO, "stop": 5}, 422, "stop", "a text or a list"),
        (CHAT, {"messages": HELLO, "stop": ""}, 422, "stop", "at least 1"),
        (CHAT, {"messages": [said(None)]}, 422, "messages.0.content", "a text or a list"),
        (CHAT, {"messages": [said([IMAGE])]}, 422, "messages.0.content.0.type", "images"),
        (CHAT, {"messages": [said([{}])]}, 422, "messages.0.content.0.type", "required"),
        (CHAT, {"messages": HELLO, "n": 2}, 422, "n", "less than or equal to 1"),
        (CHAT, {"messages": HELLO, "tools": [{}]}, 422, "tools", "only an empty one"),
        (CHAT, {"messages": HELLO, "logit_bias": {"7": 1}}, 422, "logit_bias", "only an empty one"),
        (CHAT, {"messages": HELLO, "tool_choice": "auto"}, 422, "tool_choice", "not supported"),
        (CHAT, {"messages": HELLO, "top_logprobs": 2}, 422, "top_logprobs", "`logprobs` is true"),
        (
            CHAT,
            {"messages": HELLO, "stream_options": {}},
            422,
            "stream_options",
            "`stream` is true",
        ),
        (CHAT, {"messages": HELLO, "stop": "a" * 257}, 422, "stop", "at most 256"),
        ("/generate", {"text": "a", "stop": ["a", "b" * 257]}, 422, "stop.1", "at most 256"),
        (CHAT, {"messages": HELLO, "model": "gpt"}, 404, "model", "another one is served"),
        (
            CHAT,
            {"messages": HELLO, "response_format": {"type": "json_schema"}},
            422,
            "response_format.type",
            "not supported",
        ),
    ],
)
def test_bad_input_is_named_with_its_field(live, path, body, status, field, words):
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    error = error_of(live.ask(path, {}, content=data, headers=headers), status)
    assert error["param"] == field and words in error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"text": ' + b"9" * 9000 + b"}", b"text=a"]
)
def test_what_is_no_json_object_is_refused(live, body):
    answer = live.ask("/generate", {}, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422) and answer.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{"content-type": "text/plain"}, {}])
def test_a_form_as_web_pages_of_others_may_send_it_is_not_read_and_the_header_named(live, headers):
    with httpx.Client(base_url=live.url, trust_env=False) as client:
        answer = client.post("/generate", content=b'{"text": "a"}', headers=headers)
    error = error_of(answer, 422)
    assert error["param"] == "body" and "Content-Type: application/json" in error["message"]


def test_null_and_what_asks_for_nothing_are_as_good_as_nothing(live):
    nothing = ("tools", "tool_choice", "logit_bias", "stream", "n", "top_p", "stream_options")
    body = {"messages": HELLO, "max_tokens": 5, "seed": 1}
    plain = live.ask(CHAT, body).json()["choices"]
    assert (
        live.ask(CHAT, body | dict.fromkeys((*nothing, "temperature"))).json()["choices"] == plain
    )
    neutral = {"tools": [], "tool_choice": "none", "logit_bias": {}, "temperature": 1, "n": 1}
    assert live.ask(CHAT, body | neutral).json()["choices"] == plain
    body = {"text": "a", "max_tokens": 5, "seed": 1}
    with_nulls = live.ask("/generate", body | {"temperature": None, "top_p": None})
    assert with_nulls.json() == live.ask("/generate", body).json()


def test_what_was_sent_is_not_sent_back(live):
    answer = live.ask("/generate", {"text": ["<script>secret"], "secret-name": 1})
    assert "script" not in answer.text and answer.status_code == 422


def test_unknown_paths_and_methods_are_answered_in_the_same_shape(live):
    assert "openapi.json" in error_of(live.ask("/nothing"), 404)["message"]
    answer = live.ask("/generate")
    assert error_of(answer, 405)["type"] == "invalid_request_error"
    assert answer.headers["allow"] == "POST"


def test_a_body_that_is_too_large_is_refused(serving):
    server = serving(max_body=2000)
    assert "2000 bytes" in error_of(server.ask("/generate", {"text": "a" * 3000}), 413)["message"]

    def pieces():  # of a length that no header tells
        for _ in range(30):
            yield b"a" * 100

    answer = server.ask("/generate", {}, content=pieces())
    assert error_of(answer, 413)


def test_who_finds_no_place_is_told_when_to_come_back(serving):
    server = serving(parallel=1, queue=1)
    with server.busy():
        waiting = socket.create_connection(server.url[7:].split(":"))
        waiting.sendall(http(CHAT, {"messages": HELLO, "max_tokens": 1}))
        wait_until(lambda: len(server.batcher._waiting) == 1)
        answer = server.ask("/generate", {"text": "a"})
        assert error_of(answer, 429)["code"] == "queue_full"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert server.ask("/health").status_code == 200
    assert b" 200 OK" in waiting.recv(1000)  # who waited is answered
    waiting.close()


def http(path, body, headers=""):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n{headers}\r\n".encode() + data


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_place(serving, stream):
    server = serving(parallel=1, queue=0).endless()
    body = {"messages": HELLO, "seed": 1, "temperature": 1, "stream": stream}
    with socket.create_connection(server.url[7:].split(":")) as client:
        client.sendall(http(CHAT, body))
        wait_until(lambda: server.batcher._writing)
        assert server.ask("/generate", {"text": "a"}).status_code == 429
    wait_until(lambda: server.ask("/generate", {"text": "a", "max_tokens": 1}).status_code == 200)
    assert 'rlkit_answers_total{how="gone"} 1.0' in server.ask("/metrics").text


def test_time_limits_are_told_and_the_place_is_free_again(serving):
    server = serving(parallel=1, queue=1, queue_timeout=0.2)
    with server.busy():
        late = server.ask("/generate", {"text": "a"})
        assert "no place became free" in error_of(late, 503)["message"]
        assert late.headers["retry-after"]
    server = serving(parallel=1, queue=1, request_timeout=2.0).endless()
    answer = server.ask("/generate", {"text": "a", "max_tokens": 2000})
    assert "not finished in 2 s" in error_of(answer, 504)["message"]
    server.batcher.settings = server.batcher.settings.model_copy(update={"request_timeout": 60.0})
    assert server.ask("/generate", {"text": "a", "max_tokens": 1}).status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for(serving, monkeypatch):
    monkeypatch.setattr("rlkit.deploy.serving.gate._BODY_TIMEOUT", 0.2)
    server = serving()
    with socket.create_connection(server.url[7:].split(":")) as client:
        client.sendall(http("/generate", {"text": "a"})[:-1])
        assert b" 408 " in client.recv(1000)


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic s3cret-token", "Bearer", "s3cret"])
def test_with_a_token_nothing_is_told_without_it(serving, given, caplog):
    server = serving(api_key="s3cret-token")
    headers = {} if given is None else {"authorization": given}
    for path, body in (("/generate", {"text": "a"}), ("/v1/models", None), ("/metrics", None)):
        answer = server.ask(path, body, headers=headers)
        assert error_of(answer, 401)["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "s3cret" not in answer.text + caplog.text
    assert server.ask("/health", headers=headers).json() == {"status": "ok"}


def test_with_the_token_all_is_answered_under_any_name(serving):
    server = serving(api_key="s3cret-token")
    headers = {"authorization": "bearer s3cret-token", "host": "models.example"}
    assert server.ask("/v1/models", headers=headers).status_code == 200
    assert server.ask("/generate", {"text": "a", "max_tokens": 1}, headers=headers).json()
    assert "s3cret" not in repr(server.app.user_middleware)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "0.0.0.0", "[", "10.1.2.3"])
def test_without_a_token_only_this_machines_own_names_are_answered(live, host):
    error = error_of(live.ask("/v1/models", headers={"host": host}), 403)
    assert "RLKIT_API_KEY" in error["message"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:1"])
def test_the_names_of_this_machine_are_answered(live, host):
    assert live.ask("/v1/models", headers={"host": host}).status_code == 200


def test_a_model_that_fails_costs_the_answers_on_the_way_and_no_more(serving, monkeypatch, caplog):
    server = serving(parallel=2)
    head = server.batcher._head

    def broken(hidden):
        monkeypatch.setattr(server.batcher, "_head", head)
        raise RuntimeError("secret detail")

    monkeypatch.setattr(server.batcher, "_head", broken)
    error = error_of(server.ask("/generate", {"text": "a"}), 500)
    assert error["type"] == "server_error" and "secret" not in error["message"]
    assert server.ask("/generate", {"text": "a", "max_tokens": 1}).status_code == 200


def test_health_tells_when_the_models_thread_is_gone(serving):
    server = serving()
    server.batcher.stop()
    answer = server.ask("/health")
    assert answer.status_code == 503 and answer.json() == {"status": "failed"}
    assert error_of(server.ask("/generate", {"text": "a"}), 503)


def test_metrics_count_requests_tokens_and_batches(serving):
    server = serving()
    server.ask("/generate", {"text": "abc", "raw": True, "max_tokens": 5, "temperature": 0})
    server.ask("/generate", {"text": ""})
    server.ask("/a/path/of/a/scanner")
    text = server.ask("/metrics").text
    for line in (
        'rlkit_requests_total{path="/generate",status="200"} 1.0',
        'rlkit_requests_total{path="/generate",status="422"} 1.0',
        'rlkit_requests_total{path="other",status="404"} 1.0',
        "rlkit_prompt_tokens_total 3.0",
        "rlkit_answer_tokens_total 5.0",
        'rlkit_batch_rows_bucket{le="1.0"} 5.0',
        "rlkit_requests_running 0.0",
    ):
        assert line in text.splitlines(), line


def test_models_tells_the_name_and_the_context(live, served):
    (card,) = live.ask("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == (served.name, 4096)
    assert math.isclose(card["created"], time.time(), abs_tol=3600)
    assert live.ask(f"/v1/models/{served.name}").json() == card
    assert error_of(live.ask("/v1/models/another/one"), 404)["code"] == "model_not_found"


def test_a_load_balancer_may_ask_for_the_head_of_health_alone(live):
    answer = httpx.head(f"{live.url}/health", trust_env=False)
    assert (answer.status_code, answer.content) == (200, b"")


def test_max_tokens_null_gives_way_to_the_context_as_the_default_does(serving):
    body = {"text": "abc", "temperature": 0, "raw": True, "max_tokens": None}
    answer = serving(context=100).ask("/generate", body)
    assert answer.status_code == 200 and answer.json()["completion_tokens"] == 97


@pytest.mark.parametrize("root", ["/api", "/api/"])
def test_behind_a_proxys_prefix_the_same_limits_hold(serving, root):
    server = serving("geheim", root_path=root, max_body=2000)
    key = {"Authorization": "Bearer geheim"}
    assert server.ask("/health").status_code == 200  # needs no token there either
    error_of(server.ask("/generate", {"text": "a"}), 401)
    long = server.ask("/generate", {"text": "a" * 3000}, headers=key)
    assert "larger than 2000 bytes" in error_of(long, 413)["message"]
    body = {"text": "abc", "max_tokens": 3}
    assert server.ask("/generate", body, headers=key).status_code == 200
    counted = server.ask("/metrics", headers=key).text
    assert 'rlkit_requests_total{path="/generate",status="200"} 1.0' in counted


def test_max_tokens_null_is_the_default(live):
    body = {"text": "abc", "raw": True, "temperature": 0}
    plain, null = (live.ask("/generate", body | more) for more in ({}, {"max_tokens": None}))
    assert plain.status_code == 200 and plain.json() == null.json()
