"""Several examples of an update in one row: each attends to itself alone, its positions begin at 0,
and all of them pass through the model's matrices together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from rlkit.training.caches import PackedExamples
from rlkit.training.logprobs import score_positions
from rlkit.training.prefix import check_length, decoder_and_head

ROW_TOKENS = 2048  # of one packed row, which bounds its memory


def packed_rows(examples: Sequence[Any], tokens: int = ROW_TOKENS) -> Iterator[list[Any]]:
    """The examples in their order, as many in a row as fit into `tokens`, at least one."""
    row: list[Any] = []
    length = 0
    for example in examples:
        size = len(example.prompt) + len(example.completion)
        if row and length + size > tokens:
            yield row
            row, length = [], 0
        row.append(example)
        length += size
    if row:
        yield row


def packed_log_probs(model: nn.Module, examples: Sequence[Any]) -> Tensor:
    """(sum of C,) log-probabilities of all completions' tokens, with a graph.

    An example has `prompt` and `completion`, lists of token ids.
    """
    for example in examples:
        check_length(model, len(example.prompt), len(example.completion))
    decoder, head = decoder_and_head(model)
    device = next(model.parameters()).device
    rows = [[*e.prompt, *e.completion[:-1]] for e in examples]  # the last token predicts nothing
    lengths = [len(row) for row in rows]
    starts = [0, *accumulate(lengths)]
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    hidden = decoder(
        input_ids=torch.tensor([sum(rows, [])], device=device),
        position_ids=positions[None],
        use_cache=False,
        group=PackedExamples(tuple(lengths)),
    ).last_hidden_state[0]
    predicting = [
        start + len(e.prompt) - 1 + i
        for start, e in zip(starts, examples, strict=False)
        for i in range(len(e.completion))
    ]
    targets = torch.tensor([t for e in examples for t in e.completion], device=device)
    return score_positions(head, hidden[torch.tensor(predicting, device=device)], targets)[0]
