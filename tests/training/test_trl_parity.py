"""Our losses are TRL's, on the same tensors and on TRL's own rollouts.

TRL has one KL estimator (k3); its GSPO is `loss_type="grpo"` with sequence weights; its
`epsilon_high` of CISPO is the cap itself, ours the distance of the cap from 1. Three things differ
on purpose: TRL divides rewards by the standard deviation with ddof 1 plus 1e-4 (the tests build
its advantages and give them to our loss), it keeps actions that it masks in its denominators (none
is masked here), and by default it weighs the KL by the ratio (`use_bias_correction_kl`, off here).
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
import trl
from datasets import Dataset
from transformers import Qwen3ForCausalLM

from rlkit.training.adapters import as_reference
from rlkit.training.gradients import trainable
from rlkit.training.grpo import group_advantages, group_loss
from rlkit.training.logprobs import group_log_probs
from rlkit.training.models import byte_tokenizer, debug_config
from tests.training.conftest import tiny_base, with_lora

PROMPTS = ["write ab", "name the letters of cde"]  # unequal lengths: TRL pads the first
K, C, TEMPERATURE, BETA = 4, 8, 0.7, 0.3
ENDS = (2, *range(60, 110))  # about a fifth of the vocabulary, so that actions end early

# name: our settings, TRL's
VARIANTS = {
    "grpo": ({"loss_type": "grpo"}, {"loss_type": "grpo"}),
    "bnpo": ({"loss_type": "bnpo"}, {"loss_type": "bnpo"}),
    "dapo": ({"loss_type": "dapo"}, {"loss_type": "dapo"}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"loss_type": "dr_grpo"}),
    "cispo": (
        {"loss_type": "cispo", "clip_epsilon_high": 0.15},
        {"loss_type": "cispo", "epsilon_high": 1.15},
    ),
    "gspo": (
        {"loss_type": "gspo", "importance_level": "sequence"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "dapo, sequence": (
        {"loss_type": "dapo", "importance_level": "sequence"},
        {"loss_type": "dapo", "importance_sampling_level": "sequence"},
    ),
    "grpo, asymmetric": (
        {"loss_type": "grpo", "clip_epsilon": 0.1, "clip_epsilon_high": 0.4},
        {"loss_type": "grpo", "epsilon_low": 0.1, "epsilon_high": 0.4},
    ),
    "dr_grpo, asymmetric, sequence": (
        {
            "loss_type": "dr_grpo",
            "clip_epsilon": 0.05,
            "clip_epsilon_high": 0.1,
            "importance_level": "sequence",
        },
        {
            "loss_type": "dr_grpo",
            "epsilon_low": 0.05,
            "epsilon_high": 0.1,
            "importance_sampling_level": "sequence",
        },
    ),
}


def checksum(completions, **_) -> list[float]:
    return [sum(map(ord, text)) % 17 / 4 for text in completions]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """TRL's trainer on the same weights as `ours`, with attention of transformers' own."""
    tokenizer = byte_tokenizer()
    base = Qwen3ForCausalLM(debug_config(len(tokenizer), attn_implementation="sdpa"))
    lora = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]
    )
    args = trl.GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        use_cpu=True,
        bf16=False,
        report_to="none",
        activation_checkpointing=False,
        num_generations=K,
        max_completion_length=C,
        temperature=TEMPERATURE,
        beta=BETA,
        use_bias_correction_kl=False,
        per_device_train_batch_size=K,
        gradient_accumulation_steps=len(PROMPTS),
        seed=3,
    )
    trainer = trl.GRPOTrainer(
        base,
        checksum,
        args,
        Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=tokenizer,
        peft_config=lora,
    )
    trainer.model.load_state_dict(ours().state_dict())
    trainer.current_gradient_accumulation_steps = len(PROMPTS)
    trainer.eos_token_ids = list(ENDS)
    trainer.generation_config.eos_token_id = list(ENDS)
    trainer.model.train()
    return trainer


def ours():
    return with_lora(tiny_base())


@pytest.fixture
def rollouts(theirs):
    """TRL's own rollouts of both prompts, 2 K rows in one dict."""
    torch.manual_seed(5)
    rows = [{"prompt": prompt} for prompt in PROMPTS for _ in range(K)]
    batch = theirs._generate_and_score_completions(rows)
    lengths = batch["completion_mask"].sum(1)
    assert len(lengths.unique()) >= 3 and lengths.min() >= 1
    assert not batch["prompt_mask"].all()  # the shorter prompt is padded on the left
    return batch


@pytest.fixture
def setting(theirs, request):
    """TRL's trainer and our settings, both switched to one variant."""
    mine, its = VARIANTS[request.param]
    its = {"epsilon_low": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "token"} | its
    for name, value in its.items():
        setattr(theirs, name, value)
    defaults = dict(
        clip_epsilon=0.2,
        clip_epsilon_high=None,
        kl_penalty=BETA,
        kl_estimator="k3",
        importance_level="token",
        max_new_tokens=C,
    )
    return SimpleNamespace(**(defaults | mine))


def part(batch, which):
    """The rows of one group, as TRL's micro-batch."""
    rows = slice(which * K, (which + 1) * K)
    return {n: v[rows] if v.dim() else v for n, v in batch.items()}


def their_gradients(theirs, batch):
    """TRL's loss of one accumulation window, a group a micro-batch, and the adapter's gradient."""
    theirs.model.zero_grad()
    total = 0.0
    for which in range(len(PROMPTS)):
        loss = theirs._compute_loss(theirs.model, part(batch, which))
        loss.backward()
        total += float(loss.detach())
    return total, {n: p.grad.clone() for n, p in trainable(theirs.model).items()}


def our_gradients(model, batch, advantages, settings, old=None):
    """Our loss of the same window: sums and denominators over its groups, divided once."""
    model.zero_grad()
    losses = []
    for which in range(len(PROMPTS)):
        group = part(batch, which)
        prompt = group["prompt_ids"][0][group["prompt_mask"][0].bool()].tolist()
        mask, tokens = group["completion_mask"].bool(), group["completion_ids"]
        logp, _ = group_log_probs(model, prompt, tokens, mask=mask, temperature=TEMPERATURE)
        with torch.no_grad(), as_reference(model):
            ref, _ = group_log_probs(model, prompt, tokens, mask=mask, temperature=TEMPERATURE)
        before = logp.detach() if old is None else old[which * K : (which + 1) * K]
        given = torch.as_tensor(advantages[which])[:, None]
        loss = group_loss(logp, before, ref, given, mask, settings)
        loss.total.backward()
        losses.append((float(loss.total.detach()), loss.denominator))
    value, denominator = map(sum, zip(*losses, strict=True))
    grads = {n: p.grad / denominator for n, p in trainable(model).items()}
    return value / denominator, grads


def assert_same(found, expected, relative=1e-5):
    """Gradients agree to `relative` of the largest entry of their tensor, and are not all 0."""
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=relative * scale)


def drift(batch, spread=0.4):
    """Old log-probabilities some way off the policy's, so that ratios are clipped on both sides."""
    noise = torch.randn(batch["completion_ids"].shape, generator=torch.Generator().manual_seed(9))
    return batch["ref_per_token_logps"] + spread * noise


