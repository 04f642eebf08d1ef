"""From a prompt to its reply, through all that can happen on the way: faults are sent again after a
pause, a server that is away is waited for, a prompt that is too long is shortened, a parameter that
the server does not know is left out. Runs inside the client's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rlkit.agents.llm_context import read_overflow, refusal, shorten
from rlkit.agents.llm_faults import (
    GATEWAY_TIMEOUT,
    OF_PROMPTS,
    RETRY_AFTER_CAP,
    Fault,
    PromptRefusedError,
    RefusedError,
    wait_before,
)
from rlkit.agents.llm_presence import LOOK, Presence
from rlkit.agents.llm_reply import Reply, read_json
from rlkit.agents.llm_wire import Reader, Request, Wire
from rlkit.errors import AgentError

GARBLED_RETRIES = 2  # of an answer that is none: a cut connection heals, a wrong server does not

T = TypeVar("T")
Log = Callable[[str], None]


@dataclass(slots=True)
class Usage:
    """What a client has used so far. Tokens are as the server counted them."""

    requests: int = 0  # that got a reply
    failed: int = 0  # that got none
    retries: int = 0
    thought: int = 0  # replies that came with thinking
    shortened: int = 0  # replies to prompts that had to be shortened
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def cost(self, per_million_in: float, per_million_out: float) -> float:
        """Price of all tokens, at a price for a million of the prompts and of the replies."""
        paid = self.prompt_tokens * per_million_in + self.completion_tokens * per_million_out
        return paid / 1_000_000

    def add(self, reply: Reply) -> None:
        self.requests += 1
        self.thought += reply.thought
        self.shortened += reply.shortened
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a request may take (seconds), how often it is sent again, and how long (seconds) a
    server that does not answer at all is waited for."""

    timeout: float
    max_retries: int
    patience: float


@dataclass(frozen=True, slots=True)
class Names:
    """What the parameters call a server's address and its model, for what is said of them."""

    address: str
    model: str


JUDGE = Names("model.vllm_base_url", "model.checker_model")


