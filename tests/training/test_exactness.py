"""What the engine promises to be exact: every option on the shared prompt, splits, the first step,
and the corners (nothing to learn from, one token, cut off), each through the trainer."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch

from rlkit.errors import ModelError
from rlkit.parameters import GrpoSection
from rlkit.practice.task import Score
from rlkit.training.gradients import trainable, without_dropout
from rlkit.training.grpo import AVERAGES, KL_ESTIMATORS, group_loss
from rlkit.training.logprobs import get_token_log_probs, group_log_probs
from rlkit.training.metrics import token_means
from rlkit.training.policy import load_model_with_lora
from rlkit.training.rollout import Group
from rlkit.training.sampling import SampledActions, generate_with_log_probs, sample_actions
from rlkit.training.sft import Example, train_sft
from tests.training.architectures import build, dense_log_probs
from tests.training.conftest import (
    LetterState,
    LetterTask,
    in_float64,
    tiny_base,
    tiny_config,
    tiny_trainer,
    with_lora,
)

PROMPT = list(range(5, 22))
ENDS = tuple(range(2, 45))  # a sixth of the vocabulary: some actions end, some are cut


def uneven_trainer(config, model, reward=None):
    """A trainer whose actions have unequal lengths, and which shows the gradients of its updates
    instead of moving."""
    trainer = tiny_trainer(config, LetterTask(8, reward), model, run=False)
    trainer.ends = ENDS
    trainer.updates = []
    trainer.optimizer.step = lambda: trainer.updates.append(
        {name: p.grad.clone() for name, p in trainer.parameters.items()}
    )
    return trainer


def train_in_steps_of(size, trainer, states):
    groups = []
    for start in range(0, len(states), size):
        trainer.training_step(states[start : start + size])
        groups += trainer.last_groups
    (update,) = trainer.updates
    return update, groups


def assert_close(found, expected, relative):
    """To `relative` of the largest entry of each tensor; every tensor has one that is not 0."""
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=relative * scale)


# -- every option, shared against dense --------------------------------------------------------

OPTIONS = [
    *({"loss_type": t, "kl_estimator": k} for t, k in itertools.product(AVERAGES, KL_ESTIMATORS)),
    *({"loss_type": t, "importance_level": "sequence"} for t in ("grpo", "dapo", "cispo")),
    {"loss_type": "grpo", "clip_epsilon": 0.05, "clip_epsilon_high": 0.4},
    {"loss_type": "dr_grpo", "kl_penalty": 0.0, "temperature": 1.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ", ".join(map(str, o.values())))
@pytest.mark.parametrize("later_pass", [False, True])
def test_every_loss_has_the_dense_pass_s_value_and_gradient(options, later_pass):
    """Float64 to 1e-10: shared prompt and mask here, transformers' own attention there."""
    settings = GrpoSection(**{"kl_penalty": 0.2, "max_new_tokens": 7, **options})
    settings.check()
    numbers = np.random.default_rng(3)
    tokens = torch.from_numpy(numbers.integers(3, 60, (3, 7)))
    mask = torch.arange(7) < torch.tensor([[7], [4], [1]])
    advantages = torch.from_numpy(numbers.normal(size=(3, 7)))  # per token, as with clue credit
    noise = torch.from_numpy(numbers.normal(0, 0.3, (2, 3, 7)))
    noise[0] += torch.tensor([[0.4], [-0.4], [0.4]])  # whole actions are clipped, too
    results = []
    for kind in ("rlkit", "sdpa"):
        model = build("llama", kind)
        with without_dropout(model):
            if kind == "rlkit":
                logp, _ = group_log_probs(
                    model, PROMPT, tokens, mask=mask, temperature=settings.temperature
                )
            else:
                logp = dense_log_probs(model, PROMPT, tokens, temperature=settings.temperature)
            old = logp.detach() + noise[0] * later_pass
            loss = group_loss(logp, old, logp.detach() + noise[1], advantages, mask, settings)
            loss.total.backward()
        results.append((loss, {n: p.grad for n, p in trainable(model).items()}))
    (found, gradient), (expected, reference) = results
    assert bool(expected.stats["clipped_low"] + expected.stats["clipped_high"]) == later_pass
    assert found.denominator == expected.denominator and found.stats == expected.stats
    torch.testing.assert_close(found.total, expected.total, rtol=0, atol=1e-10)
    assert_close(gradient, reference, 1e-10)


