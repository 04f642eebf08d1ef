"""The paths of the server, and which model and limits stand behind them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.concurrency import run_in_threadpool

import rlkit
from rlkit.deploy.confidence import confidence
from rlkit.deploy.serving import chat, errors
from rlkit.deploy.serving.answering import ask, unless_gone
from rlkit.deploy.serving.batching import Batcher
from rlkit.deploy.serving.gate import Gate
from rlkit.deploy.serving.metrics import ServerMetrics
from rlkit.deploy.serving.model import ServedModel, load_model
from rlkit.deploy.serving.schemas import (
    DEFAULT_TOKENS,
    ChatCompletion,
    ChatRequest,
    GenerateAnswer,
    GenerateRequest,
    Health,
    ModelCard,
    ModelList,
)
from rlkit.deploy.serving.settings import ServerSettings

_STREAM = {200: {"content": {"text/event-stream": {}}}}
_TEXT = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
_NO_ENTRY = {status: errors.RESPONSES[status] for status in (401, 403)}


def create_app(settings: ServerSettings, served: ServedModel | None = None) -> FastAPI:
    """The application; without `served`, `settings.model` is loaded when it starts."""
    metrics, started = ServerMetrics(), int(time.time())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        model = served or await run_in_threadpool(load_model, settings)
        app.state.batcher = Batcher(model, settings, metrics)
        app.state.batcher.start()
        try:
            yield
        finally:
            await run_in_threadpool(app.state.batcher.stop)

    app = FastAPI(
        title="rlkit", version=rlkit.__version__, description="A tuned model, served.",
        lifespan=lifespan, docs_url=None, redoc_url=None,  # their pages come from elsewhere
        dependencies=[Depends(HTTPBearer(auto_error=False))] if settings.api_key else [],
    )  # fmt: skip
    errors.install(app)
    app.add_middleware(
        Gate, settings=settings, metrics=metrics,
        wait_seconds=lambda inside: app.state.batcher.wait_seconds(inside),
    )  # fmt: skip
    _answering(app)
    _looking(app, metrics, started)
    return app


def _answering(app: FastAPI) -> None:
    @app.post("/generate", responses=errors.RESPONSES, operation_id="generate")
    async def generate(asked: GenerateRequest, request: Request) -> GenerateAnswer:
        """One answer to a text, and how sure the model is of it."""
        batcher: Batcher = request.app.state.batcher
        answer = await ask(request, asked, batcher, DEFAULT_TOKENS)
        answer = await unless_gone(request, answer.all())
        clues = batcher.served.clues
        return GenerateAnswer(
            text=answer.text,
            confidence=confidence(answer.logprobs),
            finish_reason=answer.finish,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=len(answer.written),
            clues=None if clues is None else clues(answer.text),
        )

    @app.post(
        "/v1/chat/completions", response_model=ChatCompletion, operation_id="chat",
        responses={**errors.RESPONSES, **_STREAM},
    )  # fmt: skip
    async def chat_completions(asked: ChatRequest, request: Request) -> Any:
        """OpenAI's chat completions: an answer to messages, whole or as server-sent events."""
        batcher: Batcher = request.app.state.batcher
        served = batcher.served
        if asked.model is not None:
            _refuse_another(asked.model, served)
        answer = await ask(request, asked, batcher, None)
        if not asked.stream:
            return chat.completion(await unless_gone(request, answer.all()), asked, served)
        await unless_gone(request, answer.next())  # what fails before the first token has a status
        return StreamingResponse(
            chat.events(answer, asked, served), media_type="text/event-stream",
            headers={"Cache-Control": "no-cache"},
        )  # fmt: skip


def _refuse_another(name: str, served: ServedModel) -> None:
    if name != served.name:
        raise errors.ServeError(
            404, f"model: another one is served; ask {served.name}, or leave it out.",
            param="model", code="model_not_found",
        )  # fmt: skip


def _card(served: ServedModel, started: int) -> ModelCard:
    return ModelCard(id=served.name, created=started, max_model_len=served.context)


def _looking(app: FastAPI, metrics: ServerMetrics, started: int) -> None:
    @app.get("/v1/models", operation_id="models", responses=_NO_ENTRY)
    async def models(request: Request) -> ModelList:
        """The model that is served."""
        return ModelList(data=[_card(request.app.state.batcher.served, started)])

    @app.get(
        "/v1/models/{name:path}", operation_id="model",
        responses={**_NO_ENTRY, 404: errors.RESPONSES[404]},
    )  # fmt: skip
    async def model(name: str, request: Request) -> ModelCard:
        """The same, by its name."""
        served = request.app.state.batcher.served
        _refuse_another(name, served)
        return _card(served, started)

    @app.head("/health", include_in_schema=False)
    @app.get(
        "/health", response_model=Health, operation_id="health",
        responses={503: {"model": Health, "description": "The model's thread has ended."}},
    )  # fmt: skip
    async def health(request: Request) -> Any:
        """Whether requests are answered; needs no token. HEAD tells the status alone."""
        alive = request.app.state.batcher.alive
        return Health(status="ok") if alive else JSONResponse({"status": "failed"}, 503)

    @app.get(
        "/metrics", response_class=Response, operation_id="metrics",
        responses={**_TEXT, **_NO_ENTRY},
    )  # fmt: skip
    async def prometheus() -> Response:
        """What Prometheus reads."""
        return Response(
            generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )
