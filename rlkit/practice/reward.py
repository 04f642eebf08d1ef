"""From documents and verdicts to one number an action, and from a group's rewards to advantages.

Each document counts once, new or seen as of the start of the round. Rewards are worked out from
counts in float64 and rounded to 1e-6, so that equal sets of documents have equal rewards in
whatever order they were found; ties within a group are then exact."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Protocol

import numpy as np

from rlkit.errors import ConfigError, DataError
from rlkit.rounds.state import VERDICTS, Verdict

COUNT_KEYS = tuple(f"{verdict.lower()}_{age}" for verdict in VERDICTS for age in ("new", "seen"))
DECIMALS = 6


@dataclass(frozen=True, slots=True)
class DocumentResult:
    """A document that an action brought back. `verdict` None means unjudged. `rank` counts from 1
    within the clue that found it first; `found_by` are the indices of all clues that found it."""

    docid: str
    title: str
    verdict: Verdict | None
    new: bool
    rank: int
    clue: str
    found_by: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one action with its parts.

    `total` is None where documents came back but none could be judged: the action then leaves
    the loss and every denominator. `counts` has the six keys of `COUNT_KEYS`. `without_seen` is
    the total without the terms for seen documents.
    """

    total: float | None
    counts: dict[str, int]
    unjudged: int
    invalid: bool
    without_seen: float | None


class OwnReward(Protocol):
    """A user's own reward, see `RewardCalculator`."""

    def __call__(self, documents: Sequence[DocumentResult], state: Any) -> float: ...


class RewardCalculator:
    """Reward values applied to one round's documents.

    `values` has the attributes (or keys) `important_new` ... `discard_seen` and `invalid`, the
    last already worked out. Raises ConfigError where a value is missing, or where `invalid` is
    not below the worst that a valid action can score: `max_clues * top_k` documents of the lowest
    value.

    `function`, a user's own, takes the place of the six values: (documents, state) -> float, of
    the judged documents of an action that brought some back; see docs/extending.md.
    """

    def __init__(
        self, values: Any, max_clues: int, top_k: int, function: OwnReward | None = None
    ) -> None:
        self.values = {key: _value(values, key) for key in COUNT_KEYS}
        self.invalid, self.function = _value(values, "invalid"), function
        worst = max_clues * top_k * min(0.0, *self.values.values())
        if function is None and not self.invalid < worst:
            raise ConfigError(
                f"reward.invalid is {self.invalid:g}, but a valid action can score {worst:g} "
                f"(search.max_clues {max_clues} x search.top_k {top_k} documents of the lowest "
                f"value); set it below that, or to null to have it worked out."
            )

    def compute_reward(
        self,
        doc_results: Iterable[DocumentResult | Mapping[str, Any]],
        seen_docids: Collection[str],
        state: Any = None,
    ) -> Reward:
        """The reward of the documents that one action brought back.

        A document that comes twice counts once. Without any document the action is invalid.
        `doc_results` are DocumentResults, or mappings with `docid` and `verdict`; raises DataError
        for a verdict that is none of IMPORTANT, LOCAL, DISCARD, None. `state` is handed to
        `function`, which is given DocumentResults, each once.
        """
        doc_results = list(doc_results)
        verdicts = _first_verdicts(doc_results)
        counts = dict.fromkeys(COUNT_KEYS, 0)
        seen = frozenset(seen_docids)
        for docid, verdict in verdicts.items():
            if verdict is not None:
                counts[count_key(verdict, docid not in seen)] += 1
        unjudged = sum(verdict is None for verdict in verdicts.values())
        if not verdicts:
            return Reward(self.invalid, counts, 0, True, self.invalid)
        if unjudged == len(verdicts):
            return Reward(None, counts, unjudged, False, None)
        if self.function is not None:
            once = _once(doc_results, verdicts)
            new_ones = [document for document in once if document.new]
            total, without_seen = self.own(once, state), self.own(new_ones, state)
            self._refuse_below_invalid(total, len(once) - unjudged)
            return Reward(total, counts, unjudged, False, without_seen)
        new = {key: count for key, count in counts.items() if key.endswith("_new")}
        return Reward(self.of_counts(counts), counts, unjudged, False, self.of_counts(new))

    def own(self, documents: Sequence[DocumentResult], state: Any) -> float:
        """What `function` gives the judged ones of some documents, rounded to 1e-6; 0 without any.
        Raises DataError where that is no finite number."""
        judged = [document for document in documents if document.verdict is not None]
        found = self.function(judged, state) if judged else 0.0
        if not isinstance(found, Real) or not math.isfinite(found):
            raise DataError(
                f"reward.function gave {found!r} for {len(judged)} documents; it must give a "
                "finite number."
            )
        return round(float(found), DECIMALS) + 0.0

    def _refuse_below_invalid(self, total: float, judged: int) -> None:
        """Of whole actions alone: a part of one, such as its new documents, may be worth less."""
        if total <= self.invalid:
            raise DataError(
                f"reward.function gave {total:g} for {judged} documents, and an invalid "
                f"action is paid {self.invalid:g}; lower reward.invalid, so that every valid "
                "action is worth more."
            )

    def worth(self, documents: Sequence[DocumentResult], state: Any) -> float:
        """R(documents) of some of an action's documents; an unjudged one adds nothing."""
        if self.function is not None:
            return self.own(documents, state)
        keys = (count_key(d.verdict, d.new) for d in documents if d.verdict is not None)
        return self.of_counts(Counter(keys))

    def of_counts(self, counts: Mapping[str, int]) -> float:
        """Sum of count x value in float64, rounded to 1e-6; the order is always the same."""
        total = sum(counts.get(key, 0) * value for key, value in self.values.items())
        return round(total, DECIMALS) + 0.0  # + 0.0: never -0.0

    def compute_group_advantages(self, rewards: Sequence[float | None]) -> np.ndarray:
        """See `compute_group_advantages`."""
        return compute_group_advantages(rewards)


