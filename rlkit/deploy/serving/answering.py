"""From a request to what the model's thread tells of it: prompts as token ids, events in order."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from rlkit.deploy.serving.batching import Batcher, Failed, Job, Written
from rlkit.deploy.serving.errors import ServeError
from rlkit.deploy.serving.gate import JOBS
from rlkit.deploy.serving.model import ServedModel
from rlkit.deploy.serving.schemas import ChatRequest, GenerateRequest
from rlkit.errors import ModelError
from rlkit.training.text import encode_prompt

T = TypeVar("T")
_encoding = threading.Lock()  # a tokenizer is no thing for several threads


class Answer:
    """The answer to one request, event by event. Its job ends with the request's place."""

    def __init__(self, prompt_tokens: int, events: asyncio.Queue[Written | Failed]) -> None:
        self.prompt_tokens, self.written = prompt_tokens, list[Written]()
        self._events = events

    async def next(self) -> Written:
        """The next token. Raises ServeError where the answer ends without one."""
        event = await self._events.get()
        if isinstance(event, Failed):
            later = 1 if event.status == 503 else None
            raise ServeError(event.status, event.message, retry_after=later)
        self.written.append(event)
        return event

    async def all(self) -> Answer:
        """The whole answer."""
        while not (await self.next()).finish:
            pass
        return self

    async def from_the_first(self) -> AsyncIterator[Written]:
        """Every event: those that came already, and those to come."""
        for event in list(self.written):
            yield event
        while not self.written[-1].finish:
            yield await self.next()

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.written)

    @property
    def logprobs(self) -> list[float]:
        return [event.drawn.logprob for event in self.written]

    @property
    def finish(self) -> str | None:
        return self.written[-1].finish


async def ask(
    request: Request, asked: GenerateRequest | ChatRequest, batcher: Batcher, max_tokens: int | None
) -> Answer:
    """Hand a request's prompt to the model. Raises ServeError (422) where it does not fit."""
    prompt = await run_in_threadpool(prompt_ids, batcher.served, asked)
    loop, events = asyncio.get_running_loop(), asyncio.Queue[Written | Failed]()

    def emit(event: Written | Failed) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(events.put_nowait, event)

    job = Job(
        prompt,
        answer_tokens(batcher.served, len(prompt), asked, max_tokens),
        emit,
        asked.temperature,
        asked.top_p,
        secrets.randbits(63) if asked.seed is None else asked.seed,
        (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
        (asked.top_logprobs or 0) if isinstance(asked, ChatRequest) else 0,
    )
    request.scope[JOBS].append(job)
    batcher.submit(job)
    return Answer(len(prompt), events)


def prompt_ids(served: ServedModel, asked: GenerateRequest | ChatRequest) -> list[int]:
    """The prompt's token ids. Raises ServeError where the chat template refuses the messages, or
    where the prompt leaves no room for an answer."""
    if isinstance(asked, ChatRequest):
        field, messages = "messages", [message.plain() for message in asked.messages]
        options = asked.chat_template_kwargs
        thinking = options is not None and options.enable_thinking
    else:
        field, messages, thinking = "text", [{"role": "user", "content": asked.text}], False
    letters = sum(len(message["content"]) for message in messages)
    if letters > served.context * served.longest_token:  # too long to be worth the tokenizing
        raise _too_long(served, f"at least {letters // served.longest_token}", field)
    try:
        with _encoding:
            if isinstance(asked, GenerateRequest) and asked.raw:
                ids = served.tokenizer(asked.text)["input_ids"]
            else:
                ids = encode_prompt(served.tokenizer, messages, thinking)
    except ModelError as error:
        raise ServeError(422, f"{field}: {error}", param=field) from None
    if not ids:
        raise ServeError(422, f"{field}: it has no tokens; send some text.", param=field)
    if len(ids) >= served.context:
        raise _too_long(served, str(len(ids)), field)
    return list(ids)


def answer_tokens(
    served: ServedModel, prompt: int, asked: GenerateRequest | ChatRequest, most: int | None
) -> int:
    """How long an answer may become: as was asked for, else what `most` and the context allow."""
    room = served.context - prompt
    for field in ("max_completion_tokens", "max_tokens"):
        given = getattr(asked, field, None) if field in asked.model_fields_set else None
        if given is not None and given > room:
            raise ServeError(
                422, f"{field}: the model's context length is {served.context} tokens and the "
                f"prompt has {prompt} tokens, which leaves {room} for the answer; ask for fewer, "
                "or leave it out.", param=field, code="context_length_exceeded",
            )  # fmt: skip
        if given is not None:
            return given
    return room if most is None else min(most, room)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What `work` gives, unless the client goes away first."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ServeError(499, "the client went away.")
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_long(served: ServedModel, tokens: str, field: str) -> ServeError:
    return ServeError(
        422, f"{field}: the model's context length is {served.context} tokens and the prompt has "
        f"{tokens} tokens, which leaves no room for an answer; send less text.",
        param=field, code="context_length_exceeded",
    )  # fmt: skip
