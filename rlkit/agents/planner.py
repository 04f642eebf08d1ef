"""The Planner: decides whether to search on, and for what. `RulePlanner` looks only at what the
rounds have shown so far, never at gold; the live one, a model behind a server, is in
`live_planner.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rlkit.config import named_object
from rlkit.errors import ConfigError
from rlkit.library.corpus import Corpus
from rlkit.library.tokenize import dominant_language
from rlkit.rounds.state import ANSWER, SEARCH, EntityRow, RoundFile

if TYPE_CHECKING:
    from rlkit.agents.llm import ChatClient


class Plan(NamedTuple):
    """What to do next: a strategy (`SEARCH` goes on, anything else ends) and a subgoal; with
    `ANSWER` the answer to the question, where the planner gives one."""

    strategy: str
    subgoal: str
    answer: str | None = None


class Planner(Protocol):
    """`history` holds the state before the first round and after each round since, but none that
    failed. Optional: `answer(question, history) -> str | None`, asked once the rounds are used up.
    """

    def plan(self, question: str, history: Sequence[RoundFile]) -> Plan:
        """The plan of the next round."""
        ...


SUBGOALS = {
    "en": "Find what is still missing about {name}",
    "zh": "查明关于{name}还缺少的信息",
}


class RulePlanner:
    """First the question itself; then, round by round, the newest name that turned up in a
    document found IMPORTANT and that was not asked about yet. Ends after a round that brought
    nothing new."""

    def plan(self, question: str, history: Sequence[RoundFile]) -> Plan:
        """SEARCH with a subgoal in the question's language, or ANSWER with none."""
        now = history[-1]
        if len(history) > 1 and len(set(now.seen_docids)) == len(set(history[-2].seen_docids)):
            return Plan(ANSWER, "")
        name = _newest_open_name(question, now) if len(history) > 1 else None
        if name is None:
            return Plan(SEARCH, question)
        return Plan(SEARCH, SUBGOALS[dominant_language(question)].format(name=name))


def build_planner(config: Any, corpus: Corpus, client: ChatClient | None = None) -> Planner:
    """The planner that `data.planner` names: rules, llm (which asks `client`, by default one of
    its own), or `module:object`, a callable (config, corpus) -> Planner.

    Raises ConfigError for another name, or where the object makes no Planner.
    """
    name = config.data.planner
    built_in = {
        "rules": lambda config, corpus: RulePlanner(),
        "llm": lambda config, corpus: _live_planner(config, client),
    }
    planner = named_object(name, built_in, "data.planner")(config, corpus)
    if not hasattr(planner, "plan"):
        raise ConfigError(
            f"data.planner {name} made a {type(planner).__name__}, which has no "
            "plan(question, history); see the protocol rlkit.agents.planner.Planner."
        )
    return planner


def _live_planner(config: Any, client: ChatClient | None) -> Planner:
    from rlkit.agents.live_planner import LLMPlanner  # brings the openai client along
    from rlkit.agents.llm import ChatClient

    return LLMPlanner(
        client or ChatClient.from_config(config),
        max_rounds=config.data.max_rounds,
        max_prompt_tokens=config.data.agent_prompt_tokens,
        language=config.checker.language,
    )


def _newest_open_name(question: str, now: RoundFile) -> str | None:
    """The first name of the newest important documents that is neither in the question, nor
    the title of a found document, nor part of a subgoal so far; names of two words or more
    first."""
    rounds = {row.docid: row.round for row in now.document_table if row.verdict == "IMPORTANT"}
    taken = " ".join([question, *(row.description for row in now.target_table)]).casefold()
    titles = {row.title.casefold() for row in now.document_table}
    best: tuple[int, bool] = (-1, False)
    name = None
    for row in now.entity_table:
        if row.name.casefold() in taken or row.name.casefold() in titles:
            continue
        rank = (_first_round(row, rounds), _is_specific(row.name))
        if rank[0] >= 0 and rank > best:
            best, name = rank, row.name
    return name


def _first_round(row: EntityRow, rounds: dict[str, int]) -> int:
    """The round that brought the first important document with this name; -1 if none did."""
    return min((rounds[docid] for docid in row.docids if docid in rounds), default=-1)


def _is_specific(name: str) -> bool:
    return " " in name or not name.isascii()
