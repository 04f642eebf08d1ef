"""Loading, saving and asking a policy: plain sentences for what does not fit."""

from __future__ import annotations

import json
from types import SimpleNamespace

import peft
import pytest
import torch
from transformers import Qwen3ForCausalLM

from rlkit.errors import ModelError
from rlkit.training.adapters import (
    add_adapter,
    as_reference,
    check_adapter,
    load_lora_checkpoint,
    save_lora_checkpoint,
    using_adapter,
)
from rlkit.training.fingerprint import check_base
from rlkit.training.gradients import assert_gradients, trainable, without_dropout
from rlkit.training.models import DEBUG, byte_tokenizer, debug_config, resolve_base_model
from rlkit.training.policy import ModelPolicy, load_model_with_lora
from rlkit.training.precision import choose_precision
from rlkit.training.text import encode_prompt, end_ids, token_texts
from tests.training.conftest import tiny_base, with_lora

LORA = SimpleNamespace(rank=4, alpha=8, dropout=0.1, target_modules=["q_proj", "v_proj"])
IDS = torch.tensor([[5, 6, 7, 8]])


def load(base=DEBUG, lora=LORA, **options):
    return load_model_with_lora(base, lora, device="cpu", log=lambda _: None, **options)


def test_a_fresh_adapter_changes_no_logit_and_only_it_is_trained():
    model, _ = load()
    assert all("lora_" in name for name in trainable(model))
    with torch.no_grad():
        adapted = model(IDS).logits
        with model.disable_adapter():
            assert torch.equal(adapted, model(IDS).logits)


def test_an_adapter_comes_back_as_it_was_saved(tmp_path, model):
    save_lora_checkpoint(model, tmp_path / "adapter")
    names = {file.name for file in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names
    other = with_lora(tiny_base(), seed=5)
    load_lora_checkpoint(other, tmp_path / "adapter")
    for name, parameter in trainable(model).items():
        assert torch.equal(parameter, trainable(other)[name])


def test_a_continued_adapter_has_a_frozen_copy_as_its_reference(tmp_path):
    model, _ = load()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    save_lora_checkpoint(model, tmp_path / "adapter")
    warm, _ = load(adapter=tmp_path / "adapter")
    assert not any("reference" in name for name in trainable(warm))
    with torch.no_grad():
        now = warm(IDS).logits
        with as_reference(warm):
            assert torch.equal(warm(IDS).logits, now)
        next(iter(trainable(warm).values())).add_(1.0)
        with as_reference(warm):
            assert torch.equal(warm(IDS).logits, now)
        assert not torch.equal(warm(IDS).logits, now)
        with using_adapter(warm, None), model.disable_adapter():
            assert torch.equal(warm(IDS).logits, model(IDS).logits)
    assert len(trainable(warm)) == len(trainable(model))


def test_an_adapter_of_the_embeddings_is_refused_with_its_module(tmp_path):
    lora = peft.LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"])
    peft.get_peft_model(tiny_base(), lora).save_pretrained(tmp_path, save_embedding_layers=False)
    with pytest.raises(ModelError, match=r"model\.embed_tokens, which is no linear layer"):
        check_adapter(tmp_path, tiny_base(), "debug")


def test_an_adapter_of_another_shape_is_not_put_half_into_the_model(tmp_path, model):
    save_lora_checkpoint(model, tmp_path / "adapter")
    for changes in ({"rank": 8}, {"alpha": 16}, {"target_modules": ["q_proj", "k_proj"]}):
        kept = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], **changes}
        other, _ = load(lora=SimpleNamespace(**{**vars(LORA), **kept}))
        with pytest.raises(ModelError, match="the lora section that it was trained with"):
            load_lora_checkpoint(other, tmp_path / "adapter")


