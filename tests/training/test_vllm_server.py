"""Rollouts by a server: a stand-in for vLLM on a real socket samples what the trainer learns from.
The real one is in test_live_vllm.py."""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from rlkit.config import RunConfig
from rlkit.errors import AgentError, ConfigError, ModelError, RunError, ServerAwayError
from rlkit.run import Run
from rlkit.training import vllm_server
from rlkit.training.adapters import load_lora_checkpoint, save_lora_checkpoint
from rlkit.training.engines import Asked, check_engine
from rlkit.training.loop import train
from rlkit.training.ranks import Ranks, joined
from rlkit.training.schedule import state_order
from rlkit.training.vllm_requests import request_seed
from tests.training.conftest import LetterTask, tiny_base, tiny_config, tiny_trainer
from tests.training.fake_vllm import FakeVllm
from tests.training.test_trainer import weights

COMPLETIONS, LOAD = "/v1/completions", "/v1/load_lora_adapter"
UNLOAD = "/v1/unload_lora_adapter"


@pytest.fixture
def server():
    with FakeVllm(tiny_base()) as fake:
        yield fake


def served_config(tmp_path, server: FakeVllm, *changes: str, **grpo) -> RunConfig:
    overrides = [
        "rollout.engine=vllm_server",
        f"rollout.base_url={server.url}",
        "checker.patience=0.5",
        "checker.max_retries=0",
    ]
    return tiny_config(tmp_path, **grpo).with_overrides(*overrides, *changes)


def served_trainer(tmp_path, server: FakeVllm, *changes: str, run: bool = False, **grpo):
    return tiny_trainer(served_config(tmp_path, server, *changes, **grpo), run=run)


def steps(trainer, count: int) -> list[dict]:
    states = trainer.task.states("train")
    return [trainer.training_step([states[i % len(states)]]) for i in range(count)]


# -- what is sampled, and under which weights


def test_every_move_is_published_and_answers_come_from_the_newest_adapter(tmp_path, server):
    """Three moves, four adapters: what the server says of its tokens is what the trainer says under
    the newest adapter, and not under those of before."""
    config = served_config(
        tmp_path, server, "training.gradient_accumulation_steps=1", learning_rate=0.1
    )
    trainer = tiny_trainer(config, LetterTask(reward=lambda k, text: float(k)), run=False)
    before = []
    for step in range(4):
        path = save_lora_checkpoint(trainer.model, tmp_path / f"kept{step}")
        before.append(path)
        trainer.training_step([trainer.task.states("train")[step]])
        (group,) = trainer.last_groups
        moved = weights(trainer)
        far = []
        for adapter in before:
            load_lora_checkpoint(trainer.model, adapter)
            with torch.no_grad():
                logp, _ = trainer.log_probs(group.prompt, group.sampled.tokens, group.sampled.mask)
            far.append(float((logp - group.sampled.logprobs)[group.sampled.mask].abs().mean()))
        for name, parameter in trainer.parameters.items():
            parameter.data.copy_(moved[name])
        assert far[-1] < 1e-5 and all(other > 1e-3 for other in far[:-1]), far
    names = [body["lora_name"] for body in server.of(LOAD)]
    assert len(set(names)) == len(names) == 4
    asked = [body["model"] for body in server.of(COMPLETIONS) if "allowed_token_ids" not in body]
    assert asked == names
    assert [body["lora_name"] for body in server.of(UNLOAD)] == names[:-1]
    assert list(server.adapters) == names[-1:]