@pytest.mark.parametrize("setting", VARIANTS, indirect=True)
@pytest.mark.parametrize("beta", [0.0, BETA])
def test_a_loss_is_trl_s_on_the_same_log_probabilities(
    theirs, rollouts, setting, beta, monkeypatch
):
    """Float64 tensors in TRL's place of a model: values and gradients to 1e-12."""
    mask, source = rollouts["completion_mask"].bool(), np.random.default_rng(4)
    logp = torch.from_numpy(-3 * source.random((2 * K, C)))
    old, ref = (logp + torch.from_numpy(source.normal(0, 0.6, (2 * K, C))) for _ in range(2))
    advantages = torch.from_numpy(source.normal(0, 1, 2 * K))
    monkeypatch.setattr(theirs, "beta", beta)
    setting.kl_penalty = beta
    found, expected = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    given = {"advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": ref}
    losses, clipped = [], 0.0
    for which in range(2):
        own = slice(which * K, (which + 1) * K)
        answer = expected[own], torch.zeros(K, C), None
        monkeypatch.setattr(
            theirs, "_get_per_token_logps_and_entropies", lambda *_, a=answer, **__: a
        )
        losses.append(theirs._compute_loss(theirs.model, part(rollouts | given, which)))
    sum(losses).backward()
    parts = []
    for which in range(2):
        own = slice(which * K, (which + 1) * K)
        parts.append(
            group_loss(found[own], old[own], ref[own], advantages[own][:, None], mask[own], setting)
        )
        clipped += parts[-1].stats["clipped_low"] + parts[-1].stats["clipped_high"]
    value = sum(p.total for p in parts) / sum(p.denominator for p in parts)
    value.backward()
    assert clipped > 0 and not mask.all()
    torch.testing.assert_close(value, sum(losses), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.grad, expected.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("setting", VARIANTS, indirect=True)
@pytest.mark.parametrize("passes", ["first", "later"])
def test_trl_s_rollouts_replayed_give_its_loss_and_adapter_gradient(
    theirs, rollouts, setting, passes
):
    """From prompts and token ids to every adapter tensor, in float32: the loss to 1e-6, gradients
    to 1e-5 of a tensor's largest entry. TRL's advantages: ddof 1, plus 1e-4."""
    old = None if passes == "first" else drift(rollouts)
    batch = rollouts if old is None else {**rollouts, "old_per_token_logps": old}
    rewards = np.array(theirs._logs["rewards"]["checksum"]).reshape(2, K)
    centred = rewards - rewards.mean(1, keepdims=True)
    advantages = centred / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(advantages.ravel(), rollouts["advantages"].numpy(), atol=1e-5)
    assert advantages.any(axis=1).all()
    expected, gradient = their_gradients(theirs, batch)
    found, own = our_gradients(ours(), batch, advantages, setting, old)
    assert found == pytest.approx(expected, abs=1e-6)
    assert_same(own, gradient)


def test_the_reference_is_trl_s(rollouts):
    """Adapter off, prompt shared and unpadded, against TRL's left-padded batch."""
    model = ours()
    for which in range(2):
        group = part(rollouts, which)
        prompt = group["prompt_ids"][0][group["prompt_mask"][0].bool()].tolist()
        mask = group["completion_mask"].bool()
        with torch.no_grad(), as_reference(model):
            ref, _ = group_log_probs(
                model, prompt, group["completion_ids"], mask=mask, temperature=TEMPERATURE
            )
        expected = group["ref_per_token_logps"] * mask
        torch.testing.assert_close(ref, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_are_trl_s_but_for_ddof_and_epsilon(theirs, scale, monkeypatch):
    """(r - mean) / std: population and + 1e-8 here, ddof 1 and + 1e-4 there; `none` is the same."""
    monkeypatch.setattr(theirs, "scale_rewards", scale)
    rows = [{"prompt": prompt} for prompt in PROMPTS for _ in range(K)]
    batch = theirs._generate_and_score_completions(rows)
    rewards = np.array(theirs._logs["rewards"]["checksum"]).reshape(2, K)
    assert all(len(set(group)) > 1 for group in rewards.tolist())
    found = np.array(group_advantages(rewards.tolist(), scale))
    axis = {"group": 1, "batch": None, "none": None}[scale]
    own = theirs_divisor = np.ones((2, 1))
    if scale != "none":
        own = rewards.std(axis=axis, keepdims=True) + 1e-8
        theirs_divisor = rewards.std(axis=axis, ddof=1, keepdims=True) + 1e-4
    expected = batch["advantages"].double().numpy().reshape(2, K) * theirs_divisor
    np.testing.assert_allclose(found * own, expected, atol=1e-5)
