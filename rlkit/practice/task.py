"""`SearchTask`, the Executor's: a state is a recorded round, an action a set of clues. And
`build_task`, which makes any task of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from rlkit.agents.clues import count_words, format_clues
from rlkit.agents.parse import ParsedClues, completeness
from rlkit.agents.prompt import CountTokens, Messages, build_messages, shown_text
from rlkit.agents.recording import CollectReport
from rlkit.config import load_object, named_object
from rlkit.errors import DataError
from rlkit.library.tokenize import WIDE, Tokenizer
from rlkit.practice.collect_run import collect_run
from rlkit.practice.environment import RoundResult, SearchRoundEnv, clue_values, create_environment
from rlkit.practice.examples import search_examples
from rlkit.practice.seam import Score, Task
from rlkit.practice.source import index_folder, load_library, rounds_folder
from rlkit.practice.splits import NAME, PARTS, kept_splits, usable_states
from rlkit.rounds.checkpoints import RLCheckpointLoader, ScanReport
from rlkit.rounds.split import Splits
from rlkit.rounds.state import State

__all__ = ["Score", "SearchTask", "Task", "build_search_task", "build_task"]
TOKENS_PER_WORD = 1.4  # until a tokenizer counts; a Chinese character is about one token
_WORDS = Tokenizer(stem=False, stop_words=True)
_SHOWN = ("docid", "title", "verdict", "new", "clue")  # of a document, in the rollouts


class SearchTask:
    """Recorded rounds replayed in a `SearchRoundEnv`.

    States that miss no known document are left out of every part; `left_out` counts them.
    `count_tokens` measures prompts; set it to the model's own count once that is loaded.
    """

    searches: ClassVar[bool] = True
    step_metrics: ClassVar[dict[str, str]] = {
        "important_rate": "important_rate",
        "discovery_rate": "discovery_rate",
        "n_clues": "clues_per_action",
        "distinct_clue_ratio": "distinct_clue_ratio",
        "grounded_clue_ratio": "grounded_clue_ratio",
        "invalid": "invalid_share",
        "documents_read": "documents_read",
    }

    def __init__(
        self,
        splits: Splits,
        env: SearchRoundEnv,
        config: Any,
        scan: ScanReport | None = None,
    ) -> None:
        self.splits, self.env, self.config, self.scan = splits, env, config, scan
        self.damaged: tuple[Any, ...] = ()  # files whose runs were set aside: path, line, reason
        self.count_tokens: Callable[[str], int] = estimate_tokens
        self.left_out = {
            part: sum(not state.missing for state in splits.part(part)) for part in PARTS
        }

    def states(self, split: str) -> list[State]:
        """The states of train, dev or eval that miss at least one known document."""
        return [state for state in self.splits.part(split) if state.missing]

    def prompt(self, state: State) -> Messages:
        """The Executor's prompt of a state."""
        return build_messages(state, self.config.executor, self.config.search, self.count_tokens)

    def score(
        self, state: State, completions: Sequence[str], top_k: int | None = None
    ) -> list[Score]:
        """Rewards and components of completions for one state, all searched in one call.

        `top_k` documents per clue (default: `search.top_k`); deep policies are given more.
        """
        parsed = [self.env.parse_clues_from_output(text) for text in completions]
        self.env.reset(state)
        results = self.env.step_group([clues.clues for clues in parsed], top_k)
        shown = shown_words(state)
        return [
            Score(result.reward.total, self._components(state, clues, result, shown))
            for clues, result in zip(parsed, results, strict=True)
        ]

    def examples(self) -> list[tuple[State, str]]:
        """(state, completion) of the recorded actions of the train split that a warm start learns
        from. Raises DataError where there are none."""
        found = search_examples(self.states("train"), self.config)
        if not found:
            raise DataError(
                "there is nothing to warm up on: no recorded action of the train split found a "
                "missing document with words that stand in its state; collect with another policy, "
                "or set model.init_adapter to null."
            )
        return found

    @property
    def complete(self) -> Callable[[str], bool] | None:
        """Whether an action needs no more tokens, see `Task`."""
        return completeness(self.config)

    def known_action(self, state: State) -> str:
        """The recorded action of a state, as the policy would write it; for a look at it."""
        return format_clues(state.recorded_clues, self.config.executor.layout)

    def take_metrics(self) -> dict[str, float | None]:
        """What the environment counted since the last call."""
        return self.env.take_metrics()

    def lineage(self) -> dict[str, Any]:
        """What the data was: for the run's `lineage.json`."""
        known = {bool(state.gold_docids) for part in PARTS for state in self.splits.part(part)}
        return {
            "corpus_fingerprint": self.env.orchestrator.corpus.fingerprint,
            "documents": len(self.env.orchestrator.corpus),
            "known": {True: "gold", False: "recorded"}[min(known, default=True)],
            "split": self.splits.how,
            "parts": self.splits.describe(),
            "left_out": dict(self.left_out),
            "shared_gold": self.splits.shared_gold,
            "scan": asdict(self.scan) if self.scan else None,
        }

    def _components(
        self, state: State, parsed: ParsedClues, result: RoundResult, shown: frozenset[str]
    ) -> dict[str, Any]:
        written = len(parsed.clues) + parsed.repeated
        return {
            "clues": list(result.clues),
            "parsed_how": parsed.how,
            "documents": [
                {name: getattr(document, name) for name in _SHOWN} for document in result.documents
            ],
            "n_clues": len(result.clues),
            "distinct_clue_ratio": len(parsed.clues) / written if written else None,
            "grounded_clue_ratio": grounded_ratio(result.clues, shown),
            "important_rate": result.important_rate,
            "discovery_rate": result.discovery_rate,
            "invalid": int(result.reward.invalid),
            "unjudged": result.reward.unjudged,
            "documents_read": len(result.read),
            "reward_without_seen": result.reward.without_seen,
            **result.reward.counts,
            "clue_spans": [list(span) for span in parsed.spans],
            "clue_values": clue_values(result, self.env.calculator, state),
        }


