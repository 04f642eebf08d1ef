"""With `lora.enabled: false` all weights are trained: nothing else about a run changes."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file

from rlkit.errors import ModelError, RunError
from rlkit.training.adapters import (
    add_adapter,
    as_reference,
    has_reference,
    load_lora_checkpoint,
    save_lora_checkpoint,
    using_adapter,
)
from rlkit.training.gradients import trainable
from rlkit.training.loop import train
from rlkit.training.models import DEBUG, byte_tokenizer
from rlkit.training.policy import load_model_with_lora
from rlkit.training.sft import Example, train_sft
from rlkit.training.trainer import GRPOTrainer
from rlkit.training.weights import begin_training
from tests.training.conftest import LetterTask, tiny_base, tiny_config, tiny_trainer, with_lora

ALL = SimpleNamespace(enabled=False)
IDS = torch.tensor([[5, 6, 7, 8]])
EXAMPLES = [Example([5, 6, 7], [8, 9, 2]), Example([5, 6], [9, 2])]


def load(base=DEBUG, **options):
    options = {"log": lambda _: None} | options
    return load_model_with_lora(base, ALL, device="cpu", **options)[0]


def full_trainer(tmp_path, model=None, **grpo):
    config = tiny_config(tmp_path, **{"kl_penalty": 0.1, **grpo})
    return tiny_trainer(config.with_overrides("lora.enabled=false"), model=model or load())


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_every_weight_is_trained_and_tied_ones_are_one_parameter():
    model = load()
    assert set(trainable(model)) == {name for name, _ in model.named_parameters()}
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert "lm_head.weight" not in trainable(model)
    assert all(p.dtype == torch.float32 for p in model.parameters())


def sft(**changes):
    values = dict(
        learning_rate=1e-3, num_epochs=1, batch_size=2, max_samples=None, max_grad_norm=1.0,
        warmup_steps=0, packing="never", save_every_n_updates=50,
        start_from=None, evaluate_every_n_updates=None, patience=None, cpu_minutes=None,
    )  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


@pytest.mark.parametrize("options, words", [
    ({"load_in_4bit": True}, "4-bit weights cannot be trained; set model.load_in_4bit to false"),
    ({"dtype": "bfloat16"}, "takes float32, and .* is bfloat16; set model.dtype to auto"),
])  # fmt: skip
def test_weights_too_coarse_for_small_moves_are_refused_in_one_sentence(options, words):
    with pytest.raises(ModelError, match=words):
        load(**options)


def test_the_reference_is_the_model_that_training_began_with_and_the_kl_starts_at_0(tmp_path):
    trainer = full_trainer(tmp_path, learning_rate=1e-3)
    before, states = logits(trainer.model), trainer.task.states("train")
    kls = [trainer.training_step(states[:1])["kl"] for _ in range(4)]
    assert kls[:2] == [0.0, 0.0] and kls[2] > 0  # the optimiser moves at every second step
    now = logits(trainer.model)
    assert not torch.equal(now, before)
    for context in (as_reference(trainer.model), using_adapter(trainer.model, None)):
        with context:
            assert torch.equal(logits(trainer.model), before)
    assert torch.equal(logits(trainer.model), now)


def test_the_trained_weights_come_back_even_where_the_reference_fails(tmp_path):
    model = full_trainer(tmp_path).model
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(1.0)
    now = logits(model)
    with pytest.raises(ZeroDivisionError), as_reference(model):
        assert not torch.equal(logits(model), now)
        raise ZeroDivisionError
    assert torch.equal(logits(model), now)


def test_the_reference_takes_no_part_in_a_backward_pass_that_is_under_way():
    """The policy's graph may stand while the reference is asked: its gradients are its own."""
    gradients = []
    for asked in (False, True):
        model = moved_model()
        loss = model(IDS).logits.square().sum()
        if asked:
            with torch.no_grad(), as_reference(model):
                model(IDS)
        loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    assert all(torch.equal(g, gradients[1][n]) for n, g in gradients[0].items())


