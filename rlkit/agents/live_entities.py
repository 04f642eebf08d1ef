"""The EntityManager as a language model behind a server: `data.entities: llm`.

The rules of `RuleEntityManager` decide which documents enter the tables; the model adds names with
their attributes, says what became of the targets, and sums up documents (`entity_updates.py`).
Where two replies hold no list of rows at all, the rules' tables stand in, and the round's file says
so (`tables_by_rules`); a server that does not answer is an AgentError, so that the round fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlkit.agents.entities import EntityManager, ReadDocument, RuleEntityManager, Tables, shorten
from rlkit.agents.entity_updates import merged, read_update, update_schema
from rlkit.agents.live_agent import LiveAgent, Unreadable
from rlkit.agents.live_prompts import (
    ENTITY_RULES,
    ENTITY_WORDS,
    about_tokens,
    rows_that_fit,
)
from rlkit.agents.llm import ChatClient
from rlkit.agents.planner import Plan
from rlkit.agents.prompt import Messages, safe
from rlkit.rounds.state import RoundFile
from rlkit.rounds.tables import one_line

MAX_TOKENS = 1024  # of a reply; of one that is cut off the complete rows count


class LLMEntityManager(LiveAgent):
    """An EntityManager that a server's model plays; one request a round that found something
    useful, two where the first reply cannot be read.

    `max_document_chars` of each document are shown, and of the targets and names known what fits,
    the documents apart, into about `max_prompt_tokens`; the prompt says how many are left out.
    `rules` make the tables that the model's rows are put into.
    """

    def __init__(
        self,
        client: ChatClient,
        *,
        max_document_chars: int = 2000,
        max_prompt_tokens: int = 2048,
        language: str = "auto",
        rules: EntityManager | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        super().__init__(client, language, log)
        self.max_document_chars, self.max_prompt_tokens = max_document_chars, max_prompt_tokens
        self.rules = rules or RuleEntityManager()

    def begin(self, question: str) -> Tables:
        """What the rules begin with: the question's names, and the question as the first target."""
        return self.rules.begin(question)

    def update(self, before: RoundFile, plan: Plan, read: Sequence[ReadDocument]) -> Tables:
        """The rules' tables with the model's rows in them. Documents that are neither IMPORTANT
        nor LOCAL, unjudged ones among them, are not shown. Raises AgentError where the server
        gives no reply."""
        tables = self.rules.update(before, plan, read)
        kept = [item for item in read if item.verdict in ("IMPORTANT", "LOCAL")]
        if not kept:
            return tables
        # the first target is the question, see RuleEntityManager.begin
        question = before.target_table[0].description if before.target_table else plan.subgoal
        language = self.language_of(question)
        ids = {f"d{number}": item for number, item in enumerate(kept, start=1)}
        messages = self._messages(question, before, plan, ids, language)
        try:
            update = self.ask_until_read(
                messages, read_update, language, MAX_TOKENS, update_schema(len(kept))
            )
        except Unreadable:
            return tables._replace(by_rules=True)
        return merged(before, tables, ids, update)

    def _messages(
        self,
        question: str,
        before: RoundFile,
        plan: Plan,
        ids: Mapping[str, ReadDocument],
        language: str,
    ) -> Messages:
        """Rules, then targets and names, then the documents, what is asked last."""
        words, rules = ENTITY_WORDS[language], ENTITY_RULES[language]
        ask = [words["subgoal"] + one_line(plan.subgoal), words["question"] + one_line(question)]
        heads = [words[name] for name in ("targets", "entities", "documents")]
        used = sum(map(about_tokens, [rules, *heads, *ask]))
        budget = max(self.max_prompt_tokens - used, 0)
        targets = _targets(before, words, budget // 2)
        names = [one_line(row.name) for row in before.entity_table]
        names = rows_that_fit(
            names, budget - sum(map(about_tokens, targets)), words["entities left out"]
        )
        lines = [*targets, words["entities"] + "; ".join(names), words["documents"]]
        for short, (document, verdict) in ids.items():
            text = shorten(one_line(document.text), self.max_document_chars)
            lines.append(f"[{short}] ({verdict}) {one_line(document.title)}: {text}")
        return [
            {"role": "system", "content": rules},
            {"role": "user", "content": safe("\n".join([*lines, *ask]))},
        ]


def _targets(before: RoundFile, words: Mapping[str, str], budget: int) -> list[str]:
    """A line for each target; where not all fit, the question itself and open ones stay first."""
    lines = []
    for row in before.target_table:
        status = words.get(row.status, one_line(row.status))
        value = f" = {one_line(row.value)}" if row.value else ""
        lines.append(f"- {one_line(row.id)} [{status}] {one_line(row.description)}{value}")
    is_open = [row.status == "open" for row in before.target_table]
    left_out = words["targets left out"]
    kept = rows_that_fit(lines, budget, left_out, lambda i: (i == 0, is_open[i], i))
    return [words["targets"], *kept]