def test_an_adapter_of_a_base_of_the_same_shapes_is_refused_by_its_hash(tmp_path):
    """Where training starts from it, goes on with it, and where it is set beside the trained one;
    a checkpoint speaks of the base as it was loaded, whatever lies in its place by then."""
    base, kept = tmp_path / "base", tmp_path / "kept"
    for folder, seed in ((base, 0), (kept, 1)):
        tiny_base(seed).save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
    model, _ = load(base)
    base.rename(tmp_path / "moved")
    kept.rename(base)
    save_lora_checkpoint(model, tmp_path / "adapter")
    assert check_base(tmp_path / "adapter", tmp_path / "moved")
    load_lora_checkpoint(model, tmp_path / "adapter")
    add_adapter(model, tmp_path / "adapter", "beside")
    other, _ = load(base)
    for refused in (
        lambda: load(base, adapter=tmp_path / "adapter"),
        lambda: load_lora_checkpoint(other, tmp_path / "adapter"),
        lambda: add_adapter(other, tmp_path / "adapter", "beside"),
    ):
        with pytest.raises(ModelError, match="is another model .its weights differ"):
            refused()


def test_an_adapter_names_the_base_as_it_was_given(tmp_path):
    model, _ = load()
    save_lora_checkpoint(model, tmp_path / "adapter")
    saved = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == DEBUG