def moved_model():
    """A model that has been moved away from its reference."""
    model = load()
    begin_training(model, reference=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def test_without_a_kl_penalty_no_copy_is_kept_and_what_would_need_one_says_so(tmp_path):
    trainer = full_trainer(tmp_path, kl_penalty=0.0)
    model = trainer.model
    assert not has_reference(model) and model.all_weights.sets == {} and trainer.untrained is None
    trainer.training_step(trainer.task.states("train")[:1])
    assert trainer.evaluate(trainer.task.states("dev"))["kl"] is None
    for asked in (as_reference(model), using_adapter(model, None)):
        with pytest.raises(ModelError, match="no copy of .* is kept"), asked:
            pass
    with pytest.raises(RunError, match="no copy is kept"):
        trainer.load_checkpoint()


def test_a_model_that_is_not_trained_is_its_own_untouched_base():
    model = load()
    before = logits(model)
    with using_adapter(model, None):
        assert torch.equal(logits(model), before)


def test_a_checkpoint_is_a_model_folder_that_transformers_loads(tmp_path):
    trainer = full_trainer(tmp_path, model=load(gradient_checkpointing=True), learning_rate=1e-3)
    for _ in range(2):
        trainer.training_step(trainer.task.states("train")[:1])
    folder = trainer.save_checkpoint()
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")  # tied: in the file once
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert plain.config.use_cache and not plain.is_gradient_checkpointing
    torch.testing.assert_close(logits(plain), logits(trainer.model), atol=1e-5, rtol=0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == trainer.tokenizer.chat_template


def test_a_resumed_run_is_bitwise_the_run_that_was_not_interrupted(tmp_path):
    whole = full_trainer(tmp_path / "whole", learning_rate=1e-3)
    train(whole)
    stopped = full_trainer(tmp_path / "part", learning_rate=1e-3)

    def interrupt(row):
        if row["step"] == 3:  # in the middle of an accumulation
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert train(stopped, progress=interrupt) == "stopped"
    part = full_trainer(tmp_path / "part", learning_rate=1e-3)
    train(part)
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (t.run.checkpoints_folder / "checkpoint-6" / name for t in (whole, part))
        assert ours.read_bytes() == theirs.read_bytes(), name
    rows = [[row.get("kl") for row in t.run.read_metrics()] for t in (whole, part)]
    assert rows[0] == rows[1] and rows[0][-1] > 0  # the reference is the base, after a resume too


def test_an_sft_model_is_the_reference_of_what_starts_from_it(tmp_path):
    model = load()
    train_sft(model, EXAMPLES, sft(), seed=1)
    save_lora_checkpoint(model, tmp_path / "model")
    trainer = full_trainer(tmp_path, model=load(adapter=tmp_path / "model"))
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight.add_(1.0)
    with as_reference(trainer.model):
        assert torch.equal(logits(trainer.model), logits(model))
    with pytest.raises(ModelError, match="no copy of the untouched base"):
        with using_adapter(trainer.model, None):
            pass


def test_several_models_are_compared_beside_the_untouched_base(tmp_path):
    tuned, base = load(), load()
    train_sft(tuned, EXAMPLES, sft(learning_rate=1e-2), seed=1)
    save_lora_checkpoint(tuned, tmp_path / "model")
    model = load()
    add_adapter(model, tmp_path / "model", "tuned")
    for name, expected in (("tuned", tuned), (None, base), ("tuned", tuned)):
        with using_adapter(model, name):
            assert torch.equal(logits(model), logits(expected))


def test_an_adapter_is_no_model_and_another_model_does_not_fit(tmp_path):
    save_lora_checkpoint(with_lora(tiny_base()), tmp_path / "adapter")
    with pytest.raises(ModelError, match="holds an adapter, and lora.enabled is false; merge it"):
        load(adapter=tmp_path / "adapter")
    with pytest.raises(ModelError, match="config.json is missing"):
        load(adapter=tmp_path / "nothing")
    tiny_base(hidden_size=48).save_pretrained(tmp_path / "wide")
    with pytest.raises(ModelError, match="is another one"):
        load_lora_checkpoint(load(), tmp_path / "wide")
    file = tmp_path / "wide" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ModelError, match="is damaged or another one"):
        load_lora_checkpoint(load(), tmp_path / "wide")


def test_a_rate_for_adapters_is_warned_of(tmp_path):
    said = []
    for rate in (5e-5, 5e-6):
        config = tiny_config(tmp_path, learning_rate=rate).with_overrides("lora.enabled=false")
        GRPOTrainer(config, LetterTask(), load(), byte_tokenizer(), log=said.append)
    train_sft(load(), EXAMPLES, sft(learning_rate=2e-4), seed=1, log=said.append)
    warned = [line for line in said if line.startswith("warning: ")]
    assert [line.split(" and ")[0] for line in warned] == [
        "warning: grpo.learning_rate is 5e-05",
        "warning: sft.learning_rate is 0.0002",
    ]
