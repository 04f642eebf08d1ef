"""Groups that are sampled in one batch, actions that end where they are complete, and a dev
evaluation that reads a prompt once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlkit.errors import ConfigError
from rlkit.training.adapters import as_reference
from rlkit.training.caches import joined
from rlkit.training.grpo import k3
from rlkit.training.loop import train
from rlkit.training.prefix import read_prompts
from rlkit.training.sampling import cut_short, sample_actions, uniform_numbers
from rlkit.training.schedule import state_order
from rlkit.training.vllm_requests import Completion, packed
from tests.training.conftest import (
    LetterTask,
    in_float64,
    tiny_base,
    tiny_config,
    tiny_trainer,
    with_lora,
)
from tests.training.test_attention import tokens_forwarded
from tests.training.test_trainer import weights

PROMPT = list(range(5, 15))


def together(path, groups, *changes, **grpo):
    changes = [f"rollout.groups_at_once={groups}", "training.batch_size=4", *changes]
    return tiny_config(path, **grpo).with_overrides(*changes)


class WordTask(LetterTask):
    """An action is complete with its third character."""

    @staticmethod
    def complete(text):
        return len(text) >= 3


# ---- groups at once


@pytest.mark.parametrize("groups", [2, 3, 4, 9])
@pytest.mark.parametrize("scale_rewards", ["group", "batch"])
def test_groups_in_one_batch_are_the_groups_one_by_one(tmp_path, groups, scale_rewards):
    """In float64, where rounding moves no token: prompts of several lengths, and a part of the
    groups that does not fill its batch."""
    task = LetterTask(4)
    for i, state in enumerate(task.states("train")):
        object.__setattr__(state, "state_id", "s" * (i + 1))
    trainers = [
        tiny_trainer(
            together(tmp_path, n, scale_rewards=scale_rewards), task,
            in_float64(with_lora(tiny_base(), spread=0.2)), run=False,
        )
        for n in (1, groups)
    ]  # fmt: skip
    for one in trainers:
        for _ in range(2):
            one.training_step(task.states("train"))
    alone, batch = trainers
    for ours, theirs in zip(batch.last_groups, alone.last_groups, strict=True):
        assert torch.equal(ours.sampled.tokens, theirs.sampled.tokens)
        assert ours.texts == theirs.texts and ours.rewards == theirs.rewards
        assert torch.allclose(ours.sampled.logprobs, theirs.sampled.logprobs, atol=1e-6)
    for name, parameter in alone.parameters.items():
        assert torch.allclose(parameter, batch.parameters[name], atol=1e-8), name


def test_groups_in_one_batch_are_decoded_together_and_read_once(tmp_path):
    trainer = tiny_trainer(together(tmp_path, 2, kl_penalty=0.0), run=False)
    trainer.ends = [999]  # all actions have 8 tokens
    seen = tokens_forwarded(trainer.model)
    trainer.training_step(trainer.task.states("train")[:2])
    prefixes = [len(group.prompt) - 1 for group in trainer.last_groups]
    behind = 1 + 4 * 7  # the last prompt token and K = 4 actions without their last token
    assert seen == [*prefixes, 2, *[8] * 7, behind, behind]


def test_a_run_with_groups_at_once_goes_on_bitwise_where_it_was_stopped(tmp_path):
    whole = tiny_trainer(together(tmp_path / "a", 2, "training.max_steps=4"))
    assert train(whole) == "finished"
    first = tiny_trainer(together(tmp_path / "b", 2, "training.max_steps=4"))
    states = first.task.states("train")
    for step in range(2):
        first.training_step(state_order(states, first.config.seed, step * 4, 4))
    first.save_checkpoint()
    second = tiny_trainer(together(tmp_path / "b", 2, "training.max_steps=4"))
    assert train(second) == "finished"
    kept = weights(whole)
    assert all(torch.equal(p, kept[name]) for name, p in second.parameters.items())


@pytest.mark.parametrize("change", ["rollout.overlap=update", "rollout.engine=vllm_server"])
def test_groups_at_once_are_for_the_trainer_s_own_model_without_overlap(tmp_path, change):
    with pytest.raises(ConfigError, match="rollout.groups_at_once is 2, which is for rollout"):
        together(tmp_path, 2, change)


def test_caches_of_prompts_read_alone_are_the_cache_of_prompts_read_together():
    model, prompts = in_float64(tiny_base()), [PROMPT, PROMPT[:4], PROMPT[2:9]]
    with torch.no_grad():
        batch = read_prompts(model, prompts)
        alone = [read_prompts(model, [prompt]) for prompt in prompts]
    ours = joined(alone)
    assert (ours.length, ours.last_layer) == (batch.length, batch.last_layer) == (9, 1)
    for row, prompt in enumerate(prompts):
        length = len(prompt) - 1
        for layer, pair in alone[row].layers.items():
            for part in (0, 1):
                read = batch.of(row, length).layers[layer][part]
                assert torch.allclose(read, pair[part], atol=1e-12)
                assert torch.equal(joined(alone).of(row, length).layers[layer][part], pair[part])
                assert not ours.layers[layer][part][row, :, length:].any()


# ---- complete actions


def test_an_action_ends_with_the_token_that_completes_it():
    model = tiny_base().double()
    draws = uniform_numbers(7, "s", 0, 4, 12)
    options = {"end_ids": [999], "uniforms": draws}
    plain = sample_actions(model, [PROMPT], 4, 12, **options)
    lengths = [3, 5, 12, 1]

    def complete(ids):
        return any(ids == row[:n] for row, n in zip(plain.rows(), lengths, strict=True) if n < 12)

    ours = sample_actions(model, [PROMPT], 4, 12, complete=complete, **options)
    assert ours.rows() == [row[:n] for row, n in zip(plain.rows(), lengths, strict=True)]
    assert ours.ended.tolist() == [True, True, False, True]
    assert ours.logprobs[0, :3].equal(plain.logprobs[0, :3]) and not ours.logprobs[0, 3:].any()


def test_decoding_stops_when_all_actions_are_complete():
    model, draws = tiny_base(), uniform_numbers(7, "s", 0, 2, 12)
    seen = tokens_forwarded(model)
    sample_actions(
        model, [PROMPT], 2, 12, end_ids=[999], uniforms=draws, complete=lambda ids: len(ids) == 3
    )
    assert seen == [9, 1, 2, 2]


@pytest.mark.parametrize(
    ("ids", "complete", "length"),
    [
        ([5, 6, 7], lambda ids: 6 in ids, 2),
        ([5, 6, 7], lambda ids: ids == [5, 6, 7], 3),
        ([5, 6, 7], lambda ids: False, 3),
        ([5, 6, 7], None, 3),
        ([5], lambda ids: True, 1),
    ],
)
def test_an_action_that_came_whole_is_cut_where_it_is_complete(ids, complete, length):
    assert cut_short(ids, complete) == length


def test_a_task_says_when_its_actions_are_complete(tmp_path):
    model = with_lora(tiny_base(initializer_range=0.4), spread=0.0)
    trainer = tiny_trainer(together(tmp_path, 2, max_new_tokens=8), WordTask(), model, run=False)
    trainer.ends = [999]
    metrics = trainer.training_step(trainer.task.states("train")[:2])
    for group in trainer.last_groups:
        for k, text in enumerate(group.texts):
            whole = len(text) >= 3
            assert bool(group.sampled.ended[k]) == whole
            if whole:  # and no sooner
                ids = group.sampled.rows()[k]
                assert len(trainer.tokenizer.decode(ids[:-1], skip_special_tokens=True)) < 3
    assert metrics["completions/clipped_ratio"] < 1


def test_what_vllm_wrote_behind_a_complete_action_is_no_part_of_it(tmp_path):
    trainer = tiny_trainer(tiny_config(tmp_path, max_new_tokens=4), run=False)
    trainer.complete = lambda ids: ids[-1] == 30
    rows = [
        Completion([20, 30, 40, 50], [-1.0, -2.0, -3.0, -4.0], "length"),
        Completion([20, 21, 22, 23], [-1.0, -1.0, -1.0, -1.0], "length"),
        Completion([20, 21, 22, 30], [-1.0, -1.0, -1.0, -1.0], "length"),  # whole at the limit
    ]
    sampled = packed(rows, trainer, "vLLM", 64)
    assert sampled.rows() == [[20, 30], [20, 21, 22, 23], [20, 21, 22, 30]]
    assert sampled.ended.tolist() == [True, False, True]
    assert sampled.logprobs.tolist() == [[-1.0, -2.0, 0.0, 0.0], [-1.0] * 4, [-1.0] * 4]


# ---- dev


def test_the_kl_on_dev_is_that_of_passes_by_themselves(tmp_path):
    model = in_float64(with_lora(tiny_base(), spread=0.3))
    trainer = tiny_trainer(tiny_config(tmp_path), model=model, run=False)
    states = trainer.task.states("dev")
    found = trainer.evaluate(states)
    total, tokens = 0.0, 0
    for state in states:
        prompt = trainer.grouping.asked(state, 0).prompt
        ids = sample_actions(
            trainer.model, [prompt], 1, trainer.settings.max_new_tokens, end_ids=trainer.ends
        ).tokens
        with torch.no_grad():
            policy, _ = trainer.log_probs(prompt, ids)
            with as_reference(trainer.model):
                reference, _ = trainer.log_probs(prompt, ids)
        total, tokens = total + float(k3(reference - policy).sum()), tokens + ids.numel()
    assert np.isclose(found["kl"], total / tokens, rtol=1e-9) and found["kl"] > 0


def test_the_policy_reads_a_dev_prompt_once(tmp_path):
    trainer = tiny_trainer(tiny_config(tmp_path, max_new_tokens=3), run=False)
    trainer.ends = [999]
    (state,) = trainer.task.states("dev")[:1]
    length = len(trainer.grouping.asked(state, 0).prompt)
    seen = tokens_forwarded(trainer.model)
    trainer.evaluate([state])
    assert seen == [length - 1, 1, 1, 1, 3, length - 1, 3]  # sampled; policy; reference


def test_without_epoch_kl_no_reference_is_read(tmp_path):
    config = tiny_config(tmp_path).with_overrides("evaluation.epoch_kl=false")
    trainer = tiny_trainer(config, model=with_lora(tiny_base(), spread=0.3), run=False)
    trainer.log_probs = None
    found = trainer.evaluate(trainer.task.states("dev"))
    assert found["kl"] is None and 0 <= found["reward"] <= 1