@pytest.mark.parametrize(
    "damage, words",
    [
        ("missing", "adapter_model.safetensors is missing"),
        ("truncated", "is damaged"),
        ("no kind", "is damaged"),
        ("other base", "does not fit"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_in_one_sentence(tmp_path, model, damage, words):
    save_lora_checkpoint(model, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    base = tiny_base()
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:40])
    elif damage == "no kind":
        (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    else:
        base = tiny_base(hidden_size=48)
    with pytest.raises(ModelError, match=words):
        check_adapter(tmp_path / "adapter", base, "the base")


@pytest.mark.parametrize(
    "name, words",
    [
        ("./no/such/folder", "no model folder"),
        ("smollm2-135m-instrukt", r"or debug; did you mean smollm2-135m-instruct\?"),
        ("nobody/no-such-model", "cannot be loaded"),
    ],
)
def test_a_model_that_is_not_there_is_one_sentence(name, words):
    with pytest.raises(ModelError, match=words):
        load(name)


def test_a_place_in_a_folder_that_is_here_is_no_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_base_model("models/none") == "models/none"
    (tmp_path / "models").mkdir()
    with pytest.raises(ModelError, match="there is no model folder at 'models/none'; a model is"):
        resolve_base_model("models/none")
    for name in ("./models/none", "../none", "~/none", "/x/y", "outputs/a/b", "none"):
        with pytest.raises(ModelError, match="no model folder"):
            resolve_base_model(name)


def test_a_model_folder_without_a_tokenizer_is_one_sentence(tmp_path):
    tiny_base().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no tokenizer"):
        load(tmp_path)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        resolve_base_model(tmp_path)


def a_model_folder(folder, **changes):
    tokenizer = byte_tokenizer()
    Qwen3ForCausalLM(debug_config(len(tokenizer), **changes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_damaged_weights_are_one_sentence(tmp_path):
    file = a_model_folder(tmp_path / "model") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path / "model")


@pytest.mark.parametrize("name", ["final_logit_softcapping", "logits_scaling", "logit_scale"])
def test_a_model_that_changes_its_logits_behind_the_head_is_refused(tmp_path, name):
    with pytest.raises(ModelError, match="caps or scales its logits"):
        load(a_model_folder(tmp_path / "model", **{name: 8.0}))
    load(a_model_folder(tmp_path / "other", **{name: 1.0}))


def test_the_adapter_is_looked_for_before_the_base_is_loaded(tmp_path):
    with pytest.raises(ModelError, match="there is no adapter"):
        load(tmp_path / "no-base-either", adapter=tmp_path / "nowhere")


def test_a_module_that_the_base_lacks_is_named_with_those_it_has():
    lora = SimpleNamespace(rank=4, alpha=8, dropout=0.0, target_modules=["query"])
    with pytest.raises(ModelError, match=r"'query'.*q_proj"):
        load(lora=lora)


def test_precision_says_why():
    assert "because model.dtype says so" in choose_precision("cpu", "float32").reason
    assert choose_precision("cpu", "auto").device == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="no CUDA"):
            choose_precision("cuda")


@pytest.mark.parametrize("native", [True, False])
def test_a_gpu_that_only_emulates_bfloat16_computes_in_float16(monkeypatch, native):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: native or including_emulation,
    )
    assert choose_precision().dtype == (torch.bfloat16 if native else torch.float16)


def test_four_bit_weights_keep_finite_gradients_after_an_evaluation():
    pytest.importorskip("bitsandbytes")
    model, tokenizer = load(load_in_4bit=True, dtype="float32")
    assert any(type(m).__name__ == "Linear4bit" for m in model.modules())
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    with torch.no_grad():
        model(IDS)
    with without_dropout(model):
        model(IDS).logits.square().sum().backward()
    assert_gradients(model)
    assert all(p.grad.abs().sum() > 0 for p in trainable(model).values())


def test_a_missing_or_infinite_gradient_is_named(model):
    with pytest.raises(ModelError, match="has no gradient"):
        assert_gradients(model)
    for parameter in trainable(model).values():
        parameter.grad = torch.zeros_like(parameter)
    next(iter(trainable(model).values())).grad[0, 0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        assert_gradients(model)


def test_gradient_checkpointing_really_recomputes_and_gives_the_same_gradients():
    gradients, calls = [], []
    for checkpointing in (False, True):
        model, _ = load(gradient_checkpointing=checkpointing)
        torch.manual_seed(3)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        count = [0]
        layer = model.get_base_model().model.layers[0].mlp
        layer.register_forward_pre_hook(lambda *_, c=count: c.__setitem__(0, c[0] + 1))
        with without_dropout(model):
            model(IDS, use_cache=False).logits.square().sum().backward()
        gradients.append({n: p.grad.clone() for n, p in trainable(model).items()})
        calls.append(count[0])
    assert calls == [1, 2]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-6, atol=1e-9)


def test_a_policy_writes_the_same_alone_and_in_a_batch(model, tokenizer):
    def prompt(state):
        return [{"role": "user", "content": f"write {state}" * len(state)}]

    policy = ModelPolicy(model, tokenizer, prompt, max_new_tokens=6, batch_size=2)
    states = ["a", "bb", "ccc"]
    assert policy.write_batch(states) == [policy.write(state) for state in states]


def test_the_prompt_ends_where_the_answer_begins(tokenizer):
    ids = encode_prompt(tokenizer, [{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_refuses_a_system_message_gets_it_in_the_next_one(tokenizer):
    refuse = "{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer.chat_template = (
        "{% for m in messages %}" + refuse + "[{{ m['role'] }}: {{ m['content'] }}]{% endfor %}"
    )
    rules, ask = {"role": "system", "content": "rules"}, {"role": "user", "content": "hi"}
    assert tokenizer.decode(encode_prompt(tokenizer, [rules, ask])) == "[user: rules\n\nhi]"
    with pytest.raises(ModelError, match="refuses the prompt: no system role"):
        encode_prompt(tokenizer, [rules])


def test_without_a_template_the_texts_stand_one_below_the_other(tokenizer):
    tokenizer.chat_template = None
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": "hi"}]
    assert tokenizer.decode(encode_prompt(tokenizer, messages)) == "rules\n\nhi\n\n"


def test_a_tokenizer_without_an_end_token_takes_the_model_s(tmp_path):
    folder = a_model_folder(tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    for name in ("eos_token", "pad_token"):
        settings.pop(name)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    _, tokenizer = load(folder)
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2


def test_pieces_join_to_the_whole_text_even_across_half_characters(tokenizer):
    ids = tokenizer("a 战 b", add_special_tokens=False)["input_ids"]
    assert "".join(token_texts(tokenizer, ids)) == "a 战 b"


def test_end_tokens_come_from_tokenizer_and_generation_config(model, tokenizer):
    assert end_ids(model, tokenizer) == (2,)
    model.get_base_model().generation_config.eos_token_id = [2, 7]
    assert end_ids(model.get_base_model(), tokenizer) == (2, 7)


def test_the_debug_model_has_two_layers_and_one_token_a_byte():
    assert debug_config(259).num_hidden_layers == 2
    assert len(byte_tokenizer()) == 259
