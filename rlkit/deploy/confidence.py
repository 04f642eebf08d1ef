"""How sure a model was of what it wrote."""

from __future__ import annotations

import math
from collections.abc import Sequence


def confidence(logprobs: Sequence[float]) -> float:
    """The geometric mean of an answer's token probabilities, in [0, 1].

    `logprobs` (C,) are the natural logarithms of the probabilities that the model itself gave to
    each token that was written, the end-of-turn token included: its own distribution, whatever
    temperature and top_p the token was drawn with. exp(mean log p) is the inverse of the answer's
    perplexity, so that long answers are not less confident for being long. Raises ValueError
    where there is no token.
    """
    if len(logprobs) == 0:
        raise ValueError("an answer without tokens has no confidence; give at least one logprob.")
    return math.exp(min(0.0, math.fsum(logprobs) / len(logprobs)))
