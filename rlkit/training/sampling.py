"""Sampling K actions for a state, reproducible by construction.

Token t of action k takes its uniform number from a Philox generator (Salmon et al. 2011) keyed by
(seed, state id, visit, k), at counter t, and inverts the tempered distribution in float64. So an
action does not depend on which states were sampled before it, on the order, or on a resume. The
prompt is computed once for all K actions (attention.DecodingCache).

Shape letters: B prompts, K actions a prompt, P prompt tokens, C action tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlkit.errors import ModelError
from rlkit.training import sharding
from rlkit.training.caches import DecodingCache, PromptCache
from rlkit.training.decoding import PlainDecoder
from rlkit.training.prefix import check_length, decoder_and_head, read_prompts
from rlkit.training.recorded import Recorded, can_record


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

    def part(self, rows: slice) -> SampledActions:
        """Some of the rows, as long as the longest of them."""
        mask = self.mask[rows]
        length = int(mask.sum(dim=1).max())
        tokens, logprobs = self.tokens[rows, :length], self.logprobs[rows, :length]
        return SampledActions(tokens, mask[:, :length], logprobs, self.ended[rows])


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
    scores = logits.to(torch.float64, copy=True).div_(temperature)  # N x V: one copy, then in place
    weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    if not bool(torch.isfinite(total).all()):
        raise ModelError(
            "the model's logits are not finite, so no token can be sampled; set model.dtype to "
            "float32 or bfloat16, or look at the adapter."
        )
    # rounding may lift u * total to total, which no cumulative sum exceeds
    highest = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniform.to(cumulative)[:, None] * total, highest)
    tokens = torch.searchsorted(cumulative, target, right=True)
    logprobs = (weights.gather(1, tokens) / total).log()
    return tokens[:, 0], logprobs[:, 0].float()


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
    prefix: PromptCache | None = None,
    complete: Callable[[list[int]], bool] | None = None,
) -> SampledActions:
    """Sample `actions` completions for each of B prompts; greedy where `uniforms` is None.

    `uniforms` is (B * K, max_new_tokens), see `uniform_numbers`; `prefix` is what `read_prompts`
    made of the same prompts, where that is there already. `complete` tells whether the ids of an
    action so far are all of it; it has ended then. Finished rows stay in the batch,
    so that the arithmetic of the others does not change; decoding stops when all have ended.
    """
    device, shards = sharding.computes_on(model), sharding.of(model)
    was_training = model.training
    model.eval()
    check_length(model, max(len(p) for p in prompts), max_new_tokens)
    head = sharding.whole_head(decoder_and_head(model)[1])
    plain = PlainDecoder.of(model)
    step = step_function(model, plain)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    prefix, whole = prefix or read_prompts(model, prompts), can_record(plain, device)
    cache = DecodingCache(lengths, actions, max_new_tokens, prefix, whole)
    last = torch.tensor([prompt[-1] for prompt in prompts], device=device)
    logits = head(step(last, cache)).repeat_interleave(actions, dim=0)

    def following(tokens: Tensor) -> Tensor:
        return head(step(tokens, cache))

    forward = Recorded(following) if whole else following
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
        if complete is not None:
            done = done | _completed(torch.stack(tokens, 1), done, complete)
        ended = bool(done.all())
        if t + 1 == max_new_tokens or (shards.all(ended) if shards else ended):
            break
        logits = forward(tokens[-1])
    model.train(was_training)
    if shards:  # what came behind our last end was for the others' sake
        length = int(torch.stack(masks).any(dim=1).sum())
        tokens, masks, logprobs = (kept[:length] for kept in (tokens, masks, logprobs))
    return SampledActions(
        torch.stack(tokens, 1), torch.stack(masks, 1), torch.stack(logprobs, 1), done
    )


def _completed(tokens: Tensor, done: Tensor, complete: Callable[[list[int]], bool]) -> Tensor:
    """(N,) bool: which of the rows that go on, (N, t) tokens, are complete."""
    rows = zip(tokens.tolist(), done.tolist(), strict=True)
    found = [not over and complete(ids) for ids, over in rows]
    return torch.tensor(found, device=done.device)


def cut_short(ids: Sequence[int], complete: Callable[[list[int]], bool] | None) -> int:
    """How many tokens an action has that ends as soon as it is complete."""
    lengths = range(1, len(ids)) if complete is not None else ()
    return next((n for n in lengths if complete(list(ids[:n]))), len(ids))


def step_function(
    model: nn.Module, plain: PlainDecoder | None
) -> Callable[[Tensor, DecodingCache], Tensor]:
    """(N,) tokens and the cache to (N, D) last hidden states, by plain code or by the modules."""
    decoder, _ = decoder_and_head(model)

    def step(tokens: Tensor, cache: DecodingCache) -> Tensor:
        if plain is not None:
            hidden = plain.step(tokens, cache)
        else:
            hidden = decoder(
                input_ids=tokens[:, None],
                position_ids=cache.position_ids(),
                use_cache=False,
                group=cache,
            ).last_hidden_state[:, 0]
        cache.advance()
        return hidden

    return step


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
    """Sample `actions` completions of one prompt `input_ids` (P,) or (1, P), with log-probs.

    Without `end_ids` none ends before `max_new_tokens`.
    """
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
