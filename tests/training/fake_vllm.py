"""A stand-in for vLLM's server on 127.0.0.1: a two-layer model samples in this process, with the
adapters that it is told to load.

with FakeVllm(tiny_base()) as server:
    server.faults["/v1/completions"] = lambda body, n: (500, {"error": {"message": "boom"}})
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from rlkit.training.adapters import load_lora_checkpoint
from rlkit.training.sampling import generate_with_log_probs
from tests.agents.fault_server import reset
from tests.training.conftest import with_lora

Fault = Callable[[dict[str, Any], int], tuple[int, Any] | None]  # None: answer as always


class FakeVllm:
    """Serves while its `with` block lasts; `stop` and `start` kill it and start it anew, at the
    same port and without adapters. `seen`: every POST, as (path, body), in order."""

    def __init__(self, base: Any, raw_logprobs: bool = False, context: int = 4096) -> None:
        self.model = with_lora(copy.deepcopy(base), spread=0.0)
        self.raw_logprobs, self.context = raw_logprobs, context
        self.adapters: dict[str, str] = {}  # name -> folder
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[str | None] = []
        self.faults: dict[str, Fault] = {}
        self.together = threading.Barrier(1)  # completions that wait for each other
        self.port = 0
        self._lock = threading.Lock()
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        self.adapters = {}
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = _Server(("127.0.0.1", self.port), handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            for connection in self._server.connections:
                reset(connection)
            self._server = None

    def __enter__(self) -> FakeVllm:
        self.start()
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self.stop()

    def of(self, path: str) -> list[dict[str, Any]]:
        """The bodies that came to a path."""
        return [body for where, body in self.seen if where == path]

    def answer(self, path: str, body: dict[str, Any], key: str | None) -> tuple[int, Any]:
        with self._lock:
            self.seen.append((path, body))
            self.keys.append(key)
            n = len(self.of(path)) - 1
        fault = self.faults.get(path)
        found = fault(body, n) if fault else None
        if found is not None:
            return found
        if path == "/v1/load_lora_adapter":
            return self._load(body["lora_name"], body["lora_path"])
        if path == "/v1/unload_lora_adapter":
            known = self.adapters.pop(body["lora_name"], None)
            return (200, "Success") if known else (404, _error("cannot be found"))
        if body["model"] not in self.adapters:
            return 404, _error(f"The model `{body['model']}` does not exist.")
        self.together.wait(20)
        with self._lock:
            return 200, self.complete(body)

    def _load(self, name: str, folder: str) -> tuple[int, Any]:
        if name in self.adapters:
            return 400, _error(f"The lora adapter '{name}' has already been loaded.")
        try:
            load_lora_checkpoint(self.model, folder)
        except Exception:
            return 404, _error(f"Loading lora {name} failed: No adapter found for {folder}")
        self.adapters[name] = folder
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        load_lora_checkpoint(self.model, self.adapters[body["model"]])
        torch.set_num_threads(1)
        allowed = body.get("allowed_token_ids")
        if allowed:
            rows = [(allowed, [-3.2 if self.raw_logprobs else 0.0], False)]
        else:
            found = generate_with_log_probs(
                self.model,
                torch.tensor(body["prompt"]),
                actions=body["n"],
                max_new_tokens=body["max_tokens"],
                temperature=body["temperature"],
                end_ids=body["stop_token_ids"],
                seed=body["seed"],
            )
            rows = [
                (ids, found.logprobs[k][found.mask[k]].tolist(), bool(found.ended[k]))
                for k, ids in enumerate(found.rows())
            ]
        choices = [
            {
                "index": k,
                "text": "",
                "token_ids": ids,
                "prompt_token_ids": body["prompt"],
                "logprobs": {"token_logprobs": logprobs},
                "finish_reason": "stop" if ended else "length",
            }
            for k, (ids, logprobs, ended) in enumerate(rows)
        ]
        return {"object": "text_completion", "model": body["model"], "choices": choices[::-1]}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "Error", "param": None}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self.connections: list[Any] = []
        super().__init__(*arguments)

    def get_request(self) -> Any:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeVllm

    def do_GET(self) -> None:
        card = {"id": "base", "object": "model", "max_model_len": self.fake.context}
        self._send(200, {"object": "list", "data": [card]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._send(*self.fake.answer(self.path, body, self.headers["Authorization"]))

    def _send(self, status: int, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *of_a_request: object) -> None:
        """Tests print nothing."""
