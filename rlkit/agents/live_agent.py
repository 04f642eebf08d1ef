"""What the planner and the entity manager share where a server's model plays them: one look at the
server before the first question, and a second request where a reply cannot be read."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from rlkit.agents.live_prompts import AGAIN, VERSION, WHY
from rlkit.agents.llm import ChatClient, ServerReport
from rlkit.agents.prompt import Messages
from rlkit.library.tokenize import dominant_language
from rlkit.rounds.tables import one_line

Read = TypeVar("Read")
SHOWN = 80  # characters of a reply in an error
TOKENS_TO_THINK = 2048  # of a reply, more, where thinking cannot be switched off
_probing = threading.Lock()
_probed: weakref.WeakKeyDictionary[ChatClient, ServerReport] = weakref.WeakKeyDictionary()


class Unreadable(Exception):
    """A reply that cannot be used; `why` is a key of `live_prompts.WHY`."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class LiveAgent:
    """An agent that a server's model plays. `language` of its prompts is `en`, `zh`, or `auto`,
    the question's. It may be called from several threads."""

    concurrent = True

    def __init__(
        self, client: ChatClient, language: str = "auto", log: Callable[[str], None] = print
    ) -> None:
        self.client, self.language, self.log = client, language, log

    @property
    def label(self) -> str:
        """Who this is, as records name it."""
        return f"llm {self.client.model}, prompt {VERSION}"

    def prepare(self) -> None:
        """Look once whether the server and its model are there, before any question is played.
        Raises AgentError within seconds where they are not."""
        with _probing:
            if self.client not in _probed:
                _probed[self.client] = self.client.probe()
                self.log(f"planner and entity manager: {_probed[self.client]}")

    def language_of(self, question: str) -> str:
        """The language in which this question's prompts are."""
        return dominant_language(question) if self.language == "auto" else self.language

    def ask_until_read(
        self,
        messages: Messages,
        read: Callable[[str], Read],
        language: str,
        max_tokens: int,
        schema: dict[str, Any],
    ) -> Read:
        """What `read` makes of the model's reply, or of its second one where it raises Unreadable
        at the first. Raises Unreadable again for the second, with the reply's beginning as its
        text, and AgentError where the server gives no reply."""
        report = _probed.get(self.client)
        max_tokens += TOKENS_TO_THINK if report is not None and report.thinks else 0
        reply = self.client.chat(messages, max_tokens=max_tokens, schema=schema)
        try:
            return read(reply.text)
        except Unreadable as first:
            messages = _once_more(messages, first.why, language)
            reply = self.client.chat(messages, max_tokens=max_tokens, schema=schema)
        try:
            return read(reply.text)
        except Unreadable as second:
            second.args = (one_line(reply.text[: 4 * SHOWN])[:SHOWN],)
            raise


def _once_more(messages: Messages, why: str, language: str) -> Messages:
    """The messages with a line that says what was wrong; the reply is not shown, since models
    repeat what they see."""
    *others, last = messages
    line = AGAIN[language].format(why=WHY[language][why])
    return [*others, {**last, "content": f"{last['content']}\n{line}"}]
