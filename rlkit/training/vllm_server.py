"""Rollouts by a vLLM server that loads the adapter anew after every move of the optimiser.

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True python -m vllm.entrypoints.openai.api_server \\
        --model BASE --enable-lora --max-lora-rank 16 --logprobs-mode processed_logprobs

    main rank    adapter -> folder, POST /v1/load_lora_adapter, and /v1/unload_lora_adapter
    every rank   POST /v1/completions, a request a group, those of a step at once

The server reads the adapter from the folder, so it must see the same file system. A server that is
away is waited for (`checker.patience`), and one that comes back without the adapter is given it
again. Keys come from the environment, as for the judge (agents/llm.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from rlkit.agents.llm_faults import Fault, RefusedError, Secrets, one_line
from rlkit.agents.llm_loop import BackgroundLoop
from rlkit.agents.llm_presence import LOOK
from rlkit.agents.llm_retry import Limits, Names, Requester
from rlkit.agents.llm_wire import Wire
from rlkit.errors import AgentError, ConfigError, ServerAwayError
from rlkit.training.caches import PromptCache
from rlkit.training.engines import Asked
from rlkit.training.sampling import SampledActions
from rlkit.training.vllm_adapters import Adapter, Adapters, remove
from rlkit.training.vllm_requests import (
    PROCESSED,
    Completion,
    check_length,
    packed,
    sampling_options,
)

NAMES = Names("rollout.base_url", "the base model")
TOLERANCE = 1e-3  # nats; of a token that is the only one allowed, whose log-probability is 0
_LOAD_AGAIN = "already been loaded"  # vLLM's word for a request that came twice


class VllmServerEngine:
    """A client of one server, which is first looked at when there is something to publish."""

    off_policy = True

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        limits = trainer.config.checker
        self._limits = Limits(trainer.config.rollout.timeout, limits.max_retries, limits.patience)
        self._requester = _requester(trainer.config, trainer.log)
        self._background = BackgroundLoop("rlkit-rollouts")
        self._asked: dict[tuple[Any, ...], Future[Any]] = {}
        self._context: int | None = None
        self._vocabulary = trainer.model.config.get_text_config().vocab_size
        self._adapters = Adapters(trainer)
        written = self._adapters.written  # no reference to the trainer, which would keep this alive
        self._finalizer = weakref.finalize(self, _end, self._background, self._requester, written)

    def publish(self) -> None:
        """Main has the server load the adapter, and then unload the one before. Raises AgentError
        where the server is not there, refuses the adapter, or gives log-probabilities that are not
        those that it samples with."""
        ranks = self._trainer.ranks
        with self._adapters.renewed() as adapters:
            if adapters is None:
                return
            self._drop_asked()
            new, old = adapters
            if old is None:
                self._context = self._background.wait_for(_look(self._requester))
                self._trainer.log(f"rollouts: vLLM at {self._requester.address}")
            if ranks.is_main:
                self._background.wait_for(self._load(new))
                if old is None:
                    self._background.wait_for(self._check_logprobs(new))
            ranks.barrier()
        if old is not None and ranks.is_main:
            with suppress(AgentError):  # a server that was started anew does not know it
                self._background.wait_for(_unload(self._requester, old))

    def forget(self) -> None:
        self._adapters.forget()

    def ask(self, asked: Sequence[Asked]) -> None:
        self._drop_asked()
        for one in asked:
            self._asked[one.key] = self._send(one)

    def sample(self, asked: Asked, prefix: PromptCache | None = None) -> SampledActions:
        """Raises ServerAwayError where the server stays away, AgentError for answers that are
        none."""
        future = self._asked.pop(asked.key, None) or self._send(asked)
        try:
            value = future.result()
        except CancelledError:
            raise AgentError("the client was closed while a request was under way.") from None
        except BaseException:  # an interrupt, too, must end what is under way
            future.cancel()
            self._drop_asked()
            raise
        who = f"vLLM at {self._requester.address}"
        completions = _completions(value, asked, self._adapters.current, who)
        return packed(completions, self._trainer, who, self._vocabulary)

    def close(self) -> None:
        """Take the adapter away again, and end; done at the interpreter's exit in any case."""
        self._finalizer()

    # ---- requests

    def _send(self, asked: Asked) -> Future[Any]:
        check_length(len(asked.prompt), self._trainer.settings.max_new_tokens, self._context)
        adapter = self._adapters.current
        body = {
            **sampling_options(self._trainer, asked),
            "model": adapter.name,
            "prompt": asked.prompt,
            "return_token_ids": True,
        }
        return self._background.submit(self._completion(body, adapter))

    async def _completion(self, body: dict[str, Any], adapter: Adapter) -> Any:
        try:
            return await self._requester.post("/completions", body, self._limits)
        except RefusedError:  # no such model: the server was started anew
            await self._load(adapter)
        return await self._requester.post("/completions", body, self._limits)

    async def _load(self, adapter: Adapter) -> None:
        body = {"lora_name": adapter.name, "lora_path": str(adapter.folder)}
        once = Limits(self._limits.timeout, 1, self._limits.patience)
        try:
            await self._requester.post("/load_lora_adapter", body, once, read=_text)
        except AgentError as error:
            if _LOAD_AGAIN in str(error):
                return
            if isinstance(error, ServerAwayError) and not isinstance(error, RefusedError):
                raise
            rank = self._trainer.config.lora.rank
            raise AgentError(
                f"the adapter could not be loaded: {error} vLLM must be started with --enable-lora "
                f"--max-lora-rank {rank} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its "
                f"environment, and must see {adapter.folder}; rollout.adapters_path names another "
                "folder."
            ) from None

    async def _check_logprobs(self, adapter: Adapter) -> None:
        """Of a token that is the only one allowed, the log-probability is 0 after all processing,
        and anything else before it."""
        if self._trainer.settings.temperature == 1:
            return
        options = sampling_options(self._trainer, Asked([], "", 0, range(1)))
        for token in (0, 1):
            body = {
                **options,
                "model": adapter.name,
                "prompt": [token],
                "max_tokens": 1,
                "allowed_token_ids": [token],
            }
            value = await self._requester.post("/completions", body, self._limits)
            found = _token_logprobs(_choices(value)[0])
            if not found or not isinstance(found[0], int | float) or abs(found[0]) > TOLERANCE:
                raise AgentError(
                    f"vLLM at {self._requester.address} gives log-probabilities from before "
                    "grpo.temperature, which are not those that it samples with; start it with "
                    f"--logprobs-mode {PROCESSED}."
                )

    def _drop_asked(self) -> None:
        for future in self._asked.values():
            future.cancel()
        self._asked.clear()


