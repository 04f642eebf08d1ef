"""The Executor's prompt: a state as chat messages, in three layouts, in English and Chinese.

Rules first (system), then what was found, the question last (user). Only the question, the
subgoal, the tables and their texts are shown, never gold or what was recorded. Documents are
untrusted: nothing in them can end a turn of the chat or look like one of our tags."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rlkit.agents.prompt_words import LABELS, RULES
from rlkit.config import load_object
from rlkit.errors import ConfigError
from rlkit.library.tokenize import dominant_language
from rlkit.rounds.state import State
from rlkit.rounds.tables import fitted, one_line, render_tables

Messages = list[dict[str, str]]
CountTokens = Callable[[str], int]

TEMPLATE_TOKENS = 24  # what a chat template adds around two messages
_MARKER = re.compile(r"<(?=[｜▁])|\[(?=/?(?:INST|SYSTEM_PROMPT|gMASK|sMASK|AVAILABLE_TOOLS)\])")
_WHOLE, _SUMMARY, _TITLE, _GONE = range(4)  # how much of a document is shown


def build_messages(
    state: State, executor_config: Any, search_config: Any, count_tokens: CountTokens
) -> Messages:
    """The prompt of a state: [{role, content}, ...].

    `executor_config` has layout, language, max_prompt_tokens and prompt, `search_config` has
    max_clues. The oldest texts are shortened, then left out, until messages and chat template fit
    into `max_prompt_tokens` as counted by `count_tokens`; the prompt then says so. Rules and
    question are never cut, except a question that is longer than `max_prompt_tokens` by itself:
    it is cut with a mark. With `prompt`, the user's own function makes the messages. Raises
    ConfigError where that function returns something else.
    """
    if executor_config.prompt:
        return _own_prompt(state, executor_config, search_config, count_tokens)
    language = executor_config.language
    if language == "auto":
        language = dominant_language(state.question)
    rules = RULES[executor_config.layout, language].replace("{n}", str(search_config.max_clues))
    limit = executor_config.max_prompt_tokens
    ask = _ask(state, LABELS[language], count_tokens, limit)
    budget = limit - TEMPLATE_TOKENS - count_tokens(rules) - count_tokens(ask)
    if executor_config.layout == "bare":
        found = _found(state, LABELS[language], count_tokens, budget)
    else:
        found, _ = render_tables(state, language, lambda text: count_tokens(safe(text)), budget)
    return [
        {"role": "system", "content": rules},
        {"role": "user", "content": f"{safe(found)}\n{ask}"},
    ]


def safe(text: str) -> str:
    """Text without markers of chat templates that do not begin with `<` and a letter or `|`;
    those that do are taken care of by `one_line`."""
    return _MARKER.sub(lambda marker: "‹" if marker[0] == "<" else "［", text)


def shown_text(state: State) -> str:
    """All that a prompt may show of a state, as one text; what a clue can be grounded in."""
    tables, _ = render_tables(state)
    return f"{tables}\n{state.subgoal}\n{state.question}"


def _ask(state: State, labels: Mapping[str, str], count_tokens: CountTokens, limit: int) -> str:
    """Subgoal (where it is not the question itself) and question, each on a line."""
    question, subgoal = safe(one_line(state.question)), safe(one_line(state.subgoal))
    says_more = subgoal not in ("", question) and count_tokens(subgoal) <= limit // 2
    if count_tokens(question) > limit:
        fits = bisect_left(
            range(1, len(question)),
            True,
            key=lambda length: count_tokens(question[:length] + labels["cut"]) > limit,
        )
        question = question[:fits].rstrip() + labels["cut"]
    if not says_more:
        return labels["question"] + question
    return f"{labels['subgoal']}{subgoal}\n{labels['question']}{question}"


@dataclass(frozen=True, slots=True)
class _Found:
    """A document as the bare layout shows it."""

    title: str
    text: str
    summary: str
    important: bool
    round: int

    def line(self, level: int) -> str:
        text = {_WHOLE: self.text or self.summary, _SUMMARY: self.summary}.get(level, "")
        return f"- {self.title}: {text}" if text else f"- {self.title}"


def _found(state: State, labels: Mapping[str, str], count_tokens: CountTokens, budget: int) -> str:
    """The documents found, important ones first, oldest first, within the budget."""
    documents = _documents(state)
    cuts = _cuts(documents)
    return fitted(lambda cuts: _render(documents, cuts, labels), cuts, count_tokens, budget)[0]


def _documents(state: State) -> list[_Found]:
    """Documents of both tables that were not discarded, oldest first."""
    texts = {row.docid: one_line(row.text) for row in state.context_table}
    found = [
        _Found(
            one_line(row.title or row.docid),
            texts.get(row.docid, ""),
            one_line(row.summary),
            row.verdict == "IMPORTANT",
            row.round,
        )
        for row in state.document_table
        if row.verdict != "DISCARD"
    ]
    known = {row.docid for row in state.document_table}
    found += [
        _Found(one_line(row.docid), texts[row.docid], "", False, row.round)
        for row in state.context_table
        if row.docid not in known
    ]
    return sorted(found, key=lambda document: document.round)


def _cuts(documents: Sequence[_Found]) -> list[tuple[int, int]]:
    """(index, level) of all that can be cut, in order: less relevant and older texts first."""
    order = sorted(range(len(documents)), key=lambda i: (documents[i].important, i))
    return [(i, level) for level in (_SUMMARY, _TITLE, _GONE) for i in order]


def _render(
    documents: Sequence[_Found], cuts: Sequence[tuple[int, int]], labels: Mapping[str, str]
) -> str:
    levels = dict(cuts)  # the last cut of a document holds
    parts = [labels["shortened"]] if cuts else []
    for important, heading in ((True, "important"), (False, "related")):
        lines = [
            document.line(levels.get(index, _WHOLE))
            for index, document in enumerate(documents)
            if document.important == important and levels.get(index) != _GONE
        ]
        parts += [labels[heading], *lines] if lines else []
    return "\n".join(parts) if documents else labels["nothing"]


def _own_prompt(
    state: State, executor_config: Any, search_config: Any, count_tokens: CountTokens
) -> Messages:
    config = SimpleNamespace(executor=executor_config, search=search_config)
    messages = load_object(executor_config.prompt)(state, config, count_tokens)
    is_chat = isinstance(messages, list) and all(
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in messages
    )
    if not is_chat or not messages:
        raise ConfigError(
            f"executor.prompt {executor_config.prompt} returned {str(messages)[:80]!r}; it must "
            "return a list of {'role': ..., 'content': ...} with at least one message."
        )
    return [dict(message) for message in messages]
