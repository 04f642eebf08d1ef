"""An OpenAI-compatible server on 127.0.0.1 that plays every fault, scripted request by request.

def script(body, n):                    # n counts the chat requests from 0
    return Answer("hello") if n else Answer(status=429, headers={"Retry-After": "1"})

with FaultServer(script) as server:     # or a list of Answers, whose last one is repeated
    client = ChatClient(server.url)
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What one chat request gets; `Answer("text")` is a sound one."""

    text: str | None = "ok"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0  # seconds before the first byte
    reset_after: int | None = None  # bytes of the body; 0: before the status line
    drip: float | None = None  # seconds between chunks of 16 bytes of the body
    reasoning: str | None = None  # -> message.reasoning_content
    finish_reason: str | None = "stop"
    usage: tuple[int, int] | None = (5, 7)  # tokens of the prompt and of the completion
    error: str = "scripted"  # error.message, where status is not 200
    raw: bytes | str | None = None  # the body as it stands, in place of all that

    def body(self, model: str) -> bytes:
        if self.raw is not None:
            return self.raw.encode() if isinstance(self.raw, str) else self.raw
        if self.status != 200:
            error = {"message": self.error, "type": "scripted", "code": self.status}
            return json.dumps({"error": error}).encode()
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        answer: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": self.finish_reason}],
        }
        if self.usage is not None:
            prompt, completion = self.usage
            answer["usage"] = {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            }
        return json.dumps(answer).encode()


Script = Callable[[dict[str, Any], int], Answer] | Sequence[Answer]


class FaultServer:
    """Serves while its `with` block lasts. What the script itself raises, is raised at its end."""

    def __init__(self, script: Script = (Answer(),), models: Sequence[str] = ("toy",)) -> None:
        self.script = script
        self.models = list(models)
        self.models_answer: Answer | None = None  # in place of the list of models
        self.context: int | None = None  # max_model_len, as vLLM tells it
        self.requests: list[dict[str, Any]] = []  # bodies of the chat requests, in order
        self.headers: list[dict[str, str]] = []  # of the same, names in lower case
        self.models_asked = 0  # times that GET /v1/models came
        self.peak = 0  # most chat requests that were under way at once
        self.port = 0
        self._under_way = 0
        self._lock = threading.Lock()
        self._failures: list[Exception] = []
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Listen; after a stop, at the same port as before."""
        self._server = _Server(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """As if killed: nothing listens any more, and open connections are reset."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.reset_all()
            self._server = None

    def __enter__(self) -> FaultServer:
        self.start()
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self.stop()
        if self._failures and of_an_error[0] is None:
            raise self._failures[0]

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        """The script's word, after the request was written down."""
        with self._lock:
            n = len(self.requests)
            self.requests.append(body)
            self.headers.append(headers)
        try:
            if callable(self.script):
                return self.script(body, n)
            return self.script[min(n, len(self.script) - 1)]
        except Exception as failure:
            self._failures.append(failure)
            return Answer(status=500, error=f"the script raised {failure!r}")

    def enter(self, step: int) -> None:
        with self._lock:
            self._under_way += step
            self.peak = max(self.peak, self._under_way)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], faults: FaultServer) -> None:
        self.faults = faults
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: socket.socket) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def reset_all(self) -> None:
        for connection in list(self._open):
            reset(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        faults = self.server.faults
        if self.path.rstrip("/") != "/v1/models":
            return self._send(Answer(status=404, error="Not Found"), b'{"detail":"Not Found"}')
        faults.models_asked += 1
        if faults.models_answer is not None:
            return self._send(faults.models_answer, faults.models_answer.body("toy"))
        length = {} if faults.context is None else {"max_model_len": faults.context}
        models = [{"id": m, "object": "model", "created": 1, **length} for m in faults.models]
        return self._send(Answer(), json.dumps({"object": "list", "data": models}).encode())

    def do_POST(self) -> None:
        faults = self.server.faults
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        faults.enter(1)
        try:
            answer = faults.answer(body, {k.lower(): v for k, v in self.headers.items()})
            data = answer.body(body.get("model", ""))
            time.sleep(answer.delay)
        finally:  # before the bytes leave, since the client may send its next at once
            faults.enter(-1)
        self._send(answer, data)

    def _send(self, answer: Answer, data: bytes) -> None:
        if answer.reset_after == 0:
            return self._reset()
        head = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        self.send_response(answer.status)
        for name, value in (head | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        data = data[: answer.reset_after]
        size = 16 if answer.drip else max(len(data), 1)
        for start in range(0, len(data), size):
            self.wfile.write(data[start : start + size])
            self.wfile.flush()
            time.sleep(answer.drip or 0.0)
        if answer.reset_after is not None:
            self._reset()

    def _reset(self) -> None:
        self.close_connection = True
        reset(self.connection)

    def log_message(self, *of_a_request: object) -> None:
        """Tests print nothing."""


def reset(connection: socket.socket) -> None:
    """Close with a TCP reset instead of a farewell."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)
        connection.close()
    except OSError:
        pass  # the client was faster
