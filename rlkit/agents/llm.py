"""`ChatClient`: prompts to a chat model behind an OpenAI-compatible server (vLLM, llama.cpp, ...).

    client = ChatClient("http://127.0.0.1:8000/v1")
    print(client.probe())
    reply = client.chat([{"role": "user", "content": "Is Paris in France?"}])

At most `concurrency` requests are under way, whoever asks. A request that fails is sent again
(llm_faults.py tells which faults deserve it) up to `max_retries` times, with pauses that double, or
that last as long as the server's Retry-After says. A server that does not answer at all is waited
for, once for all requests, up to `patience` seconds. The client library's own retries are off.
Thinking is switched off in the request and taken out of replies anyway. Keys come from the
environment (RLKIT_API_KEY, else OPENAI_API_KEY) and are shown nowhere.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from rlkit.agents.llm_context import ContextLengthError
from rlkit.agents.llm_faults import Secrets
from rlkit.agents.llm_loop import BackgroundLoop, held_interrupts
from rlkit.agents.llm_probe import ServerReport, probe
from rlkit.agents.llm_reply import Reply
from rlkit.agents.llm_retry import JUDGE, Limits, Names, Requester, Usage
from rlkit.agents.llm_wire import Request, Wire
from rlkit.agents.prompt import Messages
from rlkit.errors import AgentError

__all__ = ["ChatClient", "ContextLengthError", "Limits", "Names", "Reply", "ServerReport", "Usage"]

Log = Callable[[str], None]
OnReply = Callable[[int, Reply | AgentError], None]
_Arrivals = SimpleQueue[tuple[int, Any, Any]]
_LAST = (-1, None, None)  # what `chat_each` is told when no more replies will come


class ChatClient:
    """Asks one server; safe to use from several threads, and from a notebook's running loop."""

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        concurrency: int = 16,
        timeout: float = 120.0,
        max_retries: int = 5,
        patience: float = 600.0,
        enable_thinking: bool = False,
        log: Log = print,
        names: Names = JUDGE,
    ) -> None:
        """`timeout` (seconds) is for one attempt, `patience` (seconds) for a server that is away;
        `names` are the parameters that errors say are to be changed.

        Without `model`, the first that the server offers is asked. Nothing is sent yet. Raises
        AgentError where the address, or the key in the environment, is of no use.
        """
        secrets = Secrets(base_url)
        self.address = secrets.address  # without user and password
        self.limits = Limits(timeout, max_retries, patience)
        self.concurrency = concurrency
        wire = Wire(secrets, timeout, concurrency)
        self._requester = Requester(wire, model, concurrency, enable_thinking, log, names)
        self._background = BackgroundLoop("rlkit-chat")
        self._finalizer = weakref.finalize(self, self._background.close, wire.close)

    @classmethod
    def from_config(
        cls, config: Any, model: str | None = None, base_url: str | None = None, log: Log = print
    ) -> ChatClient:
        """A client with the limits of `checker.*`; by default for the model that judges."""
        limits = config.checker
        return cls(
            base_url or config.model.vllm_base_url,
            model or config.model.checker_model,
            concurrency=limits.concurrency,
            timeout=limits.timeout,
            max_retries=limits.max_retries,
            patience=limits.patience,
            log=log,
        )

    def __repr__(self) -> str:
        return f"ChatClient({self.address!r}, model={self._requester.model!r})"

    @property
    def model(self) -> str:
        """The model that is asked; where none was named, the first that the server offers."""
        named = self._requester.model
        return named or self._background.wait_for(self._requester.name(self.limits))

    @property
    def usage(self) -> Usage:
        """Requests, retries and tokens so far."""
        return self._requester.usage

    async def ask(
        self,
        messages: Messages,
        *,
        max_tokens: int = 512,
        temperature: float = 0.0,
        schema: dict[str, Any] | None = None,
        shorten: bool = True,
    ) -> Reply:
        """The reply to one prompt; may be awaited in any loop.

        `schema` is a JSON schema that the server is asked to enforce, unless it is known not to.
        A prompt that is too long for the model is shortened once (llm_context.py), and the reply
        says so; with `shorten` False, or where that does not help, ContextLengthError is raised.
        Raises AgentError where there is no reply in the end. A model that only thought gives a
        reply with an empty text.
        """
        request = Request.of(messages, max_tokens, temperature, schema)
        work = self._requester.answer(request, shorten, self.limits)
        if asyncio.get_running_loop() is self._background.loop:
            return await work
        return await asyncio.wrap_future(self._background.submit(work))

    def chat(self, messages: Messages, **options: Any) -> Reply:
        """`ask`, from any thread; an interrupt cancels the request."""
        return self._background.wait_for(self.ask(messages, **options))

    def chat_each(self, requests: Sequence[Messages], on_reply: OnReply, **options: Any) -> None:
        """Ask all, `concurrency` at once; `on_reply(index, reply or AgentError)` is called in this
        thread as each arrives. Options are those of `ask`.

        No further request is sent in place of one that was answered before `on_reply` has
        returned, so that a pass that is killed loses what is under way and no more. An interrupt
        does not strike inside `on_reply`: what is under way is cancelled, what has
        arrived is handed over, and then KeyboardInterrupt is raised. What `on_reply` raises
        cancels the rest.
        """
        arrivals: _Arrivals = SimpleQueue()
        stop = asyncio.Event()
        work = self._background.submit(self._ask_all(list(requests), arrivals, stop, options))

        def cancel() -> None:
            self._background.loop.call_soon_threadsafe(stop.set)

        def hand_over(on_reply: OnReply) -> None:
            while (item := arrivals.get()) is not _LAST:
                index, reply, handed = item
                on_reply(index, reply)
                with suppress(RuntimeError):  # the client was closed meanwhile
                    self._background.loop.call_soon_threadsafe(handed.set)

        with held_interrupts(cancel) as interrupted:
            try:
                hand_over(on_reply)
            except BaseException as error:  # an interrupt, too, must end what is under way
                cancel()
                keep = isinstance(error, KeyboardInterrupt)
                hand_over(on_reply if keep else _drop)
                raise
        work.result()
        if interrupted.is_set():
            raise KeyboardInterrupt

    def chat_many(self, requests: Sequence[Messages], **options: Any) -> list[Reply | AgentError]:
        """`chat_each`, as a list in the order of the requests."""
        replies: dict[int, Reply | AgentError] = {}
        self.chat_each(requests, replies.__setitem__, **options)
        return [replies[index] for index in range(len(replies))]

    def probe(self) -> ServerReport:
        """What the server and its model can do, within seconds, by asking them.

        Raises ServerAwayError where nobody answers, RefusedError (one, too) where the key or the
        model is wrong, AgentError where the model gives no reply; each says what to do.
        """
        return self._background.wait_for(probe(self._requester, self.limits))

    def wait_until_there(self) -> None:
        """Return once the server answers; raises ServerAwayError after `patience` seconds."""
        self._background.wait_for(self._requester.presence.arrive(self.limits.patience))

    def close(self) -> None:
        """Cancel what is under way and end; done at the interpreter's exit in any case."""
        self._finalizer()

    async def _ask_all(
        self,
        requests: list[Messages],
        arrivals: _Arrivals,
        stop: asyncio.Event,
        options: dict[str, Any],
    ) -> None:
        """Put (index, reply or AgentError, event) into `arrivals` as each comes, and go on when
        the event says that it was handed over; put `_LAST` at the end."""
        todo = iter(enumerate(requests))

        async def work() -> None:
            for index, messages in todo:
                try:
                    reply: Reply | AgentError = await self.ask(messages, **options)
                except AgentError as error:
                    reply = error
                handed = asyncio.Event()
                arrivals.put((index, reply, handed))
                await handed.wait()

        workers = [asyncio.create_task(work()) for _ in range(min(self.concurrency, len(requests)))]
        everything = asyncio.gather(*workers)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({everything, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if everything.done():
                everything.result()  # raises what is a bug
        finally:
            everything.cancel()
            stopping.cancel()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, everything, stopping, return_exceptions=True)
            arrivals.put(_LAST)


def _drop(index: int, reply: Reply | AgentError) -> None:
    """In place of an `on_reply` that raised."""