def test_the_same_arithmetic_gives_weights_of_1_and_the_trainer_s_own_metrics(tmp_path, server):
    (found,) = steps(served_trainer(tmp_path, server), 1)
    assert found["sampling_logp_difference_max"] < 1e-5
    assert found["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=1e-5)
    assert found["sampling/effective_sample_size"] == pytest.approx(1.0, abs=1e-6)
    assert found["kl"] == 0.0 and math.isfinite(found["reward"])


def test_an_adapter_is_published_only_when_the_optimiser_moved(tmp_path, server):
    trainer = served_trainer(tmp_path, server)  # it moves every two steps
    trainer.preview(trainer.task.states("train")[0])
    steps(trainer, 3)
    assert len(server.of(LOAD)) == 2


def test_nothing_of_the_sampling_is_left_to_the_server_s_defaults(tmp_path, server):
    trainer = served_trainer(tmp_path, server, temperature=0.7)
    steps(trainer, 1)
    body = server.of(COMPLETIONS)[-1]
    (group,) = trainer.last_groups
    adapter = body.pop("model")
    seed = request_seed(trainer.config.seed, group.state.state_id, 0)
    assert adapter in server.adapters and body == {
        "prompt": group.prompt, "n": 4, "seed": seed, "temperature": 0.7, "max_tokens": 8,
        "min_tokens": 0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True,
        "stop_token_ids": list(trainer.ends), "logprobs": 0, "return_token_ids": True,
    }  # fmt: skip


def test_the_same_action_has_the_same_seed_and_no_other_has_it(tmp_path, server):
    trainer = served_trainer(tmp_path, server)
    state = trainer.task.states("train")[0]
    alone = trainer._sample_action(state, 2)
    steps(trainer, 1)
    one, group = server.of(COMPLETIONS)
    assert (one["seed"], one["n"]) == (group["seed"] + 2, 1) and alone
    seeds = {request_seed(7, f"s{i}", visit) for i in range(50) for visit in range(3)}
    assert len(seeds) == 150 and max(seeds) < 2**62
    assert request_seed(8, "s0", 0) not in seeds
    again = served_trainer(tmp_path, server)
    steps(again, 1)
    assert server.of(COMPLETIONS)[-1]["seed"] == group["seed"]


def test_the_groups_of_a_step_are_asked_for_together(tmp_path, server):
    trainer = served_trainer(tmp_path, server, "training.batch_size=3")
    trainer.engine.publish()
    server.together = threading.Barrier(3)  # each is answered when all three are there
    trainer.training_step(trainer.task.states("train")[:3])
    assert len(server.of(COMPLETIONS)) == 3


def test_actions_ahead_of_an_update_are_sampled_by_the_server_too(tmp_path, server):
    changes = ["rollout.overlap=ahead", "training.gradient_accumulation_steps=1"]
    config = served_config(tmp_path, server, *changes, learning_rate=0.1)
    trainer = tiny_trainer(config, LetterTask(reward=lambda k, text: float(k)), run=False)
    states = trainer.task.states("train")
    found = [trainer.training_step(states[i : i + 1], states[i + 1 : i + 2]) for i in range(3)]
    models = [body["model"] for body in server.of(COMPLETIONS)]
    assert len(models) == 4 and models[0] == models[1]  # the second group under the first weights
    assert found[0]["sampling_logp_difference_max"] < 1e-5 < found[1]["sampling_logp_difference"]


def test_only_main_hands_over_adapters_and_the_others_sample_under_its_name(tmp_path, server):
    main = served_trainer(tmp_path, server)
    main.engine.publish()

    class Second(Ranks):
        """A second rank that hears main's word."""

        def broadcast(self, value):
            assert value is None
            return main.engine._adapters._nonce, str(main.engine._adapters.parent)

        def gather_all(self, value):
            return [value]

        def copy_(self, tensors): ...

    other = tiny_trainer(served_config(tmp_path, server), run=False, ranks=Second(1, 2))
    other.engine.publish()
    sampled = other.engine.sample(Asked([65, 66], "s0", 0, range(4)))
    assert len(sampled.rows()) == 4 and len(server.of(LOAD)) == 1
    assert server.of(COMPLETIONS)[-1]["model"] == server.of(LOAD)[0]["lora_name"]


@pytest.mark.slow
def test_two_processes_at_one_server_sample_what_one_process_samples(root, tmp_path, server):
    """Two steps of one group each on two processes, against one process with twice the steps: four
    groups, then a move; main hands over two adapters, whose tokens are the same."""
    found = {}
    for size, accumulation in ((1, 4), (2, 2)):
        before, out = len(server.of(LOAD)), tmp_path / f"{size}.json"
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            + [f"--nproc_per_node={size}", "-m", "tests.training.test_vllm_server"]
            + [str(tmp_path / str(size)), server.url, str(accumulation), str(out)],
            cwd=root,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=300,
        )
        found[size] = json.loads(out.read_text())
        assert len(server.of(LOAD)) - before == 2
    assert found[1] == found[2] and len(found[1]) == 8


def main(folder: str, url: str, accumulation: str, out: str) -> None:
    torch.set_num_threads(1)
    overrides = [f"training.gradient_accumulation_steps={accumulation}", "checker.patience=60"]
    config = tiny_config(Path(folder), learning_rate=0.1).with_overrides(
        "rollout.engine=vllm_server", f"rollout.base_url={url}", *overrides
    )
    with joined() as ranks:
        task = LetterTask(reward=lambda k, text: float(k))
        trainer = tiny_trainer(config, task, run=False, ranks=ranks)
        tokens, size = [], ranks.size
        for step in range(2 * int(accumulation)):
            states = state_order(task.states("train"), 7, step * size, size)
            trainer.training_step(states)
            if ranks.is_main:
                tokens += [group.sampled.rows() for group in trainer.last_groups]
        if ranks.is_main:
            Path(out).write_text(json.dumps(tokens))
        ranks.barrier()


