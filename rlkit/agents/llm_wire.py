"""One attempt at a time: a request through the openai client, its answer as a value or a `Fault`.

Bodies are written and read here, through the client's `post` and `get`: it checks nothing in an
answer, and its typed methods cost a third more of the time that a fast server's clients have.
Nothing is raised that carries a request, since its headers hold the key."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai

from rlkit.agents.llm_faults import Fault, Secrets, error_of, one_line, status_fault
from rlkit.agents.llm_reply import Reply, read_json, read_reply, storable
from rlkit.agents.prompt import Messages

# what a server may refuse to be asked for, and what is asked for instead
OPTIONAL = ("chat_template_kwargs", "response_format", "max_tokens", "temperature")
Reader = Callable[[bytes], Any]  # of a body; None where it is not what was wanted
_UNKNOWN = re.compile(
    r"unrecogni[sz]ed|unsupported|unknown|not supported|not permitted|extra inputs|does not support"
    r"|unexpected|only the default",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Request:
    messages: Messages
    max_tokens: int
    temperature: float
    schema: dict[str, Any] | None

    @classmethod
    def of(
        cls,
        messages: Sequence[dict[str, str]],
        max_tokens: int,
        temperature: float,
        schema: dict[str, Any] | None,
    ) -> Request:
        """A request whose texts can be sent: without NULs and lone surrogates."""
        clean = [{name: storable(text) for name, text in m.items()} for m in messages]
        return cls(clean, max_tokens, temperature, schema)


class Wire:
    """The connection to one server. Remembers which optional parameters it refused."""

    def __init__(self, secrets: Secrets, timeout: float, concurrency: int) -> None:
        self.secrets = secrets
        self.left_out: set[str] = set()
        # a proxy of the environment is no way to a server on this machine
        self._openai = openai.AsyncOpenAI(
            base_url=secrets.address,
            api_key=secrets.key,
            default_headers=secrets.headers or None,
            max_retries=0,
            timeout=timeout,
            http_client=openai.DefaultAsyncHttpxClient(
                base_url=secrets.address,
                trust_env=not _is_local(secrets.address),
                limits=httpx2.Limits(
                    max_connections=concurrency + 8, max_keepalive_connections=concurrency + 8
                ),
            ),
        )

    async def chat(
        self, model: str, request: Request, enable_thinking: bool, timeout: float
    ) -> Reply | Fault:
        """One attempt; `timeout` (seconds) is for all of it, however slowly bytes drip in."""
        body = self._body(model, request, enable_thinking)
        send = partial(self._openai.post, "/chat/completions", body=body, cast_to=httpx2.Response)
        answer = await self._answer(send, timeout)
        if isinstance(answer, Fault):
            return answer
        reply = read_reply(answer)
        return reply if reply is not None else self._garbled(answer, "no chat completion")

    async def models(self, timeout: float) -> dict[str, int | None] | Fault:
        """name -> longest context in tokens (None: not told), in the server's order."""
        send = partial(self._openai.get, "/models", cast_to=httpx2.Response)
        answer = await self._answer(send, timeout)
        if isinstance(answer, Fault):
            return answer
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list):
            return self._garbled(answer, "no list of models")
        rows = [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]
        return {storable(row["id"]): _context(row) for row in rows}

    async def post(self, path: str, body: dict[str, Any], timeout: float, read: Reader) -> Any:
        """What `read` makes of the answer to one POST, or a Fault."""
        send = partial(self._openai.post, path, body=body, cast_to=httpx2.Response)
        return await self._answer(send, timeout, read)

    def leave_out(self, fault: Fault, request: Request, gone: frozenset[str]) -> str | None:
        """The optional parameter of `request` that the server says it does not know, left out
        from now on; `gone` were left out of the request that it refused."""
        if fault.status not in (400, 422):
            return None
        said = f"{fault.error.get('param')} {str(fault.error.get('message'))[:1000]}"
        if not _UNKNOWN.search(said):
            return None
        for name in OPTIONAL:
            sent = name not in gone and (name != "response_format" or request.schema is not None)
            if sent and re.search(rf"\b{name}\b", said):
                self.left_out.add(name)
                return name
        return None

    async def speaks_plainly(self, timeout: float) -> bool:
        """Whether an https:// address answers plain http; nothing secret is sent."""
        parts = urlsplit(self.secrets.address)
        if parts.scheme != "https":
            return False
        try:
            async with httpx2.AsyncClient(trust_env=False, timeout=timeout) as plain:
                answer = await plain.get(f"http://{parts.netloc}{parts.path}/models")
        except (httpx2.HTTPError, httpx2.InvalidURL):
            return False
        return answer.status_code != 400  # with which a TLS port says that it is one

    async def close(self) -> None:
        await self._openai.close()

    def _body(self, model: str, request: Request, enable_thinking: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "messages": request.messages,
            "chat_template_kwargs": {"enable_thinking": enable_thinking},
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.schema is not None:
            form = {"name": "answer", "schema": request.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        for name in self.left_out & set(body):
            value = body.pop(name)
            if name == "max_tokens":  # OpenAI's own models want the newer name
                body["max_completion_tokens"] = value
        return body

    async def _answer(
        self,
        send: Callable[[], Awaitable[httpx2.Response]],
        timeout: float,
        read: Reader = read_json,
    ) -> Any:
        """The value of the answer (by default its JSON), or a Fault."""
        try:
            async with asyncio.timeout(timeout):
                answer = await send()
        except openai.APIStatusError as error:
            response = error.response
            return status_fault(
                response.status_code, response.content, response.headers, self.secrets
            )
        except (TimeoutError, openai.APITimeoutError) as error:
            if isinstance(error.__cause__, httpx2.ConnectTimeout):
                return Fault("no connection in time", away=True)
            return Fault(f"no answer within {timeout:g} s", away=True)
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            said = one_line(self.secrets.out_of(str(cause))) or type(cause).__name__
            if _speaks_no_tls(error):
                return Fault(f"{said}: plain http, or a wrong certificate", hopeless=True)
            return Fault(said, away=True)
        body = answer.content
        value = read(body)
        if value is None:
            said = self.secrets.out_of(body[-4000:].decode("utf-8", "replace"))[-60:]
            what = f"HTTP 200 with {len(body)} bytes that are no JSON and end in {one_line(said)!r}"
            return Fault(what, garbled=True)
        error = error_of(value) if isinstance(value, dict) and value.get("error") else None
        if error and "choices" not in value:  # some gateways say 200 and then what went wrong
            status = error.get("code")
            known = isinstance(status, int) and 400 <= status < 600
            return Fault(
                one_line(self.secrets.out_of(f"error: {error.get('message')}")),
                status if known else 500,
                error=error,
            )
        return value

    def _garbled(self, answer: Any, what: str) -> Fault:
        said = one_line(self.secrets.out_of(str(answer)[:1000]), 120)
        return Fault(f"HTTP 200 with {what}: {said}", garbled=True)


def _context(row: dict[str, Any]) -> int | None:
    """vLLM says max_model_len; llama.cpp says what each of its slots has, in meta.n_ctx."""
    meta = row.get("meta")
    told = [row.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None]
    return next((n for n in told if isinstance(n, int) and 0 < n < 10**9), None)


def _speaks_no_tls(error: BaseException | None) -> bool:
    """Whether the other side speaks plain http, or has a certificate that is not trusted."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_local(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
