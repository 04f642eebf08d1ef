"""How far two labellings of the same documents agree: shares with Wilson intervals, Cohen's kappa,
confusion counts.

The 95 % interval of a share of k in n is Wilson's score interval (Wilson 1927, "Probable inference,
the law of succession, and statistical inference", JASA 22), which stays within 0 and 1 and is sound
for small n. Kappa (Cohen 1960, "A coefficient of agreement for nominal scales") is
(p_o - p_e) / (1 - p_e), where p_o is the share of equal labels and p_e the one that labellers with
the same habits would reach by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scipy import stats

from rlkit.results.statistics import CONFIDENCE


class Share(NamedTuple):
    """`count` of `n`, with the ends of its interval; None where n is 0."""

    count: int
    n: int
    share: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.share is None:
            return "none, n = 0"
        return f"{self.share:.2f} [{self.low:.2f}, {self.high:.2f}], {self.count} of {self.n}"


def share_of(count: int, n: int) -> Share:
    """The share `count` of `n` with its Wilson interval."""
    if n == 0:
        return Share(count, n, None, None, None)
    interval = stats.binomtest(count, n).proportion_ci(CONFIDENCE, method="wilson")
    return Share(count, n, count / n, float(interval.low), float(interval.high))


def cohens_kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Agreement beyond chance, at most 1; None where there are no pairs, or where both labellers
    only ever used one and the same label."""
    n = len(pairs)
    if n == 0:
        return None
    ours, theirs = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    observed = sum(a == b for a, b in pairs) / n
    chance = sum(ours[label] * theirs[label] for label in ours) / n**2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def confusion(
    pairs: Iterable[tuple[str, str]], rows: Sequence[str], columns: Sequence[str]
) -> dict[str, dict[str, int]]:
    """row label -> column label -> number of pairs (row, column)."""
    counts = Counter(pairs)
    return {row: {column: counts[row, column] for column in columns} for row in rows}
