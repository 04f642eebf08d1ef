"""A server in a thread of this process, on a real socket."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import uvicorn

from rlkit.deploy.serving.app import create_app
from rlkit.deploy.serving.model import ServedModel
from rlkit.deploy.serving.settings import ServerSettings


class Live:
    """`app` and its `url`."""

    def __init__(
        self, served: ServedModel, env: dict[str, str], root_path: str = "", **settings: Any
    ) -> None:
        limits = ServerSettings.from_env(env, model="x", **settings)
        self.app = create_app(limits, replace(served, context=limits.context))
        config = uvicorn.Config(
            self.app, log_level="error", timeout_graceful_shutdown=30, root_path=root_path
        )
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        given = {"sockets": [self._socket]}
        self._thread = threading.Thread(target=self._server.run, kwargs=given, daemon=True)

    def start(self) -> Live:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    @property
    def batcher(self):
        return self.app.state.batcher

    def ask(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """GET, or POST of a body."""
        method = "GET" if body is None else "POST"
        with httpx.Client(base_url=self.url, timeout=60, trust_env=False, verify=False) as client:
            return client.request(method, path, json=body, **options)

    def endless(self) -> Live:
        """From now on answers take 10 ms a token, and end where they must."""
        head = self.batcher._head
        self.batcher._head = lambda hidden: time.sleep(0.01) or head(hidden)
        self.batcher.served = replace(self.batcher.served, ends=())
        return self

    @contextmanager
    def busy(self):
        """While an endless answer is being written."""
        self.endless()
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "seed": 1}
        with httpx.Client(base_url=self.url, timeout=60, trust_env=False, verify=False) as client:
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                pieces = answer.iter_text()  # kept, since the connection ends with it
                next(pieces)
                yield
