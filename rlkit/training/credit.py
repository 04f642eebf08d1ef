"""`credit: clue`: every token of a clue is credited with what that clue, and the later ones, added.

R(S) is the sum of the rewards of those documents, among the ones that the action read, that a
clue in S brought back; R(nothing) = 0. Clue j's value is R(all) - R(clues before j), compared with
the values of the group's other clues j, and scaled as `scale_rewards` says. Tokens outside clues
keep the action's advantage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlkit.training.grpo import scaled_advantages


def clue_of_tokens(pieces: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each token, the index of the clue that its text belongs to, or -1.

    `pieces` are the texts of an action's tokens, in order; `spans[j]` is where clue j stands in
    their joined text, as (start, end) in characters.
    """
    owners, position = [], 0
    for piece in pieces:
        end = position + len(piece)
        inside = [j for j, (begin, stop) in enumerate(spans) if position < stop and end > begin]
        owners.append(inside[0] if inside else -1)
        position = end
    return owners


def clue_advantages(
    action_advantages: np.ndarray,
    clue_values: Sequence[Sequence[float]],
    clue_of_token: np.ndarray,
    divisor: float | None = None,
) -> np.ndarray:
    """(K, C) advantages with `credit: clue`, a credit of this project's own.

    `clue_values[k][j]` = R(all) - R(clues before j): what clue j of action k and the later ones
    added. Clue j is compared with the group's other clues j; fewer than two: 0. As the rewards are
    (`scale_rewards`, see `grpo.step_divisor`), so are the values scaled: (value - mean) / divisor,
    or / (std + 1e-8) of the clues j where the divisor is None. `clue_of_token` (K, C) holds each
    token's clue, -1 outside clues: those tokens take the action's advantage. Raises DataError for
    a value that is not finite.
    """
    result = np.repeat(
        np.asarray(action_advantages, dtype=np.float64)[:, None], clue_of_token.shape[1], 1
    )
    for j in range(max((len(values) for values in clue_values), default=0)):
        column = [values[j] if j < len(values) else None for values in clue_values]
        credit = scaled_advantages(column, divisor)
        result = np.where(clue_of_token == j, credit[:, None], result)
    return result
