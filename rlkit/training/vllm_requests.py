"""What vLLM is asked for, alike in its server and in this process, and what its answers must be.

Every sampling setting is given: what is left out would come from the model's generation config.
The end-of-turn tokens are the trainer's own, as stop tokens, which vLLM counts as sampled; its own
idea of an end is switched off. Log-probabilities are those of the tempered distribution
(`logprobs-mode processed_logprobs`); vLLM's default is the one before the temperature.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlkit.errors import AgentError, ModelError
from rlkit.training.engines import Asked
from rlkit.training.sampling import SampledActions, cut_short

PROCESSED = "processed_logprobs"


def sampling_options(trainer: Any, asked: Asked) -> dict[str, Any]:
    """Keyword arguments of vLLM's SamplingParams, and fields of its server's completion request.

    Action k is drawn with seed `request_seed` + k."""
    return {
        "n": len(asked.which),
        "seed": request_seed(trainer.config.seed, asked.state_id, asked.visit) + asked.which.start,
        "temperature": trainer.settings.temperature,
        "max_tokens": trainer.settings.max_new_tokens,
        "min_tokens": 0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "stop_token_ids": [int(token) for token in trainer.ends],
        "logprobs": 0,  # of the sampled token alone
    }


def request_seed(seed: int, state_id: str, visit: int) -> int:
    """62 bits of SHA-256 over (seed, state id, visit), as in sampling.py: the same action has the
    same seed, whatever was sampled before."""
    name = repr((int(seed), str(state_id), int(visit))).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "little") >> 2


@dataclass(frozen=True)
class Completion:
    """One action as vLLM gives it."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str | None


def check_length(prompt: int, longest: int, context: int | None) -> None:
    """Raise ModelError where vLLM would have to cut the action, or refuse the prompt."""
    if context is not None and prompt + longest > context:
        raise ModelError(
            f"a prompt of {prompt} tokens and an action of up to {longest} do not fit into the "
            f"{context} tokens that vLLM was started with; raise its --max-model-len, or lower "
            "executor.max_prompt_tokens or grpo.max_new_tokens."
        )


def packed(
    completions: Sequence[Completion], trainer: Any, who: str, vocabulary: int
) -> SampledActions:
    """The K actions of a group as tensors on the trainer's device.

    Raises AgentError where one of them is not what was asked for: other ids than tokens, a
    log-probability that is none, an end that is none of the trainer's, or a cut too early."""
    for completion in completions:
        if why := _objection(completion, trainer, vocabulary):
            raise AgentError(f"{who} answered with {why}; it cannot be learnt from.")
    cut = [cut_short(c.ids, trainer.complete) for c in completions]
    lengths = torch.tensor(cut)
    mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]  # (K, C)
    tokens = torch.zeros(mask.shape, dtype=torch.int64)
    logprobs = torch.zeros(mask.shape)
    for k, completion in enumerate(completions):
        tokens[k, : cut[k]] = torch.tensor(list(completion.ids[: cut[k]]))
        logprobs[k, : cut[k]] = torch.tensor(list(completion.logprobs[: cut[k]]))
    complete = trainer.complete
    whole = [
        n < len(c.ids) or bool(complete and complete(list(c.ids)))
        for n, c in zip(cut, completions, strict=True)
    ]
    stopped = [c.finish_reason == "stop" for c in completions]
    ended = torch.tensor(whole) | torch.tensor(stopped)
    return SampledActions(*(t.to(trainer.device) for t in (tokens, mask, logprobs, ended)))


def _objection(completion: Completion, trainer: Any, vocabulary: int) -> str | None:
    """Why a completion is no action of the policy; None where it is one."""
    ids, logprobs, longest = completion.ids, completion.logprobs, trainer.settings.max_new_tokens
    if not ids or not all(type(t) is int and 0 <= t < vocabulary for t in ids):
        return f"no token ids of the model (allowed are 0 to {vocabulary - 1})"
    if len(logprobs) != len(ids):
        return f"{len(ids)} tokens and {len(logprobs)} log-probabilities"
    if not all(isinstance(p, int | float) and math.isfinite(p) and p <= 1e-3 for p in logprobs):
        return "a log-probability that is missing or above 0"
    ends = [i for i, token in enumerate(ids) if token in trainer.ends]
    if completion.finish_reason == "stop" and ends != [len(ids) - 1]:
        return "an action that stopped at no end-of-turn token"
    whole = completion.finish_reason == "stop" or len(ids) == longest
    if completion.finish_reason not in ("stop", "length") or not whole:
        reason = str(completion.finish_reason)[:40]
        return f"an action cut after {len(ids)} of {longest} tokens (finish_reason {reason!r})"
    if completion.finish_reason == "length" and ends:
        return "an action that went on after an end-of-turn token"
    return None
