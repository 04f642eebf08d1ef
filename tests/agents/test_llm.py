"""ChatClient against a server that plays every fault, over real sockets."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from rlkit.agents import llm_faults, llm_presence
from rlkit.agents.llm import ChatClient, ContextLengthError, Reply
from rlkit.config import RunConfig
from rlkit.errors import AgentError, ServerAwayError
from tests.agents.fault_server import Answer, FaultServer

HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-test-0123456789abcdef"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Pauses of milliseconds, and no key of whoever runs the tests."""
    monkeypatch.setattr(llm_faults, "FIRST_WAIT", 0.02)
    monkeypatch.setattr(llm_presence, "_FIRST", 0.05)
    monkeypatch.setattr(llm_presence, "_BLINK", 0.1)
    for name in llm_faults.KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def client():
    """Make clients; closed at the end, their lines of log in `client.lines`."""
    made = []

    def make(url, model="toy", **options):
        options = {"timeout": 5.0, "patience": 0.0, "log": make.lines.append} | options
        made.append(ChatClient(url, model, **options))
        return made[-1]

    make.lines = []
    yield make
    for each in made:
        each.close()


def said(work, *arguments, **options) -> str:
    with pytest.raises(AgentError) as caught:
        work(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 700
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    return text


def test_a_reply_comes_with_its_counts_and_thinking_was_switched_off(client):
    with FaultServer([Answer("  Paris \n", finish_reason="length", usage=(11, 3))]) as server:
        chat = client(server.url)
        assert chat.chat(HELLO, max_tokens=9) == Reply("Paris", False, "length", 11, 3, False)
        assert server.requests == [
            {
                "model": "toy",
                "messages": HELLO,
                "max_tokens": 9,
                "temperature": 0.0,
                "chat_template_kwargs": {"enable_thinking": False},
            }
        ]
        assert server.headers[0]["authorization"] == "Bearer none"
        chat.chat(HELLO)
        assert (chat.usage.requests, chat.usage.prompt_tokens, chat.usage.completion_tokens) == (
            2, 22, 6,
        )  # fmt: skip
        assert chat.usage.cost(100.0, 1000.0) == pytest.approx((22 * 100 + 6 * 1000) / 1e6)


def test_no_more_than_concurrency_are_under_way_whoever_asks(client):
    with FaultServer(lambda body, n: Answer(delay=0.05)) as server:
        chat = client(server.url, concurrency=3)
        threads = [threading.Thread(target=chat.chat_many, args=([HELLO] * 8,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.requests) == 16
        assert server.peak == 3


def test_chat_many_keeps_the_order_and_one_failure_costs_one_reply(client):
    def script(body, n):
        number = int(body["messages"][0]["content"])
        if number == 3:
            return Answer(status=400, error="no")
        return Answer(f"<{number}>", delay=0.08 - 0.01 * number)  # the last come first

    requests = [[{"role": "user", "content": str(number)}] for number in range(8)]
    with FaultServer(script) as server:
        replies = client(server.url).chat_many(requests)
    assert isinstance(replies.pop(3), AgentError)
    assert [reply.text for reply in replies] == ["<0>", "<1>", "<2>", "<4>", "<5>", "<6>", "<7>"]


@pytest.mark.parametrize("count", [0, 1])
def test_few_requests_are_no_special_case(client, count):
    with FaultServer() as server:
        assert len(client(server.url).chat_many([HELLO] * count)) == count


@pytest.mark.parametrize(
    "fault",
    [
        Answer(status=429),
        Answer(status=429, headers={"Retry-After": "nan"}),
        Answer(status=429, headers={"Retry-After": "-5"}),
        Answer(status=429, headers={"Retry-After": "soon"}),
        Answer(status=429, headers={"Retry-After": "0"}),
        Answer(status=429, headers={"Retry-After": formatdate(0, usegmt=True)}),
        Answer(status=429, headers={"Retry-After": "inf"}),
        Answer(status=408),
        Answer(status=500),
        Answer(status=529),
        Answer(reset_after=0),
        Answer(reset_after=30),
        Answer(raw='{"choices": [{"message": {"content": "IMPOR'),
        Answer(raw=b"\xff\xfe\x00"),
        Answer(raw="<html>login</html>"),
        Answer(raw="[" * 100_000),
        Answer(raw='{"choices": []}'),
        Answer(raw='{"choices": [{"message": null}]}'),
        Answer(raw='{"error": {"message": "worker died", "code": 500}}'),
    ],
    ids=lambda fault: str(fault)[:200].replace("\\", ""),
)
def test_a_fault_that_passes_costs_a_retry_and_no_reply(client, fault):
    with FaultServer([fault, fault, Answer("yes")]) as server:
        chat = client(server.url, max_retries=2)
        assert chat.chat(HELLO).text == "yes"
        assert len(server.requests) == 3
        assert chat.usage.retries == 2 and chat.usage.failed == 0


@pytest.mark.parametrize("fault", [Answer(status=500), Answer(reset_after=5), Answer(raw="{")])
def test_a_fault_that_stays_ends_after_the_retries_and_is_named(client, fault):
    with FaultServer([fault]) as server:
        chat = client(server.url, max_retries=2)
        assert "3 attempts" in said(chat.chat, HELLO)
        assert len(server.requests) == 3
        assert chat.usage.failed == 1 and chat.usage.requests == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_other_4xx_are_not_sent_again(client, status):
    with FaultServer([Answer(status=status, error="no such thing")]) as server:
        assert f"HTTP {status}: no such thing" in said(client(server.url).chat, HELLO)
        assert len(server.requests) == 1


def test_a_quota_that_is_used_up_is_not_asked_for_again(client):
    body = '{"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}'
    with FaultServer([Answer(status=429, raw=body)]) as server:
        assert "exceeded your quota" in said(client(server.url).chat, HELLO)
        assert len(server.requests) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_kept_to(client, form):
    asked = []

    def script(body, n):
        asked.append(time.time())
        if n:
            return Answer()
        wait = "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)
        return Answer(status=429, headers={"Retry-After": wait})

    with FaultServer(script) as server:
        client(server.url).chat(HELLO)
    assert 0.99 <= asked[1] - asked[0] < 4.0  # dates have whole seconds


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("wait", ["121", "86400.5", "9" * 400, formatdate(4e9, usegmt=True)])
def test_a_retry_after_beyond_the_cap_is_an_error_at_once(client, status, wait):
    with FaultServer([Answer(status=status, headers={"Retry-After": wait})]) as server:
        chat = client(server.url, patience=60.0)
        began = time.monotonic()
        text = said(chat.chat, HELLO)
        assert time.monotonic() - began < 30.0  # the shortest of these waits is 121 s
    assert "asks to wait" in text and "120 s" in text
    if wait == "121":
        assert "asks to wait 121 s" in text


def test_drips_do_not_outlast_the_timeout(client):
    with FaultServer([Answer(drip=0.05), Answer("whole")]) as server:  # 5 s in all
        began = time.monotonic()
        assert client(server.url, timeout=0.4).chat(HELLO).text == "whole"
        assert time.monotonic() - began < 3.0
    with FaultServer([Answer(delay=1.0)]) as server:
        text = said(client(server.url, timeout=0.1, max_retries=1).chat, HELLO)
        assert "no answer within 0.1 s" in text


def wait_until(true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not so within {seconds} s"
        time.sleep(0.02)


def test_a_server_that_is_killed_is_waited_for_and_nothing_is_lost(client):
    with FaultServer(lambda body, n: Answer(body["messages"][0]["content"], delay=0.05)) as server:
        chat = client(server.url, patience=30.0, concurrency=4, max_retries=1)
        replies = []
        requests = [[{"role": "user", "content": str(n)}] for n in range(40)]
        work = threading.Thread(target=lambda: replies.extend(chat.chat_many(requests)))
        work.start()
        wait_until(lambda: chat.usage.requests >= 4)
        server.stop()
        answered = chat.usage.requests
        wait_until(lambda: client.lines)
        assert answered <= chat.usage.requests < 40
        server.start()
        work.join(120)
    assert [reply.text for reply in replies] == [str(n) for n in range(40)]
    away, back = client.lines
    assert "does not answer" in away and "waiting up to 30 s" in away
    assert "is back after" in back


def test_patience_ends_once_for_all_and_the_log_tells_each_minute(client, monkeypatch):
    monkeypatch.setattr(llm_presence, "_EVERY", 0.3)
    with FaultServer() as server:
        server.stop()
        chat = client(server.url, patience=1.0, concurrency=2)
        began = time.monotonic()
        replies = chat.chat_many([HELLO] * 40)
        assert time.monotonic() - began < 10.0  # one after the other, two at once: 20 s
    assert all(isinstance(reply, ServerAwayError) for reply in replies)
    assert re.search(r"has not answered for \d+ s", str(replies[0]))
    assert [line for line in client.lines if "still does not answer" in line]


def test_a_server_that_hangs_costs_its_patience_once_and_is_asked_again_when_it_is_back(client):
    with socket.socket() as deaf:  # takes connections and never answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(64)
        port = deaf.getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        chat = client(url, timeout=0.3, patience=1.0, concurrency=2, max_retries=9)
        began = time.monotonic()
        replies = chat.chat_many([HELLO] * 200)
        assert time.monotonic() - began < 12.0  # each by itself would take 0.3 s and a look of 5 s
    assert {type(reply) for reply in replies} == {ServerAwayError}
    time.sleep(1.1)  # for a second, a look holds
    server = FaultServer()
    server.port = port
    with server:
        assert chat.chat(HELLO).text == "ok"


def test_a_gateway_that_is_loading_is_waited_for_beyond_the_retries(client):
    def script(body, n):
        return Answer(status=(503, 502, 504)[n % 3], error="Loading model") if n < 6 else Answer()

    with FaultServer(script) as server:
        server.models_answer = Answer(status=503, error="Loading model")
        assert client(server.url, patience=30.0, max_retries=0).chat(HELLO).text == "ok"
    with FaultServer([Answer(status=503, error="Loading model")]) as server:
        assert "Loading model" in said(client(server.url, patience=0.3).chat, HELLO)


def test_a_request_that_alone_takes_too_long_for_a_gateway_is_given_up(client):
    def script(body, n):
        slow = "slow" in body["messages"][-1]["content"]
        return Answer(status=504, error="upstream timed out") if slow else Answer()

    slow = [{"role": "user", "content": "slow"}]
    with FaultServer(script) as server:
        chat = client(server.url, patience=600.0, max_retries=2)
        replies = chat.chat_many([slow, HELLO])
        asked = sum("slow" in str(body) for body in server.requests)
    assert "gave no reply in 3 attempts: HTTP 504: upstream timed out" in str(replies[0])
    assert type(replies[0]) is AgentError and replies[1].text == "ok" and asked == 3


def test_a_request_that_a_gateway_holds_up_for_ever_ends_while_others_go_on(client):
    def script(body, n):
        held = "held" in body["messages"][-1]["content"]
        return Answer(status=503, error="no place") if held else Answer()

    held = [{"role": "user", "content": "held"}]
    with FaultServer(script) as server:
        chat = client(server.url, patience=0.6, concurrency=2)
        replies = chat.chat_many([held, *[HELLO] * 300])
    assert type(replies[0]) is AgentError and "HTTP 503: no place" in str(replies[0])
    assert {reply.text for reply in replies[1:]} == {"ok"}


@pytest.mark.parametrize(
    ("content", "reasoning", "text", "thought"),
    [
        ("<think>\nhm\n</think>\n\nIMPORTANT", None, "IMPORTANT", True),
        ("<think>IMPORTANT, or rather", None, "", True),
        ("so it is LOCAL</think>DISCARD", None, "DISCARD", True),
        ("<think>\n\n</think>\n\nLOCAL", None, "LOCAL", False),
        ("LOCAL", "it might be IMPORTANT", "LOCAL", True),
        ("", "IMPORTANT", "", True),
        (None, "IMPORTANT", "", True),
        (None, None, "", False),
    ],
)
def test_thinking_is_dropped_and_never_taken_for_an_answer(
    client, content, reasoning, text, thought
):
    with FaultServer([Answer(content, reasoning=reasoning)]) as server:
        chat = client(server.url)
        for _ in range(2):
            reply = chat.chat(HELLO)
            assert (reply.text, reply.thought) == (text, thought)
        assert chat.usage.thought == 2 * thought
        assert len([line for line in client.lines if "thinks although" in line]) == thought


LONG = [
    {"role": "system", "content": "Rules."},
    {"role": "user", "content": "first " + "word " * 3000 + "last"},
]


def test_a_prompt_that_is_too_long_is_shortened_once_by_the_servers_numbers(client):
    def script(body, n):
        words = sum(len(message["content"].split()) for message in body["messages"])
        if words + body["max_tokens"] <= 1000:
            return Answer("fits")
        return Answer(
            status=400,
            error="This model's maximum context length is 1000 tokens. However, you requested "
            f"{words + body['max_tokens']} tokens ({words} in the messages, {body['max_tokens']} "
            "in the completion). Please reduce the length of the messages or completion.",
        )

    with FaultServer(script) as server:
        chat = client(server.url)
        reply = chat.chat(LONG, max_tokens=100)
        assert (reply.text, reply.shortened) == ("fits", True)
        assert chat.usage.shortened == 1 and chat.usage.retries == 0
        first, second = server.requests
        assert first["messages"] == LONG
        assert second["messages"][0] == LONG[0] and second["max_tokens"] == 100
        kept = second["messages"][1]["content"]
        assert kept.startswith("first word") and kept.endswith("word last") and " […] " in kept
        assert len(kept.split()) > 600  # 884 would fit
        with pytest.raises(ContextLengthError, match="1000 tokens"):
            chat.chat(LONG, max_tokens=100, shorten=False)


def test_a_prompt_that_stays_too_long_is_a_named_error(client):
    error = "request (3031 tokens) exceeds the available context size (1024 tokens), try more"
    with FaultServer([Answer(status=400, error=error)]) as server:
        with pytest.raises(ContextLengthError, match="3031 tokens for a context of 1024 tokens"):
            client(server.url).chat(LONG)
        assert len(server.requests) == 2


def test_parameters_that_a_server_does_not_know_are_left_out(client):
    def script(body, n):
        for name in ("chat_template_kwargs", "response_format", "max_tokens"):
            if name in body:
                return Answer(status=400, error=f"Unrecognized request argument supplied: {name}")
        return Answer("plain")

    with FaultServer(script) as server:
        chat = client(server.url, concurrency=4)
        replies = chat.chat_many([HELLO] * 4, schema={"type": "object"}, max_tokens=33)
        assert [reply.text for reply in replies] == ["plain"] * 4
        assert server.requests[-1]["max_completion_tokens"] == 33
        before = len(server.requests)
        chat.chat(HELLO)
        assert len(server.requests) == before + 1
    assert len(client.lines) == 3


@pytest.mark.parametrize("name", llm_faults.KEYS)
@pytest.mark.parametrize("status", [401, 404, 500])
def test_keys_come_from_the_environment_and_are_never_shown(client, monkeypatch, name, status):
    monkeypatch.setenv(name, KEY)
    error = f"Incorrect API key provided: {KEY} (Bearer {KEY}, other sk-live-abcdefgh)"
    with FaultServer([Answer(status=status, error=error)]) as server:
        chat = client(server.url, max_retries=0)
        text = said(chat.chat, HELLO)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    shown = text + repr(chat) + str(chat.usage) + "".join(client.lines)
    assert KEY not in shown and "abcdefgh" not in shown and "Incorrect API key" in shown
    assert ("RLKIT_API_KEY" in text) == (status == 401)


def test_user_and_password_of_an_address_are_sent_and_never_shown(client, monkeypatch):
    with FaultServer([Answer(status=401, error="no hunter2 here")]) as server:
        chat = client(server.url.replace("http://", "http://anna:hunter2@"))
        text = said(chat.chat, HELLO)
        assert server.headers[0]["authorization"] == "Basic YW5uYTpodW50ZXIy"
        assert chat.address == server.url
        server.stop()
        text += said(chat.probe)
    assert "hunter2" not in text + repr(chat) and "YW5uYTpodW50ZXIy" not in text


@pytest.mark.parametrize("url", ["127.0.0.1:8000/v1", "ftp://x/v1", "http://", "http://u:pw@/v1"])
def test_an_address_of_no_use_is_refused(url):
    text = said(ChatClient, url)
    assert "http://HOST:PORT/v1" in text and "pw" not in text


def test_a_key_with_a_line_break_is_refused_and_not_shown(monkeypatch):
    monkeypatch.setenv("RLKIT_API_KEY", "abc\ndef")
    text = said(ChatClient, "http://127.0.0.1:1/v1")
    assert "RLKIT_API_KEY" in text and "def" not in text


@pytest.mark.parametrize(
    "text", ["a\ud800b", "nul \0 byte", "汉字 " * 200_000, "\x1b[31mred", "\ud83d\ude00"]
)
def test_strange_text_goes_there_and_back(client, text):
    clean = {"a\ud800b": "a\ufffdb", "nul \0 byte": "nul \ufffd byte", "\ud83d\ude00": "😀"}
    wanted = clean.get(text, text)
    with FaultServer([Answer(text)]) as server:
        reply = client(server.url).chat([{"role": "user", "content": text}])
        assert server.requests[0]["messages"][0]["content"] == wanted
    assert reply.text == wanted.strip()
    reply.text.encode()


def test_a_running_loop_can_await_and_can_block(client):
    async def cell():  # as in a notebook
        replies = await asyncio.gather(chat.ask(HELLO), chat.ask(HELLO))
        return [*replies, chat.chat(HELLO)]

    with FaultServer() as server:
        chat = client(server.url)
        assert [reply.text for reply in asyncio.run(cell())] == ["ok"] * 3
        assert [reply.text for reply in asyncio.run(cell())] == ["ok"] * 3  # another loop


def test_what_on_reply_raises_cancels_the_rest(client):
    def on_reply(index, reply):
        raise OSError("disk full")

    with FaultServer(lambda body, n: Answer(delay=0.05)) as server:
        chat = client(server.url, concurrency=2)
        with pytest.raises(OSError, match="disk full"):
            chat.chat_each([HELLO] * 50, on_reply)
        assert len(server.requests) <= 6
        assert chat.chat(HELLO).text == "ok"  # the client is still of use


def test_no_request_is_sent_before_the_last_answer_was_handed_over(client):
    sent = []

    def on_reply(index, reply):
        time.sleep(0.1)  # time enough for a worker that does not wait
        sent.append(len(server.requests))

    with FaultServer() as server:
        client(server.url, concurrency=2).chat_each([HELLO] * 8, on_reply)
    # when the n-th was handed over, those before it have made room for one more each
    assert all(count <= 2 + n for n, count in enumerate(sent)) and len(sent) == 8


def test_an_answer_that_is_none_is_asked_for_again_twice_and_not_for_half_a_minute(client):
    with FaultServer([Answer(raw="<html>login</html>")]) as server:
        chat = client(server.url, max_retries=9)
        assert "no JSON" in said(chat.chat, HELLO) and len(server.requests) == 3


def test_a_key_that_is_cut_off_at_the_end_of_a_body_is_not_shown(client, monkeypatch):
    monkeypatch.setenv("RLKIT_API_KEY", "opensesame" * 8)
    with FaultServer([Answer(raw="x opensesame" + "opensesame" * 7)]) as server:
        assert "sesame" not in said(client(server.url, max_retries=0).chat, HELLO)


def test_a_missing_page_names_no_model_where_none_is_named(client):
    with FaultServer() as server:
        server.models_answer = Answer(status=404, error="Not Found")
        text = said(client(server.url, model=None).chat, HELLO)
    assert text.endswith("HTTP 404: Not Found; check the address.")


def test_a_bug_is_raised_and_not_taken_for_a_reply(client):
    with FaultServer() as server:
        with pytest.raises(TypeError):
            client(server.url).chat_many([HELLO] * 3, no_such_option=1)


def test_the_limits_of_the_parameters_are_kept_to():
    config = RunConfig().with_overrides(
        "checker.timeout=7", "checker.concurrency=3", "model.checker_model=judge"
    )
    chat = ChatClient.from_config(config)
    assert (chat.limits.timeout, chat.limits.max_retries, chat.limits.patience) == (7, 5, 600)
    assert (chat.concurrency, chat.model) == (3, "judge")
    assert repr(chat) == "ChatClient('http://127.0.0.1:8000/v1', model='judge')"
    chat.close()
    with pytest.raises(RuntimeError, match="closed"):
        chat.chat(HELLO)


INTERRUPTED = """
import os, signal, sys, threading, time
from rlkit.agents.llm import ChatClient
chat = ChatClient(sys.argv[1], "toy", concurrency=4)
received = []
def on_reply(index, reply):
    received.append(index)
    if len(received) == 1:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)  # the interrupt may not strike here
    received.append("kept")
try:
    chat.chat_each([[{"role": "user", "content": str(n)}] for n in range(100)], on_reply)
except KeyboardInterrupt:
    print(len(received), received.count("kept"), chat.usage.requests)
"""

LEFT_RUNNING = """
import sys, threading, time
from rlkit.agents.llm import AgentError, ChatClient
chat = ChatClient(sys.argv[1], "toy", log=lambda line: None)
print(chat.chat([{"role": "user", "content": "x"}]).text)
def slow():
    try:
        chat.chat([{"role": "user", "content": "slow"}])
    except AgentError as error:
        print(error)
threading.Thread(target=slow, daemon=True).start()
time.sleep(0.3)
"""


def run(script: str, url: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, url],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_an_interrupt_loses_nothing_that_was_received():
    with FaultServer(lambda body, n: Answer(delay=0.02)) as server:
        received, kept, requests = map(int, run(INTERRUPTED, server.url).split())
        asked = len(server.requests)
    assert received == 2 * kept == 2 * requests
    assert 1 <= requests <= asked < 20  # the others were not sent any more


def test_the_interpreter_ends_without_a_word_while_a_request_is_under_way():
    def script(body, n):
        return Answer(delay=20.0 * (body["messages"][0]["content"] == "slow"))

    with FaultServer(script) as server:
        began = time.monotonic()
        assert run(LEFT_RUNNING, server.url).splitlines()[0] == "ok"
        assert time.monotonic() - began < 15.0
