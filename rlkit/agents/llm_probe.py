"""What a server and its model can do, found out by asking: whether they are there, whether the
model thinks although it is asked not to, whether a JSON schema is enforced. Servers that know no
schema mostly ignore it without a word, so only trying tells."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from rlkit.agents.llm_faults import Fault, RefusedError
from rlkit.agents.llm_presence import LOOK
from rlkit.agents.llm_reply import Reply
from rlkit.agents.llm_retry import Limits, Requester
from rlkit.agents.llm_wire import Request
from rlkit.errors import AgentError, ServerAwayError, nearest

HOW_TO_START = (
    "start one with `python -m rlkit serve` (a small model, no GPU needed) or `vllm serve MODEL`, "
    "or set {address} to where it runs"
)
THOUGHTFUL = (  # questions that models like to think about
    "A farmer has 17 sheep; all but 9 run away. How many are left? Answer with the number alone.",
    "Which is larger, 9.11 or 9.9? Answer with the number alone.",
    "Is the capital of Australia Sydney? Answer yes or no.",
)
_WORD = "KX41"
# nothing in the prompt speaks of this, so that only a server that enforces it brings it about
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"rlkit_probe": {"type": "string", "enum": [_WORD]}},
    "required": ["rlkit_probe"],
    "additionalProperties": False,
}
_CHAT_TIMEOUT = 60.0  # seconds
_SILENT = 8.0  # seconds of waiting, then the log says for what
_MAX_TOKENS = 48


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What the probe found. `thinks` is the share of its replies that came with thinking;
    `schema`, whether a JSON schema is enforced; `context`, the longest prompt and reply together
    in tokens, None where the server does not tell."""

    address: str
    model: str
    models: tuple[str, ...]
    thinks: float
    schema: bool
    context: int | None
    replies: int = len(THOUGHTFUL)

    def __str__(self) -> str:
        thoughts = round(self.thinks * self.replies)
        thinking = (
            f"still thinks, in {thoughts} of {self.replies} replies: serve it with a chat template "
            "that can switch thinking off, or take another model"
            if thoughts
            else "no thinking"
        )
        schema = "JSON schema enforced" if self.schema else "no JSON schema, replies are parsed"
        context = "context unknown" if self.context is None else f"context {self.context} tokens"
        return f"{self.model} at {self.address}: {context}; {schema}; {thinking}"


async def probe(requester: Requester, limits: Limits) -> ServerReport:
    """Ask the server what it serves, and its model four short questions; waits for nothing.

    The requester asks the model found, and leaves schemas out where they are not enforced. Raises
    ServerAwayError where nobody answers, RefusedError where the key or the model is wrong, and
    AgentError where the model gives no reply.
    """
    models = await _served(requester)
    requester.model = _chosen(requester, models)
    requester.enforces_schema = None
    limits = Limits(
        timeout=min(limits.timeout, _CHAT_TIMEOUT),
        max_retries=min(limits.max_retries, 1),
        patience=0.0,
    )
    slow = asyncio.get_running_loop().call_later(
        _SILENT,
        requester.log,
        f"{requester.address} is there; {requester.model} has not answered short questions yet, "
        f"and has {limits.timeout:.0f} s for each.",
    )
    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_ask(requester, q, None, limits)) for q in THOUGHTFUL]
            forced = group.create_task(_enforces_schema(requester, limits))
    except ExceptionGroup as failures:
        failure = failures.exceptions[0]
    else:
        failure = None
    finally:
        slow.cancel()
    if failure is not None:  # the first is as good as all of them
        raise failure
    replies, enforced = [task.result() for task in asked], forced.result()
    requester.enforces_schema = enforced
    return ServerReport(
        requester.address,
        requester.model,
        tuple(models),
        sum(reply.thought for reply in replies) / len(replies),
        enforced,
        models.get(requester.model),
    )


async def _served(requester: Requester) -> dict[str, int | None]:
    """The models that the server offers; none where it does not tell."""
    models = await requester.wire.models(LOOK)
    if not isinstance(models, Fault):
        return models
    where = requester.names.address
    unreached = models.away or models.hopeless
    if unreached and await requester.wire.speaks_plainly(LOOK / 2):
        raise RefusedError(
            f"{requester.address} speaks plain http; write http:// in place of https:// in {where}."
        )
    if models.away or models.gateway:
        raise ServerAwayError(
            f"no server answers at {requester.address} ({models.text}); "
            f"{HOW_TO_START.format(address=where)}."
        )
    if models.status in (401, 403) or models.hopeless:
        raise requester.error(models)
    return {}


def _chosen(requester: Requester, models: dict[str, int | None]) -> str:
    """The model to ask; raises AgentError where it is not there."""
    wanted, address = requester.model, requester.address
    offers = ", ".join(models)
    if wanted is None and not models:
        raise RefusedError(
            f"{address} does not tell which models it serves; name one in {requester.names.model}."
        )
    if wanted is None:
        first = next(iter(models))
        if len(models) > 1:
            requester.log(
                f"{address} serves {offers}; {first} is asked, since no other is named "
                f"({requester.names.model})."
            )
        return first
    if models and wanted not in models:
        near = nearest(wanted, models)
        hint = f"did you mean {near!r}?" if near else "name one of these,"
        raise RefusedError(
            f"{address} does not serve {wanted!r}; it serves {offers}: {hint} or start a server "
            f"that does (`vllm serve {wanted}`)."
        )
    return wanted


async def _enforces_schema(requester: Requester, limits: Limits) -> bool:
    """Whether a schema shapes the reply."""
    try:
        reply = await _ask(requester, "Say hello.", SCHEMA, limits)
        return json.loads(reply.text) == {"rlkit_probe": _WORD}
    except (AgentError, ValueError, RecursionError):
        return False


async def _ask(
    requester: Requester, text: str, schema: dict[str, Any] | None, limits: Limits
) -> Reply:
    messages = [{"role": "user", "content": text}]
    request = Request(messages, _MAX_TOKENS, temperature=0.0, schema=schema)
    return await requester.answer(request, False, limits)
