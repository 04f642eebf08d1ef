"""One practice round: clues in, reward out, everything else frozen.

Every clue is searched, the rankings are merged round-robin by rank, the documents seen before and
the first `max_documents` new ones are judged, each once, and rewarded. Errors of a search backend
or a checker come through; they never become a low reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlkit.agents.checker import DocumentChecker, build_checker
from rlkit.agents.clues import distinct_clues
from rlkit.agents.parse import ParsedClues, parse_clues_from_output
from rlkit.config import RunConfig, load_object
from rlkit.errors import DataError, RunError
from rlkit.library.bm25 import build_backend
from rlkit.library.corpus import Document, Library
from rlkit.library.orchestrator import RankedDocument, SearchOrchestrator, documents_taken
from rlkit.practice.reward import DECIMALS, DocumentResult, Reward, RewardCalculator
from rlkit.practice.source import load_library
from rlkit.rounds.state import State, Verdict

_REMEMBERED = 200_000  # verdicts; the oldest are forgotten


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What one action brought: its distinct clues, the documents in the order of the merged
    ranking, and the reward. Rates are shares, 0 to 1; `discovery_rate` is None where the state
    misses no known document."""

    clues: tuple[str, ...]
    documents: tuple[DocumentResult, ...]
    reward: Reward
    important_rate: float
    discovery_rate: float | None

    @property
    def read(self) -> tuple[DocumentResult, ...]:
        """The documents read: the new ones."""
        return tuple(document for document in self.documents if document.new)


class SearchRoundEnv:
    """Replays a recorded state for one round.

    `max_clues` distinct clues of an action count, and `max_documents` new documents are read.
    """

    def __init__(
        self,
        orchestrator: SearchOrchestrator,
        checker: DocumentChecker,
        calculator: RewardCalculator,
        *,
        max_clues: int = 4,
        max_documents: int = 8,
        plain_lines: bool = True,
    ) -> None:
        self.orchestrator, self.checker, self.calculator = orchestrator, checker, calculator
        self.max_clues, self.max_documents = max_clues, max_documents
        self.plain_lines = plain_lines
        self.round_data: dict[str, Any] = {}
        self._state: State | None = None
        self._verdicts: dict[tuple[str, str, str], Verdict] = {}

    def reset(self, round_context: State) -> State:
        """Set the state that the next steps start from."""
        self._state, self.round_data = round_context, {}
        return round_context

    def step(self, search_clues: Iterable[str], top_k: int | None = None) -> RoundResult:
        """Search one set of clues from the state; `top_k` per clue, default that of the search."""
        return self.step_group([search_clues], top_k)[0]

    def step_group(
        self, clue_sets: Sequence[Iterable[str]], top_k: int | None = None
    ) -> list[RoundResult]:
        """`step` for K sets of clues from the same state: one search call, one call of the
        checker with each distinct document once. `round_data` is that of the last set.

        Raises RunError before the first `reset`, DataError for a text in place of clues.
        """
        state = self._state
        if state is None:
            raise RunError("the environment has no state yet; call reset(state) before step.")
        for clues in clue_sets:
            if isinstance(clues, str):
                raise DataError(
                    f"step got the text {clues[:60]!r}, not clues; give a list of clues, such as "
                    "parse_clues_from_output(text) returns."
                )
        groups = [distinct_clues(clues, self.max_clues) for clues in clue_sets]
        rankings = self.orchestrator.search_many(groups, top_k)
        seen = frozenset(state.seen_docids)
        taken = [documents_taken(ranking, seen, self.max_documents) for ranking in rankings]
        verdicts = self._judge(state, [row.docid for ranking in taken for row in ranking])
        results = [
            self._result(state, clues, ranking, verdicts)
            for clues, ranking in zip(groups, taken, strict=True)
        ]
        if results:
            self.round_data = _round_data(state, results[-1])
        return results

    def take_metrics(self) -> dict[str, float | None]:
        """What the checker counted since the last call; {} where it counts nothing."""
        take = getattr(self.checker, "take_metrics", None)
        return take() if take else {}

    def parse_clues_from_output(self, text: str) -> ParsedClues:
        """Read a completion's clues with this environment's cap and `plain_lines`."""
        return parse_clues_from_output(text, self.max_clues, self.plain_lines)

    def _judge(self, state: State, docids: Sequence[str]) -> Mapping[str, Verdict | None]:
        """Verdicts; a document is judged once per question and subgoal, unless that failed."""
        asked = (f"{state.question_id}\n{state.question}", state.subgoal)
        distinct = dict.fromkeys(docids)
        if getattr(self.checker, "remembers", False):
            return dict(self.checker.check(state, self._documents(distinct))) if distinct else {}
        unknown = [docid for docid in distinct if (*asked, docid) not in self._verdicts]
        if unknown:
            fresh = dict(self.checker.check(state, self._documents(unknown)))
            for docid in unknown:
                if fresh.get(docid) is not None:
                    self._verdicts[*asked, docid] = fresh[docid]
        found = {d: self._verdicts.get((*asked, d)) for d in distinct}
        while len(self._verdicts) > _REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]
        return found

    def _documents(self, docids: Iterable[str]) -> list[Document]:
        return [self.orchestrator.corpus.get(docid) for docid in docids]

    def _result(
        self,
        state: State,
        clues: Sequence[str],
        ranking: Sequence[RankedDocument],
        verdicts: Mapping[str, Verdict | None],
    ) -> RoundResult:
        seen = frozenset(state.seen_docids)
        documents = tuple(
            DocumentResult(
                docid=row.docid,
                title=self.orchestrator.corpus.get(row.docid).title,
                verdict=verdicts.get(row.docid),
                new=row.docid not in seen,
                rank=row.rank,
                clue=row.clue,
                found_by=row.found_by,
            )
            for row in ranking
        )
        return RoundResult(
            clues=tuple(clues),
            documents=documents,
            reward=self.calculator.compute_reward(documents, seen, state),
            important_rate=important_rate(documents),
            discovery_rate=discovery_rate(state, documents),
        )