def check(config: Any) -> None:
    """Raise AgentError where no server answers now."""
    background = BackgroundLoop("rlkit-look")
    requester = _requester(config, lambda line: None)
    try:
        background.wait_for(_look(requester))
    finally:
        background.close(requester.wire.close)


def _requester(config: Any, log: Any) -> Requester:
    rollout, limits = config.rollout, config.checker
    secrets = Secrets(rollout.base_url or config.model.vllm_base_url)
    wire = Wire(secrets, rollout.timeout, limits.concurrency)
    return Requester(wire, None, limits.concurrency, False, log, NAMES)


async def _look(requester: Requester) -> int | None:
    """The context in tokens that the server was started with, where it says so."""
    served = await requester.wire.models(LOOK)
    if isinstance(served, Fault):
        error = requester.error(served)
        raise type(error)(
            f"{error} rollout.engine is vllm_server: start vLLM as docs/rollouts.md says, or set "
            "rollout.base_url."
        )
    if not served:
        raise ConfigError(f"{requester.address} lists no model; start vLLM with the base model.")
    return next(iter(served.values()))


async def _unload(requester: Requester, adapter: Adapter) -> None:
    body = {"lora_name": adapter.name}
    await requester.post("/unload_lora_adapter", body, Limits(LOOK, 0, 0.0), read=_text)


def _end(background: BackgroundLoop, requester: Requester, written: list[Adapter]) -> None:
    for adapter in written:
        with suppress(Exception):  # at the interpreter's exit, anything may be gone
            background.submit(_unload(requester, adapter)).result(2 * LOOK)
    background.close(requester.wire.close)
    remove(written)


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def _choices(value: Any) -> list[dict[str, Any]]:
    """An answer's choices, in the order of their index; one empty one where it has none."""
    choices = value.get("choices") if isinstance(value, dict) else None
    choices = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    if not all(isinstance(c.get("index"), int) for c in choices):
        return [{}]
    return sorted(choices, key=lambda choice: choice["index"]) or [{}]


def _completions(value: Any, asked: Asked, adapter: Adapter, who: str) -> list[Completion]:
    """The K completions of an answer. Raises AgentError where they are not K, of another model, or
    of another prompt."""
    choices = _choices(value)
    model = value.get("model") if isinstance(value, dict) else None
    if model != adapter.name:
        said = one_line(str(model), 60)
        raise AgentError(f"{who} answered as the model {said!r}, asked was {adapter.name!r}.")
    if [c.get("index") for c in choices] != list(range(len(asked.which))):
        raise AgentError(f"{who} answered with other than the {len(asked.which)} actions asked for")
    if any(c.get("prompt_token_ids", asked.prompt) != asked.prompt for c in choices):
        raise AgentError(f"{who} read another prompt than it was given.")
    return [
        Completion(_listed(c.get("token_ids")), _token_logprobs(c), c.get("finish_reason"))
        for c in choices
    ]


def _token_logprobs(choice: dict[str, Any]) -> list[Any]:
    logprobs = choice.get("logprobs")
    return _listed(logprobs.get("token_logprobs")) if isinstance(logprobs, dict) else []


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
