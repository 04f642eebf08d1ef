"""The live DocumentChecker: a model behind an OpenAI-compatible server labels documents, several a
request, each once per question and subgoal, ever.

Verdicts are looked up in the cache first. What it lacks is asked for in batches, and every answer
is kept as it arrives, whatever happens to the others. A document that an answer leaves out, or
labels in a way that cannot be read, or that stands in a request that the server refuses (as a
content filter does), is asked for again in a smaller batch, then alone, and is then unjudged. A
server that refuses everything ends the work. No server is asked, nor looked for, while the cache
knows all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlkit.agents.judge_prompts import (
    PROMPT_VERSION,
    ShownDocument,
    asked_line,
    ids_of,
    judge_messages,
    shown,
    verdict_schema,
)
from rlkit.agents.judge_server import JudgeServer
from rlkit.agents.llm import ChatClient, ContextLengthError, Reply, ServerReport
from rlkit.agents.llm_faults import PromptRefusedError, RefusedError
from rlkit.agents.verdict_cache import Judged, VerdictCache, verdict_key
from rlkit.agents.verdicts import parse_verdicts
from rlkit.errors import AgentError
from rlkit.library.corpus import Document
from rlkit.library.tokenize import dominant_language
from rlkit.rounds.state import State, Verdict

CACHE_NAME = "verdicts.sqlite"
TOKENS_A_DOCUMENT, TOKENS_AROUND = 24, 64  # of an answer
TOKENS_TO_EXPLAIN = 256  # more, when asked again
TOKENS_TO_THINK = 2048  # more, where thinking cannot be switched off
TOKENS_OF_RULES = 500  # of a request, besides documents, question and subgoal
REFUSALS = 8  # without one reply; then it is asked about something harmless
HARMLESS = "Paris is the capital of France."


@dataclass(frozen=True, slots=True)
class _Card:
    """A document to be judged: its key in the cache, and what the judge sees of it."""

    key: str
    docid: str
    shown: ShownDocument


Keep = Callable[[State, Mapping[_Card, Verdict]], Mapping[_Card, Verdict]]


class LLMChecker:
    """See `DocumentChecker`. `model` is the judge's name, part of every verdict's key; None: the
    one that the server serves, or, where there is no server, served last.

    `batch_size` documents a request, each cut at `max_document_chars` characters. `language` of the
    prompts is en, zh or auto (the question's). It may be called from several threads.
    """

    remembers = True
    concurrent = True  # several questions may be played at once

    def __init__(
        self,
        client: ChatClient,
        cache: VerdictCache,
        *,
        model: str | None = None,
        address: str = "",
        language: str = "auto",
        batch_size: int = 4,
        max_document_chars: int = 2000,
        log: Callable[[str], None] = print,
    ) -> None:
        self.client, self.cache, self.log = client, cache, log
        self.language, self.batch_size = language, batch_size
        self.max_document_chars = max_document_chars
        self.server = JudgeServer(client, cache, model, address, log)
        self._counting = threading.Lock()
        self._looked_up = self._known = 0  # documents since take_metrics
        self._used = (0, 0, 0)  # requests and tokens at take_metrics
        self._asked_for: dict[str, threading.Event] = {}  # key of a document -> the call's end
        self._replies = self._refusals = 0  # of requests with documents

    @property
    def label(self) -> str | None:
        """Who judges, as records name it; None until it is known."""
        model = self.server.model
        return None if model is None else f"llm {model}, prompt {PROMPT_VERSION}"

    @classmethod
    def from_config(cls, config: Any, log: Callable[[str], None] = print) -> LLMChecker:
        """The checker of a RunConfig; nothing is asked or opened yet."""
        settings = config.checker
        path = settings.cache_path or Path(config.output_root) / CACHE_NAME
        return cls(
            ChatClient.from_config(config, log=log),
            VerdictCache(path, log),
            model=config.model.checker_model,
            address=config.model.vllm_base_url,
            language=settings.language,
            batch_size=settings.batch_size,
            max_document_chars=settings.max_document_chars,
            log=log,
        )

    def prepare(self) -> None:
        """See `JudgeServer.prepare`."""
        self.server.prepare()

    def look_at_server(self) -> ServerReport:
        """See `JudgeServer.look`."""
        return self.server.look()

    def check(self, state: State, documents: Sequence[Document]) -> dict[str, Verdict | None]:
        """docid -> verdict, None where the judge gave none that could be read.

        Raises AgentError where the server, or the model, is not there or refuses; every verdict
        that was received until then is in the cache, so that the next call does not ask again.
        """
        cards = self._cards(state, documents)
        verdicts = self.cache.get_many({card.key for card in cards})
        self._count(cards, verdicts)
        missing = {card.key: card for card in cards if card.key not in verdicts}
        while missing:
            mine, awaited = self._claim(missing)
            verdicts |= self._judged(state, mine)
            for finished in awaited.values():
                finished.wait()
            verdicts |= self.cache.get_many(set(awaited))
            missing = {k: missing[k] for k in awaited if k not in verdicts}  # the other call failed
        return {card.docid: verdicts.get(card.key) for card in cards}

    def _claim(
        self, missing: dict[str, _Card]
    ) -> tuple[dict[str, _Card], dict[str, threading.Event]]:
        """Of the documents that the cache lacks, those that this call asks for, and those that
        another thread is asking for at this moment, with the event of its end."""
        with self._counting:
            awaited = {key: self._asked_for[key] for key in missing if key in self._asked_for}
            mine = {key: card for key, card in missing.items() if key not in awaited}
            self._asked_for |= dict.fromkeys(mine, threading.Event())
        return mine, awaited

    def _judged(self, state: State, mine: dict[str, _Card]) -> dict[str, Verdict]:
        """Ask for the documents of this call; whoever waits for them goes on when it ends."""
        if not mine:
            return {}
        try:
            self.cache.refuse_if_read_only()  # before a request is spent
            self.look_at_server()
            found = self._ask(state, list(mine.values()), self._kept)
            return {card.key: verdict for card, verdict in found.items()}
        finally:
            try:
                self.cache.flush()
            finally:
                with self._counting:
                    finished = [self._asked_for.pop(key) for key in mine]
                finished[0].set()

    def judge_anew(self, state: State, documents: Sequence[Document]) -> dict[str, Verdict | None]:
        """As `check`, but past the cache: it is neither read nor written. In the given order."""
        self.look_at_server()  # first: the cache does not tell who judges
        cards = self._cards(state, documents)
        found = self._ask(state, cards, lambda state, found: found)
        return {card.docid: found.get(card) for card in cards}

    def take_metrics(self) -> dict[str, float | None]:
        """`verdict_cache_hit_rate`: the share of the documents looked up since the last call that
        the cache knew; None where none was looked up. And the requests that the server answered
        since then, with the tokens of prompts and replies as it counted them."""
        with self._counting:
            rate = self._known / self._looked_up if self._looked_up else None
            self._looked_up = self._known = 0
            usage, before = self.client.usage, self._used
            self._used = (usage.requests, usage.prompt_tokens, usage.completion_tokens)
            used = (float(now - old) for now, old in zip(self._used, before, strict=True))
        names = ("judge_requests", "judge_prompt_tokens", "judge_completion_tokens")
        return {"verdict_cache_hit_rate": rate, **dict(zip(names, used, strict=True))}

    def close(self) -> None:
        self.client.close()
        self.cache.close()

    # ---- what a verdict depends on

    def _cards(self, state: State, documents: Sequence[Document]) -> list[_Card]:
        language, limit = self._language_of(state), self.max_document_chars
        parts = {
            "model": self.judge_name,
            "prompt": PROMPT_VERSION,
            "language": language,
            "max_document_chars": limit,
            "question": asked_line(state.question),
            "subgoal": asked_line(state.subgoal),
        }
        cards = []
        for document in documents:
            seen = shown(document.title, document.text, language, limit)
            key = verdict_key(**parts, title=seen.title, text=seen.text)
            cards.append(_Card(key, document.docid, seen))
        return cards

    def _language_of(self, state: State) -> str:
        return dominant_language(state.question) if self.language == "auto" else self.language

    @property
    def judge_name(self) -> str:
        """The judge's name, see `JudgeServer.name`."""
        return self.server.name

    # ---- asking

    def _ask(self, state: State, cards: Sequence[_Card], keep: Keep) -> dict[_Card, Verdict]:
        """Verdicts of the documents that the judge labels: asked for in batches, then in smaller
        ones, then alone."""
        found: dict[_Card, Verdict] = {}
        refused: set[_Card] = set()  # even alone
        left = list(cards)
        for attempt, size in enumerate(self._sizes()):
            if left:
                refused |= self._ask_once(state, left, size, attempt, keep, found)
                left = [card for card in left if card not in found and card not in refused]
        if left:
            self.server.say_once(
                f"the judge gave no label that can be read for {len(left)} of {len(cards)} "
                "documents; they stay unjudged (metric: unjudged_share)"
            )
        return found

    def _sizes(self) -> list[int]:
        """Documents a request: at first, again, and at last; a document alone is asked twice."""
        sizes = sorted({self.batch_size, max(1, self.batch_size // 2), 1}, reverse=True)
        return sizes if len(sizes) > 1 else [1, 1]

    def _ask_once(
        self,
        state: State,
        cards: Sequence[_Card],
        size: int,
        attempt: int,
        keep: Keep,
        found: dict[_Card, Verdict],
    ) -> set[_Card]:
        """Send requests for all cards at once, and put what their answers say into `found`; the
        cards that were refused alone."""
        question, subgoal = asked_line(state.question), asked_line(state.subgoal)
        language = self._language_of(state)
        tokens = self._answer_tokens(size, attempt)
        batches = balanced(cards, min(size, self._fitting(cards, question + subgoal, tokens)))
        failures: list[tuple[list[_Card], AgentError]] = []

        def on_reply(index: int, reply: Reply | AgentError) -> None:
            batch = batches[index]
            if isinstance(reply, AgentError):
                failures.append((batch, reply))
                return
            named = dict(zip(ids_of(batch), batch, strict=True))
            labels = parse_verdicts(reply.text, list(named))
            if labels:
                found.update(keep(state, {named[name]: v for name, v in labels.items()}))

        sizes = [len(batch) for batch in batches]
        self.client.chat_each(
            [judge_messages(question, subgoal, [c.shown for c in b], language) for b in batches],
            on_reply,
            max_tokens=tokens,
            temperature=0.0,
            schema=verdict_schema(min(sizes), max(sizes), language),
            shorten=max(sizes) == 1,  # it takes away the middle: of several, whole documents
        )
        self._replies += len(batches) - len(failures)
        return self._refused(failures, language)

    def _refused(
        self, failures: Sequence[tuple[list[_Card], AgentError]], language: str
    ) -> set[_Card]:
        """Of the requests that failed, the documents that were refused alone: they stay unjudged,
        as one does that is too long for the judge. Raises all other failures."""
        refused: set[_Card] = set()
        for batch, failure in failures:
            alone = len(batch) == 1
            if isinstance(failure, ContextLengthError) and alone:
                self.server.say_once(
                    f"the judge: its server refuses {failure.seen}; lower "
                    "checker.max_document_chars, or serve the model with a longer context."
                )
            elif not isinstance(failure, (ContextLengthError, PromptRefusedError)):
                raise failure
            elif isinstance(failure, PromptRefusedError) and alone:
                refused.add(batch[0])
        of_prompts = [(b, f) for b, f in failures if isinstance(f, PromptRefusedError)]
        self._refusals += len(of_prompts)
        if not self._replies and self._refusals >= REFUSALS:
            self._ask_about_something_harmless(language)
        for batch, failure in of_prompts:
            if len(batch) == 1:
                line = f"the judge: {batch[0].docid} stays unjudged: {failure}"
                self.server.say_once(line, kind=batch[0].docid)
        return refused

    def _ask_about_something_harmless(self, language: str) -> None:
        """Raises RefusedError where the server refuses even that: no document is to blame."""
        document = shown("Paris", HARMLESS, language, self.max_document_chars)
        messages = judge_messages("What is the capital of France?", "", [document], language)
        try:
            self.client.chat(messages, max_tokens=TOKENS_AROUND)
        except PromptRefusedError as error:
            raise RefusedError(str(error)) from None
        self._replies += 1

    def _answer_tokens(self, size: int, attempt: int) -> int:
        """The longest answer; later tries leave room for a judge that explains itself."""
        report = self.look_at_server()
        tokens = TOKENS_AROUND + TOKENS_A_DOCUMENT * size + TOKENS_TO_EXPLAIN * (attempt > 0)
        tokens += TOKENS_TO_THINK if report.thinks else 0
        return min(tokens, report.context // 2) if report.context else tokens

    def _fitting(self, cards: Sequence[_Card], asked: str, tokens: int) -> int:
        """How many of the documents surely fit into the model's context; at least 1. A token is
        taken to be 3 bytes of UTF-8: fewer than in English, as many as in Chinese."""
        context = self.look_at_server().context
        if context is None:
            return self.batch_size
        longest = max(len(f"{card.shown.title}{card.shown.text}".encode()) for card in cards)
        room = context - tokens - TOKENS_OF_RULES - len(asked.encode()) // 3
        return max(1, room // (longest // 3 + 16))

    # ---- keeping

    def _kept(self, state: State, found: Mapping[_Card, Verdict]) -> Mapping[_Card, Verdict]:
        """Keep the verdicts of one answer; what the cache then holds, which may be another's."""
        model = self.server.model or ""
        held = self.cache.put_many(
            [Judged(c.key, v, model, state.question_id, c.docid) for c, v in found.items()]
        )
        return {card: held[card.key] for card in found}

    def _count(self, cards: Sequence[_Card], known: Mapping[str, Verdict]) -> None:
        with self._counting:
            self._looked_up += len(cards)
            self._known += sum(card.key in known for card in cards)


def balanced(items: Sequence[Any], size: int) -> list[list[Any]]:
    """Items in as few batches of at most `size` as they need, whose lengths differ by at most 1."""
    count = -(-len(items) // size)
    bounds = [len(items) * number // count for number in range(count + 1)]
    return [list(items[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
