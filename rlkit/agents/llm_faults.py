"""What can go wrong with a request, and what follows from it: how long to wait, what to say.

| fault | what follows | at the end |
|---|---|---|
| no connection, broken off | `patience` seconds for the server, then a try | ServerAwayError |
| 502, 503, 504, and no models are listed | `patience` seconds, no try | ServerAwayError |
| the same of one request while others have replies | `patience` seconds | AgentError |
| 504 while models are listed; 408, 429, 5xx | `max_retries` tries, with pauses | AgentError |
| an answer that is none | GARBLED_RETRIES tries | AgentError |
| a prompt that is too long | shortened once, where allowed | ContextLengthError |
| 400, 413, 422 otherwise | nothing | PromptRefusedError |
| 401, 404, an impossible address | nothing: all would meet it | RefusedError |

Text of servers is untrusted and may echo a key: it is shown as one short line, keys taken out."""

from __future__ import annotations

import os
import random
import re
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from rlkit.agents.llm_reply import read_json, storable
from rlkit.errors import AgentError, ServerAwayError

RETRY_AFTER_CAP = 120.0  # seconds; a server that wants more is not waited for
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds
GATEWAY_TIMEOUT = 504  # it may be one request that takes too long
GATEWAY = (
    502,
    503,
    GATEWAY_TIMEOUT,
)  # said by what stands in front of a server that is away or loading
RETRIED = (408, 429)  # of the 4xx
REFUSED = (401, 404)  # a wrong key, a model that is not there: the same for every request
OF_PROMPTS = (400, 413, 422)  # said of what a request holds: a filter, a size
KEYS = ("RLKIT_API_KEY", "OPENAI_API_KEY")  # of the environment; the first that is set
PLACEHOLDER = "none"  # a local server wants no key, the client library wants one

_SECRET = re.compile(
    r"\b(?:sk|pk|hf|gh[pousr]|github_pat|xox[abpr]|glpat|gsk)[-_][\w*.-]{4,}"
    r"|\b(?:AKIA|AIza)[\w-]{8,}|\beyJ[\w-]{8,}\.[\w.-]+|(?<=://)[^/\s@]+@|(?i:(?<=bearer )\S+)"
)
_ENCODED = re.compile(r"[A-Za-z0-9+/_=%-]{6,}")  # a run of text that may be base64
_CONTROL = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029]+")


class RefusedError(ServerAwayError):
    """A server wants another key, or has another model: every request would meet the same."""


class PromptRefusedError(AgentError):
    """A server refuses what stands in a prompt; another prompt may fare better."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request has no reply. `status` is None where no answer came; `away` is True where the
    server could not be reached or gave up in the middle; `retry_after` is in seconds; `garbled` is
    True where an answer came that is none, `hopeless` where the address itself must be wrong."""

    text: str  # one line, without keys
    status: int | None = None
    away: bool = False
    retry_after: float | None = None
    error: dict[str, Any] = field(default_factory=dict)  # message, code, type, ... as they came
    garbled: bool = False
    hopeless: bool = False

    @property
    def retried(self) -> bool:
        """Whether the same request may have more luck: never after most of the 4xx."""
        if "insufficient_quota" in (self.error.get("code"), self.error.get("type")):
            return False
        unanswered = self.status is None and not self.hopeless
        return unanswered or (self.status or 0) >= 500 or self.status in RETRIED

    @property
    def refused(self) -> bool:
        """Whether every request of this client would meet the same."""
        return self.hopeless or self.status in REFUSED

    @property
    def gateway(self) -> bool:
        return self.status in GATEWAY