def test_adapters_wait_in_the_run_s_folder_or_in_the_one_that_is_named(tmp_path, server):
    trainer = served_trainer(tmp_path, server, run=True)
    left = trainer.run.folder / "rollout_adapters" / "of-a-killed-process"
    trainer.engine.close()
    left.mkdir(parents=True)
    trainer = served_trainer(tmp_path, server, run=True)
    steps(trainer, 3)
    folders = [path.name for path in (trainer.run.folder / "rollout_adapters").iterdir()]
    assert folders == [server.of(LOAD)[-1]["lora_name"]]
    named = served_trainer(tmp_path, server, f"rollout.adapters_path={tmp_path / 'seen'}")
    steps(named, 1)
    assert server.of(LOAD)[-1]["lora_path"].startswith(str(tmp_path / "seen"))


def test_at_the_end_the_server_and_the_disk_are_as_before(tmp_path, server):
    trainer = served_trainer(tmp_path, server, f"rollout.adapters_path={tmp_path / 'seen'}")
    steps(trainer, 3)
    del trainer
    gc.collect()  # what an engine leaves is taken away with it
    assert not server.adapters and not list((tmp_path / "seen").iterdir())


# -- what can go wrong


def test_without_a_server_one_sentence_says_what_to_do(tmp_path):
    trainer = served_trainer(
        tmp_path, FakeVllm(tiny_base()), "rollout.base_url=http://127.0.0.1:9/v1"
    )
    with pytest.raises(AgentError, match=r"127\.0\.0\.1:9/v1 gave no reply.*start vLLM as docs"):
        steps(trainer, 1)
    with pytest.raises(AgentError, match="start vLLM as docs/rollouts.md says"):
        check_engine(trainer.config)


def test_a_server_that_is_there_passes_the_look_before_a_warm_start(tmp_path, server):
    check_engine(served_config(tmp_path, server))
    check_engine(tiny_config(tmp_path))


def test_log_probabilities_from_before_the_temperature_are_refused_where_it_is_not_1(tmp_path):
    with FakeVllm(tiny_base(), raw_logprobs=True) as server:
        with pytest.raises(AgentError, match="--logprobs-mode processed_logprobs"):
            steps(served_trainer(tmp_path, server, temperature=0.7), 1)
        steps(served_trainer(tmp_path, server, temperature=1.0), 1)


def test_another_model_behind_the_server_is_found_out_at_the_first_group(tmp_path):
    with FakeVllm(tiny_base(seed=5, initializer_range=0.4)) as server:
        with pytest.raises(ModelError, match=r"vllm_server .* nats from the trainer's"):
            steps(served_trainer(tmp_path, server), 1)


@pytest.mark.parametrize("status", [404, 500])
def test_an_adapter_that_is_refused_is_said_in_few_words_with_what_to_check(
    tmp_path, server, status
):
    trainer = served_trainer(tmp_path, server)
    server.faults[LOAD] = lambda body, n: (status, {"error": {"message": "rank " * 2000}})
    with pytest.raises(AgentError) as caught:
        steps(trainer, 1)
    said = str(caught.value)
    assert "--max-lora-rank 4" in said and "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in said
    assert str(trainer.engine._adapters.parent) in said and len(said) < 1000


def test_a_key_comes_from_the_environment_and_is_never_shown(tmp_path, server, monkeypatch):
    monkeypatch.setenv("RLKIT_API_KEY", "sesame-open-4711")
    trainer = served_trainer(tmp_path, server)
    steps(trainer, 1)
    assert set(server.keys) == {"Bearer sesame-open-4711"}
    server.faults[COMPLETIONS] = lambda body, n: (403, "no to sesame-open-4711")
    with pytest.raises(AgentError) as caught:
        steps(trainer, 1)
    assert "HTTP 403" in str(caught.value) and "4711" not in str(caught.value)


def test_a_server_that_was_started_anew_is_given_the_adapter_again(tmp_path, server):
    trainer = served_trainer(tmp_path, server)
    steps(trainer, 1)
    server.stop()
    server.start()
    (found,) = steps(trainer, 1)
    assert found["sampling_logp_difference_max"] < 1e-5
    first, again = server.of(LOAD)
    assert first == again


