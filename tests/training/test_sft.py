"""The warm start learns the completion, and nothing but the completion."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rlkit.errors import DataError, ModelError
from rlkit.run import Run
from rlkit.training.gradients import loss_scaler, trainable
from rlkit.training.sft import (
    Example,
    _batches,
    encode_examples,
    save_warm_start,
    train_sft,
)
from rlkit.training.sft_best import is_over
from tests.training.conftest import tiny_base, tiny_config, with_lora

SETTINGS = SimpleNamespace(
    learning_rate=1e-2, num_epochs=1, batch_size=2, max_samples=None, max_grad_norm=1.0,
    warmup_steps=0, packing="never", save_every_n_updates=50,
    start_from=None, evaluate_every_n_updates=None, patience=None, cpu_minutes=None,
)  # fmt: skip


def settings(**changes):
    return SimpleNamespace(**{**vars(SETTINGS), **changes})


def test_the_loss_is_the_mean_negative_log_likelihood_of_the_completions_tokens():
    model = with_lora(tiny_base(), spread=0.0)
    examples = [Example([5, 6, 7], [8, 9, 2]), Example([5, 6], [9, 2])]
    expected = 0.0
    with torch.no_grad():
        for example in examples:
            ids = torch.tensor([example.prompt + example.completion])
            logp = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])
            expected -= float(logp[len(example.prompt) - 1 :].sum())
    rows = train_sft(model, examples, SETTINGS, seed=1)
    assert rows[0]["loss"] == pytest.approx(expected / 5, abs=1e-5)
    assert rows[0]["tokens"] == 5


def test_training_lowers_the_loss_and_is_the_same_twice():
    runs = []
    for _ in range(2):
        model = with_lora(tiny_base(initializer_range=0.4), spread=0.0)
        examples = [Example([5, 6, 7], [8, 9, 2])] * 4
        rows = train_sft(model, examples, settings(num_epochs=10), seed=1)
        runs.append((rows[-1]["loss"], {n: p.detach() for n, p in trainable(model).items()}))
        assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(p, runs[1][1][n]) for n, p in runs[0][1].items())


def test_each_update_is_monitored_once_and_goes_on_where_training_does(tmp_path):
    class Heard:
        def __init__(self, done):
            self.done, self.rows, self.closed = done, [], False

        def log(self, row):
            self.rows.append(row)

        def close(self):
            self.closed = True

    def train(*, progress=None):
        heard = []
        monitor = lambda done: heard.append(Heard(done)) or heard[0]  # noqa: E731
        every = settings(num_epochs=3, save_every_n_updates=2)
        model, examples = with_lora(tiny_base(), spread=0.0), [Example([5, 6, 7], [8, 9, 2])] * 2
        told = {"checkpoints": tmp_path, "monitor": monitor, "progress": progress}
        try:
            return train_sft(model, examples, every, seed=1, **told), heard[0]
        except ZeroDivisionError:
            return [], heard[0]

    _, broken_off = train(progress=lambda row: 1 / (3 - row["update"]))
    rows, gone_on = train()
    assert broken_off.closed and gone_on.closed
    assert [row["step"] for row in broken_off.rows] == [1, 2, 3] and broken_off.done == 0
    assert [row["step"] for row in gone_on.rows] == [3] and gone_on.done == 2
    expected = {f"sft/{name}": rows[2][name] for name in ("loss", "learning_rate", "grad_norm")}
    assert gone_on.rows == [{"step": 3} | expected]


def test_every_completion_ends_with_the_end_of_turn(tokenizer):
    pairs = [([{"role": "user", "content": "hi"}], "<clue>a</clue>")]
    (example,) = encode_examples(tokenizer, pairs)
    assert example.completion[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(example.completion[:-1]) == "<clue>a</clue>"


def test_every_epoch_holds_every_chosen_sample_once():
    batches = _batches(7, settings(num_epochs=2, max_samples=5), seed=3)
    first, second = sum(batches[:3], []), sum(batches[3:], [])
    assert [len(batch) for batch in batches] == [2, 2, 1, 2, 2, 1]
    assert len(set(first)) == 5 and set(first) == set(second)


def test_nothing_to_learn_from_is_said():
    with pytest.raises(DataError, match="nothing to learn from"):
        train_sft(with_lora(tiny_base()), [], SETTINGS, seed=1)


def test_an_adapter_of_nan_is_never_made():
    model = with_lora(tiny_base())
    examples = [Example([5, 6, 7], [8, 9, 2])] * 4
    calls = []

    def spoil(row):
        calls.append(row)
        next(iter(trainable(model).values())).data[0, 0] = float("nan")

    with pytest.raises(ModelError, match="norm of the gradient"):
        train_sft(model, examples, SETTINGS, seed=1, progress=spoil)
    assert len(calls) == 1


def test_a_warm_start_is_kept_whole_and_never_overwritten(tmp_path):
    model = with_lora(tiny_base())
    folder = save_warm_start(model, [{"update": 1, "loss": 0.5}], tmp_path / "sft" / "adapter")
    assert (folder / "adapter_model.safetensors").is_file()
    assert (folder / "sft_metrics.json").is_file()
    with pytest.raises(FileExistsError):
        save_warm_start(model, [], folder)


def test_a_run_keeps_its_warm_start_by_what_was_trained(tmp_path):
    config = tiny_config(tmp_path)
    run = Run.open(config)
    assert run.warm_start_folder == run.sft_folder / "adapter"
    full = config.with_overrides("lora.enabled=false")
    assert Run(full, run.folder).warm_start_folder == run.sft_folder / "model"


def test_an_example_that_the_model_cannot_read_is_named_before_the_first_update():
    model = with_lora(tiny_base(max_position_embeddings=16))
    before = {name: p.clone() for name, p in trainable(model).items()}
    examples = [Example([5] * 4, [6, 2], f"row-{n}") for n in range(9)]
    examples.append(Example([5] * 10, [6] * 7, "row-long"))
    said = (
        "1 of 10 examples.* 16 tokens.*'row-long' with a prompt of 10 tokens and a completion of 7"
    )
    with pytest.raises(DataError, match=said):
        train_sft(model, examples, SETTINGS, seed=1)
    assert all(torch.equal(p, before[name]) for name, p in trainable(model).items())
    assert len(train_sft(model, examples[:9], settings(batch_size=9), seed=1)) == 1


def test_examples_know_whose_they_are(tokenizer):
    pairs = [
        ([{"role": "user", "content": "hi"}], "yes"),
        ([{"role": "user", "content": "a"}], "b"),
    ]
    assert [e.name for e in encode_examples(tokenizer, pairs, names=["q7", "q9"])] == ["q7", "q9"]
    assert [e.name for e in encode_examples(tokenizer, pairs)] == ["1", "2"]


def evaluated(values, cpu_seconds=0.0):
    return [{"eval/reward": value, "cpu_seconds": cpu_seconds} for value in values]


@pytest.mark.parametrize(
    ("values", "over"),
    [([], False), ([1, 2, 2], False), ([1, 3, 2, 2], True), ([1, 3, 2, 4], False),
     ([3, 3, 3], True), ([1, None, None, None], False)],
)  # fmt: skip
def test_sft_is_over_after_so_many_evaluations_without_a_better_one(values, over):
    assert is_over(evaluated(values), settings(patience=2), "reward") is over
    assert not is_over(evaluated(values), settings(), "reward")


def test_sft_is_over_once_its_processor_time_is_spent():
    assert is_over(evaluated([1] * 4, 20.0), settings(cpu_minutes=1.3), "reward")
    assert not is_over(evaluated([1] * 3, 20.0), settings(cpu_minutes=1.3), "reward")


def test_the_model_is_left_where_dev_was_best_and_training_ends_after_the_patience():
    values, kept = iter([1, 5, 2, 3, 9]), []
    model = with_lora(tiny_base(), spread=0.0)

    def evaluate():
        kept.append({name: p.detach().clone() for name, p in trainable(model).items()})
        return {"reward": next(values)}

    every = settings(num_epochs=9, evaluate_every_n_updates=1, patience=2)
    examples = [Example([5, 6, 7], [8, 9, 2])] * 2
    rows = train_sft(model, examples, every, seed=1, evaluate=evaluate)
    assert [row["eval/reward"] for row in rows] == [1, 5, 2, 3]
    assert all(torch.equal(p, kept[1][name]) for name, p in trainable(model).items())


def half_and_its_twin():
    """An adapter of float32 on a base of float16 whose head is so small (2^-14 of what it was) that
    most gradients behind it are below what float16 holds; and the same in float32 throughout."""
    models = []
    for half in (True, False):
        base = tiny_base()
        base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach() / 2**14)
        model = with_lora(base.half().float())  # the same rounded values in both
        for name, parameter in model.named_parameters():
            if half and "lora_" not in name:
                parameter.data = parameter.data.half()
        models.append(model)
    return models


def test_on_a_float16_base_small_gradients_are_those_of_float32():
    examples = [Example([5, 6, 7], [8, 9, 2]), Example([5, 6], [9, 2])]
    half, twin = half_and_its_twin()
    (row,) = train_sft(half, examples, SETTINGS, seed=1)
    (expected,) = train_sft(twin, examples, SETTINGS, seed=1)
    assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.02)


def test_where_a_scaled_loss_overflows_sft_moves_nothing_and_goes_on_with_half_the_scale(
    monkeypatch,
):
    def far_too_high(model):
        scaler = loss_scaler(model)
        scaler.update(2.0**120)
        return scaler

    monkeypatch.setattr("rlkit.training.sft.loss_scaler", far_too_high)
    half, _ = half_and_its_twin()
    before, said = {n: p.detach().clone() for n, p in trainable(half).items()}, []
    unmoved = []

    def progress(row):
        unmoved.append(all(torch.equal(p, before[n]) for n, p in trainable(half).items()))

    examples = [Example([5, 6, 7], [8, 9, 2])] * 2
    rows = train_sft(
        half, examples, settings(batch_size=1), seed=1, progress=progress, log=said.append
    )
    assert [row["grad_norm"] for row in rows] == [None, None] and unmoved == [True, True]
    assert said == [f"the gradients overflowed: scaled by {2.0**n:g} now" for n in (119, 118)]
