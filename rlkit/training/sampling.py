"""Sampling K actions for a state, reproducible by construction.

Token t of action k takes its uniform number from a Philox generator (Salmon et al. 2011) keyed by
(seed, state id, visit, k), at counter t, and inverts the tempered distribution in float64. So an
action does not depend on which states were sampled before it, on the order, or on a resume. The
prompt is computed once for all K actions (attention.DecodingCache).

Shape letters: B prompts, K actions a prompt, P prompt tokens, C action tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlkit.errors import ModelError
from rlkit.training.attention import DecodingCache


@dataclass(frozen=True)
class SampledActions:
    """What was sampled, row by row (row = prompt * K + action).

    tokens: (N, C) int64, 0 behind the end; mask: (N, C) bool, True for the action's tokens, its
    end-of-turn token included; logprobs: (N, C) float32 under the sampling distribution, 0 behind
    the end; ended: (N,) bool, False where the length limit cut the action.
    """

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    ended: Tensor

    def rows(self) -> list[list[int]]:
        """The tokens of every row, without padding."""
        return [t[m].tolist() for t, m in zip(self.tokens, self.mask, strict=True)]


def uniform_numbers(seed: int, state_id: str, visit: int, actions: int, length: int) -> np.ndarray:
    """(K, C) float64 in [0, 1): number t of action k is word 0 of Philox at counter t.

    The key is the first 128 bits of SHA-256 over (seed, state id, visit, k).
    """
    numbers = np.empty((actions, length))
    for k in range(actions):
        name = repr((int(seed), str(state_id), int(visit), k)).encode("utf-8", "surrogatepass")
        key = np.frombuffer(hashlib.sha256(name).digest()[:16], dtype="<u8")
        words = np.random.Philox(key=key).random_raw(4 * length)[::4]
        numbers[k] = (words >> np.uint64(11)) * 2.0**-53
    return numbers


def pick(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Invert the tempered distribution: (N, V) logits, (N,) uniforms -> (N,) tokens, log-probs.

    The token is the first whose cumulative probability exceeds the uniform number.
    """
    logprobs = torch.log_softmax(logits.double() / temperature, dim=-1)
    cumulative = logprobs.exp().cumsum(dim=-1)
    target = (uniform.to(cumulative) * cumulative[:, -1])[:, None]
    tokens = torch.searchsorted(cumulative, target, right=True).clamp(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0].float()


@torch.no_grad()
def sample_actions(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    actions: int,
    max_new_tokens: int,
    *,
    end_ids: Sequence[int],
    temperature: float = 1.0,
    uniforms: np.ndarray | None = None,
) -> SampledActions:
    """Sample `actions` completions for each of B prompts; greedy where `uniforms` is None.

    `uniforms` is (B * K, max_new_tokens), see `uniform_numbers`. Finished rows stay in the batch,
    so that the arithmetic of the others does not change; decoding stops when all have ended.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    logits, cache = _prefill(model, prompts, actions, max_new_tokens, device)
    ends = torch.tensor(sorted(end_ids), device=device)
    rows = len(prompts) * actions
    draws = None if uniforms is None else torch.from_numpy(uniforms).to(device)
    done = torch.zeros(rows, dtype=torch.bool, device=device)
    tokens, masks, logprobs = [], [], []
    for t in range(max_new_tokens):
        if draws is None:
            picked = logits.argmax(dim=-1)
            logprob = torch.zeros(rows, device=device)
        else:
            picked, logprob = pick(logits, temperature, draws[:, t])
        tokens.append(picked.masked_fill(done, 0))
        masks.append(~done)
        logprobs.append(logprob.masked_fill(done, 0.0))
        done = done | torch.isin(picked, ends)
        if t + 1 == max_new_tokens or bool(done.all()):
            break
        logits = _next_logits(model, tokens[-1], cache)
    model.train(was_training)
    return SampledActions(
        torch.stack(tokens, 1), torch.stack(masks, 1), torch.stack(logprobs, 1), done
    )


def _prefill(
    model: nn.Module, prompts: Sequence[Sequence[int]], actions: int, length: int, device
) -> tuple[Tensor, DecodingCache]:
    """Run B right-padded prompts once: (B * K, V) logits of the first token, and the cache."""
    check_length(model, max(len(p) for p in prompts), length)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    ids = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    cache = DecodingCache(lengths, actions, length)
    positions = torch.arange(ids.shape[1], device=device)[None].expand_as(ids)
    decoder, head = decoder_and_head(model)
    hidden = decoder(
        input_ids=ids, position_ids=positions, cache=cache, use_cache=True, group=cache
    ).last_hidden_state
    last = hidden[torch.arange(len(prompts), device=device), lengths - 1]
    return head(last).repeat_interleave(actions, dim=0), cache


def _next_logits(model: nn.Module, tokens: Tensor, cache: DecodingCache) -> Tensor:
    """(N, V) logits behind one more token of every row."""
    decoder, head = decoder_and_head(model)
    hidden = decoder(
        input_ids=tokens[:, None],
        position_ids=cache.position_ids(),
        cache=cache,
        use_cache=True,
        group=cache,
    ).last_hidden_state
    cache.length += 1
    return head(hidden[:, 0])


def check_length(model: nn.Module, prompt: int, action: int) -> None:
    """Raise ModelError where prompt and action have more tokens than the model has positions."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit and prompt + action > limit:
        raise ModelError(
            f"a prompt of {prompt} tokens and an action of up to {action} do not fit into the "
            f"{limit} tokens that the model can read; lower executor.max_prompt_tokens or "
            "grpo.max_new_tokens."
        )


def decoder_and_head(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The layers without the LM head, and the head, of a plain or a PEFT model."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base.get_decoder(), base.get_output_embeddings()


def generate_with_log_probs(
    model: nn.Module,
    input_ids: Tensor,
    *,
    actions: int = 1,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    end_ids: Sequence[int] = (),
    seed: int = 7,
    state_id: str = "",
    visit: int = 0,
) -> SampledActions:
    """Sample `actions` completions of one prompt `input_ids` (P,) or (1, P), with log-probs."""
    prompt = input_ids.reshape(-1).tolist()
    uniforms = uniform_numbers(seed, state_id, visit, actions, max_new_tokens)
    return sample_actions(
        model,
        [prompt],
        actions,
        max_new_tokens,
        end_ids=end_ids,
        temperature=temperature,
        uniforms=uniforms,
    )
