"""The Executor: the agent that writes clues. A `Policy` is whatever takes its place; the three here
need no model: the raw question, a script that uses what the state shows, and the oracle."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from rlkit.agents.clues import (
    MAX_CLUE_CHARS,
    MAX_CLUE_WORDS,
    clean_clue,
    distinct_clues,
    format_clues,
)
from rlkit.agents.names import names_in
from rlkit.agents.prompt import CountTokens
from rlkit.config import named_object
from rlkit.errors import ConfigError
from rlkit.library.corpus import Corpus
from rlkit.library.tokenize import Tokenizer, dominant_language, folded
from rlkit.rounds.state import State

_SENTENCE_END = re.compile(r"(?<=[.!?;。！？；])\s+|(?<=[。！？；])")
_QUALIFIER = re.compile(r" ?\([^()]{1,40}\)")
_STEM = 5  # letters: enough for directed / director, born / birthplace stay apart
_FROM_STATE = {"question": 3.0, "subgoal": 3.0, "IMPORTANT": 1.5, "LOCAL": 0.0}


@runtime_checkable
class Policy(Protocol):
    """Writes one action for a state, as text that `parse_clues_from_output` can read.

    Optional: `write_batch(states) -> list[str]`, and an attribute `deep`; a deep policy is
    evaluated so deep in its rankings that `max_documents` new documents can be read.
    """

    def write(self, state: State) -> str:
        """The completion for one state."""
        ...


class RawQuestionPolicy:
    """The question as its own and only clue; a question beyond 64 words is cut there."""

    deep = True

    def __init__(self, layout: str = "bare") -> None:
        self.layout = layout

    def write(self, state: State) -> str:
        """See Policy."""
        return format_clues([fit_clue(state.question)], self.layout)


class OraclePolicy:
    """The titles of the known documents that are still missing: an upper bound, no competitor.

    Where more are missing than clues are allowed, the first ones in the order of the gold; where
    none is missing, the question.
    """

    def __init__(self, corpus: Corpus, max_clues: int = 4, layout: str = "bare") -> None:
        self.corpus, self.max_clues, self.layout = corpus, max_clues, layout

    def write(self, state: State) -> str:
        """See Policy."""
        order = [*state.gold_docids, *sorted(state.known_important.difference(state.gold_docids))]
        wanted = [self.corpus.get(docid) for docid in order if docid in state.missing]
        titles = [fit_clue(document.title or document.text) for document in wanted if document]
        clues = distinct_clues(titles, self.max_clues) or [fit_clue(state.question)]
        return format_clues(clues, self.layout)


class ScriptedPolicy:
    """Searches for the names that the state shows and that were not found yet.

    Names of the question and of the subgoal come first, then those of IMPORTANT documents, the
    newest first and those in sentences that share words with the question. How many clues are
    written, and some of their order, varies by state id and seed, so that records differ; the
    same state and seed give the same clues everywhere. `steady`: nothing varies, as many clues as
    are allowed, the most promising first.
    """

    def __init__(
        self, max_clues: int = 4, seed: int = 7, layout: str = "bare", steady: bool = False
    ) -> None:
        self.max_clues, self.seed, self.layout, self.steady = max_clues, seed, layout, steady

    def write(self, state: State) -> str:
        """See Policy."""
        draw = random.Random(f"{self.seed}/{state.state_id}")
        noise = 0.0 if self.steady else 1.5
        ranked = sorted(
            ((value + noise * draw.random(), name) for name, value in _open_names(state).items()),
            reverse=True,
        )
        fewest = self.max_clues if self.steady else min(2, self.max_clues)
        wanted = draw.randint(fewest, self.max_clues)
        clues = distinct_clues([name for _, name in ranked], wanted)
        if len(clues) < min(2, self.max_clues):
            spare = [state.question, state.subgoal, _content_words(state.question)]
            clues = distinct_clues([*clues, *map(fit_clue, spare)], min(2, self.max_clues))
        return format_clues(clues, self.layout)


class QuestionFirst:
    """Another policy that begins with the question: as long as nothing was found its only clue is
    the question, and later rounds are the policy's own. For policies that learnt from states which
    show what the question found (`data.first_round` 2). All else is the other policy's."""

    def __init__(self, policy: Policy, layout: str = "bare") -> None:
        self.policy, self.first = policy, RawQuestionPolicy(layout)
        if hasattr(policy, "write_batch"):
            self.write_batch = self._write_batch

    def __getattr__(self, name: str) -> Any:
        if name == "policy":  # while it is copied or unpickled there is none yet
            raise AttributeError(name)
        return getattr(self.policy, name)

    def write(self, state: State) -> str:
        """See Policy."""
        return (self.policy if state.seen_docids else self.first).write(state)

    def _write_batch(self, states: Sequence[State]) -> list[str]:
        later = [state for state in states if state.seen_docids]
        written = iter(self.policy.write_batch(later) if later else ())
        return [next(written) if s.seen_docids else self.first.write(s) for s in states]


