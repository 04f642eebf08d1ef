"""The next token of every row of a batch, each by its own request's rules.

Shape letters: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlkit.training.sampling import pick

COLDEST = 1e-4  # of temperatures; colder ones choose as 0 does, and their quotients may overflow


@dataclass(frozen=True)
class Rule:
    """How a row's token is chosen: greedily at a temperature below `COLDEST`; `uniform` is the
    row's next random number, `top` how many of the likeliest tokens are reported beside it."""

    temperature: float
    top_p: float
    uniform: float
    top: int = 0


@dataclass(frozen=True)
class Drawn:
    """A token and its natural log-probability under the model's own distribution, which
    temperature and top_p leave alone; `top` holds the likeliest tokens and theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def draw(logits: Tensor, rules: Sequence[Rule]) -> list[Drawn | None]:
    """One token a row of (N, V) logits; None for a row whose logits are not finite."""
    logits = logits.float()
    total = logits.logsumexp(dim=-1)  # (N,)
    tokens = logits.argmax(dim=-1)  # (N,)
    sound = total.isfinite().tolist()
    random = [i for i, rule in enumerate(rules) if sound[i] and rule.temperature >= COLDEST]
    if random:
        chosen = [rules[i] for i in random]
        values = torch.tensor(
            [(r.temperature, r.top_p, r.uniform) for r in chosen],
            dtype=torch.float64,
            device=logits.device,
        )
        temperature, top_p, uniform = values.unbind(dim=1)
        rows = logits[random]
        if cut := [i for i, rule in enumerate(chosen) if rule.top_p < 1]:
            scale = temperature[cut, None].float()
            rows[cut] = nucleus(rows[cut] / scale, top_p[cut].float()) * scale
        tokens[random] = pick(rows, temperature[:, None], uniform)[0]
    logprobs = (logits.gather(1, tokens[:, None])[:, 0] - total).tolist()
    return [
        Drawn(token, logprob, _likeliest(logits[i] - total[i], rules[i].top)) if sound[i] else None
        for i, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs, strict=True))
    ]


def nucleus(scores: Tensor, top_p: Tensor) -> Tensor:
    """(N, V) scores with -inf outside the smallest set of tokens that holds `top_p` (N,) of the
    probability (arXiv:1904.09751, section 3.1)."""
    ordered, order = scores.sort(dim=-1, descending=True)
    weights = ordered.softmax(dim=-1)
    outside = weights.cumsum(dim=-1) - weights >= top_p[:, None]
    outside[:, 0] = False
    return scores.masked_fill(outside.scatter(1, order, outside), -torch.inf)


def _likeliest(logprobs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    values, ids = logprobs.topk(min(count, len(logprobs)))
    return tuple(zip(ids.tolist(), values.tolist(), strict=True))
