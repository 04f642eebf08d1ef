"""Sampling while the environment judges: the same run in less time, or one that is an update behind
in known groups; and how it ends when the judge does.

    torchrun --nproc_per_node 2 -m tests.training.test_overlap FOLDER

is the program of the test with two processes."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from rlkit.errors import AgentError
from rlkit.run import Run
from rlkit.training import grouping, interrupts, overlap
from rlkit.training.estimate import memory_terms, shape_of
from rlkit.training.loop import train, train_run
from rlkit.training.precision import Precision
from rlkit.training.ranks import joined
from tests.agents.fault_server import Answer, FaultServer
from tests.training.conftest import LetterTask, tiny_base, tiny_config, tiny_trainer, with_lora
from tests.training.test_kill import assert_same_run
from tests.training.test_live_judge import STEPS, Judge, config
from tests.training.test_trainer import _train_and_be_killed, stable, weights

PATIENCE = 60  # seconds that these tests wait for what has to come


def overlapping(path, mode, *changes, **grpo):
    changes = [f"rollout.overlap={mode}", "training.batch_size=2", *changes]
    return tiny_config(path, **grpo).with_overrides(*changes)


def no_judge_is_left():
    return not [thread for thread in threading.enumerate() if thread.name == "rlkit-judge"]


def same_weights(one, other):
    return all(torch.equal(p, other.parameters[name]) for name, p in one.parameters.items())


# ---- the same run


@pytest.mark.parametrize(
    ("grpo", "changes"),
    [
        ({}, ()),
        ({"num_iterations": 2}, ()),
        ({"scale_rewards": "batch"}, ()),
        ({"reuse_prompt_graph": "never"}, ("training.batch_size=1",)),
        ({}, ("training.batch_size=1", "training.flat_share=0.5")),
    ],
)
def test_within_an_update_nothing_changes_but_the_time(tmp_path, grpo, changes):
    """Bitwise: adapter, metrics and rollouts."""
    plain, ours = (
        tiny_trainer(overlapping(tmp_path / mode, mode, *changes, **grpo))
        for mode in ("none", "update")
    )
    for one in (plain, ours):
        assert train(one) == "finished"
    assert same_weights(plain, ours)
    assert stable(plain.run.read_metrics()) == stable(ours.run.read_metrics())
    assert plain.run.read_rollouts().to_json() == ours.run.read_rollouts().to_json()
    assert "time/environment_hidden" in ours.run.read_metrics()[-1]
    assert "time/environment_hidden" not in plain.run.read_metrics()[-1]


class WaitingTask(LetterTask):
    """A judge that is done only when so many groups were sampled; it counts scores from 1."""

    def __init__(self, sampled_before_score):
        super().__init__()
        self.sampled_before_score, self.scored = sampled_before_score, 0
        self.sampled, self._changed = 0, threading.Condition()

    def prompt(self, state):
        with self._changed:  # of the next group: the one before is sampled
            self.sampled += 1
            self._changed.notify_all()
        return super().prompt(state)

    def score(self, state, completions):
        self.scored += 1
        wanted = self.sampled_before_score(self.scored)
        with self._changed:
            assert self._changed.wait_for(lambda: self.sampled >= wanted, PATIENCE)
        return super().score(state, completions)


@pytest.mark.parametrize(
    ("mode", "last_waits_for"),  # in two steps of two groups, which are one update
    [("update", [2, 3, 4, 4]), ("ahead", [2, 3, 4, 5])],
)
def test_while_a_group_is_judged_the_next_one_is_sampled(tmp_path, mode, last_waits_for):
    task = WaitingTask(lambda scored: last_waits_for[scored - 1])
    ours = tiny_trainer(overlapping(tmp_path, mode), task, run=False)
    states = task.states("train")
    for start in (0, 2):
        metrics = ours.training_step(states[start : start + 2], states[start + 2 : start + 4])
        assert metrics["time/environment_hidden"] > 0
        parts = [metrics[f"time/{part}"] for part in ("sampling", "environment", "training")]
        assert sum(parts) <= 1 + 1e-9 and min(parts) >= 0
    assert task.sampled == last_waits_for[-1] and ours.progress.moves == 1
    assert no_judge_is_left()


@pytest.mark.parametrize("mode", ["update", "ahead"])
def test_at_most_two_groups_hold_graphs_of_their_prompts(tmp_path, mode, monkeypatch):
    made, most = [], 0

    def counted(*arguments):
        nonlocal most
        caches = [cache for reference in made if (cache := reference())]
        graphs = [c for c in caches if any(keys.requires_grad for keys, _ in c.layers.values())]
        most = max(most, 1 + len(graphs))
        cache = read(*arguments)
        made.append(weakref.ref(cache))
        return cache

    read = grouping.read_prompts
    monkeypatch.setattr(grouping, "read_prompts", counted)
    ours = tiny_trainer(overlapping(tmp_path, mode, "training.batch_size=4"), run=False)
    states = ours.task.states("train")
    for _ in range(3):
        ours.training_step(states[:4], states[:4])
    assert most == 2


def test_the_estimate_of_memory_counts_the_second_prompt_where_it_has_a_graph(tmp_path):
    shape = shape_of(tiny_base(), tiny_config(tmp_path).lora)
    sizes = []
    for mode, reuse in (("none", "auto"), ("ahead", "never"), ("ahead", "auto")):
        settings = overlapping(tmp_path, mode, reuse_prompt_graph=reuse)
        precision = Precision("cpu", torch.float32, False, "")
        sizes.append(memory_terms(shape, settings, precision)["activations"])
    prompt = min(settings.executor.max_prompt_tokens, shape.context)
    tokens = prompt + settings.grpo.group_size * settings.grpo.max_new_tokens
    assert sizes[1] == sizes[0] and sizes[2] * tokens == sizes[0] * (tokens + prompt)


# ---- across an update


def by_hand(path, steps, size, accumulation, total):
    """Tokens by (step, state), and the final weights, of a run in which the first group of a step
    that follows an update is sampled under the weights before that update: by a second trainer,
    which has these."""
    changes = f"training.gradient_accumulation_steps={accumulation}"
    learner, sampler = (
        tiny_trainer(overlapping(path, "none", changes, f"training.batch_size={size}"), run=False)
        for _ in range(2)
    )
    sample, found, stale = learner.grouping.sampled, {}, {}

    def sampled(state, visit, clock, graph):
        if (state.state_id, visit) not in stale:
            return sample(state, visit, clock, graph)
        group = sampler.grouping.sampled(state, visit, clock, False)
        group.off_policy = True
        return group

    learner.grouping.sampled = sampled
    order, capped = [s for s in (learner.task.states("train") * total)], []
    for step in range(steps):
        states = order[step * size : (step + 1) * size]
        stale = {}
        if step and step % accumulation == 0:
            stale = {(states[0].state_id, learner.progress.visits.get(states[0].state_id, 0)): 1}
        before = weights(learner)
        learner.training_step(states)
        for name, parameter in sampler.parameters.items():
            parameter.data.copy_(before[name])
        for group in learner.last_groups:
            found[step, group.state.state_id] = group.sampled.tokens.tolist()
            assert group.off_policy == ((group.state.state_id, group.visit) in stale)
            if group.off_policy:
                ratio = (group.old_logp - group.sampled.logprobs)[group.sampled.mask].exp()
                assert torch.allclose(group.weights[group.sampled.mask], ratio.clamp(max=2.0))
                capped.append(float((ratio - 1).abs().max()))
    return found, learner, capped


@pytest.mark.parametrize(("size", "accumulation"), [(1, 1), (2, 1), (2, 2)])
def test_ahead_the_first_group_of_an_update_comes_from_the_weights_before_it(
    tmp_path, size, accumulation
):
    steps = 5
    expected, learner, capped = by_hand(tmp_path / "hand", steps, size, accumulation, 6)
    assert max(capped) > 1e-3  # the weights did move in between
    sizes = f"training.batch_size={size}", f"training.gradient_accumulation_steps={accumulation}"
    ours = tiny_trainer(overlapping(tmp_path / "ours", "ahead", *sizes), run=False)
    order = ours.task.states("train") * 6
    for step in range(steps):
        a, b, c = (size * (step + i) for i in range(3))
        metrics = ours.training_step(order[a:b], order[b:c])
        behind = [group.off_policy for group in ours.last_groups]
        assert behind == [step > 0 and step % accumulation == 0] + [False] * (size - 1)
        assert ("sampling/effective_sample_size" in metrics) == behind[0]
        for group in ours.last_groups:
            assert group.sampled.tokens.tolist() == expected[step, group.state.state_id]
        # never more than one update behind
        assert ours.early.moves == (step // accumulation)
    assert same_weights(ours, learner)


def test_what_was_sampled_for_a_state_that_does_not_come_is_thrown_away(tmp_path):
    plain, ours = (
        tiny_trainer(overlapping(tmp_path / mode, mode), run=False) for mode in ("none", "ahead")
    )
    states = ours.task.states("train")
    for start in (0, 2, 4):
        plain.training_step(states[start : start + 2])
        ours.training_step(states[start : start + 2], states[:1])  # the others come
    assert plain.progress == ours.progress and same_weights(plain, ours)


def test_weights_that_move_unforeseen_are_seen(tmp_path):
    """`final_update` between two steps of one update: `update` samples anew, `ahead` weighs."""
    plain, exact, ahead = (
        tiny_trainer(overlapping(tmp_path / mode, mode), run=False)
        for mode in ("none", "update", "ahead")
    )
    states = plain.task.states("train")
    for one in (plain, exact, ahead):
        one.training_step(states[:2], states[2:4])
        one.final_update()
        one.training_step(states[2:4])
    assert same_weights(plain, exact) and not any(g.off_policy for g in exact.last_groups)
    assert [g.off_policy for g in ahead.last_groups] == [True, False]


def test_a_preview_shows_what_was_sampled_ahead(tmp_path):
    ours = tiny_trainer(overlapping(tmp_path, "ahead", "training.gradient_accumulation_steps=1"))
    states = ours.task.states("train")
    ours.training_step(states[:2], states[2:4])
    shown = ours.preview(states[2])
    ours.training_step(states[2:4])
    assert shown["text"].tolist() == ours.last_groups[0].texts
    assert ours.last_groups[0].off_policy


# ---- resume


@pytest.mark.parametrize("stop", [1, 4])  # within an update, and behind one
@pytest.mark.parametrize(
    ("mode", "grpo", "changes"),
    [
        ("update", {}, ()),
        ("ahead", {"num_iterations": 2}, ()),
        ("ahead", {"scale_rewards": "batch"}, ("training.gradient_accumulation_steps=1",)),
        ("ahead", {}, ("training.batch_size=1", "training.flat_share=0.5")),
    ],
)
def test_a_resumed_run_is_the_run_that_was_never_interrupted(tmp_path, stop, mode, grpo, changes):
    """Bitwise: every file of the run."""
    ends = []
    for name, pause in (("whole", None), ("resumed", stop)):
        settings = overlapping(tmp_path / name, mode, *changes, lr_schedule="linear", **grpo)
        if pause:
            _train_and_be_killed(tiny_trainer(settings), pause)
        ends.append(tiny_trainer(settings))
        assert train(ends[-1]) == "finished"
    assert same_weights(*ends)
    assert_same_run(*(one.run.folder for one in ends))
    tokens = [one.early and one.early.group.sampled.tokens.tolist() for one in ends]
    assert tokens[0] == tokens[1] and (tokens[0] is not None) == (mode == "ahead")


def test_a_run_of_three_steps_that_is_given_three_more_is_one_of_six(tmp_path):
    ends = []
    for name, parts in (("whole", [6]), ("twice", [3, 6])):
        for steps in parts:
            changes = f"training.max_steps={steps}", "training.gradient_accumulation_steps=1"
            one = tiny_trainer(overlapping(tmp_path / name, "ahead", *changes))
            train(one)
        ends.append(one)
    assert same_weights(*ends)
    assert stable(ends[0].run.read_metrics())[-1] == stable(ends[1].run.read_metrics())[-1]


# ---- how it ends


def test_what_the_judge_raises_ends_the_work_and_the_run_goes_on_bitwise(tmp_path):
    whole, broken = (tiny_trainer(overlapping(tmp_path / name, "ahead")) for name in "ab")
    scores = itertools.count()

    def score(state, completions):
        if next(scores) == 9:  # 2 a step, and 2 on dev before the first
            raise AgentError("the judge is away")
        return LetterTask.score(broken.task, state, completions)

    broken.task.score = score
    with pytest.raises(AgentError, match="the judge is away"):
        train(broken)
    assert no_judge_is_left()
    status = broken.run.status()
    assert (status["state"], status["reason"]) == ("failed", "AgentError: the judge is away")
    assert 0 < status["step"] < 6
    for one in (whole, broken):
        assert train(one) == "finished"
    assert same_weights(whole, broken)
    assert_same_run(whole.run.folder, broken.run.folder)


@pytest.mark.parametrize(("name", "call"), [("_pass", 1), ("sampled", 2), ("sampled", 3)])
def test_what_fails_beside_the_judge_leaves_no_thread(tmp_path, monkeypatch, name, call):
    ours = tiny_trainer(overlapping(tmp_path, "ahead"), run=False)
    place = ours if name == "_pass" else ours.grouping
    done, calls = getattr(place, name), itertools.count(1)

    def failing(*arguments, **named):
        if next(calls) == call:
            raise OSError("no memory")
        return done(*arguments, **named)

    monkeypatch.setattr(place, name, failing)
    states = ours.task.states("train")
    with pytest.raises(OSError, match="no memory"):
        ours.training_step(states[:2], states[2:4])
    assert no_judge_is_left()


def test_an_interrupt_while_the_judge_is_waited_for_ends_after_the_step(tmp_path):
    whole, stopped = (tiny_trainer(overlapping(tmp_path / name, "ahead")) for name in "ab")
    scores = itertools.count()

    def score(state, completions):
        if next(scores) == 7:
            os.kill(os.getpid(), signal.SIGINT)  # from the judge's thread to the main one
        return LetterTask.score(stopped.task, state, completions)

    stopped.task.score = score
    assert train(stopped) == "stopped"
    step = stopped.progress.step
    assert 0 < step < 6 and no_judge_is_left()
    assert (stopped.run.checkpoints_folder / f"checkpoint-{step}").is_dir()
    for one in (whole, stopped):
        assert train(one) == "finished"
    assert_same_run(whole.run.folder, stopped.run.folder)


def test_a_second_interrupt_does_not_wait_for_a_judge_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(overlap, "PATIENCE", 0.05)
    whole, stopped = (tiny_trainer(overlapping(tmp_path / name, "ahead")) for name in "ab")
    scores, let_go = iter(range(100)), threading.Event()

    def score(state, completions):
        if next(scores) == 7:
            before = interrupts.noted
            os.kill(os.getpid(), signal.SIGINT)
            while interrupts.noted == before:  # two at once would be one
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            let_go.wait(PATIENCE)
        return LetterTask.score(stopped.task, state, completions)

    stopped.task.score = score
    with pytest.raises(KeyboardInterrupt):
        train(stopped)
    (judge,) = [thread for thread in threading.enumerate() if thread.name == "rlkit-judge"]
    assert judge.daemon and stopped.run.status()["state"] == "stopped"
    for one in (whole, stopped):  # while that thread still hangs
        assert train(one) == "finished"
    let_go.set()
    judge.join(PATIENCE)
    assert no_judge_is_left()
    assert_same_run(whole.run.folder, stopped.run.folder)


def test_a_live_judge_that_dies_ends_the_run_and_the_next_call_goes_on_bitwise(tmp_path):
    """Over real sockets; the judge is gone in the middle of the last step."""

    def settings(name, server, **checker):
        made = config(tmp_path / name, server, **checker)
        return made.with_overrides("rollout.overlap=ahead", "training.batch_size=2")

    with FaultServer(judge := Judge()) as server:
        whole = train_run(settings("whole", server))
    asked = judge.asked
    dying = Judge(lambda n: (server.stop(), Answer())[1] if n == asked - 2 else None)
    with FaultServer(dying) as server, pytest.raises(AgentError, match="start it again"):
        train_run(settings("other", server, patience=0, max_retries=0))
    assert no_judge_is_left()
    status = Run.at(tmp_path / "other" / "live").status()
    assert status["state"] == "failed" and "has not answered" in status["reason"]
    with FaultServer(again := Judge()) as server:
        other = train_run(settings("other", server))
    assert 0 < again.asked < asked and other.status() == {**other.status(), "step": STEPS}
    assert_same_run(whole.folder, other.folder)
    assert any(re.search("importance", key) for row in whole.read_metrics() for key in row)


# ---- two processes


@pytest.mark.slow
def test_each_of_two_processes_overlaps_by_itself(root, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node=2", "-m", "tests.training.test_overlap", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=root, env=environment, check=True, timeout=600)


def main(folder: Path) -> None:
    torch.set_num_threads(1)

    def finished(name, mode, *changes):
        settings = overlapping(folder / name, mode, *changes)
        with ranks.main_first():
            run = Run.open(settings, create=ranks.is_main)
        model = with_lora(tiny_base())
        one = tiny_trainer(settings, LetterTask(5), model, run=False, ranks=ranks)
        one.run = run
        assert train(one) == "finished"
        return one

    with joined() as ranks:
        plain, exact = finished("plain", "none"), finished("exact", "update")
        assert same_weights(plain, exact)
        each = "training.gradient_accumulation_steps=1"
        whole = finished("whole", "ahead", each)
        finished("twice", "ahead", each, "training.max_steps=3")
        twice = finished("twice", "ahead", each)
        assert same_weights(whole, twice)
        early = ranks.gather_all(whole.early.group.state.state_id)
        assert len(set(early)) == 2  # each rank its own
        if ranks.is_main:
            for one, other in ((plain, exact), (whole, twice)):
                assert stable(one.run.read_metrics())[-1] == stable(other.run.read_metrics())[-1]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
