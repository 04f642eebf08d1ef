"""The trainer on a task of letters: exact first step, exact splits, exact resume."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlkit.errors import ModelError, RunError
from rlkit.practice.task import Score
from rlkit.training.adapters import load_lora_checkpoint
from rlkit.training.gradients import trainable
from rlkit.training.loop import train
from rlkit.training.schedule import learning_rate, state_order
from rlkit.training.stored import stored_groups
from tests.training.conftest import (
    LetterTask,
    in_float64,
    tiny_base,
    tiny_config,
    tiny_trainer,
    with_lora,
)
from tests.training.test_attention import tokens_forwarded

VOLATILE = ("time", "seconds", "tokens_per_second")


def stable(rows):
    return [{k: v for k, v in row.items() if not any(w in k for w in VOLATILE)} for row in rows]


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.parameters.items()}


def test_first_step_has_ratio_1_and_kl_0_exactly(tmp_path):
    trainer = tiny_trainer(tiny_config(tmp_path))
    metrics = trainer.training_step(trainer.task.states("train")[:1])
    assert metrics["kl"] == 0.0
    assert metrics["clip_ratio/low_mean"] == metrics["clip_ratio/high_mean"] == 0.0
    group = trainer.last_groups[0]
    assert torch.equal(group.old_logp, group.ref_logp)
    assert metrics["sampling_logp_difference"] < 1e-5


def test_kl_is_0_exactly_at_the_first_step_after_a_warm_start(tmp_path):
    model = with_lora(tiny_base(), spread=0.3)
    model.save_pretrained(tmp_path / "warm")
    model.load_adapter(str(tmp_path / "warm"), adapter_name="reference", is_trainable=False)
    model.set_adapter("default")
    trainer = tiny_trainer(tiny_config(tmp_path), model=model)
    assert len(trainer.parameters) == 16  # the frozen copy is not trained
    first = trainer.training_step(trainer.task.states("train")[:1])
    second = trainer.training_step(trainer.task.states("train")[1:2])  # the optimiser moves here
    third = trainer.training_step(trainer.task.states("train")[2:3])
    assert first["kl"] == second["kl"] == 0.0 and third["kl"] > 0.0


def test_the_adapter_learns_what_is_rewarded(tmp_path):
    task = LetterTask(2, reward=lambda k, text: float(sum("A" <= c <= "z" for c in text)))
    config = tiny_config(
        tmp_path,
        group_size=16,
        max_new_tokens=4,
        learning_rate=0.05,
        kl_penalty=0.0,
        loss_type="dapo",
    )
    # wide embeddings, so that the adapter can move the logits of a random model at all
    model = with_lora(tiny_base(initializer_range=0.4), spread=0.0)
    trainer = tiny_trainer(config, task, model, run=False)
    rewards = [
        trainer.training_step(state_order(task.states("train"), 1, i, 1))["reward"]
        for i in range(40)
    ]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:10]) + 0.5


@pytest.mark.parametrize("scale_rewards", ["group", "batch"])
@pytest.mark.parametrize("reuse", ["auto", "never"])
def test_a_step_computes_each_prompt_once_a_pass(tmp_path, reuse, scale_rewards):
    """Sampling, reference, policy: with `auto` the policy takes up what sampling read."""
    changes = {"reuse_prompt_graph": reuse, "scale_rewards": scale_rewards}
    trainer = tiny_trainer(tiny_config(tmp_path, **changes), run=False)
    trainer.ends = [999]  # all actions have 8 tokens
    seen = tokens_forwarded(trainer.model)
    states = trainer.task.states("train")[:2]
    trainer.training_step(states)
    prefixes = [len(group.prompt) - 1 for group in trainer.last_groups]
    behind = 1 + 4 * 7  # the last prompt token and K = 4 actions without their last token
    samplings = [[prefix, 1] + [4] * 7 for prefix in prefixes]
    if scale_rewards == "batch":  # two groups wait for each other: their graphs are not kept
        passes = [[prefix, behind] * 2 for prefix in prefixes]
        expected = samplings + passes
    elif reuse == "never":
        expected = [s + [p, behind] * 2 for s, p in zip(samplings, prefixes, strict=True)]
    else:
        expected = [s + [p, behind, behind] for s, p in zip(samplings, prefixes, strict=True)]
    assert seen == sum(expected, [])


def test_reusing_the_prompt_changes_no_bit(tmp_path):
    ends = []
    for reuse in ("auto", "never"):
        config = tiny_config(tmp_path, reuse_prompt_graph=reuse, num_iterations=2)
        trainer = tiny_trainer(config, run=False)
        for state in trainer.task.states("train")[:3]:
            trainer.training_step([state])
        ends.append(weights(trainer))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "gspo", "cispo"])
def test_an_update_does_not_depend_on_how_its_groups_were_split(tmp_path, loss_type):
    """Four groups of unequal lengths: as one step of 4, two of 2, four of 1."""
    gradients = []
    for size in (4, 2, 1):
        config = tiny_config(tmp_path, loss_type=loss_type, max_grad_norm=1e6)
        config = config.with_overrides(f"training.gradient_accumulation_steps={4 // size}")
        model = in_float64(with_lora(tiny_base()))
        trainer = tiny_trainer(config, model=model, run=False)
        seen = {}
        trainer.optimizer.step = lambda t=trainer, s=seen: s.update(
            {n: p.grad.clone() for n, p in t.parameters.items()}
        )
        states = trainer.task.states("train")[:4]
        for start in range(0, 4, size):
            trainer.training_step(states[start : start + size])
        gradients.append(seen)
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-8, atol=1e-12)


def test_unscorable_actions_are_as_if_they_had_never_been_sampled(tmp_path):
    """Rewards [r0, None, r2, None] in a group of 4 teach what [r0, r2] teach in a group of 2."""
    grads = []
    for keep in (4, 2):
        reward = (lambda k, text: [1.0, None, 3.0, None][k]) if keep == 4 else None
        trainer = tiny_trainer(
            tiny_config(tmp_path, loss_type="dapo", kl_penalty=0.1), LetterTask(reward=reward),
            in_float64(with_lora(tiny_base(), spread=0.3)), run=False,
        )  # fmt: skip
        state, clock = trainer.task.states("train")[0], {"sampling": 0.0, "environment": 0.0}
        group = trainer.grouping.one(state, 0, clock)
        if keep == 2:
            picked = torch.tensor([0, 2])
            group.sampled = type(group.sampled)(
                *(
                    getattr(group.sampled, n)[picked]
                    for n in ("tokens", "mask", "logprobs", "ended")
                )
            )
            group.scores = [type(group.scores[0])(1.0, {}), type(group.scores[0])(3.0, {})]
        trainer._set_advantages([group])
        trainer._pass(group, first=True)
        grads.append(
            {n: p.grad / trainer.progress.denominator for n, p in trainer.parameters.items()}
        )
    for name, gradient in grads[0].items():
        torch.testing.assert_close(gradient, grads[1][name], rtol=1e-8, atol=1e-12)


def test_a_batch_without_any_valid_reward_moves_nothing(tmp_path):
    trainer = tiny_trainer(
        tiny_config(tmp_path), LetterTask(reward=lambda k, text: None), run=False
    )
    before = weights(trainer)
    for _ in range(2):
        metrics = trainer.training_step(trainer.task.states("train")[:2])
    assert metrics["reward"] is None and metrics["unjudged_share"] == 1.0
    assert metrics["grad_norm"] == 0.0
    assert all(torch.equal(p, before[n]) for n, p in trainer.parameters.items())


def test_momentum_does_not_move_the_adapter_where_no_action_counts(tmp_path):
    task = LetterTask()
    trainer = tiny_trainer(tiny_config(tmp_path), task, with_lora(tiny_base()), run=False)
    states = task.states("train")
    for _ in range(2):
        trainer.training_step(states[:1])
    before = weights(trainer)
    task._reward = lambda k, text: None
    for _ in range(2):
        metrics = trainer.training_step(states[:1])
    assert metrics["grad_norm"] == 0.0 and trainer.progress.moves == 2
    assert all(torch.equal(p, before[n]) for n, p in trainer.parameters.items())


def test_a_gradient_that_is_not_finite_is_said_and_moves_nothing(tmp_path):
    trainer = tiny_trainer(tiny_config(tmp_path), run=False)
    trainer.training_step(trainer.task.states("train")[:1])
    before = weights(trainer)
    next(iter(trainer.parameters.values())).grad[0, 0] = float("inf")
    with pytest.raises(ModelError, match="norm of the gradient"):
        trainer.training_step(trainer.task.states("train")[1:2])
    assert all(torch.equal(p, before[n]) for n, p in trainer.parameters.items())


def test_clip_ratios_are_those_of_the_later_passes(tmp_path):
    config = tiny_config(tmp_path, num_iterations=3, clip_epsilon=1e-6, group_size=8)
    trainer = tiny_trainer(config, model=with_lora(tiny_base()), run=False)
    steps = [trainer.training_step(trainer.task.states("train")[i : i + 1]) for i in range(2)]
    clipped = [s["clip_ratio/low_mean"] + s["clip_ratio/high_mean"] for s in steps]
    assert clipped[0] == 0.0 and 0.0 < clipped[1] <= 1.0


def test_the_clues_of_an_unscorable_action_are_no_company_for_the_others(tmp_path):
    trainer = tiny_trainer(tiny_config(tmp_path, credit="clue"), run=False)
    clock = {"sampling": 0.0, "environment": 0.0}
    group = trainer.grouping.one(trainer.task.states("train")[0], 0, clock)
    worth = [(1.0, [1.0]), (3.0, [3.0]), (None, [0.0]), (None, [0.0])]
    group.scores = [
        Score(reward, {"clue_spans": [[0, 1000]], "clue_values": values})
        for reward, values in worth
    ]
    trainer._set_advantages([group])
    np.testing.assert_allclose(group.advantages[:, 0], [-1, 1, 0, 0], atol=1e-7)


@pytest.mark.parametrize("masked", [False, True])
def test_actions_cut_at_the_limit_are_counted_and_can_be_left_out(tmp_path, masked):
    config = tiny_config(tmp_path, max_new_tokens=2, mask_truncated=masked, group_size=8)
    trainer = tiny_trainer(config, run=False)
    metrics = trainer.training_step(trainer.task.states("train")[:1])
    group = trainer.last_groups[0]
    cut = int((~group.sampled.ended).sum())
    assert metrics["completions/clipped_ratio"] == cut / 8 > 0
    assert trainer.progress.denominator == (8 - cut if masked else 8)


def test_sampling_does_not_depend_on_what_was_sampled_before(tmp_path):
    task = LetterTask()
    first, second = tiny_trainer(tiny_config(tmp_path), task, run=False), None
    second = tiny_trainer(tiny_config(tmp_path), task, run=False)
    a, b = task.states("train")[:2]
    clock = {"sampling": 0.0, "environment": 0.0}
    alone = first.grouping.one(b, 0, clock)
    second.grouping.one(a, 0, clock)
    after = second.grouping.one(b, 0, clock)
    assert torch.equal(alone.sampled.tokens, after.sampled.tokens)


def test_sample_action_is_the_group_s_k_th_action_in_float64(tmp_path):
    model = in_float64(with_lora(tiny_base()))
    trainer = tiny_trainer(tiny_config(tmp_path), model=model, run=False)
    state = trainer.task.states("train")[0]
    alone = [trainer._sample_action(state, k) for k in range(4)]
    group = trainer.grouping.one(state, 0, {"sampling": 0.0, "environment": 0.0})
    assert group.sampled.rows() == alone
    logp = trainer._compute_log_probs(state, alone[1])
    sampled = group.sampled.logprobs[1][group.sampled.mask[1]].double()
    torch.testing.assert_close(logp.detach(), sampled, atol=1e-6, rtol=0)


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
@pytest.mark.parametrize("iterations", [1, 2])
def test_a_resumed_run_is_the_run_that_was_never_interrupted(tmp_path, stop, iterations):
    """Bitwise: adapter, metrics and rollouts; also in the middle of an accumulation."""
    ends = []
    for name, pause in (("whole", None), ("resumed", stop)):
        config = tiny_config(tmp_path / name, num_iterations=iterations, lr_schedule="linear")
        if pause:
            _train_and_be_killed(tiny_trainer(config), pause)
        trainer = tiny_trainer(config)
        assert train(trainer) == "finished"
        ends.append(trainer)
    whole, resumed = ends
    for name, parameter in whole.parameters.items():
        assert torch.equal(parameter, resumed.parameters[name])
    assert stable(whole.run.read_metrics()) == stable(resumed.run.read_metrics())
    rollouts = [t.run.read_rollouts().to_json() for t in ends]
    assert rollouts[0] == rollouts[1]


@pytest.mark.parametrize("checkpoint", [None, 1])
def test_an_interrupted_kernel_goes_on_as_a_new_one_would(tmp_path, checkpoint):
    """The same trainer object, interrupted after step 3 where its last checkpoint (if any) is
    older than the optimiser's first move."""
    changes = "training.num_epochs=1", "training.steps_per_epoch=4", "training.save_every_n_steps=9"
    whole, stopped = (
        tiny_trainer(tiny_config(tmp_path / name).with_overrides(*changes)) for name in "ab"
    )

    def progress(metrics):
        if metrics["step"] == checkpoint:
            stopped.save_checkpoint()
        if metrics["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stopped, progress=progress)
    assert stopped.run.checkpoints_folder.exists() == bool(checkpoint)
    for trainer in (whole, stopped):
        assert train(trainer) == "finished"
    assert whole.progress == stopped.progress
    assert all(torch.equal(p, stopped.parameters[n]) for n, p in whole.parameters.items())
    assert stable(whole.run.read_metrics()) == stable(stopped.run.read_metrics())


@pytest.mark.parametrize("checkpoint", [False, True])
def test_after_a_step_that_broke_off_half_done_only_loading_goes_on(tmp_path, checkpoint):
    """The second of three steps fails in its second group, when the first is learnt from."""
    whole, broken = (tiny_trainer(tiny_config(tmp_path / name)) for name in "ab")
    states, scored = whole.task.states("train"), []

    def score(state, completions):
        scored.append(state)
        if len(scored) == 4:
            raise OSError("the index is away")
        return LetterTask.score(broken.task, state, completions)

    broken.task.score = score
    broken.training_step(states[:2])
    if checkpoint:
        broken.save_checkpoint()
    with pytest.raises(OSError, match="the index is away"):
        broken.training_step(states[2:4])
    for half_done in (broken.save_checkpoint, lambda: broken.training_step(states[2:4])):
        with pytest.raises(RunError, match=r"broke off half done.* call load_checkpoint\(\)"):
            half_done()
    done = broken.load_checkpoint()
    assert done == int(checkpoint)
    for trainer, start in ((whole, 0), (broken, done)):
        for step in range(start, 3):
            trainer.training_step(states[2 * step : 2 * step + 2])
        trainer.save_checkpoint()
    assert whole.progress == broken.progress
    for name, parameter in whole.parameters.items():
        assert torch.equal(parameter, broken.parameters[name])
        assert torch.equal(parameter.grad, broken.parameters[name].grad)


def _train_and_be_killed(trainer, last_step):
    """Stop as a killed process does: metrics of a further step are written, its checkpoint not."""

    def progress(metrics):
        if metrics["step"] == last_step + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(trainer, progress=progress)
    assert trainer.run.status()["state"] == "stopped"


def test_a_partial_accumulation_is_applied_at_the_end(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.max_steps=3")
    trainer = tiny_trainer(config)
    train(trainer)
    assert trainer.progress.moves == 2 and trainer.progress.denominator == 0.0


def test_a_run_killed_while_it_replaced_its_only_checkpoint_goes_on_from_it(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.max_steps=2")
    train(tiny_trainer(config))
    trainer = tiny_trainer(config)
    folder = trainer.run.checkpoints_folder
    (folder / "checkpoint-1").rename(tmp_path / "elsewhere")
    (folder / "checkpoint-2").rename(folder / ".old-checkpoint-2")
    assert trainer.load_checkpoint() == 2


def test_another_machine_s_arithmetic_is_said(tmp_path, monkeypatch):
    config = tiny_config(tmp_path).with_overrides("training.max_steps=2")
    train(tiny_trainer(config))
    again, said = tiny_trainer(config), []
    again.log = said.append
    again.load_checkpoint()
    assert said == []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 96)
    again.device = torch.device("meta")
    again.load_checkpoint()
    assert said == [
        "not bitwise: the run goes on with other threads (was 1, now 96), "
        "device (was cpu, now meta)"
    ]


def test_a_finished_run_is_left_as_it_is_and_says_so(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.max_steps=2")
    train(tiny_trainer(config))
    again, said = tiny_trainer(config), []
    again.log = said.append
    assert train(again) == "finished" and "finished" in said[-1]
    assert again.progress.moves == 1


def test_a_checkpoint_is_plain_peft_and_damaged_ones_are_passed_over(tmp_path):
    config = tiny_config(tmp_path).with_overrides("training.max_steps=4")
    trainer = tiny_trainer(config)
    train(trainer)
    newest = trainer.run.checkpoints_folder / "checkpoint-4"
    other = with_lora(tiny_base(), seed=9)
    load_lora_checkpoint(other, newest)
    for name, parameter in trainable(other).items():
        assert torch.equal(parameter, trainer.parameters[name])
    file = newest / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    again, said = tiny_trainer(config), []
    again.log = said.append
    assert again.load_checkpoint() == 3
    assert "checkpoint 4 is passed over" in said[0]


def test_evaluation_reports_reward_and_kl(tmp_path):
    trainer = tiny_trainer(
        tiny_config(tmp_path), model=with_lora(tiny_base(), spread=0.3), run=False
    )
    found = trainer.evaluate(trainer.task.states("eval"))
    assert found["states"] == 2 and found["kl"] > 0 and 0 <= found["reward"] <= 1
    flat = tiny_trainer(tiny_config(tmp_path), run=False)
    assert flat.evaluate(flat.task.states("eval"))["kl"] == 0.0


def test_a_group_of_actions_of_one_token_is_trained_on_and_evaluated(tmp_path):
    trainer = tiny_trainer(tiny_config(tmp_path, max_new_tokens=1), run=False)
    states = trainer.task.states("train")
    metrics = trainer.training_step(states[:2])
    assert metrics["completions/mean_length"] == 1.0 and metrics["kl"] == 0.0
    assert trainer.evaluate(states[:2])["kl"] == 0.0


def test_learning_rate_rises_and_falls():
    from types import SimpleNamespace

    settings = SimpleNamespace(learning_rate=1.0, warmup_steps=2, lr_schedule="linear")
    assert [learning_rate(settings, m, 6) for m in range(6)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    settings.lr_schedule = "cosine"
    assert learning_rate(settings, 4, 6) == pytest.approx(0.5)


def test_every_shuffle_holds_every_state_once_and_can_begin_anywhere():
    states = list("abcde")
    order = state_order(states, 7, 0, 10)
    assert sorted(order[:5]) == sorted(order[5:]) == states
    assert state_order(states, 7, 3, 4) == order[3:7]


@pytest.mark.parametrize("scale_rewards", ["group", "batch"])
def test_a_state_that_comes_twice_in_a_step_has_two_groups(tmp_path, scale_rewards):
    """Where one shuffle ends and the next begins; the second group is the second visit's."""
    config = tiny_config(tmp_path, scale_rewards=scale_rewards)
    trainer, task = tiny_trainer(config, LetterTask(5)), LetterTask(5)
    states = state_order(task.states("train"), 7, 4, 2)
    assert states[0] == states[1]
    trainer.training_step(states)
    trainer.write_rollouts()
    first, second = trainer.last_groups
    assert (first.visit, second.visit) == (0, 1) and first.texts != second.texts
    assert trainer.progress.visits == {states[0].state_id: 2}
    stored = stored_groups(trainer.run.read_rollouts(1), task, trainer.tokenizer, config)
    assert [group.texts for group in stored] == [first.texts, second.texts]


def test_what_was_looked_up_between_steps_is_not_the_next_step_s(tmp_path):
    """One group of 4 actions a step, whatever dev evaluation or a preview asked for before."""

    class CountingTask(LetterTask):
        asked = 0

        def score(self, state, completions):
            self.asked += len(completions)
            return super().score(state, completions)

        def take_metrics(self):
            asked, self.asked = self.asked, 0
            return {"asked": float(asked)}

    trainer = tiny_trainer(tiny_config(tmp_path), CountingTask(), run=False)
    states = trainer.task.states("train")
    trainer.evaluate(states)
    assert trainer.training_step(states[:1])["asked"] == 4.0
    trainer.preview(states[0])
    assert trainer.training_step(states[:1])["asked"] == 4.0


def test_a_look_at_the_next_group_changes_nothing(tmp_path):
    """The group that `preview` shows is the one that the next step samples, and a run that was
    looked at goes on bitwise as one that was not."""
    config = tiny_config(tmp_path)
    looked, other = tiny_trainer(config, run=False), tiny_trainer(config, run=False)
    state = looked.task.states("train")[0]
    shown = looked.preview(state)
    assert looked.progress == other.progress and looked.progress.visits == {}
    for trainer in (looked, other):
        for _ in range(2):
            trainer.training_step([state])
            looked.preview(state)
    assert looked.progress == other.progress
    assert all(torch.equal(p, weights(other)[n]) for n, p in weights(looked).items())
    first = tiny_trainer(config, run=False)
    first.training_step([state])
    group = first.last_groups[0]
    assert shown["text"].tolist() == group.texts
    assert shown["reward"].tolist() == group.rewards
    assert shown["advantage"].tolist() == group.advantages[:, 0].tolist()