# -- splits ----------------------------------------------------------------------------------


def update_by_hand(model, groups, loss_type, beta, longest):
    """The gradient of a window's loss at ratio 1, where a token's policy term has the gradient of
    -A logp: every action alone behind its prompt, through transformers' own attention."""
    model.zero_grad()
    model.get_base_model().set_attn_implementation("sdpa")
    actions = []  # (group, (C,) losses of its tokens)
    for g, group in enumerate(groups):
        for k, ids in enumerate(group.sampled.rows()):
            if group.scores[k].reward is None or not group.sampled.ended[k]:
                continue
            tokens = torch.tensor([ids])
            logp = dense_log_probs(model, group.prompt, tokens)[0]
            with torch.no_grad(), model.disable_adapter():
                ref = dense_log_probs(model, group.prompt, tokens)[0]
            advantage = float(group.advantages[k][0])
            actions.append((g, -advantage * logp + beta * (ref - logp) ** 2))
    everything = torch.cat([losses for _, losses in actions])
    if loss_type in ("grpo", "gspo"):
        loss = torch.stack([losses.mean() for _, losses in actions]).mean()
    elif loss_type in ("dapo", "cispo"):
        loss = everything.mean()
    elif loss_type == "dr_grpo":
        loss = everything.sum() / (len(actions) * longest)
    else:
        own = [torch.cat([x for h, x in actions if h == g]) for g in {g for g, _ in actions}]
        loss = torch.stack([losses.mean() for losses in own]).mean()
    loss.backward()
    return {name: p.grad.clone() for name, p in trainable(model).items()}


@pytest.mark.parametrize("loss_type", AVERAGES)
def test_eight_groups_give_one_gradient_however_they_are_split(tmp_path, loss_type):
    """Steps of 8, 4, 2 and 1 groups with 1, 2, 4 and 8 accumulated, actions of unequal lengths,
    some of them unscorable or cut: float64 to 1e-9, and what a computation by hand gives. (bnpo
    averages within a group here, so that it does not depend on the split either.)"""

    def reward(k, text):
        checksum = sum(map(ord, text))
        return None if checksum % 5 == 0 else checksum % 7

    updates = []
    for size in (8, 4, 2, 1):
        config = tiny_config(
            tmp_path,
            loss_type=loss_type,
            kl_penalty=0.1,
            mask_truncated=True,
            max_grad_norm=1e6,
        ).with_overrides(f"training.gradient_accumulation_steps={8 // size}")
        trainer = uneven_trainer(config, in_float64(with_lora(tiny_base())), reward)
        update, groups = train_in_steps_of(size, trainer, trainer.task.states("train"))
        updates.append(update)
    counted = [int(g.loss_mask(True).any(1).sum()) for g in groups]
    lengths = {len(row) for g in groups for row in g.sampled.rows()}
    cut = [int((~g.sampled.ended).sum()) for g in groups]
    unjudged = sum(reward is None for g in groups for reward in g.rewards)
    assert len(set(counted)) > 1 and len(lengths) > 3 and any(cut) and unjudged
    for other in updates[1:]:
        assert_close(other, updates[0], 1e-9)
    assert_close(updates[0], update_by_hand(trainer.model, groups, loss_type, 0.1, 8), 1e-9)


@pytest.mark.parametrize("loss_type", AVERAGES)
def test_in_float32_the_splits_agree_to_1e_5(tmp_path, loss_type):
    updates = []
    for size in (8, 1):
        config = tiny_config(tmp_path, loss_type=loss_type, max_grad_norm=1e6)
        config = config.with_overrides(f"training.gradient_accumulation_steps={8 // size}")
        trainer = uneven_trainer(config, with_lora(tiny_base()))
        updates.append(train_in_steps_of(size, trainer, trainer.task.states("train"))[0])
    assert_close(updates[1], updates[0], 1e-5)