def build_policy(
    name: str, config: Any, corpus: Corpus, count_tokens: CountTokens | None = None
) -> Policy:
    """The policy that `data.collectors` or `evaluation.policies` names: raw_question, scripted,
    oracle, served, or `module:object`, a callable (config, corpus) -> Policy.

    `count_tokens` measures the prompts of `served`. Raises ConfigError for another name, or where
    the object makes no Policy; AgentError where the server of `served` is not there.
    """
    max_clues, layout = config.search.max_clues, config.executor.layout
    built_in = {
        "raw_question": lambda config, corpus: RawQuestionPolicy(layout),
        "scripted": lambda config, corpus: ScriptedPolicy(max_clues, config.seed, layout),
        "oracle": lambda config, corpus: OraclePolicy(corpus, max_clues, layout),
        "served": lambda config, corpus: _served(config, count_tokens),
    }
    policy = named_object(name, built_in, "the name of a policy without a model")(config, corpus)
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"{name} made a {type(policy).__name__}, which has no write(state) -> str; see the "
            "protocol rlkit.agents.executor.Policy."
        )
    return policy


def _served(config: Any, count_tokens: CountTokens | None) -> Policy:
    from rlkit.agents.served import served_policy  # openai takes a second to load

    return served_policy(config, count_tokens)


def fit_clue(text: str) -> str:
    """Text cut at a word so that it fits into one clue; empty if nothing in it is searchable."""
    text = " ".join(text.split()[:MAX_CLUE_WORDS])
    if len(text) > MAX_CLUE_CHARS:
        cut = text[:MAX_CLUE_CHARS]
        text = cut[: cut.rfind(" ")] if " " in cut else cut
    return clean_clue(text) or clean_clue(text[: 2 * MAX_CLUE_WORDS])


def _open_names(state: State) -> dict[str, float]:
    """Names that the state shows and no found document bears, each with how promising it is."""
    found = {key for row in state.document_table for key in _title_keys(row.title)}
    asked = _stems(state.question)
    values: dict[str, float] = {}
    spelling: dict[str, str] = {}
    for source, age, text in _shown_texts(state):
        for sentence in _SENTENCE_END.split(text):
            shared = len(asked & _stems(sentence)) if source in ("IMPORTANT", "LOCAL") else 0
            value = _FROM_STATE[source] + min(shared, 4) - 0.5 * age
            for name in _qualified_names(sentence):
                key = _key(name)
                if key not in found:
                    spelling.setdefault(key, name)
                    values[key] = max(value, values.get(key, value))
    return {spelling[key]: value for key, value in values.items()}


def _shown_texts(state: State) -> Iterator[tuple[str, int, str]]:
    """(source, age in rounds, text) of all that the state shows."""
    yield "question", 0, state.question
    if state.subgoal != state.question:
        yield "subgoal", 0, state.subgoal
    contexts = {row.docid: row.text for row in state.context_table}
    for row in state.document_table:
        if row.verdict in ("IMPORTANT", "LOCAL"):
            age = max(0, state.round - 1 - row.round)
            yield row.verdict, age, contexts.get(row.docid) or row.summary


def _qualified_names(sentence: str) -> list[str]:
    """Names, each with a qualifier in brackets if one follows (`Solaris (novel)`), but not those
    that are part of another one."""
    names = []
    for name in names_in(sentence):
        qualifier = _QUALIFIER.match(sentence, sentence.find(name) + len(name))
        names.append(name + qualifier[0] if qualifier and name in sentence else name)
    return [name for name in names if not any(name in other != name for other in names)]


def _title_keys(title: str) -> tuple[str, str]:
    """A title, and the same without a qualifier in brackets, as `_key`s."""
    return _key(title), _key(_QUALIFIER.sub("", title))


def _key(name: str) -> str:
    """A folded name without the article, which a sentence may have swallowed."""
    return folded(name).removeprefix("the ")


def _stems(text: str) -> set[str]:
    return {word[:_STEM] for word in Tokenizer()(text) if len(word) > 2}


def _content_words(text: str) -> str:
    """The words that BM25 sees; Chinese has no such form (its words are pairs of characters)."""
    return " ".join(dict.fromkeys(Tokenizer()(text))) if dominant_language(text) == "en" else ""
