"""Listens to a judge's replies, and keeps a few that could not be read, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlkit.agents.entities import shorten
from rlkit.agents.judge_prompts import ids_of
from rlkit.agents.llm import ChatClient, Reply
from rlkit.agents.llm_faults import Secrets
from rlkit.agents.verdicts import parse_verdicts
from rlkit.rounds.tables import one_line

SHOWN = 3  # replies
LENGTH = 200  # characters of each


class Overheard:
    """A judge's client that is listened to: `unread` has up to `SHOWN` different replies that lack
    a verdict for a document that was asked for, each as one harmless, short line."""

    def __init__(self, client: ChatClient, address: str) -> None:
        self._client, self._secrets = client, Secrets(address)
        self.unread: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def chat_each(self, requests: Sequence[Any], on_reply: Any, **options: Any) -> None:
        """As `ChatClient.chat_each`."""

        def hear(index: int, reply: Any) -> None:
            on_reply(index, reply)
            if isinstance(reply, Reply) and len(self.unread) < SHOWN:
                self._note(reply, requests[index][-1]["content"].count("<document id="))

        self._client.chat_each(requests, hear, **options)

    def _note(self, reply: Reply, documents: int) -> None:
        if len(parse_verdicts(reply.text, ids_of(range(documents)))) < documents:
            line = shorten(one_line(self._secrets.out_of(reply.text[: 10 * LENGTH])), LENGTH)
            line = line or f"(nothing{', after it thought' if reply.thought else ''})"
            if line not in self.unread:
                self.unread.append(line)