@pytest.mark.parametrize("how", ["not reentrant", "reentrant"])
def test_a_step_with_gradient_checkpointing_has_the_gradients_of_one_without(tmp_path, how):
    """Every adapter tensor, through sampling, reference and policy passes."""
    updates = []
    for checkpointing in (False, True):
        config = tiny_config(tmp_path, kl_penalty=0.1, max_grad_norm=1e6)
        config = config.with_overrides("training.gradient_accumulation_steps=1")
        model = in_float64(with_lora(tiny_base()))
        if checkpointing:
            base = model.get_base_model()
            base.activation_checkpointing_enable({"use_reentrant": how == "reentrant"})
            if how == "reentrant":
                model.enable_input_require_grads()
        trainer = uneven_trainer(config, model)
        updates.append(train_in_steps_of(2, trainer, trainer.task.states("train")[:2])[0])
    assert_close(updates[1], updates[0], 1e-10)


@pytest.mark.parametrize("loss_type", AVERAGES)
def test_a_second_pass_weighs_against_the_policy_that_sampled(tmp_path, loss_type):
    """`num_iterations: 2`: the second update's gradient is that of the loss at the moved weights,
    with the ratio to the weights before, both computed densely. Float64 to 1e-9."""
    options = dict(loss_type=loss_type, num_iterations=2, kl_penalty=0.1, max_grad_norm=1e6)
    config = tiny_config(tmp_path, **options)
    config = config.with_overrides("training.gradient_accumulation_steps=1")
    trainer = uneven_trainer(config, in_float64(with_lora(tiny_base())), lambda k, text: float(k))
    move, record = type(trainer.optimizer).step, trainer.optimizer.step

    def record_and_move_once():
        record()
        if len(trainer.updates) == 1:
            move(trainer.optimizer)

    trainer.optimizer.step = record_and_move_once
    metrics = trainer.training_step(trainer.task.states("train")[:1])
    group, before = trainer.last_groups[0], in_float64(with_lora(tiny_base()))
    for model in (before, trainer.model):
        model.get_base_model().set_attn_implementation("sdpa")
    with torch.no_grad():
        old = dense_log_probs(before, group.prompt, group.sampled.tokens)
        with before.disable_adapter():
            ref = dense_log_probs(before, group.prompt, group.sampled.tokens)
    trainer.model.zero_grad()
    logp = dense_log_probs(trainer.model, group.prompt, group.sampled.tokens)
    advantages = torch.from_numpy(group.advantages)
    loss = group_loss(logp, old, ref, advantages, group.sampled.mask, config.grpo)
    (loss.total / loss.denominator).backward()
    assert float((logp - old)[group.sampled.mask].abs().max()) > 0.01  # the weights did move
    expected = {name: p.grad for name, p in trainable(trainer.model).items()}
    assert_close(trainer.updates[1], expected, 1e-9)
    clipped = loss.stats["clipped_low"] / loss.stats["tokens"]
    assert metrics["clip_ratio/low_mean"] == pytest.approx(clipped)


# -- the first step --------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["fresh", "warm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_ratio_1_and_kl_0_are_exact_at_the_first_step(tmp_path, start, dtype, checkpointing):
    """Bitwise, not nearly: reference and policy agree in every token, and the loss is what the
    advantages alone make of a ratio of 1."""
    base = tiny_base().to(dtype)
    if checkpointing:
        base.activation_checkpointing_enable({"use_reentrant": False})
    model = with_lora(base, spread=0.3 if start == "warm" else 0.0)
    if start == "warm":
        model.save_pretrained(tmp_path / "warm")
        model.load_adapter(str(tmp_path / "warm"), adapter_name="reference", is_trainable=False)
        model.set_adapter("default")
    config = tiny_config(tmp_path, loss_type="dapo", kl_penalty=0.5, kl_estimator="k3")
    trainer = uneven_trainer(config, model, lambda k, text: float(k))
    metrics = trainer.training_step(trainer.task.states("train")[:1])
    group = trainer.last_groups[0]
    assert torch.equal(group.old_logp, group.ref_logp)
    assert metrics["kl"] == 0.0
    mask = group.sampled.mask
    minus = -torch.from_numpy(group.advantages).to(group.old_logp)[mask]
    assert minus.abs().min() > 0
    assert metrics["loss"] == pytest.approx(float(minus.double().sum()) / len(minus), abs=1e-6)
    assert metrics["clip_ratio/low_mean"] == metrics["clip_ratio/high_mean"] == 0.0


