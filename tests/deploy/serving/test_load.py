"""Two hundred requests at once, of which fifty are broken: none is lost, none answered wrongly."""

from __future__ import annotations

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx

CHAT = "/v1/chat/completions"
TOKEN = "s3cret-token"
HEAD = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
# what is broken, and with which status it is refused
BROKEN = {
    "no json": (b'{"text": ', 400),
    "wrong type": (b'{"text": 7}', 422),
    "wrong value": (b'{"text": "a", "temperature": 9}', 422),
    "half a pair": (b'{"text": "\\udfff"}', 422),
    "half a pair in a chat": (b'{"messages": [{"role": "user", "content": "\\udfff"}]}', 422),
    "too long": (b'{"text": "' + b"a" * 5000 + b'"}', 422),
    "too large": (b'{"text": "' + b"a" * 70_000 + b'"}', 413),
    "wrong token": (b'{"text": "a"}', 401),
    "goes away": (None, None),
    "half a body": (None, None),
}


def good(i: int) -> tuple[str, dict]:
    """Request i: of both paths, greedy and drawn, whole and as a stream, of many lengths."""
    chance = random.Random(i)
    text = "".join(chance.choice("abc où 塔 ") for _ in range(chance.choice([1, 5, 40, 300])))
    common = {
        "max_tokens": chance.randint(1, 40),
        "temperature": chance.choice([0, 1.0]),
        "seed": i,
    }
    if i % 2:
        return "/generate", {"text": text, "raw": bool(i % 3)} | common
    messages = [{"role": "user", "content": text}]
    return CHAT, {"messages": messages, "stream": i % 4 == 0} | common


def text_of(answer: httpx.Response, path: str) -> str:
    if path == "/generate":
        return answer.json()["text"]
    if "event-stream" not in answer.headers["content-type"]:
        return answer.json()["choices"][0]["message"]["content"]
    *events, end = [line[6:] for line in answer.text.splitlines() if line]
    assert end == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    return "".join(delta.get("content", "") for delta in deltas)


def send(url: str, path: str, **options) -> httpx.Response:
    with httpx.Client(base_url=url, timeout=120, trust_env=False, verify=False) as client:
        return client.post(path, **{"headers": HEAD} | options)


def break_off(url: str, kind: str) -> None:
    """A client that goes away in the middle of its body, or of its answer."""
    body = json.dumps({"messages": [{"role": "user", "content": "a"}], "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in HEAD.items())
    with socket.create_connection(url.removeprefix("http://").split(":"), timeout=120) as client:
        if kind == "half a body":
            client.sendall(head.encode() + b"\r\n" + body[:9])
        else:
            client.sendall(head.encode() + b"\r\n" + body)
            assert b" 200 OK" in client.recv(100)


def broken(url: str, kind: str) -> int | None:
    body, status = BROKEN[kind]
    if body is None:
        return break_off(url, kind)
    options = {"headers": HEAD | {"authorization": "Bearer wrong"}} if status == 401 else {}
    path = CHAT if b"messages" in body else "/generate"
    return send(url, path, content=body, **options).status_code


def test_of_200_requests_50_are_broken_and_each_other_one_gets_the_answer_it_gets_alone(serving):
    server = serving(TOKEN, parallel=8, queue=250, max_body=60_000, queue_timeout=120)
    jobs = [good(i) for i in range(150)]
    alone = [text_of(send(server.url, path, json=body), path) for path, body in jobs]
    work = [("good", i) for i in range(150)]
    work += [("broken", kind) for kind in (list(BROKEN) * 5)[:50]]
    random.Random(7).shuffle(work)

    def do(item):
        kind, what = item
        if kind == "broken":
            return broken(server.url, what)
        path, body = good(what)
        answer = send(server.url, path, json=body)
        assert answer.status_code == 200, answer.text
        return text_of(answer, path)

    before = counted(server)
    with ThreadPoolExecutor(32) as threads:
        found = list(threads.map(do, work))
    wrong = [
        item for item, got in zip(work, found, strict=True)
        if got != (alone[item[1]] if item[0] == "good" else BROKEN[item[1]][1])
    ]  # fmt: skip
    assert not wrong and len(set(alone)) > 100
    tokens, passes = (now - then for now, then in zip(counted(server), before, strict=True))
    assert tokens > 2 * passes  # they were answered together


def counted(server) -> tuple[float, float]:
    """Tokens written, and passes of the model that wrote them."""
    value = server.batcher.metrics.registry.get_sample_value
    return value("rlkit_answer_tokens_total"), value("rlkit_batch_rows_count")