def important_rate(documents: Sequence[DocumentResult]) -> float:
    """IMPORTANT documents among the documents read (new) and judged; 0 if none was read."""
    judged = [d.verdict for d in documents if d.new and d.verdict is not None]
    return judged.count("IMPORTANT") / len(judged) if judged else 0.0


def discovery_rate(state: State, documents: Sequence[DocumentResult]) -> float | None:
    """The share of the state's missing documents that was found; None where none is missing."""
    missing = state.missing
    found = missing.intersection(document.docid for document in documents)
    return len(found) / len(missing) if missing else None


def clue_values(
    result: RoundResult, calculator: RewardCalculator, state: State | None = None
) -> list[float]:
    """For clue j of an action: `R(all) - R(clues before j)`, what it and the later ones added.

    R(S) is the worth of the action's documents that a clue in S brought back, and R(nothing) is 0;
    R(all) is the action's reward where it is valid and judged. An unjudged document adds 0.
    """
    before = [
        calculator.worth([d for d in result.documents if min(d.found_by) < j], state)
        for j in range(len(result.clues) + 1)
    ]
    return [round(before[-1] - worth, DECIMALS) + 0.0 for worth in before[:-1]]


def create_environment(
    config: Any = None, library: Library | None = None, cache_folder: str | Path | None = None
) -> SearchRoundEnv:
    """The environment of a RunConfig (None: all defaults) over a library (None: the config's).

    `cache_folder` keeps the search index (None: it is built in memory). Raises ConfigError for an
    unknown checker or one without `check`.
    """
    config = config or RunConfig()
    library = library or load_library(config)
    search, own = config.search, config.reward.function
    backend = build_backend(library.corpus, search, cache_folder)
    return SearchRoundEnv(
        SearchOrchestrator(library.corpus, backend, search.top_k),
        build_checker(config, library.corpus),
        RewardCalculator(
            config.reward, search.max_clues, search.top_k, load_object(own) if own else None
        ),
        max_clues=search.max_clues,
        max_documents=search.max_documents,
        plain_lines=config.executor.plain_lines,
    )


def _round_data(state: State, result: RoundResult) -> dict[str, Any]:
    """The last step as plain values, in the words of a recorded round."""
    return {
        "state_id": state.state_id,
        "question_id": state.question_id,
        "round": state.round,
        "strategy": state.strategy,
        "subgoal": state.subgoal,
        "clues": list(result.clues),
        "results": [asdict(document) for document in result.documents],
        "reward": asdict(result.reward),
        "important_rate": result.important_rate,
        "discovery_rate": result.discovery_rate,
    }
