"""The Planner as a language model behind a server: `data.planner: llm`.

A reply is untrusted: what cannot be read as a plan is asked for once more, and then the planner
has failed (AgentError). Nothing is guessed: an unknown strategy is no SEARCH, and an empty answer
is no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlkit.agents.live_agent import LiveAgent, Unreadable
from rlkit.agents.live_prompts import (
    PLANNER_RULES,
    PLANNER_WORDS,
    WHY,
    about_tokens,
    rows_that_fit,
)
from rlkit.agents.llm import ChatClient
from rlkit.agents.planner import Plan
from rlkit.agents.prompt import Messages, safe
from rlkit.agents.replies import json_values
from rlkit.errors import AgentError
from rlkit.library.tokenize import folded
from rlkit.rounds.state import ANSWER, SEARCH, RoundFile, make_state
from rlkit.rounds.tables import one_line, render_tables

MAX_SUBGOAL = 500  # characters
MAX_ANSWER = 500
MAX_SCHEMA_TEXT = 300  # characters that a schema allows, so that no model goes on for ever
MAX_TOKENS = 384  # of a reply


class LLMPlanner(LiveAgent):
    """A Planner that a server's model plays; one request a plan, two where the first reply cannot
    be read.

    `max_rounds` is what the model is told. Rounds and tables are shown as far as they fit into
    about `max_prompt_tokens`, the oldest ones going first; the prompt says how many are left out.
    """

    def __init__(
        self,
        client: ChatClient,
        *,
        max_rounds: int = 3,
        max_prompt_tokens: int = 2048,
        language: str = "auto",
        log: Callable[[str], None] = print,
    ) -> None:
        super().__init__(client, language, log)
        self.max_rounds, self.max_prompt_tokens = max_rounds, max_prompt_tokens

    def plan(self, question: str, history: Sequence[RoundFile]) -> Plan:
        """SEARCH with a subgoal, or ANSWER with the answer.

        Raises AgentError where the server gives no reply, or two that cannot be read.
        """
        return self._ask(question, history, max(1, self.max_rounds - len(history) + 1))

    def answer(self, question: str, history: Sequence[RoundFile]) -> str | None:
        """The answer, once no rounds are left. Raises AgentError as `plan` does."""
        return self._ask(question, history, 0).answer

    def _ask(self, question: str, history: Sequence[RoundFile], left: int) -> Plan:
        language = self.language_of(question)
        messages = self._messages(question, history, left, language)

        def read(text: str) -> Plan:
            return read_plan(text, may_search=left > 0)

        schema = plan_schema(may_search=left > 0)
        try:
            return self.ask_until_read(messages, read, language, MAX_TOKENS, schema)
        except Unreadable as error:
            raise AgentError(
                f"the planner's model {self.client.model} was asked twice, and its reply cannot be "
                f"used: {WHY['en'][error.why]}; it began {str(error)!r}."
            ) from error

    def _messages(
        self, question: str, history: Sequence[RoundFile], left: int, language: str
    ) -> Messages:
        """Rules, then what was found, then the rounds, the question last."""
        words = PLANNER_WORDS[language]
        rules = PLANNER_RULES[language]
        ask = "\n".join(
            [
                words["left"].format(left=left) if left > 0 else words["over"],
                words["question"] + one_line(question),
            ]
        )
        budget = max(self.max_prompt_tokens - about_tokens(rules) - about_tokens(ask), 0)
        rounds = "\n".join(_rounds(history, words, budget // 2))
        budget -= about_tokens(rounds)
        state = make_state(
            history[-1], question_id="", question=question, run="", strategy="", subgoal=""
        )
        found, _ = render_tables(state, language, about_tokens, max(budget, 0))
        return [
            {"role": "system", "content": rules},
            {"role": "user", "content": safe(f"{found}\n{rounds}\n{ask}")},
        ]


def plan_schema(may_search: bool = True) -> dict[str, Any]:
    """The JSON schema of a plan, for servers that enforce one."""
    text = {"type": "string", "maxLength": MAX_SCHEMA_TEXT}
    strategies = [SEARCH, ANSWER] if may_search else [ANSWER]
    return {
        "type": "object",
        "properties": {
            "strategy": {"type": "string", "enum": strategies},
            "subgoal": text,
            "answer": text,
        },
        "required": ["strategy", "subgoal", "answer"],
        "additionalProperties": False,
    }


def read_plan(text: str, may_search: bool = True) -> Plan:
    """The plan in a reply: the first JSON object with a strategy. Subgoal and answer become one
    line without control signs. Raises Unreadable."""
    found = (v for v in json_values(text) if isinstance(v, dict) and "strategy" in v)
    given: dict[str, Any] | None = next(found, None)
    if given is None:
        raise Unreadable("json")
    strategy = folded(given["strategy"]).upper() if isinstance(given["strategy"], str) else ""
    if strategy == ANSWER:
        return Plan(ANSWER, "", _text(given.get("answer"), "answer", MAX_ANSWER))
    if strategy != SEARCH:
        raise Unreadable("strategy")
    if not may_search:
        raise Unreadable("search over")
    return Plan(SEARCH, _text(given.get("subgoal"), "subgoal", MAX_SUBGOAL))


def _text(value: Any, name: str, longest: int) -> str:
    """A text of the reply as one line. Raises Unreadable where there is none, or too much."""
    text = one_line(value) if isinstance(value, str) else ""
    if not any(sign.isalnum() for sign in text):
        raise Unreadable(name)
    if len(text) > longest:
        raise Unreadable(f"long {name}")
    return text


def _rounds(history: Sequence[RoundFile], words: dict[str, str], budget: int) -> list[str]:
    """One line a round: its subgoal, its clues, and how many new documents of each kind; the
    newest ones that fit into `budget` tokens."""
    if len(history) == 1:
        return [words["none"]]
    lines = []
    for number, (before, after) in enumerate(zip(history, history[1:], strict=False), start=1):
        verdicts = [r.verdict for r in after.results if r.docid not in before.seen_docids]
        important, local = verdicts.count("IMPORTANT"), verdicts.count("LOCAL")
        lines.append(
            words["round"].format(
                number=number,
                subgoal=one_line(after.subgoal),
                clues="; ".join(map(one_line, after.clues)),
                important=important,
                local=local,
                rest=len(verdicts) - important - local,
            )
        )
    return [words["rounds"], *rows_that_fit(lines, budget, words["left out"])]
