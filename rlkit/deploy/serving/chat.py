"""An answer as OpenAI's chat completions word it: whole, or as server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial

from rlkit.deploy.serving.answering import Answer
from rlkit.deploy.serving.batching import Written
from rlkit.deploy.serving.errors import ServeError
from rlkit.deploy.serving.model import ServedModel
from rlkit.deploy.serving.schemas import (
    AnswerMessage,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Choice,
    ChunkChoice,
    Delta,
    LikelyToken,
    Logprobs,
    TokenLogprob,
    Usage,
)
from rlkit.training.text import decode


def completion(answer: Answer, asked: ChatRequest, served: ServedModel) -> ChatCompletion:
    choice = Choice(
        message=AnswerMessage(content=answer.text),
        finish_reason=answer.finish,
        logprobs=_logprobs(answer.written, asked, served),
    )
    head = {"id": _new_id(), "created": int(time.time()), "model": served.name}
    return ChatCompletion(**head, choices=[choice], usage=_usage(answer))


async def events(answer: Answer, asked: ChatRequest, served: ServedModel) -> AsyncIterator[str]:
    """The answer's chunks as they come, then `[DONE]`. An answer that fails on the way ends with
    an event that holds the error, and without `[DONE]`."""
    chunk = partial(ChatChunk, id=_new_id(), created=int(time.time()), model=served.name)
    yield _event(chunk(choices=[ChunkChoice(delta=Delta(role="assistant", content=""))]))
    try:
        async for written in answer.from_the_first():
            logprobs = _logprobs([written], asked, served)
            if written.text or logprobs:
                delta = Delta(content=written.text)
                yield _event(chunk(choices=[ChunkChoice(delta=delta, logprobs=logprobs)]))
    except ServeError as error:
        yield f"data: {json.dumps(error.body())}\n\n"
        return
    yield _event(chunk(choices=[ChunkChoice(delta=Delta(), finish_reason=answer.finish)]))
    if asked.stream_options is not None and asked.stream_options.include_usage:
        yield _event(chunk(choices=[], usage=_usage(answer)))
    yield "data: [DONE]\n\n"


def _new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"


def _usage(answer: Answer) -> Usage:
    return Usage.of(answer.prompt_tokens, len(answer.written))


def _event(chunk: ChatChunk) -> str:
    body = chunk.model_dump(mode="json")
    for choice in body["choices"]:
        choice["delta"] = {k: v for k, v in choice["delta"].items() if v is not None}
    if body["usage"] is None:
        del body["usage"]
    return f"data: {json.dumps(body)}\n\n"


def _logprobs(
    written: Sequence[Written], asked: ChatRequest, served: ServedModel
) -> Logprobs | None:
    """Of the tokens that are text: the end of turn is none."""
    if not asked.logprobs:
        return None

    def likely(token: int, logprob: float) -> dict[str, object]:
        text = decode(served.tokenizer, [token])
        whole = "\ufffd" not in text  # else part of a character, whose bytes the text has lost
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}

    content = [
        TokenLogprob(
            **likely(event.drawn.token, event.drawn.logprob),
            top_logprobs=[LikelyToken(**likely(*pair)) for pair in event.drawn.top],
        )
        for event in written
        if not event.end
    ]
    return Logprobs(content=content) if content else None