# -- temperature -----------------------------------------------------------------------------


def test_logits_2_1_0_at_temperature_one_half_give_minus_0_1429_everywhere():
    """log softmax([4, 2, 0])[0] = -log(1 + e^-2 + e^-4) = -0.142932."""
    model = tiny_base().double()
    head = torch.nn.Linear(model.config.hidden_size, 3).double()
    torch.nn.init.zeros_(head.weight)
    head.bias.data = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    model.set_output_embeddings(head)
    tokens = torch.tensor([[0, 0]])
    prompt = [0, 2, 1]
    packed, _ = group_log_probs(model, prompt, tokens, temperature=0.5)
    row = torch.tensor([[*prompt, 0]])
    unpadded = SimpleNamespace(pad_token_id=9)
    dense = get_token_log_probs(model, row, unpadded, temperature=0.5)[0, -1:]
    options = dict(end_ids=[9], temperature=0.5)
    zeros = np.zeros((1, 2))
    sampled = sample_actions(model, [prompt], 1, 2, uniforms=zeros, **options).logprobs
    for found in (packed.detach(), dense.detach(), sampled):
        np.testing.assert_allclose(found.numpy().ravel(), -0.142932, atol=5e-7)


# -- nothing to learn from, one token, cut off -------------------------------------------------


