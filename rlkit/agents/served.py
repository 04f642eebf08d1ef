"""The tuned Executor behind an OpenAI-compatible server: the merged model, or base plus adapter.

    vllm serve outputs/run1/merged/MODEL-grpo-step24
    vllm serve BASE --enable-lora --max-lora-rank 16 --lora-modules tuned=ADAPTER_FOLDER

`executor.served_model` names the model (`tuned` in the second case), and the policy `served` asks
it: with the very chat messages that training showed, greedily, for as many tokens at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlkit.agents.llm import ChatClient, Names, ServerReport
from rlkit.agents.prompt import CountTokens, Messages, build_messages
from rlkit.errors import AgentError, ConfigError, RlkitError
from rlkit.rounds.state import State

NAMES = Names("executor.served_url", "executor.served_model")


class ServedPolicy:
    """An Executor that a server plays. `prompt` turns a state into chat messages; the server's
    chat template, which a merged model brings with it, makes the prompt's text of them."""

    concurrent = True  # several questions may be played at once

    def __init__(
        self, client: ChatClient, prompt: Callable[[State], Messages], *, max_new_tokens: int
    ) -> None:
        self.client, self.prompt, self.max_new_tokens = client, prompt, max_new_tokens
        self.label = str(client.model)  # in the records of what it plays

    def write(self, state: State) -> str:
        """The greedy completion for one state. Raises AgentError where the server gives none."""
        return self.client.chat(self.prompt(state), **self._options).text

    def write_batch(self, states: Sequence[State]) -> list[str]:
        """Greedy completions, all asked for at once. Raises the first AgentError, if there is one:
        a completion that did not come is no bad completion."""
        replies = self.client.chat_many([self.prompt(state) for state in states], **self._options)
        for reply in replies:
            if isinstance(reply, AgentError):
                raise reply
        return [reply.text for reply in replies]

    @property
    def _options(self) -> dict[str, Any]:
        # a prompt that the server cannot take whole is an error: a shorter one is another prompt
        return {"max_tokens": self.max_new_tokens, "temperature": 0.0, "shorten": False}


def served_policy(
    config: Any, count_tokens: CountTokens | None, log: Callable[[str], None] = print
) -> ServedPolicy:
    """The policy `served` of a RunConfig, after a look whether its server is there.

    `count_tokens` measures prompts as training does: with the base model's tokenizer. Raises
    ConfigError without it, or where the server has several models and `executor.served_model`
    names none; AgentError where the server or the model is not there.
    """
    if count_tokens is None:
        raise ConfigError(
            "the policy served needs the tokenizer of model.base_model_path, so that its prompts "
            "are those of training; let `python -m rlkit collect` or `eval` build it, or pass "
            "count_tokens."
        )
    executor, limits = config.executor, config.checker
    client = ChatClient(
        executor.served_url or config.model.vllm_base_url,
        executor.served_model,
        concurrency=limits.concurrency,
        timeout=limits.timeout,
        max_retries=limits.max_retries,
        patience=limits.patience,
        enable_thinking=config.model.enable_thinking,
        log=log,
        names=NAMES,
    )
    try:
        report = looked_at(client, executor.served_model)
    except RlkitError:
        client.close()
        raise
    log(f"served Executor: {report.model} at {client.address}")

    def prompt(state: State) -> Messages:
        return build_messages(state, executor, config.search, count_tokens)

    return ServedPolicy(client, prompt, max_new_tokens=config.grpo.max_new_tokens)


def looked_at(client: ChatClient, served_model: str | None) -> ServerReport:
    """What the probe finds. Raises AgentError as it does, and ConfigError where there are several
    models and none is named: the judge is no Executor."""
    report = client.probe()
    if served_model is None and len(report.models) > 1:
        raise ConfigError(
            f"executor.served_model is not set, and the server has {len(report.models)} models: "
            f"{', '.join(report.models)}; name the one that plays the Executor."
        )
    return report