class Requester:
    """Asks one model of one server; at most `concurrency` requests are under way."""

    def __init__(
        self,
        wire: Wire,
        model: str | None,
        concurrency: int,
        enable_thinking: bool,
        log: Log,
        names: Names,
    ) -> None:
        self.wire, self.names = wire, names
        self.model = model
        self.enable_thinking = enable_thinking
        self.enforces_schema: bool | None = None  # the probe notices; until then it is tried
        self.usage = Usage()
        self.log = log
        self.presence = Presence(wire, log)
        self._slots = asyncio.Semaphore(concurrency)
        self._naming = asyncio.Lock()
        self._said: set[str] = set()

    @property
    def address(self) -> str:
        return self.wire.secrets.address

    async def answer(self, request: Request, may_shorten: bool, limits: Limits) -> Reply:
        """The reply, counted; raises AgentError where there is none in the end."""
        async with self._slots:
            try:
                reply = await self._reply(await self.name(limits), request, may_shorten, limits)
            except AgentError:
                self.usage.failed += 1
                raise
        self.usage.add(reply)
        if reply.thought and not self.enable_thinking:
            self._say_once(
                f"the model {self.model} at {self.address} thinks although it is asked not to; "
                "its thinking is dropped, but takes time and may use up the answer's tokens."
            )
        return reply

    async def post(
        self, path: str, body: dict[str, Any], limits: Limits, read: Reader = read_json
    ) -> Any:
        """What `read` makes of the answer to a POST; raises AgentError where there is none in the
        end."""
        async with self._slots:
            attempt = partial(self.wire.post, path, body, limits.timeout, read)
            outcome = await self._patiently(attempt, limits)
        if isinstance(outcome, Fault):
            raise self.error(outcome)
        return outcome

    async def name(self, limits: Limits) -> str:
        """The model's name; where none was given, the first that the server offers."""
        async with self._naming:
            if self.model is None:
                served = await self._patiently(
                    lambda: self.wire.models(min(limits.timeout, LOOK)), limits
                )
                if isinstance(served, Fault):
                    raise self.error(served)
                if not served:
                    raise AgentError(f"{self.address} lists no model; name one that it can load.")
                self.model = next(iter(served))
        return self.model

    async def _reply(
        self, model: str, request: Request, may_shorten: bool, limits: Limits
    ) -> Reply:
        shortened = False
        while True:
            gone = frozenset(self.wire.left_out)
            attempt = partial(self._attempt, model, request, limits)
            outcome = await self._patiently(attempt, limits)
            if isinstance(outcome, Reply):
                return replace(outcome, shortened=shortened)
            overflow = read_overflow(outcome.status, outcome.error, request.max_tokens)
            if overflow is not None:
                if shortened or not may_shorten:
                    raise refusal(overflow)
                messages, max_tokens = shorten(request.messages, overflow, request.max_tokens)
                request = replace(request, messages=messages, max_tokens=max_tokens)
                shortened = True
            elif name := self.wire.leave_out(outcome, request, gone):
                self._say_once(f"{self.address} does not know {name}; it is left out from here on.")
            else:
                raise self.error(outcome)

    async def _attempt(self, model: str, request: Request, limits: Limits) -> Reply | Fault:
        if self.enforces_schema is False:
            request = replace(request, schema=None)
        return await self.wire.chat(model, request, self.enable_thinking, limits.timeout)

    async def _patiently(
        self, attempt: Callable[[], Awaitable[T | Fault]], limits: Limits
    ) -> T | Fault:
        """What `attempt` brings, or the fault with which it makes no sense to go on.

        Raises AgentError where it failed `max_retries` + 1 times, where the server wants to be
        left alone for too long, where it stayed away, or where a gateway held up this request for
        `patience` seconds while others had their replies.
        """
        tries, began = 0, None  # when a gateway first stood in the way
        await self.presence.before_asking(limits.patience)
        while True:
            outcome = await attempt()
            if not isinstance(outcome, Fault):
                self.presence.seen()
                return outcome
            if not outcome.retried:
                return outcome
            if outcome.retry_after is not None and outcome.retry_after > RETRY_AFTER_CAP:
                raise AgentError(
                    f"{self.address} asks to wait {outcome.retry_after:.0f} s ({outcome.text}), "
                    f"more than the {RETRY_AFTER_CAP:.0f} s that are waited for; try again later, "
                    "or lower checker.concurrency."
                )
            if outcome.gateway and not await self._is_its_own(outcome):
                # it may be loading, which is not for tries to bound
                began = time.monotonic() if began is None else began
                waited = time.monotonic() - began
                if waited >= limits.patience and self.presence.answered_since(began):
                    raise self.error(outcome)  # others have their replies: it is this request
                await self.presence.endure(outcome, limits.patience)
                continue
            if outcome.away:
                await self.presence.wait(outcome, limits.patience)
            tries += 1
            most = limits.max_retries
            if tries > (min(most, GARBLED_RETRIES) if outcome.garbled else most):
                raise self.error(outcome, tries)
            self.usage.retries += 1
            pause = wait_before(1 if outcome.garbled else tries, outcome.retry_after)
            await asyncio.sleep(pause)

    async def _is_its_own(self, fault: Fault) -> bool:
        """Whether a gateway gave up on this one request, which took too long, although the server
        is there: then it counts as a try like any other."""
        return fault.status == GATEWAY_TIMEOUT and await self.presence.is_there()

    def error(self, fault: Fault, tries: int = 1) -> AgentError:
        """What is raised after `tries` attempts of which the last ended in `fault`."""
        often = f" in {tries} attempts" if tries > 1 else ""
        hint = ""
        if fault.status in (401, 403):
            hint = "; set RLKIT_API_KEY or OPENAI_API_KEY in the environment to the server's key"
        elif fault.status == 404 and not urlsplit(self.address).path:
            hint = "; the address of most servers ends in /v1"
        elif fault.status == 404:
            name = "" if self.model is None else f" and the model's name, {self.model!r}"
            hint = f"; check the address{name}"
        kind = PromptRefusedError if fault.status in OF_PROMPTS else AgentError
        kind = RefusedError if fault.refused else kind
        return kind(f"{self.address} gave no reply{often}: {fault.text}{hint}.")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.log(line)