def build_task(
    config: Any,
    run: Any,
    progress: Callable[[Any], None] | None = None,
    count_tokens: CountTokens | None = None,
) -> Any:
    """The task that `config.task` names: `search`, `answers`, or a user's own, which is called as
    the built-in ones are: (config, run, progress=..., count_tokens=...)."""
    build = named_object(config.task, TASKS, "task")
    build = load_object(build) if isinstance(build, str) else build
    return build(config, run, progress=progress, count_tokens=count_tokens)


def build_search_task(
    config: Any,
    run: Any,
    progress: Callable[[CollectReport], None] | None = None,
    count_tokens: CountTokens | None = None,
) -> SearchTask:
    """The search task of a run: library, rounds (collected into the run's folder where
    `data.rounds_path` names none), the split kept in `splits.json`, and the environment. Once
    there is a split, nothing more is collected: it would stay out. `progress` hears of the
    collecting; `count_tokens` measures prompts where `served` is among `data.collectors`.

    Raises DataError where no state is left to train on.
    """
    library = load_library(config)
    cache = index_folder(config)
    env = create_environment(config, library, cache)
    folder = rounds_folder(config, run.folder)
    is_split = (Path(run.folder) / NAME).exists()
    if config.data.rounds_path is None and not is_split:
        collect_run(
            config,
            folder,
            library=library,
            orchestrator=env.orchestrator,
            progress=progress,
            count_tokens=count_tokens,
        )
    if hasattr(env.checker, "prepare"):  # a judge that refuses ends it before a model is loaded
        env.checker.prepare()
    data = config.data
    loader = RLCheckpointLoader(
        folder, data.min_clues_per_round, data.max_samples_per_question, config.seed
    )
    scan = loader.load_data()
    _check_corpus(usable_states(loader, config, is_split), env)  # before anything is kept
    task = SearchTask(kept_splits(run.folder, loader, config), env, config, scan=scan)
    task.damaged = tuple(loader.damaged)
    if not task.states("train"):
        raise DataError(
            f"{folder}: none of the {task.left_out['train']} training states misses a known "
            "document, so there is nothing to learn; record rounds of more questions."
        )
    return task


# by name where the floor plan has it further down, so that nothing is imported from below
TASKS = {"search": build_search_task, "answers": "rlkit.answers.task:build_answer_task"}


def _check_corpus(samples: Sequence[State], env: SearchRoundEnv) -> None:
    """Rounds of another library would give nothing but low rewards, without a word."""
    corpus = env.orchestrator.corpus
    known = {docid for state in samples for docid in state.known_important}
    if known and not any(docid in corpus for docid in known):
        raise DataError(
            f"none of the {len(known)} known documents of the recorded rounds, such as "
            f"{min(known)!r}, is among the {len(corpus)} documents of the library; give the corpus "
            "that the rounds were recorded on as data.corpus_path."
        )


def shown_words(state: State) -> frozenset[str]:
    """The words, stop words apart, of all that the state shows."""
    return frozenset(_WORDS(shown_text(state)))


def grounded_ratio(clues: Sequence[str], shown: frozenset[str]) -> float | None:
    """The share of the clues' words that are `shown_words`; None where the clues have none."""
    words = [word for clue in clues for word in _WORDS(clue)]
    return sum(word in shown for word in words) / len(words) if words else None


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, without a tokenizer."""
    wide = len(WIDE.findall(text))
    return math.ceil(TOKENS_PER_WORD * (count_words(text) - (wide + 1) // 2) + wide)