class Secrets:
    """The key of the environment and the user:password of an address; neither is ever shown."""

    def __init__(self, base_url: str) -> None:
        """Raises AgentError where the address or the key is of no use."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AgentError(
                f"the server's address is {one_line(_SECRET.sub('***@', base_url))!r}; wanted is "
                "http://HOST:PORT/v1."
            )
        host = parts.netloc.rpartition("@")[2]
        self.address = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self.key, name = PLACEHOLDER, next((name for name in KEYS if os.environ.get(name)), None)
        if name is not None:
            self.key = os.environ[name].strip()
            if not re.fullmatch(r"[\x21-\x7e]+", self.key):
                raise AgentError(
                    f"{name} in the environment holds blanks or signs that no key has; set it anew."
                )
        self.headers: dict[str, str] = {}
        words = [] if name is None else [self.key]
        hidden = list(words)
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
            basic = b64encode(f"{user}:{password}".encode()).decode()
            self.headers["Authorization"] = f"Basic {basic}"
            words += [basic, password, parts.password or "", f"{user}:{password}"]
            hidden.append(password)
        words += [b64encode(word.encode()).decode() for word in hidden]
        self._words = [
            _wherever(word) for word in sorted({w for w in words if w}, key=len, reverse=True)
        ]
        self._encoded = [re.compile(_percent(part)) for word in hidden for part in _inside(word)]

    def out_of(self, text: str) -> str:
        """The text without keys."""
        for word in self._words:
            text = word.sub("***", text)
        for part in self._encoded:  # in base64, with whatever stands before and behind it
            runs = {run for run in _ENCODED.findall(text) if part.search(run)}
            for run in runs:
                text = text.replace(run, "***")
        return _SECRET.sub("***", text)

    def __repr__(self) -> str:
        return f"Secrets of {self.address}"


def _wherever(word: str) -> re.Pattern[str]:
    """Where a word stands, percent-encoded or not; a short one may stand in others by chance."""
    pattern = _percent(word)
    return re.compile(pattern if len(word) >= 8 else rf"(?<!\w){pattern}(?!\w)")


def _percent(word: str) -> str:
    """A pattern of the word, any of whose signs may be percent-encoded."""
    signs = (f"(?:{re.escape(s)}|%(?:25)?(?i:{s.encode().hex('%')}))" for s in word)
    return "".join(signs)


def _inside(word: str) -> Iterator[str]:
    """What of a word stands in the base64 of any text that holds it: whichever of the three ways
    it falls on the groups of 3 bytes, without the signs that depend on its neighbours too."""
    body = word.encode()
    for before in range(3):
        whole = (len(body) + before) // 3 * 4
        part = b64encode(bytes(before) + body).decode()[4 * (before > 0) : whole]
        if len(part) >= 6:
            yield part
            if "+" in part or "/" in part:
                yield part.replace("+", "-").replace("/", "_")


def one_line(text: str, longest: int = 300) -> str:
    """Untrusted text as one line of at most `longest` characters, without control signs."""
    text = storable(_CONTROL.sub(" ", text[: 4 * longest])).strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"


def status_fault(status: int, body: bytes, headers: Any, secrets: Secrets) -> Fault:
    """The fault of an answer whose status is an error."""
    error = error_of(read_json(body))
    message = error.get("message") or body.decode("utf-8", "replace")
    said = one_line(secrets.out_of(str(message)[:100_000]))
    return Fault(
        f"HTTP {status}" + (f": {said}" if said else ""),
        status,
        retry_after=None if status < 400 else read_retry_after(headers),
        error=error,
    )


def error_of(body: Any) -> dict[str, Any]:
    """message, code and type of an error's body, as OpenAI, vLLM or FastAPI word it."""
    error = body.get("error", body) if isinstance(body, dict) else {}
    if isinstance(error, dict):
        if "message" not in error and "detail" in error:
            return {**error, "message": str(error["detail"])}
        return error
    return {"message": error} if isinstance(error, str) else {}


def read_retry_after(headers: Any, now: float | None = None) -> float | None:
    """Seconds that `Retry-After` asks for; None where it is missing, past, or nonsense.

    `headers` maps lower-case names. A date is compared with the server's own `date`, so that
    clocks need not agree.
    """
    text = str(headers.get("retry-after") or "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return min(float(text[:20]), 1e12) or None
    until = _seconds(text)
    if until is None:
        return None
    since = _seconds(str(headers.get("date") or ""))
    left = until - (since if since is not None else time.time() if now is None else now)
    return left if left > 0 else None


def _seconds(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None


def wait_before(attempt: int, retry_after: float | None) -> float:
    """Seconds before attempt 1, 2, ...: what the server asked for and a little more, else a time
    that doubles; the random part keeps many requests from coming back at once."""
    if retry_after is not None:
        return retry_after + random.uniform(0.0, min(1.0, 0.1 * retry_after))
    longest = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(attempt - 1, 16))
    return random.uniform(0.5, 1.0) * longest
