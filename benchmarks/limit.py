"""How long a step must take on this machine: what is multiplied, what is moved, and the limit.

For every phase the limit is the longer of two times: its floating-point operations over the
machine's matrix rate at that number of rows, and the bytes that it has to move over the memory
bandwidth. The step's limit is their sum (the roofline model, Williams et al. 2009). A group's
prompt is counted once a pass, and nothing is reused from one pass to the next.

Counted are matrix products: a product of (rows, n) with (n, m) takes 2 * rows * n * m operations.
Norms, softmax, rotary positions, embedding look-ups and the optimiser's arithmetic are not; they
make a real step longer, never the limit. Moved bytes are weights, keys and values, and in the
update the adapter with its gradient and moments; activations are taken to stay in the caches.

Shape letters: K actions, P prompt tokens, C action tokens; the last sampled token of an action is
never read, so that A = C - 1 tokens an action go through the layers, and C positions an action
through the LM head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workload import Workload

BYTES = {"float32": 4, "bfloat16": 2}
ADAPTER_BYTES = 4  # adapters are float32 whatever the base is
UPDATE_TOUCHES = 7  # AdamW reads p, g, m, v and writes p, m, v


@dataclass(frozen=True)
class Shape:
    """The sizes of a llama-like decoder that its cost depends on."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    ffn: int
    vocabulary: int

    @classmethod
    def of(cls, folder: str | Path) -> Shape:
        """The shape of a model folder."""
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            key_heads=config["num_key_value_heads"],
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            ffn=config["intermediate_size"],
            vocabulary=config["vocab_size"],
        )

    @property
    def projections(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of q, k, v and o, which have an adapter."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return [
            (self.hidden, queries),
            (self.hidden, keys),
            (self.hidden, keys),
            (queries, self.hidden),
        ]

    @property
    def linears(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of a layer's seven matrices."""
        up, down = (self.hidden, self.ffn), (self.ffn, self.hidden)
        return [*self.projections, up, up, down]

    @property
    def layer_parameters(self) -> int:
        """Of all layers' matrices."""
        return self.layers * sum(n * m for n, m in self.linears)

    @property
    def head_parameters(self) -> int:
        return self.hidden * self.vocabulary

    def adapter_parameters(self, rank: int) -> int:
        """Of A (rank, inputs) and B (outputs, rank), in all layers."""
        return self.layers * sum(rank * (n + m) for n, m in self.projections)

    def attention(self, pairs: int) -> int:
        """Operations of scores and of weighted values, for so many (query, key) pairs a head."""
        return self.layers * 4 * self.heads * self.head_size * pairs

    def cache_floats(self, tokens: int) -> int:
        """Keys and values of so many tokens."""
        return self.layers * 2 * self.key_heads * self.head_size * tokens


@dataclass(frozen=True)
class Phase:
    """Operations as (matrices, rows, operations), where matrices are `layer` or `head`; and the
    bytes that have to be moved."""

    name: str
    work: tuple[tuple[str, int, int], ...]
    moved: int

    @property
    def operations(self) -> int:
        return sum(operations for _, _, operations in self.work)


@dataclass(frozen=True)
class Rates:
    """What the machine does: operations a second by (matrices, rows), and bytes a second."""

    matrix: dict[tuple[str, int], float]
    bandwidth: float


def prompt_pairs(p: int) -> int:
    """(query, key) pairs of a prompt's causal attention."""
    return p * (p + 1) // 2


def action_pairs(p: int, k: int, tokens: int) -> int:
    """Pairs of K actions of so many tokens: all of the prompt's keys, and their own causally."""
    return k * tokens * p + k * tokens * (tokens + 1) // 2


def rows_used(work: Workload) -> dict[str, list[int]]:
    """The numbers of rows at which the machine's rates are needed."""
    p, k, c = work.prompt_tokens, work.actions, work.action_tokens
    return {"layer": sorted({k, p, p + k * (c - 1)}), "head": sorted({1, k, k * c})}


def phases(shape: Shape, work: Workload) -> list[Phase]:
    """Every pass of one step, in order; decoding is one pass for each token behind the first."""
    p, k, c = work.prompt_tokens, work.actions, work.action_tokens
    rows, size = p + k * (c - 1), BYTES[work.dtype]
    base, head = shape.layer_parameters, shape.head_parameters
    adapter = shape.adapter_parameters(work.rank)
    frozen = size * (base + head)
    weights = frozen + ADAPTER_BYTES * adapter
    packed = shape.attention(prompt_pairs(p) + action_pairs(p, k, c - 1))
    scored = 2 * head * k * c
    prefill = 2 * (base + adapter) * p + shape.attention(prompt_pairs(p))
    decoding = [
        Phase(
            "decoding",
            (
                ("layer", k, 2 * (base + adapter) * k + shape.attention(k * (p + t))),
                ("head", k, 2 * head * k),
            ),
            weights + size * shape.cache_floats(p + k * t),
        )
        for t in range(1, c)
    ]
    # Backward: the frozen base needs the gradient of its input alone (once the forward pass), the
    # adapter that of its weights, too (twice), and attention those of both factors (twice).
    backward = 2 * (base + 2 * adapter) * rows + 2 * packed
    return [
        Phase(
            "prefill",
            (("layer", p, prefill), ("head", 1, 2 * head)),
            weights + size * shape.cache_floats(p),
        ),
        *decoding,
        Phase("reference", (("layer", rows, 2 * base * rows + packed), ("head", k * c, scored)),
              frozen),
        Phase(
            "policy forward",
            (("layer", rows, 2 * (base + adapter) * rows + packed), ("head", k * c, scored)),
            weights,
        ),
        Phase("backward", (("layer", rows, backward), ("head", k * c, scored)),
              weights + ADAPTER_BYTES * adapter),
        Phase("update", (), UPDATE_TOUCHES * ADAPTER_BYTES * adapter),
    ]  # fmt: skip


def seconds(phase: Phase, rates: Rates) -> tuple[float, float]:
    """(computing, moving): the two times of a phase; its limit is the longer one."""
    computing = sum(n / rates.matrix[matrices, rows] for matrices, rows, n in phase.work)
    return computing, phase.moved / rates.bandwidth


def limit(passes: Sequence[Phase], rates: Rates) -> dict[str, dict[str, float]]:
    """For every name of a phase: its limit, operations, bytes, and its seconds bound by moving."""
    table: dict[str, dict[str, float]] = {}
    for phase in passes:
        row = table.setdefault(
            phase.name, {"seconds": 0.0, "operations": 0, "bytes": 0, "moving_s": 0.0}
        )
        computing, moving = seconds(phase, rates)
        row["seconds"] += max(computing, moving)
        row["operations"] += phase.operations
        row["bytes"] += phase.moved
        row["moving_s"] += moving if moving > computing else 0.0
    return table


def total(table: dict[str, dict[str, float]]) -> float:
    return sum(row["seconds"] for row in table.values())
