"""Several examples in one row are what they are alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rlkit.errors import ModelError
from rlkit.training import sft
from rlkit.training.gradients import loss_scaler, trainable
from rlkit.training.packing import packed_log_probs, packed_rows
from rlkit.training.policy import load_model_with_lora
from rlkit.training.sft import Example, encode_examples
from tests.training.conftest import tiny_base, with_lora

EXAMPLES = [
    Example([5, 6, 7, 8, 9, 10, 11], [8, 9, 2]), Example([5], [9, 2]),
    Example([12, 13, 5, 6], [2]), Example([20] * 30, [21, 22, 23, 24, 25, 2]),
]  # fmt: skip


def plain_loss(model, examples):
    """transformers' own loss, one by one: labels are -100 on the prompt."""
    total, tokens = 0.0, 0
    for example in examples:
        ids = torch.tensor([example.prompt + example.completion])
        labels = torch.tensor([[-100] * len(example.prompt) + example.completion])
        count = len(example.completion)
        total = total + model(input_ids=ids, labels=labels, use_cache=False).loss * count
        tokens += count
    return total / tokens


def gradients(model, loss):
    found = torch.autograd.grad(loss, list(trainable(model).values()))
    return dict(zip(trainable(model), found, strict=True))


MODELS = {
    "adapter": lambda: with_lora(tiny_base()),
    "sliding window": lambda: with_lora(
        tiny_base(use_sliding_window=True, sliding_window=4, layer_types=["sliding_attention"] * 2)
    ),
    "all weights": lambda: load_model_with_lora(
        "debug", SimpleNamespace(enabled=False), device="cpu", log=lambda _: None
    )[0],
    "gradient checkpointing": lambda: load_model_with_lora(
        "debug",
        SimpleNamespace(enabled=False),
        device="cpu",
        gradient_checkpointing=True,
        log=lambda _: None,
    )[0],
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "one by one"])
def test_loss_and_gradients_are_transformers_own_on_the_completions_alone(kind, packed):
    model = MODELS[kind]()
    expected = plain_loss(model, EXAMPLES)
    wanted = gradients(model, expected)
    tokens = sum(len(e.completion) for e in EXAMPLES)
    parts = [EXAMPLES] if packed else [[example] for example in EXAMPLES]
    if kind == "gradient checkpointing":
        model.train()
    scaler = loss_scaler(model)  # scales nothing in float32
    loss = sum(sft._backward(model, scaler, part, tokens) for part in parts)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    for name, parameter in trainable(model).items():
        torch.testing.assert_close(parameter.grad, wanted[name], atol=1e-5, rtol=1e-4)
        assert parameter.grad.abs().max() > 0, name


def test_the_template_s_own_turns_are_what_is_learnt_up_to_the_end_of_turn(tokenizer):
    """Prompt and completion together are the chat template's text of the whole conversation."""
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": "hi"}]
    (example,) = encode_examples(tokenizer, [(messages, "a good day")])
    whole = [*messages, {"role": "assistant", "content": "a good day"}]
    text = tokenizer.apply_chat_template(whole, tokenize=False)
    assert tokenizer.decode(example.prompt + example.completion) == text.removesuffix("\n")
    assert tokenizer.decode(example.completion) == "a good day<|im_end|>"


def test_an_example_is_the_same_whoever_stands_beside_it():
    model = with_lora(tiny_base())
    with torch.no_grad():
        alone = packed_log_probs(model, EXAMPLES[1:2])
        beside = packed_log_probs(model, [EXAMPLES[3], EXAMPLES[1], EXAMPLES[0]])
    torch.testing.assert_close(beside[6:8], alone, atol=1e-5, rtol=0)


def test_rows_keep_the_order_and_hold_no_more_tokens_than_allowed():
    """Lengths 10, 3, 5 and 36."""
    rows = [[EXAMPLES.index(e) for e in row] for row in packed_rows(EXAMPLES, tokens=15)]
    assert rows == [[0, 1], [2], [3]]
    assert [*packed_rows([], tokens=15)] == []


def test_an_example_longer_than_the_model_reads_is_refused():
    model = with_lora(tiny_base(max_position_embeddings=16))
    with pytest.raises(ModelError, match="do not fit into the 16 tokens"):
        packed_log_probs(model, EXAMPLES)
