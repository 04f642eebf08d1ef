"""What a client is told when there is no answer: one shape for all paths, OpenAI's. What a client
sent is not sent back, but for the names of fields."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from rlkit.deploy.serving.schemas import HALF_A_PAIR, KINDS

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_SAID = {
    404: "there is no such path; see /openapi.json.",
    405: "this path takes another method; see /openapi.json.",
}
_MOST = 300  # characters of a sentence


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    error: ErrorDetail


# of the requests to a model, for the OpenAPI document
RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The body is no JSON."},
    401: {"model": ErrorBody, "description": "The token is missing or wrong."},
    403: {"model": ErrorBody, "description": "The server has no token, and answers this machine."},
    404: {"model": ErrorBody, "description": "Another model is served."},
    408: {"model": ErrorBody, "description": "The body took too long to arrive."},
    413: {"model": ErrorBody, "description": "The body is too large."},
    422: {"model": ErrorBody, "description": "`param` names the field that is at fault."},
    429: {"model": ErrorBody, "description": "No place is free; `Retry-After` says when to ask."},
    500: {"model": ErrorBody, "description": "The model failed."},
    503: {"model": ErrorBody, "description": "No place became free in time, or it is stopping."},
    504: {"model": ErrorBody, "description": "The answer was not finished in time."},
}


class ServeError(Exception):
    """No answer: `status`, a sentence, the field that is at fault, and OpenAI's code for it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": _clean(str(self)),
                "type": _TYPES.get(self.status, kind),
                "param": self.param and _clean(self.param),
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, headers=self.headers)


def install(app: FastAPI) -> None:
    """Every error of an application in this shape."""

    @app.exception_handler(ServeError)
    async def ours(request: Request, error: ServeError) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def bad_field(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return ServeError(400, "the body is no JSON; send a JSON object.").response()
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        field = ".".join(str(part) for part in first["loc"][1:] if part not in KINDS) or "body"
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "this field is unknown or not supported; leave it out"
        if first.get("ctx", {}).get("max_length") == 0:
            message = "only an empty one is supported; leave it out"
        if first["type"] == "literal_error":
            message += "; other values are not supported"
        if first["type"] == "string_unicode":
            message = HALF_A_PAIR
        if field == "body" and not given.endswith(("/json", "+json")):
            message = "a JSON object is read with the header `Content-Type: application/json` only"
        return ServeError(422, f"{field}: {message.rstrip('.')}.", param=field).response()

    @app.exception_handler(HTTPException)
    async def of_the_framework(request: Request, error: HTTPException) -> JSONResponse:
        said = _SAID.get(error.status_code, "the request cannot be read; send a JSON object.")
        answer = ServeError(error.status_code, said).response()
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        return ServeError(500, "a bug in the server; see its log.").response()


def _clean(text: str) -> str:
    """Text that any JSON and any client can hold."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."