def compute_group_advantages(rewards: Sequence[float | None]) -> np.ndarray:
    """`A = (r - mean) / (std + 1e-8)` over the rewards that are not None; (K,) float64.

    Population standard deviation (DeepSeekMath, arXiv:2402.03300, section 4.1.2, which leaves the
    kind open). None gets 0.0. Exactly 0 everywhere where fewer than two rewards are known or all
    are equal. Raises DataError for a reward that is not finite.
    """
    known = np.array([reward is not None for reward in rewards], dtype=bool)
    values = np.array([r for r in rewards if r is not None], dtype=np.float64)  # (K_known,)
    advantages = np.zeros(len(known), dtype=np.float64)  # (K,)
    if not np.isfinite(values).all():
        raise DataError(
            f"a group has the rewards {list(rewards)}; each must be a finite number, or None for "
            "an action that cannot be scored."
        )
    if len(values) < 2 or values.min() == values.max():
        return advantages
    advantages[known] = (values - values.mean()) / (values.std() + 1e-8)
    return advantages


def count_key(verdict: Verdict, new: bool) -> str:
    """The name of a reward value: `important_new`, ..., `discard_seen`."""
    return f"{verdict.lower()}_{'new' if new else 'seen'}"


def _first_verdicts(
    doc_results: Iterable[DocumentResult | Mapping[str, Any]],
) -> dict[str, Verdict | None]:
    """{docid: verdict}, each document once; a later judgement fills in for an unjudged one."""
    verdicts: dict[str, Verdict | None] = {}
    for row in doc_results:
        docid, verdict = (
            (row["docid"], row["verdict"]) if isinstance(row, Mapping) else (row.docid, row.verdict)
        )
        if verdict is not None and verdict not in VERDICTS:
            raise DataError(
                f"document {docid!r} has the verdict {verdict!r}; allowed are "
                f"{', '.join(VERDICTS)}, or None where it could not be judged."
            )
        if verdicts.get(docid) is None:
            verdicts[docid] = verdict
    return verdicts


def _once(
    doc_results: Iterable[DocumentResult], verdicts: Mapping[str, Verdict | None]
) -> list[DocumentResult]:
    """Each document once, where it came first, with the verdict that counts for it."""
    first: dict[str, DocumentResult] = {}
    for document in doc_results:
        first.setdefault(document.docid, replace(document, verdict=verdicts[document.docid]))
    return list(first.values())


def _value(values: Any, key: str) -> float:
    value = values.get(key) if isinstance(values, Mapping) else getattr(values, key, None)
    if value is None:
        raise ConfigError(
            f"reward.{key} has no value; give a number"
            + (" (a RunConfig works `invalid` out by itself)." if key == "invalid" else ".")
        )
    return float(value)
