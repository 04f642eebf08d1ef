"""A real model, offline: SmolLM2-135M-Instruct out of its package, and two real GRPO steps."""

from __future__ import annotations

import pytest
import torch

from rlkit.config import RunConfig
from rlkit.practice.task import Score, build_search_task
from rlkit.run import Run
from rlkit.training.gradients import trainable, without_dropout
from rlkit.training.logprobs import group_log_probs
from rlkit.training.loop import train
from rlkit.training.models import SMOLLM2, SMOLLM2_SHA256, smollm2_file
from rlkit.training.policy import load_model_with_lora
from rlkit.training.sampling import sample_actions, uniform_numbers
from rlkit.training.stages import load_model
from rlkit.training.text import encode_prompt, token_counter
from rlkit.training.trainer import GRPOTrainer
from tests.training.architectures import dense_log_probs
from tests.training.conftest import in_float64


@pytest.fixture(scope="module", autouse=True)
def two_threads():
    torch.set_num_threads(2)


def test_the_packaged_file_is_the_one_that_was_tested():
    assert smollm2_file().suffix == ".gguf"
    assert SMOLLM2_SHA256.startswith("b179c952")


def test_two_grpo_steps_of_smollm2_on_the_demo(tmp_path):
    torch.set_num_threads(2)
    config = RunConfig.load(
        "params/run1.yaml",
        [
            f"output_root={tmp_path}",
            "model.init_adapter=null",
            "model.dtype=float32",
            "data.max_questions=12",
            "grpo.group_size=4",
            "grpo.max_new_tokens=16",
            "training.max_steps=2",
            "evaluation.epoch_states=0",
            "monitoring.use_tensorboard=false",
        ],
    )
    run = Run.open(config)
    task = build_search_task(config, run)
    model, tokenizer = load_model(config, None, lambda _: None)
    task.count_tokens = token_counter(tokenizer)
    state = task.states("train")[0]
    assert len(encode_prompt(tokenizer, task.prompt(state))) <= config.executor.max_prompt_tokens
    # an untrained model finds nothing, so that all groups would be flat: reward lengths instead
    task.score = lambda state, texts: [Score(len(text) / 100, {}) for text in texts]
    trainer = GRPOTrainer(config, task, model, tokenizer, run, log=lambda _: None)
    before = {name: p.detach().clone() for name, p in trainer.parameters.items()}
    assert train(trainer) == "finished"
    first, second = run.read_metrics()
    assert first["kl"] == second["kl"] == 0.0  # the optimiser moves after the second step
    assert first["sampling_logp_difference"] < 1e-4
    group = trainer.last_groups[0]
    with torch.no_grad():
        again = trainer._compute_log_probs(group.state, group.sampled.rows()[0])
    assert again.shape == (len(group.sampled.rows()[0]),)
    assert len(run.read_rollouts()) == 8
    moved = [n for n, p in trainer.parameters.items() if not torch.equal(p, before[n])]
    assert len(moved) >= len(before) // 2  # every B; the A's gradients are 0 at the first move


@pytest.mark.slow
def test_the_shared_prompt_is_the_dense_pass_of_transformers_to_1e_4():
    """Ours in float32 against transformers' in float64 (its own float32 gradients are off by more,
    8e-4 where ours are by 1e-5): values in nats, gradients in parts of each adapter tensor's
    largest entry; the actions are sampled, and of unequal lengths."""
    model, tokenizer = load_model_with_lora(
        SMOLLM2, RunConfig().lora, device="cpu", dtype="float32", log=lambda _: None
    )
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    words = "Which river flows through the town where the author of the novel was born? " * 12
    prompt = encode_prompt(tokenizer, [{"role": "user", "content": words}])
    draws = uniform_numbers(7, "s", 0, 3, 16)
    common = tuple(tokenizer.convert_tokens_to_ids(["Ġthe", "Ġof", ","])) + (2,)
    sampled = sample_actions(
        model, [prompt], 3, 16, end_ids=common, temperature=1.0, uniforms=draws
    )
    assert len({len(row) for row in sampled.rows()}) > 1

    def shared():
        return group_log_probs(model, prompt, sampled.tokens, mask=sampled.mask)[0]

    def dense():
        return dense_log_probs(model, prompt, sampled.tokens)

    def passed(function):
        model.zero_grad()
        with without_dropout(model):
            value = function() * sampled.mask
            value.sum().backward()
        gradients = {n: p.grad.double() for n, p in trainable(model).items()}
        return value.detach().double(), gradients

    found, gradient = passed(shared)
    in_float64(model).get_base_model().set_attn_implementation("sdpa")
    expected, reference = passed(dense)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(found, sampled.logprobs.double(), rtol=0, atol=1e-4)
    for name, tensor in reference.items():
        scale = float(tensor.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(gradient[name], tensor, rtol=0, atol=1e-4 * scale, msg=name)


def test_the_tokenizer_splits_digits_and_knows_the_chat_template():
    from transformers import AutoTokenizer

    from rlkit.training.models import resolve_base_model

    tokenizer = AutoTokenizer.from_pretrained(resolve_base_model(SMOLLM2))
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    prompt = encode_prompt(tokenizer, [{"role": "user", "content": "hi"}])
    assert tokenizer.decode(prompt).endswith("<|im_start|>assistant\n")
