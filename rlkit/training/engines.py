"""Rollout engines: which program samples a group's actions (`rollout.engine`, docs/rollouts.md).

| engine | who samples | its log-probabilities |
|---|---|---|
| transformers | the trainer's own model (sampling.py) | stored; never in the loss |
| vllm_server | a vLLM server that loads each new adapter (vllm_server.py) | importance weights |
| vllm | vLLM in this process (vllm_local.py) | importance weights |

An engine is made of a trainer, and follows its parameters, weights and ranks.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlkit.errors import ModelError
from rlkit.training.caches import PromptCache, joined
from rlkit.training.rollout import Group
from rlkit.training.sampling import SampledActions, sample_actions, uniform_numbers

OTHER_MODEL = 0.5  # nats a token, on average; bfloat16 against float32 moves them by 0.04


@dataclass(frozen=True)
class Asked:
    """The actions `which` (of 0 to K - 1) at one visit to a state, and the prompt's token ids."""

    prompt: list[int]
    state_id: str
    visit: int
    which: range

    key = property(lambda self: (self.state_id, self.visit, self.which))


class RolloutEngine(Protocol):
    """`off_policy`: what it samples has importance weights (`Group.off_policy`)."""

    off_policy: bool

    def publish(self) -> None:
        """Take up the trainer's weights where the optimiser moved since: collective."""

    def forget(self) -> None:
        """The trainer's weights changed without a move, as when a checkpoint is loaded."""

    def ask(self, asked: Sequence[Asked]) -> None:
        """What `sample` will be called for next, so that it can be sampled together."""

    def sample(self, asked: Asked, prefix: PromptCache | None = None) -> SampledActions:
        """The actions, under the weights that were published last. `prefix`: what the trainer
        read of the prompt already."""


class TransformersEngine:
    """The trainer's own model: nothing is published, and what is sampled is bitwise the same
    whatever was sampled before."""

    off_policy = False

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def publish(self) -> None: ...

    def forget(self) -> None: ...

    def ask(self, asked: Sequence[Asked]) -> None: ...

    def sample(self, asked: Asked, prefix: PromptCache | None = None) -> SampledActions:
        return self._sampled([asked], prefix)

    def sample_together(
        self, asked: Sequence[Asked], prefixes: Sequence[PromptCache | None]
    ) -> list[SampledActions]:
        """The actions of whole groups, in one batch (`rollout.groups_at_once`)."""
        known = [prefix for prefix in prefixes if prefix is not None]
        prefix = joined(known) if len(known) == len(asked) else None
        sampled, k = self._sampled(asked, prefix), len(asked[0].which)
        return [sampled.part(slice(i * k, (i + 1) * k)) for i in range(len(asked))]

    def _sampled(self, asked: Sequence[Asked], prefix: PromptCache | None) -> SampledActions:
        trainer, settings = self._trainer, self._trainer.settings
        size, longest = settings.group_size, settings.max_new_tokens
        numbers = [
            uniform_numbers(trainer.config.seed, one.state_id, one.visit, size, longest)
            for one in asked
        ]
        drawn = [n[one.which.start : one.which.stop] for n, one in zip(numbers, asked, strict=True)]
        return sample_actions(
            trainer.model,
            [one.prompt for one in asked],
            len(asked[0].which),
            longest,
            end_ids=trainer.ends,
            temperature=settings.temperature,
            uniforms=np.concatenate(drawn),
            prefix=prefix,
            complete=trainer.complete,
        )


# loaded when they are asked for: the client and vLLM are no part of a plain training
_ENGINES = {
    "transformers": f"{__name__}:TransformersEngine",
    "vllm_server": "rlkit.training.vllm_server:VllmServerEngine",
    "vllm": "rlkit.training.vllm_local:VllmEngine",
}


def make_engine(trainer: Any) -> RolloutEngine:
    """The engine that `rollout.engine` names: collective. Raises ConfigError where it cannot be
    here."""
    module, _, name = _ENGINES[trainer.config.rollout.engine].partition(":")
    return getattr(importlib.import_module(module), name)(trainer)


def check_engine(config: Any) -> None:
    """Raise ConfigError or AgentError where the engine of `config` is plainly not there, so that
    no warm start is made in vain."""
    module = importlib.import_module(_ENGINES[config.rollout.engine].partition(":")[0])
    if module.__name__ != __name__:
        module.check(config)


def check_sampler(group: Group, engine: str) -> None:
    """Raise ModelError where the engine must have another model than the trainer: the first pass
    over a group, after which its `old_logp` is there, finds its tokens far less or more likely."""
    mask = group.sampled.mask
    difference = float((group.old_logp - group.sampled.logprobs)[mask].abs().mean())
    if difference > OTHER_MODEL:
        raise ModelError(
            f"rollout.engine {engine} gives its tokens log-probabilities {difference:.2f} nats from"
            f" the trainer's, on average; below {OTHER_MODEL} is what another precision explains. "
            "See that it serves model.base_model_path, and not in so few bits."
        )
