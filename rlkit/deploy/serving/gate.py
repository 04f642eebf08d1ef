"""The door of the server, before anything is read: who may ask, places, and a body's size."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlkit.deploy.serving.errors import ServeError
from rlkit.deploy.serving.metrics import ServerMetrics
from rlkit.deploy.serving.settings import ServerSettings

COSTLY = ("/generate", "/v1/chat/completions")  # these ask the model
HEALTH = "/health"  # answered to all: it tells nothing
JOBS = "rlkit.jobs"  # of a request's scope: the jobs that are given up when its place is
_KNOWN = (*COSTLY, HEALTH, "/metrics", "/openapi.json", "/v1/models")
_BODY_TIMEOUT = 30.0  # seconds that a body may take to arrive
_REFUSED_TIMEOUT = 2.0  # seconds for which the body of a refused request is read and thrown away


class Gate:
    """ASGI middleware. A place is held from a request's head to its answer's end, so that bodies,
    tokenizing and slow readers count as well; whoever finds none gets 429 at once. Whatever ends a
    request, a client that goes away too, ends its jobs."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        metrics: ServerMetrics,
        wait_seconds: Callable[[int], int],
    ) -> None:
        """`wait_seconds` tells when to ask again, of how many are inside."""
        self.app, self.settings, self.metrics = app, settings, metrics
        self._wait_seconds, self._inside = wait_seconds, 0
        key = settings.api_key
        self._expected = None if key is None else b"Bearer " + key.get_secret_value().encode()
        self._longest = (
            _BODY_TIMEOUT + settings.queue_timeout + 2 * settings.request_timeout
        )  # of a place, however slowly its answer is read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path, start, status = path_of(scope), time.monotonic(), [499]
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
            path = path_of(scope)
            if path != HEALTH:
                self._check_asker(scope)
            if path not in COSTLY or scope["method"] != "POST":
                return await self.app(scope, receive, send)
            self._check_place()
            self._check_size(_length(scope))
        except ServeError as refusal:
            await _throw_away(receive)
            return await refusal.response()(scope, receive, send)
        self._inside += 1
        jobs = scope[JOBS] = []
        try:
            async with asyncio.timeout(self._longest):
                await self._with_body(scope, receive, send)
        except TimeoutError:  # its answer is not read; what is left of it is cut off
            pass
        finally:
            self._inside -= 1
            for job in jobs:
                job.gone = True

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

    def _check_asker(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if self._expected is None:
            host = headers.get(b"host", b"localhost").decode("latin-1")
            if not (_is_local(scope.get("server")) and _names_this_machine(host)):
                raise ServeError(
                    403, "this server has no token, and so answers this machine alone, as localhost"
                    " or 127.0.0.1; set RLKIT_API_KEY where it runs to open it to others.",
                )  # fmt: skip
            return
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if not hmac.compare_digest(scheme.title() + b" " + token.strip(), self._expected):
            raise ServeError(
                401, "the token is missing or wrong; send it as `Authorization: Bearer TOKEN`.",
                code="invalid_api_key",
            )  # fmt: skip

    def _check_place(self) -> None:
        most = self.settings.parallel + self.settings.queue
        if self._inside >= most:
            raise ServeError(
                429, f"{most} requests are answered or waiting already; ask again later.",
                code="queue_full", retry_after=self._wait_seconds(self._inside),
            )  # fmt: skip

    def _check_size(self, size: int) -> None:
        if size > self.settings.max_body:
            raise ServeError(
                413, f"the body is larger than {self.settings.max_body} bytes; send less text."
            )


def path_of(scope: Scope) -> str:
    """The path as Starlette's routing reads it: without the prefix of a proxy (`uvicorn
    --root-path`) or of an app that this one is mounted in, which servers leave in it."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _is_local(server: tuple[str, int | None] | None) -> bool:
    """Whether a request came to an address of this machine alone, or to a socket of its files."""
    return server is None or server[1] is None or is_loopback(server[0])


def _names_this_machine(host: str) -> bool:
    """A page of the web that has its own name point here (DNS rebinding) sends that name."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or is_loopback(name)


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
