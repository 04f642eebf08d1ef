"""A small library in two languages, and a server that plays three agents at once, sensibly."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from rlkit.agents.llm import ChatClient
from rlkit.library.bm25 import BM25sBackend
from rlkit.library.corpus import Corpus, Document, Question
from rlkit.library.orchestrator import SearchOrchestrator
from rlkit.library.tokenize import Tokenizer
from tests.agents.fault_server import Answer, FaultServer

NUMBERS = range(20)
CORPUS = Corpus(
    [
        *(
            document
            for n in NUMBERS
            for document in (
                Document(f"h{n}", f"Elm{n} Row", f"Elm{n} Row was built by Ada{n} Holt."),
                Document(f"p{n}", f"Ada{n} Holt", f"Ada{n} Holt comes from Trent{n}."),
            )
        ),
        Document("zh1", "《榆树街》", "《榆树街》由何达建造。"),
        Document("zh2", "何达", "何达出生于林城。"),
        *(Document(f"x{n}", f"Row {n}", f"A row of {n} trees.") for n in NUMBERS),
    ]
)
ORCHESTRATOR = SearchOrchestrator(CORPUS, BM25sBackend(CORPUS, 0.9, 0.4, Tokenizer()), top_k=3)
QUESTIONS = [
    Question(
        question_id=f"q{n:02}",
        text=f"Where does the maker of Elm{n} Row come from?",
        answer=f"Trent{n}",
        gold_docids=(f"h{n}", f"p{n}"),
        hops=2,
    )
    for n in NUMBERS
]
CHINESE = Question("zh", "《榆树街》的建造者出生在哪里？", "林城", ("zh1", "zh2"), 2)
RULES = {
    "planner": "Planner|规划者",
    "entities": "EntityManager|实体管理者",
    "checker": "DocumentChecker|审核者",
}


def role_of(body: dict[str, Any]) -> str:
    """Whom a request asks: planner, entities or checker; probe for the client's own questions."""
    system = body["messages"][0]["content"]
    return next((role for role, words in RULES.items() if re.search(words, system)), "probe")


def user_of(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


def good_planner(body: dict[str, Any]) -> Any:
    """Looks for what the question names, then for the maker, then answers."""
    found = user_of(body)
    maker = re.search(r"built by (Ada\d+ Holt)|由(何达)建造", found)
    home = re.search(r"comes from (Trent\d+)|出生于(林城)", found)
    if home:
        return {"strategy": "ANSWER", "subgoal": "", "answer": home[1] or home[2]}
    name = maker or re.search(r"(Elm\d+ Row) come|(《榆树街》)的", found)
    return {"strategy": "SEARCH", "subgoal": f"Find {name[1] or name[2]}", "answer": ""}


def good_entities(body: dict[str, Any]) -> Any:
    """The maker, if a document names one."""
    maker = re.search(r"\[(d\d)\][^\n]*(?:built by (Ada\d+ Holt)|由(何达)建造)", user_of(body))
    if not maker:
        return {"entities": [], "targets": [], "summaries": []}
    row = {"name": maker[2] or maker[3], "type": "person", "attributes": {"built": "a row"}}
    return {"entities": [{**row, "documents": [maker[1]]}], "targets": [], "summaries": []}


def good_checker(body: dict[str, Any]) -> Any:
    """What the subgoal names is IMPORTANT, the rest is DISCARD."""
    text = user_of(body)
    subgoal = re.search(r"(?:Subgoal: |子目标：)Find (.*)", text)[1]
    documents = re.findall(r'<document id="(d\d+)">\n(.*)\n', text)
    chinese = "审核者" in body["messages"][0]["content"]
    words = ("重要", "无关") if chinese else ("IMPORTANT", "DISCARD")
    return {name: words[0] if title == subgoal else words[1] for name, title in documents}


Player = Callable[[dict[str, Any]], Any]
GOOD: dict[str, Player] = {
    "planner": good_planner,
    "entities": good_entities,
    "checker": good_checker,
    "probe": lambda body: "yes",
}


def playing(delays: float = 0.0, seed: int = 0, **players: Player) -> FaultServer:
    """A server whose agents are `GOOD`, unless others are given; a player returns an Answer, a
    text, or what becomes JSON. `delays`: each reply takes up to so many seconds, at random."""
    draw = random.Random(seed)

    def script(body: dict[str, Any], n: int) -> Answer:
        reply = {**GOOD, **players}[role_of(body)](body)
        if isinstance(reply, Answer):
            return reply
        text = reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False)
        return Answer(text, delay=draw.uniform(0.0, delays))

    return FaultServer(script)


def client_of(server: FaultServer, **limits: Any) -> ChatClient:
    """A client that gives up soon, and says nothing."""
    limits = {"timeout": 5.0, "max_retries": 1, "patience": 0.0, "log": lambda _: None, **limits}
    return ChatClient(server.url, "toy", **limits)
