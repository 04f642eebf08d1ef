"""The door of the server, before anything is read: token, shutdown, places, and a body's size."""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlkit.deploy.serving.errors import ServeError
from rlkit.deploy.serving.metrics import ServerMetrics
from rlkit.deploy.serving.settings import ServerSettings

COSTLY = ("/generate", "/v1/chat/completions")  # these ask the model
OPEN = ("/health", "/ready")  # these need no token: they tell nothing
_KNOWN = (*COSTLY, *OPEN, "/metrics", "/openapi.json", "/v1/models")
_BODY_TIMEOUT = 30.0  # seconds that a body may take to arrive
_REFUSED_TIMEOUT = 2.0  # seconds for which the body of a refused request is read and thrown away


class Door:
    """What the gate and the rest of a server share: whether it is being stopped, and how many
    requests to the model are inside."""

    def __init__(self) -> None:
        self.draining = False
        self.inside = 0
        self.wait_seconds = lambda: 1


class Gate:
    """ASGI middleware. A place is held from a request's head to its answer's end, so that bodies,
    tokenizing and slow readers count as well; whoever finds none gets 429 at once."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, door: Door, metrics: ServerMetrics
    ) -> None:
        self.app, self.settings, self.door, self.metrics = app, settings, door, metrics
        key = settings.api_key
        self._expected = None if key is None else b"Bearer " + key.get_secret_value().encode()
        self._longest = (
            _BODY_TIMEOUT + settings.queue_timeout + 2 * settings.request_timeout
        )  # of a place, however slowly its answer is read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path, start, status = scope["path"], time.monotonic(), [499]
        label = path if path in _KNOWN else "other"

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        try:
            await self._enter(scope, receive, noting)
        finally:
            self.metrics.requests.labels(label, status[0]).inc()
            self.metrics.seconds.labels(label).observe(time.monotonic() - start)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check_token(scope)
            if scope["path"] not in COSTLY or scope["method"] != "POST":
                return await self.app(scope, receive, send)
            self._check_place()
            self._check_size(_length(scope))
        except ServeError as refusal:
            await _throw_away(receive)
            return await refusal.response()(scope, receive, send)
        self.door.inside += 1
        try:
            async with asyncio.timeout(self._longest):
                await self._with_body(scope, receive, send)
        except TimeoutError:  # its answer is not read; what is left of it is cut off
            pass
        finally:
            self.door.inside -= 1

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(_BODY_TIMEOUT):
                body = await self._body(receive)
        except TimeoutError:
            late = ServeError(408, f"the body took more than {_BODY_TIMEOUT:g} s; send it again.")
            return await late.response()(scope, receive, send)
        except ServeError as refusal:
            await _throw_away(receive)
            return await refusal.response()(scope, receive, send)
        if body is None:
            return
        read = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return read.pop() if read else await receive()

        await self.app(scope, again, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None where the client went away."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._check_size(size)
            if not message.get("more_body"):
                return b"".join(parts)

    def _check_token(self, scope: Scope) -> None:
        if self._expected is None or scope["path"] in OPEN:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        if not hmac.compare_digest(scheme.title() + b" " + token.strip(), self._expected):
            raise ServeError(
                401, "the token is missing or wrong; send it as `Authorization: Bearer TOKEN`.",
                code="invalid_api_key",
            )  # fmt: skip

    def _check_place(self) -> None:
        if self.door.draining:
            raise ServeError(
                503, "the server is being stopped; ask again later, or another one.", retry_after=5
            )
        most = self.settings.parallel + self.settings.queue
        if self.door.inside >= most:
            raise ServeError(
                429, f"{most} requests are answered or waiting already; ask again later.",
                code="queue_full", retry_after=self.door.wait_seconds(),
            )  # fmt: skip

    def _check_size(self, size: int) -> None:
        if size > self.settings.max_body:
            raise ServeError(
                413, f"the body is larger than {self.settings.max_body} bytes; send less text."
            )


def _length(scope: Scope) -> int:
    """The body's size as its head says; 0 where it does not."""
    given: Any = dict(scope["headers"]).get(b"content-length", b"0")
    return int(given) if given.isdigit() and len(given) < 20 else 0


async def _throw_away(receive: Receive) -> None:
    """Read a body that nobody wants, for a moment: a client that is still sending would take the
    closed connection for a fault, and never see why it was refused."""
    try:
        async with asyncio.timeout(_REFUSED_TIMEOUT):
            message = await receive()
            while message["type"] == "http.request" and message.get("more_body"):
                message = await receive()
    except TimeoutError:
        pass
