"""What `certificate.json` says of a merged model: what it was made of, how far it is from base and
adapter, what rounding left of the update, and a verdict in words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rlkit.deploy.probe import Difference
from rlkit.files import plain, read_object
from rlkit.lineage import environment_record
from rlkit.training.text import decode

FILE = "certificate.json"
_KEPT = 0.9  # below it, too much of an update was rounded away
_NOISY = 1.1  # above it, too much was added


@dataclass(frozen=True)
class GreedyText:
    """What base and adapter, and the merged model read back from disk, write for a prompt."""

    prompt: str  # its id
    adapter: str
    merged: str
    tokens: int  # that base and adapter wrote
    same_tokens: int  # up to the first one that differs
    prompt_ids: str  # token ids with blanks between: a text need not give them back
    adapter_ids: str
    merged_ids: str

    @property
    def same(self) -> bool:
        return self.adapter == self.merged


@dataclass(frozen=True)
class Certificate:
    """A merge, proved. Comparisons are of base and adapter with the merged model but for
    `own_rounding`, the yardstick: base and adapter in float32 with the same in `dtype`."""

    name: str
    dtype: str
    base: dict[str, Any]  # name, the hashes `config` and `weights`, `checked` by hash
    adapters: tuple[dict[str, Any], ...]  # name, folder, sha256, rank, alpha
    float32: Difference  # merged in memory
    allowed: float  # of float32.max_difference; more is refused
    in_memory: Difference  # both in `dtype`
    reloaded: Difference  # both in `dtype`, the merged one read back from disk
    reloaded_from_float32: Difference  # base and adapter in float32, the merged one from disk
    own_rounding: Difference
    greedy: tuple[GreedyText, ...]
    held_out: bool  # whether the prompts are of a run's evaluation states
    rounding: dict[str, Any]  # `all`, and `tensors` one by one: Update.row()
    untied: bool  # embeddings that were tied in the base
    notes: tuple[str, ...] = ()  # cautions of the caller, such as of a base in 4 bits
    device: str = "cpu"
    environment: dict[str, Any] = field(default_factory=environment_record)

    @property
    def n_prompts(self) -> int:
        return len(self.greedy)

    @property
    def n_tokens(self) -> int:
        return self.float32.positions

    @property
    def cautions(self) -> list[str]:
        """What speaks against serving the merged model as it is, each a sentence."""
        found = list(self.notes)
        if self.reloaded_from_float32.kl > 2 * self.own_rounding.kl + 1e-5:
            found.append(
                "Rounding the merged weights moves the model further than the arithmetic of "
                f"{self.dtype} does; compare both on your task, or merge into float32."
            )
        kept = self.rounding["all"]["kept"]
        if kept is not None and kept < _KEPT:
            found.append(
                f"Of the update, {kept:.0%} is left in {self.dtype}; serve base and adapter, or "
                "merge into float32."
            )
        if kept is not None and kept > _NOISY:
            found.append(
                f"Rounding to {self.dtype} made the update larger, to {kept:.0%} of what was "
                "learnt: the rest is noise; serve base and adapter, or merge into float32."
            )
        zero = [row["name"] for row in self.rounding.get("tensors", ()) if not row["norm"]]
        if kept is None:
            found.append("The update is zero: this adapter was never trained.")
        elif zero:
            found.append(
                f"The update of {len(zero)} of {len(self.rounding['tensors'])} matrices is zero, "
                f"first {zero[0]}: they were never trained, or lost what they had learnt."
            )
        return found

    @property
    def verdict(self) -> str:
        """All that matters, in sentences."""
        worst, saved, own = self.float32, self.reloaded_from_float32, self.own_rounding
        every = self.rounding["all"]
        same = sum(text.same for text in self.greedy)
        kept = "none" if every["kept"] is None else f"{min(every['kept'], 1.0):.1%}"
        sentences = [
            "In float32 the merged model's logits differ from those of base and adapter by at most "
            f"{worst.max_difference:.1e} (allowed {self.allowed:.1e}).",
            f"Read back from disk in {self.dtype}, it is {saved.kl:.1e} nats a token from base and "
            f"adapter in float32, with the same next token at {saved.top1_agreement:.1%}; base and "
            f"adapter in {self.dtype} are {own.kl:.1e} from it, {own.top1_agreement:.1%} "
            f"(n = {self.n_tokens} positions of {self.n_prompts} prompts).",
            f"Base and adapter, and the merged model, write the same greedy text for {same} of "
            f"{self.n_prompts} prompts.",
            f"Of the update, {kept} survived rounding to {self.dtype}; {every['changed']:.1%} of "
            "the adapted weights changed.",
        ]
        if self.untied:
            sentences.append(
                "The base ties its embeddings and the adapter changes one of them, so they are "
                "saved as two matrices."
            )
        return " ".join([*sentences, *(f"Caution: {caution}" for caution in self.cautions)])

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}"

    def as_dict(self) -> dict[str, Any]:
        """What `certificate.json` holds."""
        texts = [asdict(text) | {"same": text.same} for text in self.greedy]
        counts = {"n_prompts": self.n_prompts, "n_tokens": self.n_tokens}
        head = {"schema": 1, "verdict": self.verdict, "cautions": self.cautions, **counts}
        return plain(head | asdict(self) | {"greedy": texts})


@dataclass(frozen=True)
class Exported:
    """What `certificate.json` and the model card say of a model all of whose weights were trained:
    there was nothing to merge, so nothing is measured."""

    name: str
    dtype: str
    base: dict[str, Any]  # which training began with: name, the hashes `config` and `weights`
    checkpoint: str
    adapters: tuple[dict[str, Any], ...] = ()
    environment: dict[str, Any] = field(default_factory=environment_record)

    @property
    def verdict(self) -> str:
        return f"All weights were trained, so nothing was merged; saved in {self.dtype}."

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}"

    def as_dict(self) -> dict[str, Any]:
        """What `certificate.json` holds."""
        return plain({"schema": 1, "verdict": self.verdict} | asdict(self))


def adapter_record(folder: Path) -> dict[str, Any]:
    """Which adapter it was."""
    settings = read_object(folder / "adapter_config.json")
    with open(folder / "adapter_model.safetensors", "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "name": folder.name,
        "folder": str(folder),
        "sha256": digest,
        "rank": settings["r"],
        "alpha": settings["lora_alpha"],
    }


def greedy_texts(
    prompts: Mapping[str, Tensor],
    first: Sequence[list[int]],
    second: Sequence[list[int]],
    tokenizer: Any,
) -> tuple[GreedyText, ...]:
    """The completions (token ids) of both models as texts, prompt (1, P) by prompt."""
    return tuple(
        GreedyText(
            name,
            decode(tokenizer, a),
            decode(tokenizer, b),
            len(a),
            _same_tokens(a, b),
            *(" ".join(map(str, ids)) for ids in (prompt[0].tolist(), a, b)),
        )
        for (name, prompt), a, b in zip(prompts.items(), first, second, strict=True)
    )


def _same_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, min(len(a), len(b)))