def test_a_run_whose_server_died_fails_with_its_reason_and_goes_on_later(tmp_path, server):
    config = served_config(tmp_path, server, "training.gradient_accumulation_steps=1")

    def die(metrics):
        if metrics["step"] == 2:
            server.stop()

    trainer = tiny_trainer(config)
    with pytest.raises(ServerAwayError, match="has not answered for"):
        train(trainer, progress=die)
    status = trainer.run.status()
    assert status["state"] == "failed" and server.url in status["reason"]
    server.start()
    trainer = tiny_trainer(config)
    assert train(trainer, progress=lambda metrics: None) == "finished"
    rows = [row["step"] for row in Run.at(trainer.run.folder).read_metrics()]
    assert rows == list(range(7))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda answer: answer.update(model="base"), "answered as the model 'base'"),
        (lambda answer: answer.update(choices=answer["choices"][1:]), "the 4 actions asked for"),
        (lambda answer: answer.update(choices="none"), "the 4 actions asked for"),
        (lambda answer: first(answer).update(prompt_token_ids=[1]), "another prompt"),
        (lambda answer: first(answer).update(token_ids=None), "no token ids"),
        (lambda answer: first(answer)["token_ids"].insert(0, 10**6), "no token ids"),
        (lambda answer: first(answer).update(logprobs=None), "tokens and 0 log-probabilities"),
        (lambda answer: set_logprob(answer, None), "missing or above 0"),
        (lambda answer: set_logprob(answer, float("nan")), "missing or above 0"),
        (lambda answer: set_logprob(answer, 0.5), "missing or above 0"),
        (lambda answer: first(answer).update(finish_reason="abort"), "finish_reason 'abort'"),
        (lambda answer: cut(answer, "length"), "cut after 1 of 8 tokens"),
        (lambda answer: cut(answer, "stop"), "stopped at no end-of-turn token"),
    ],
)
def test_answers_that_cannot_be_learnt_from_are_refused(tmp_path, server, change, said):
    trainer = served_trainer(tmp_path, server)
    trainer.ends = (256,)  # rarely sampled

    def broken(body, n):
        answer = server.complete(body)
        change(answer)
        return 200, answer

    server.faults[COMPLETIONS] = broken
    with pytest.raises(AgentError, match=said):
        steps(trainer, 1)


def first(answer: dict) -> dict:
    return next(c for c in answer["choices"] if c["index"] == 0)


def set_logprob(answer: dict, value: float | None) -> None:
    first(answer)["logprobs"]["token_logprobs"][0] = value


def cut(answer: dict, reason: str) -> None:
    choice = first(answer)
    choice["token_ids"] = [65]
    choice["logprobs"]["token_logprobs"] = [-1.0]
    choice["finish_reason"] = reason


def test_a_prompt_that_the_server_would_cut_is_refused_before_it_is_sent(tmp_path):
    with FakeVllm(tiny_base(), context=20) as server:
        with pytest.raises(ModelError, match="the 20 tokens that vLLM was started with"):
            steps(served_trainer(tmp_path, server), 1)
        assert not server.of(COMPLETIONS)


# -- parameters


def test_a_server_is_handed_adapters_so_without_one_it_is_refused():
    with pytest.raises(ConfigError, match="rollout.engine is 'vllm_server', which is handed"):
        RunConfig.from_sections(lora={"enabled": False}, rollout={"engine": "vllm_server"})


def test_a_debug_run_needs_no_server():
    config = RunConfig.from_sections(rollout={"engine": "vllm_server"})
    assert config.debug().rollout.engine == "transformers"


def test_vllm_in_this_process_is_refused_where_it_is_not_installed(tmp_path):
    config = tiny_config(tmp_path).with_overrides("rollout.engine=vllm")
    with pytest.raises(ConfigError, match="take rollout.engine vllm_server"):
        check_engine(config)
    with pytest.raises(ConfigError, match="not installed here"):
        tiny_trainer(config, run=False)


def test_the_address_may_change_between_two_openings_of_a_run_and_the_engine_may_not(
    tmp_path, server
):
    config = served_config(tmp_path, server)
    Run.open(config).append_metrics({"step": 0})
    Run.open(config.with_overrides("rollout.base_url=http://127.0.0.1:1/v1", "rollout.timeout=9"))
    with pytest.raises(RunError, match="rollout.engine"):
        Run.open(config.with_overrides("rollout.engine=transformers"))


def test_by_default_the_server_is_the_one_of_the_model_section(tmp_path, server):
    config = served_config(tmp_path, server).with_overrides(
        "rollout.base_url=null", f"model.vllm_base_url={server.url}"
    )
    steps(tiny_trainer(config, run=False), 1)
    assert vllm_server._requester(config, print).address == server.url


if __name__ == "__main__":
    main(*sys.argv[1:])
