"""Rollouts by vLLM in this very process, beside the trainer on the same device.

For a machine with one device on which vLLM can be imported next to rlkit. vLLM takes
`rollout.gpu_memory_utilization` of the device's memory for a second copy of the base model and its
caches (on a processor VLLM_CPU_KVCACHE_SPACE GiB), and reads each new adapter from a folder.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from rlkit.errors import ConfigError
from rlkit.training.caches import PromptCache
from rlkit.training.engines import Asked
from rlkit.training.models import resolve_base_model
from rlkit.training.sampling import SampledActions
from rlkit.training.vllm_adapters import Adapter, Adapters
from rlkit.training.vllm_requests import (
    PROCESSED,
    Completion,
    check_length,
    packed,
    sampling_options,
)

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


class VllmEngine:
    """vLLM's `LLM` in this process."""

    off_policy = True

    def __init__(self, trainer: Any) -> None:
        if not trainer.ranks.alone:
            raise ConfigError(
                f"rollout.engine vllm runs in one process, and there are {trainer.ranks.size}; "
                "start a server, and take rollout.engine vllm_server."
            )
        check(trainer.config)
        self._trainer, self._adapters = trainer, Adapters(trainer)
        self._llm: Any = None  # loaded when there is something to publish
        self._waiting: dict[tuple[Any, ...], Asked] = {}
        self._done: dict[tuple[Any, ...], SampledActions] = {}

    def publish(self) -> None:
        with self._adapters.renewed() as adapters:
            if adapters is None:
                return
            self._waiting, self._done = {}, {}
            self._llm = self._llm or _load(self._trainer.config)
            new, old = adapters
            self._llm.llm_engine.add_lora(_request(new))
            if old is not None:
                self._llm.llm_engine.remove_lora(old.number)

    def forget(self) -> None:
        self._adapters.forget()

    def ask(self, asked: Sequence[Asked]) -> None:
        self._waiting, self._done = {one.key: one for one in asked}, {}

    def sample(self, asked: Asked, prefix: PromptCache | None = None) -> SampledActions:
        """With the first of those that were asked for together, all of them are sampled."""
        if asked.key not in self._done:
            together = {**self._waiting, asked.key: asked}
            self._done = dict(zip(together, self._generate(list(together.values())), strict=True))
            self._waiting = {}
        return self._done.pop(asked.key)

    def _generate(self, asked: Sequence[Asked]) -> list[SampledActions]:
        from vllm import SamplingParams

        trainer = self._trainer
        context = self._llm.llm_engine.model_config.max_model_len
        for one in asked:
            check_length(len(one.prompt), trainer.settings.max_new_tokens, context)
        outputs = self._llm.generate(
            [{"prompt_token_ids": one.prompt} for one in asked],
            [SamplingParams(**sampling_options(trainer, one), detokenize=False) for one in asked],
            lora_request=_request(self._adapters.current),
            use_tqdm=False,
        )
        vocabulary = trainer.model.config.get_text_config().vocab_size
        return [
            packed([_completion(o) for o in output.outputs], trainer, "vLLM", vocabulary)
            for output in outputs
        ]


def check(config: Any) -> None:
    """Raise ConfigError where vLLM cannot be imported here, or not with such an adapter."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "rollout.engine is vllm, which is not installed here; install it beside rlkit, or "
            "start a server from an environment of its own, and take rollout.engine vllm_server."
        )
    if config.lora.rank > RANKS[-1]:
        raise ConfigError(f"lora.rank is {config.lora.rank}; vLLM takes at most {RANKS[-1]}.")


def _load(config: Any) -> Any:
    import vllm

    return vllm.LLM(
        model=str(resolve_base_model(config.model.base_model_path)),
        dtype=config.model.dtype,
        trust_remote_code=config.model.trust_remote_code,
        enable_lora=True,
        max_lora_rank=next(rank for rank in RANKS if rank >= config.lora.rank),
        logprobs_mode=PROCESSED,
        gpu_memory_utilization=config.rollout.gpu_memory_utilization,
        max_model_len=-1,  # the longest that the memory allows, up to the model's own
        seed=config.seed,
    )


def _request(adapter: Adapter) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(adapter.name, adapter.number, str(adapter.folder))


def _completion(output: Any) -> Completion:
    ids = [int(token) for token in output.token_ids]
    logprobs = [step[token].logprob for step, token in zip(output.logprobs, ids, strict=True)]
    return Completion(ids, logprobs, output.finish_reason)
