"""How noisy the judge is, and how right: `python -m rlkit check-judge --params F`.

A sample of documents, found for dev states by the raw question, is labelled three times past the
cache: as it comes, the same again, and with the documents of every state in reverse order. Whoever
trains on a live judge should know this before: the reward is made of its labels.

Intervals take documents to be independent, which those of one question are only nearly."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlkit.agents.checker import DocumentChecker, GoldChecker, build_checker
from rlkit.agents.executor import fit_clue
from rlkit.errors import ConfigError, DataError
from rlkit.files import plain, write_json
from rlkit.library.bm25 import build_backend
from rlkit.library.corpus import Document, Library
from rlkit.library.orchestrator import SearchOrchestrator
from rlkit.practice.collect_run import close
from rlkit.practice.source import chosen_questions, load_library, rounds_folder
from rlkit.practice.splits import NAME as SPLITS
from rlkit.practice.splits import kept_splits, new_splits, usable_states
from rlkit.results.agreement import Share, cohens_kappa, confusion, share_of
from rlkit.results.judge_replies import Overheard
from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.rounds.state import VERDICTS, RoundFile, State, make_state

FILE = "judge_check.json"
PASSES = ("first", "again", "reversed")
UNJUDGED = "unjudged"
_THREADS = 8  # states that are judged at once

Row = dict[str, Any]  # state_id, question_id, docid, gold, and a verdict for each of PASSES
Sample = list[tuple[State, list[Document]]]


@dataclass(frozen=True)
class JudgeCheck:
    """One row a sampled document. `values` are the rewards of a new document by its verdict, and
    `documents_read` is how many of them an action reads at most; `unread` are a few replies that
    lack a verdict that was asked for."""

    rows: tuple[Row, ...]
    judge: str
    source: str
    values: dict[str, float]
    documents_read: int
    facts: dict[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    def pairs(self, a: str, b: str) -> list[tuple[str, str]]:
        """(verdict in a, verdict in b) of the documents that both judge."""
        found = [(row[a], row[b]) for row in self.rows]
        return [(one, other) for one, other in found if one is not None and other is not None]

    def agreement(self, a: str, b: str) -> Share:
        pairs = self.pairs(a, b)
        return share_of(sum(one == other for one, other in pairs), len(pairs))

    def flips(self, b: str) -> dict[str, int]:
        """`IMPORTANT / LOCAL` -> documents whose verdict differs in that way from the first one,
        in either direction."""
        found: dict[str, int] = {}
        for one, other in self.pairs("first", b):
            if one != other:
                name = " / ".join(sorted((one, other), key=VERDICTS.index))
                found[name] = found.get(name, 0) + 1
        return found

    @property
    def judged(self) -> bool:
        """Whether there is any label that could be read."""
        return any(row[name] is not None for row in self.rows for name in PASSES)

    @property
    def unjudged(self) -> Share:
        """Of all labels that were asked for."""
        missing = sum(row[name] is None for row in self.rows for name in PASSES)
        return share_of(missing, len(self.rows) * len(PASSES))

    @property
    def against_gold(self) -> dict[str, dict[str, int]] | None:
        """gold label -> the judge's first label -> documents; None where no gold is known."""
        pairs = [(r["gold"], r["first"] or UNJUDGED) for r in self.rows if r["gold"] is not None]
        return confusion(pairs, VERDICTS, (*VERDICTS, UNJUDGED)) if pairs else None

    def reward_noise(self) -> float | None:
        """By how much two judgings of one action's new documents differ in reward: root mean
        square, taking documents to flip independently. None where nothing was judged twice."""
        pairs = self.pairs("first", "again") + self.pairs("first", "reversed")
        if not pairs:
            return None
        squares = [(self.values[one] - self.values[other]) ** 2 for one, other in pairs]
        return math.sqrt(self.documents_read * sum(squares) / len(squares))

    def reward_bias(self) -> float | None:
        """The reward of a new document by the judge minus by gold, averaged; None without gold."""
        differences = self._from_gold()
        return sum(differences) / len(differences) if differences else None

    def reward_error(self) -> float | None:
        """By how much an action's new documents are rewarded otherwise than by gold: root mean
        square, taking documents to be wrong independently, around the bias. None without gold."""
        differences, bias, read = self._from_gold(), self.reward_bias(), self.documents_read
        if bias is None:
            return None
        variance = sum((d - bias) ** 2 for d in differences) / len(differences)
        return math.sqrt(read * variance + (read * bias) ** 2)

    def _from_gold(self) -> list[float]:
        pairs = self.pairs("first", "gold")
        return [self.values[judge] - self.values[gold] for judge, gold in pairs]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what `judge_text` shows, and the rows."""
        return {
            "schema": 1,
            "judge": self.judge,
            "source": self.source,
            **self.facts,
            "documents": len(self.rows),
            "passes": {
                name: {
                    "agreement": self.agreement("first", name)._asdict(),
                    "kappa": cohens_kappa(self.pairs("first", name)),
                    "flips": self.flips(name),
                }
                for name in PASSES[1:]
            },
            "unjudged": self.unjudged._asdict(),
            "unread": list(self.unread),
            "gold": self.against_gold
            and {
                "confusion": self.against_gold,
                "agreement": self.agreement("first", "gold")._asdict(),
                "kappa": cohens_kappa(self.pairs("first", "gold")),
                "reward_bias": self.reward_bias(),
                "reward_error": self.reward_error(),
            },
            "reward_noise": self.reward_noise(),
            "rows": list(self.rows),
        }


def check_judge(
    config: Any, samples: int = 50, log: Callable[[str], None] = print
) -> tuple[JudgeCheck, Path]:
    """Label about `samples` documents three times; the check, and the file that keeps it: in the
    run's folder, or beside the runs where there is no run yet.

    Raises ConfigError where `checker.kind` is gold, DataError where nothing is found to be judged.
    """
    if samples < 1:
        raise ConfigError(f"--samples is {samples}; it must be at least 1.")
    if config.checker.kind == "gold":
        raise ConfigError(
            "checker.kind is gold, which labels by rules and has no noise; set checker.kind to llm "
            "(and model.vllm_base_url to its server) to check a judge."
        )
    library = load_library(config)
    states, source = _states(config, library)
    sample = sampled_documents(config, library, states, samples)
    if not sample:
        raise DataError("the raw questions found no document that could be judged.")
    count = sum(len(documents) for _, documents in sample)
    log(f"{count} documents of {len(sample)} states ({source}), labelled {len(PASSES)} times")
    checker = build_checker(config, library.corpus)
    heard = None
    if config.checker.kind == "llm":
        heard = checker.client = Overheard(checker.client, config.model.vllm_base_url)
        checker.look_at_server()  # before there are threads that would each look
    rows = labelled(checker, GoldChecker(library.corpus), sample)
    reward, search = config.reward, config.search
    check = JudgeCheck(
        tuple(rows),
        judge=getattr(checker, "judge_name", config.checker.kind),
        source=source,
        values={verdict: getattr(reward, f"{verdict.lower()}_new") for verdict in VERDICTS},
        documents_read=search.max_documents,
        facts={
            "seed": config.seed,
            "states": len(sample),
            "batch_size": config.checker.batch_size,
            "max_document_chars": config.checker.max_document_chars,
        },
        unread=tuple(heard.unread) if heard else (),
    )
    folder = Path(config.output_root) / config.run_name
    folder = folder if (folder / "config.yaml").exists() else Path(config.output_root)
    return check, write_json(folder / FILE, plain(check.as_dict()))


def sampled_documents(
    config: Any, library: Library, states: Sequence[State], samples: int
) -> Sample:
    """About `samples` documents that raw questions find, drawn by the seed: a request of the judge
    for each state, or more where there are few states."""
    orchestrator = SearchOrchestrator(
        library.corpus, build_backend(library.corpus, config.search), config.search.top_k
    )
    draw = random.Random(f"{config.seed}/check-judge")
    distinct = list({(state.question_id, state.subgoal): state for state in states}.values())
    draw.shuffle(distinct)
    deep = config.search.max_documents
    each = max(2, config.checker.batch_size, math.ceil(samples / max(1, len(distinct))))
    found: Sample = []
    left = samples
    for state in distinct:
        ranking = orchestrator.search([fit_clue(state.question)], deep)
        documents = [library.corpus.get(row.docid) for row in ranking]
        draw.shuffle(documents)
        if left > 0 and documents:
            found.append((state, documents[: min(each, left)]))
            left -= len(found[-1][1])
    return found


def labelled(checker: DocumentChecker, gold: GoldChecker, sample: Sample) -> list[Row]:
    """One row a document of the sample, with the verdicts of the three passes and of gold."""
    past_the_cache = getattr(checker, "judge_anew", None)
    label = past_the_cache or checker.check
    reverse = [(state, documents[::-1]) for state, documents in sample]
    pool = ThreadPoolExecutor(_THREADS if past_the_cache else 1)
    try:
        passes = [
            list(pool.map(lambda item: label(*item), items)) for items in (sample, sample, reverse)
        ]
    except BaseException:  # else the threads would be waited for, and they wait for a server
        close(checker)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    rows = []
    for number, (state, documents) in enumerate(sample):
        known = state.gold_docids or state.known_important
        truth = gold.check(state, documents) if known else {}
        for document in documents:
            docid = document.docid
            verdicts = {
                name: labels[number].get(docid) for name, labels in zip(PASSES, passes, strict=True)
            }
            rows.append(
                {
                    "state_id": state.state_id,
                    "question_id": state.question_id,
                    "docid": docid,
                    "gold": truth.get(docid),
                    **verdicts,
                }
            )
    return rows


def _states(config: Any, library: Library) -> tuple[list[State], str]:
    """The dev states (train, where there is no dev part) of the recorded rounds; before any round
    is recorded, the first states of the questions."""
    run_folder = Path(config.output_root) / config.run_name
    folder, data = rounds_folder(config, run_folder), config.data
    if data.rounds_path is None and not folder.is_dir():
        questions = chosen_questions(library.questions, data.max_questions)
        return [_first_state(question) for question in questions], "no rounds are recorded yet"
    loader = RLCheckpointLoader(
        folder, data.min_clues_per_round, data.max_samples_per_question, config.seed
    )
    if (run_folder / SPLITS).exists():
        splits = kept_splits(run_folder, loader, config)
    else:
        splits = new_splits(usable_states(loader, config, is_split=False), config)
    return (splits.dev, "dev") if splits.dev else (splits.train, "train")


def _first_state(question: Any) -> State:
    return make_state(
        RoundFile(schema=1, round=0),
        question_id=question.question_id,
        question=question.text,
        run="check-judge",
        strategy="SEARCH",
        subgoal=question.text,
        gold_docids=question.gold_docids,
        known_important=question.gold_docids,
    )
