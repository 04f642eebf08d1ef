"""A prompt that is too long for the model: what the server says about it, and how it is shortened.

Servers that count the answer (vLLM, OpenAI) refuse a prompt that leaves no room for `max_tokens`;
llama.cpp refuses one that is longer than the context by itself. Shortening makes room for both:
the answer keeps at most half of the context, and the rest is cut out of the middle of the longest
user message, where all prompts of this package have the oldest and least relevant texts: rules
stand first, and what is asked stands last. The cut is marked, so that the model can see it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlkit.agents.prompt import Messages
from rlkit.errors import AgentError

MARK = " […] "
MARGIN = 16  # tokens that stay free, for what a chat template may add
SPARE = 0.1  # of what is cut or kept, whichever is less: how far our weights may mislead
MIN_KEPT = 64  # characters of a message; one that would keep fewer is not cut but refused

_TOO_LONG = re.compile(
    r"context[ _-]?(?:length|size|window)|max(?:imum)?[ _]model[ _]len|(?:prompt|input|request)\b"
    r"[^.]{0,60}\b(?:too long|longer than)|reduce the length of the (?:input|messages|prompt)",
    re.IGNORECASE,
)
_LIMITS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:context|model) length(?: is| of)?(?: only)?:? \(?(\d{1,9})\b",
        r"context (?:size|window)(?: is| of)?:? \(?(\d{1,9})\b",
        r"max_model_len\b\D{0,40}(\d{1,9})\b",
        r"(\d{1,9}) maximum\b",
        r"exceeds (?:the )?limit of (\d{1,9})\b",
    )
]
_PROMPTS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?P<n>\d{1,9}) (?:tokens )?(?:in (?:the messages|your prompt)|from the input)",
        r"(?:has|contains|passed) (?P<floor>at least )?(?P<n>\d{1,9}) (?:text |input )?tokens",
        r"(?:prompt|input|request) \((?:length )?(?P<n>\d{1,9})\b",
        r"(?:resulted in|too long:|you requested) (?P<n>\d{1,9}) tokens",
    )
]
_LIGHT_WEIGHT = 1 / 3.5  # tokens a Latin letter or blank; digits, signs and other scripts: up to 1


class ContextLengthError(AgentError):
    """The prompt does not fit into the model's context, and was or could not be shortened; `seen`
    is what the server said of it."""

    seen = ""


@dataclass(frozen=True, slots=True)
class Overflow:
    """What the server said: `limit` and `prompt` in tokens, None where it did not say; `exact` is
    False where `prompt` is only known to be at least that (vLLM stops counting at its limit)."""

    limit: int | None
    prompt: int | None
    exact: bool = True

    def __str__(self) -> str:
        at_least = "" if self.exact else "at least "
        prompt = "a prompt"
        if self.prompt is not None:
            prompt = f"a prompt of {at_least}{self.prompt} tokens"
        limit = "the model's context" if self.limit is None else f"a context of {self.limit} tokens"
        return f"{prompt} for {limit}"


def read_overflow(status: int | None, error: dict[str, Any], max_tokens: int) -> Overflow | None:
    """What a refusal (`error` holds message, code, type, ...) says about the context, if it does.

    `max_tokens` is what was asked for as the answer's length."""
    message = str(error.get("message"))[:2000]
    kinds = {str(error.get("code")), str(error.get("type"))}
    named = bool(kinds & {"context_length_exceeded", "exceed_context_size_error"})
    if status not in (400, 413, 422) or not (named or _TOO_LONG.search(message)):
        return None
    limit, prompt, exact = _count(error.get("n_ctx")), _count(error.get("n_prompt_tokens")), True
    if limit is None:
        found = next((m for pattern in _LIMITS if (m := pattern.search(message))), None)
        limit = _count(found[1]) if found else None
    if prompt is None:
        found = next((m for pattern in _PROMPTS if (m := pattern.search(message))), None)
        prompt = _count(found["n"]) if found else None
        exact = not (found and found.groupdict().get("floor"))
    if prompt is not None and limit is not None and prompt == limit - max_tokens + 1:
        exact = False  # where counting stops
    return Overflow(limit, prompt, exact and prompt is not None)


def shorten(
    messages: Sequence[dict[str, str]], overflow: Overflow, max_tokens: int
) -> tuple[Messages, int]:
    """Messages and `max_tokens` that fit, by the server's numbers.

    Raises ContextLengthError where there are no numbers, or where too little would be left.
    """
    if overflow.limit is None:
        raise refusal(overflow)
    max_tokens = max(1, min(max_tokens, overflow.limit // 2))
    budget = overflow.limit - max_tokens - MARGIN
    weight = sum(float(_weights(message["content"]).sum()) for message in messages)
    tokens = float(overflow.prompt or 0)
    if not overflow.exact:
        tokens = max(tokens, weight)
    messages = [dict(message) for message in messages]
    if tokens > budget:
        at = _longest(messages)
        if at is None:
            raise refusal(overflow)
        too_much = tokens - budget + SPARE * min(tokens - budget, budget)
        text = messages[at]["content"]
        messages[at]["content"] = _without_middle(text, too_much * weight / tokens, overflow)
    return messages, max_tokens


def refusal(overflow: Overflow) -> ContextLengthError:
    error = ContextLengthError(
        f"the server refuses {overflow}; send less (checker.max_document_chars, "
        "data.agent_prompt_tokens, executor.max_prompt_tokens), or serve the model with a longer "
        "context."
    )
    error.seen = str(overflow)
    return error


def _longest(messages: Messages) -> int | None:
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return max(users, key=lambda i: len(messages[i]["content"]), default=None)


def _without_middle(text: str, too_much: float, overflow: Overflow) -> str:
    """The text without a middle that weighs `too_much`; head and tail keep equal weights."""
    sums = np.concatenate([[0.0], np.cumsum(_weights(text))])  # sums[i] weighs text[:i]
    kept = sums[-1] - too_much - len(MARK)
    head, tail = (int(i) for i in np.searchsorted(sums, [kept / 2, sums[-1] - kept / 2]))
    if kept <= 0 or head + len(text) - tail < MIN_KEPT:
        raise refusal(overflow)
    return f"{text[:head].rstrip()}{MARK}{text[tail:].lstrip()}"


def _weights(text: str) -> np.ndarray:
    """Tokens that each character may be."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    folded = codes | 0x20  # upper case to lower case; the blank stays
    light = (codes == 0x20) | ((folded >= ord("a")) & (folded <= ord("z")) & (codes < 0x80))
    return np.where(light, _LIGHT_WEIGHT, 1.0)


def _count(value: object) -> int | None:
    """A number of tokens that a server named, if it is one."""
    try:
        count = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return count if 0 < count < 10**9 else None