@pytest.mark.parametrize("loss_type", AVERAGES)
def test_an_action_without_tokens_leaves_a_group_as_if_it_were_not_there(loss_type):
    settings = GrpoSection(loss_type=loss_type, kl_penalty=0.1, max_new_tokens=4)
    settings.check()
    logp = torch.tensor([[-1.0, -2.0], [-3.0, -0.5], [-1.5, -1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [False, False], [True, False]])
    results = []
    for rows in ([0, 1, 2], [0, 2]):
        own = logp[rows].requires_grad_()
        loss = group_loss(
            own,
            own.detach() - 0.1,
            own.detach() + 0.2,
            torch.tensor([1.0, 5.0, -1.0])[rows, None],
            mask[rows],
            settings,
        )
        loss.total.backward()
        results.append((loss, own.grad))
    (with_it, gradient), (without, expected) = results
    assert with_it.denominator == without.denominator
    torch.testing.assert_close(with_it.total, without.total, rtol=0, atol=1e-12)
    assert gradient[1].tolist() == [0.0, 0.0]
    torch.testing.assert_close(gradient[[0, 2]], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("difference", [-100.0, 100.0])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_policy_100_nats_from_where_it_was_has_a_finite_loss(advantage, difference, level):
    settings = GrpoSection(importance_level=level, kl_penalty=0.1, kl_estimator="k3")
    logp = torch.tensor([[-101.0, -1.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    far = logp.detach() + torch.tensor([[difference, 0.0]])
    loss = group_loss(logp, far, far, torch.tensor([[advantage]]), mask, settings)
    loss.total.backward()
    assert torch.isfinite(loss.total) and torch.isfinite(logp.grad).all()


def test_actions_that_end_at_once_are_learnt_from(tmp_path):
    """Empty texts: their one token, the end, counts. Here all of the group's are such."""
    config = tiny_config(tmp_path, kl_penalty=0.0, max_grad_norm=1e6)
    config = config.with_overrides("training.gradient_accumulation_steps=1")
    trainer = uneven_trainer(config, with_lora(tiny_base()), lambda k, text: float(k))
    trainer.ends = tuple(range(259))
    metrics = trainer.training_step(trainer.task.states("train")[:1])
    assert metrics["completions/mean_length"] == 1.0
    assert metrics["completions/clipped_ratio"] == 0.0
    assert all(g.abs().max() > 0 for g in trainer.updates[0].values())


@pytest.mark.parametrize("masked", [False, True])
def test_a_group_cut_off_whole_is_counted_and_with_mask_truncated_teaches_nothing(tmp_path, masked):
    config = tiny_config(tmp_path, mask_truncated=masked, kl_penalty=0.1)
    config = config.with_overrides("training.gradient_accumulation_steps=1")
    trainer = uneven_trainer(config, with_lora(tiny_base()), lambda k, text: float(k))
    trainer.ends = (300,)  # never sampled
    metrics = trainer.training_step(trainer.task.states("train")[:1])
    assert metrics["completions/clipped_ratio"] == 1.0 and metrics["reward"] == 1.5
    assert len(trainer.updates) == (0 if masked else 1)
    assert (metrics["kl"] is None) == masked
    assert (metrics["grad_norm"] == 0.0) == masked


def test_groups_of_equal_rewards_have_zero_and_not_missing_gradients(tmp_path):
    config = tiny_config(tmp_path, kl_penalty=0.0)
    config = config.with_overrides("training.gradient_accumulation_steps=1")
    trainer = uneven_trainer(config, with_lora(tiny_base()), lambda k, text: 1.0)
    metrics = trainer.training_step(trainer.task.states("train")[:2])
    assert metrics["frac_reward_zero_std"] == 1.0 and metrics["grad_norm"] == 0.0
    (update,) = trainer.updates
    assert all(not gradient.any() for gradient in update.values())


def test_without_a_valid_reward_all_is_counted_and_nothing_measured(tmp_path):
    config = tiny_config(tmp_path, kl_penalty=0.1)
    trainer = uneven_trainer(config, with_lora(tiny_base()), lambda k, text: None)
    for _ in range(2):
        metrics = trainer.training_step(trainer.task.states("train")[:2])
    assert metrics["unjudged_share"] == 1.0 and metrics["grad_norm"] == metrics["loss"] == 0.0
    assert metrics["kl"] is metrics["entropy"] is metrics["reward"] is None
    assert metrics["completions/mean_length"] > 0
    assert all(p.grad is None or not p.grad.any() for p in trainer.parameters.values())


def test_kl_and_entropy_are_means_over_the_tokens_that_the_loss_counts():
    """Action 1 is unscorable, action 2 cut: only action 0's two tokens count where both leave."""
    mask = torch.tensor([[True, True, False], [True, True, True], [True, True, True]])
    sampled = SampledActions(
        torch.ones(3, 3, dtype=torch.long), mask, -torch.ones(3, 3), torch.tensor([1, 1, 0]).bool()
    )
    scores = [Score(1.0, {}), Score(None, {}), Score(2.0, {})]
    group = Group(LetterState("s"), 0, PROMPT, sampled, [""] * 3, scores)
    group.old_logp = torch.tensor([[-1.0, -1.5, 0.0], [-9.0, -9.0, -9.0], [-2.0, -2.0, -2.0]])
    group.ref_logp = group.old_logp + torch.tensor([[0.5, 0.0, 0.0], [9.0] * 3, [0.0] * 3])
    group.entropy = torch.tensor([[1.0, 2.0, 0.0], [7.0] * 3, [4.0] * 3])
    k3 = np.exp(0.5) - 0.5 - 1
    found = token_means([group], mask_truncated=True)
    assert found == pytest.approx(
        {"kl": k3 / 2, "entropy": 1.5, "sampling_logp_difference": 0.25}, abs=1e-6
    )
    found = token_means([group, group], mask_truncated=False)
    assert found == pytest.approx(
        {"kl": k3 / 5, "entropy": 3.0, "sampling_logp_difference": (0.5 + 3.0) / 5}, abs=1e-6
    )


# -- gradients that get lost -------------------------------------------------------------------


def test_four_bit_weights_learn_after_an_evaluation_what_they_would_have_without(tmp_path):
    pytest.importorskip("bitsandbytes")
    updates = []
    for looks in (0, 1):
        config = tiny_config(tmp_path, kl_penalty=0.1, max_grad_norm=1e6)
        config = config.with_overrides("training.gradient_accumulation_steps=1")
        model, _ = load_model_with_lora(
            "debug", config.lora, device="cpu", dtype="float32", load_in_4bit=True, log=_quiet
        )
        torch.manual_seed(2)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        assert any(type(m).__name__ == "Linear4bit" for m in model.modules())
        trainer = uneven_trainer(config, model)
        for _ in range(looks):
            trainer.evaluate(trainer.task.states("eval"))
        updates.append(train_in_steps_of(1, trainer, trainer.task.states("train")[:1])[0])
    for name, gradient in updates[0].items():
        assert torch.isfinite(gradient).all() and gradient.abs().max() > 0
        assert torch.equal(updates[1][name], gradient)


def _quiet(_: str) -> None: ...


def test_both_stages_assert_after_their_first_backward_that_no_gradient_is_missing(tmp_path):
    config = tiny_config(tmp_path)
    for stage in ("sft", "grpo"):
        model = with_lora(tiny_base())
        model.register_parameter("orphan", torch.nn.Parameter(torch.zeros(1)))
        with pytest.raises(ModelError, match="orphan has no gradient"):
            if stage == "sft":
                train_sft(model, [Example(PROMPT, [5, 6, 2])], config.sft, 7)
            else:
                trainer = uneven_trainer(config, model)
                trainer.training_step(trainer.task.states("train")[:1])


# -- sampling --------------------------------------------------------------------------------


def test_a_public_call_samples_the_trainer_s_group_and_its_first_action(tmp_path):
    model = in_float64(with_lora(tiny_base()))
    trainer = tiny_trainer(tiny_config(tmp_path), model=model, run=False)
    state = trainer.task.states("train")[3]
    trainer.training_step([state])
    group = trainer.last_groups[0]
    options = dict(max_new_tokens=8, end_ids=trainer.ends, state_id=state.state_id, seed=7)
    prompt = torch.tensor(group.prompt)
    for actions in (1, 4):
        again = generate_with_log_probs(model, prompt, actions=actions, **options)
        assert again.rows() == group.sampled.rows()[:actions]
    other = generate_with_log_probs(model, prompt, actions=4, visit=1, **options)
    assert other.rows() != group.sampled.rows()


def test_a_group_is_the_same_alone_beside_others_and_in_another_order(tmp_path):
    """As part of a step of three, of one, and after others: the same tokens, in float64."""
    seen = []
    for order in ([0, 1, 2], [2], [1, 2, 0]):
        model = in_float64(with_lora(tiny_base()))
        trainer = tiny_trainer(tiny_config(tmp_path), model=model, run=False)
        trainer.training_step([trainer.task.states("train")[i] for i in order])
        seen.append(trainer.last_groups[order.index(2)].sampled.rows())
    assert seen[0] == seen[1] == seen[2]


def test_a_peft_model_keeps_its_reference_out_of_training(tmp_path, model):
    """The warm start's frozen copy takes part in no gradient and no update."""
    model.save_pretrained(tmp_path / "warm")
    model.load_adapter(str(tmp_path / "warm"), adapter_name="reference", is_trainable=False)
    model.set_adapter("default")
    frozen = {n: p.clone() for n, p in model.named_parameters() if ".reference." in n}
    trainer = tiny_trainer(tiny_config(tmp_path, kl_penalty=0.1), model=model, run=False)
    for _ in range(2):
        trainer.training_step(trainer.task.states("train")[:2])
    parameters = dict(model.named_parameters())
    assert frozen and all(torch.equal(parameters[n], p) for n, p in frozen.items())
    assert all(parameters[n].grad is None for n in frozen)
    assert isinstance(model, peft.PeftModel)
