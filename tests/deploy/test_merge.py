"""Merging: W + (alpha / r) B A, a whole folder or none, and the wrong base found beforehand."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import peft
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlkit.config import RunConfig
from rlkit.deploy import loading, merge
from rlkit.deploy.merge import merge_lora_to_base, merge_run
from rlkit.errors import DataError, ModelError, RunError
from rlkit.run import Run
from rlkit.training.adapter_check import check_adapter
from rlkit.training.checkpointing import write_checkpoint
from rlkit.training.fingerprint import base_fingerprint
from tests.deploy.tiny import update_of

MATRIX = "model.layers.1.self_attn.v_proj"
ADAPTER = "adapter_model.safetensors"


def check_matrix(base: Path, merged: Path, module: str, update: torch.Tensor) -> None:
    """The merged matrix is W plus the update, in float64."""
    weight = load_file(base / "model.safetensors")[f"{module}.weight"].double()
    found = load_file(merged / "model.safetensors")[f"{module}.weight"].double()
    assert update.abs().max() > 0.01
    torch.testing.assert_close(found, weight + update, atol=1e-6, rtol=0)


def test_merged_weight_is_w_plus_alpha_over_r_times_b_a(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    merge_lora_to_base(base, adapter, tmp_path / "merged", "float32")
    weight = load_file(base / "model.safetensors")[f"{MATRIX}.weight"]
    lora = load_file(adapter / "adapter_model.safetensors")
    a, b = (lora[f"base_model.model.{MATRIX}.lora_{name}.weight"] for name in "AB")
    expected = weight.double() + 12 / 4 * (b.double() @ a.double())  # alpha 12, rank 4
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert (expected - weight).abs().max() > 0.01
    torch.testing.assert_close(merged[f"{MATRIX}.weight"].double(), expected, atol=1e-6, rtol=0)
    untouched = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(merged[untouched], load_file(base / "model.safetensors")[untouched])


def test_the_folder_is_a_whole_model_that_computes_what_base_and_adapter_do(
    base_maker: Callable, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = base_maker("tiny-qwen3")
    sampling = {"do_sample": True, "temperature": 0.6, "top_k": 20}
    (base / "generation_config.json").write_text(json.dumps(sampling))
    report = merge_lora_to_base(base, adapter, tmp_path / "merged", "float32")
    folder = tmp_path / "merged"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(base).chat_template
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "certificate.json", "README.md"} <= names
    settings = json.loads((folder / "generation_config.json").read_text())
    assert (settings["temperature"], settings["top_k"]) == (0.6, 20)
    modes = {(folder / name).stat().st_mode for name in ("model.safetensors", "certificate.json")}
    assert len(modes) == 1
    ids = tokenizer("The bridge at 桥", return_tensors="pt")["input_ids"]
    adapted = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    merged = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        gap = (adapted.eval()(ids).logits - merged.eval()(ids).logits).abs().max()
    assert gap < 1e-4 and report.reloaded.max_difference < 1e-4
    assert not any("lora" in name for name, _ in merged.named_parameters())
    assert f"merged: {report.verdict}" in capsys.readouterr().out


def test_bfloat16_is_saved_in_shards_where_it_is_large(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    merge_lora_to_base(base, adapter, tmp_path / "merged", max_shard_size="20KB")
    shards = sorted((tmp_path / "merged").glob("model-*-of-*.safetensors"))
    index = json.loads((tmp_path / "merged" / "model.safetensors.index.json").read_text())
    assert len(shards) > 2 and {s.name for s in shards} == set(index["weight_map"].values())
    dtypes = {tensor.dtype for shard in shards for tensor in load_file(shard).values()}
    assert dtypes == {torch.bfloat16}


def test_an_existing_output_is_never_overwritten(base: Path, adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "merged").mkdir()
    with pytest.raises(RunError, match="never overwritten"):
        merge_lora_to_base(base, adapter, tmp_path / "merged")
    assert list((tmp_path / "merged").iterdir()) == []


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("a-file/merged", "nothing can be written as .*a-file/merged"),
        ("n" * 250, "nothing can be written as .*File name too long"),
        ("link", "link is a link that leads nowhere"),
        ("full", r"full needs 5.4e-05 GB and 0 GB are free there"),
        ("made/later", "nothing can be written as .*Read-only"),
        ("busy", "another process is saving .*busy just now"),
        ("sizes", "max_shard_size is 'banana'; give a number and a unit"),
    ],
)
def test_what_is_wrong_with_a_place_is_said_before_anything_is_loaded(
    place: str, words: str, base: Path, adapter: Path, tmp_path: Path, monkeypatch
) -> None:
    """The debug model has 26,912 weights, 53,824 bytes in bfloat16."""
    monkeypatch.setattr(loading.Base, "load", None)
    (tmp_path / "a-file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    if place == "full":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    if place == "made/later":
        error = OSError(30, "Read-only file system")
        monkeypatch.setattr(tempfile, "mkdtemp", Mock(side_effect=error))
    with FileLock(tmp_path / ".busy.lock"), pytest.raises((RunError, ModelError), match=words):
        size = "banana" if place == "sizes" else "5GB"
        merge_lora_to_base(base, adapter, tmp_path / place, max_shard_size=size)
    assert not (tmp_path / "made").exists()


def test_what_a_killed_merge_left_is_gone_with_the_next_one_of_the_run(
    config: RunConfig, tmp_path: Path
) -> None:
    merged = tmp_path / "tiny" / "merged"
    merge_run(config, [100])
    left = merged / ".tiny-qwen3-grpo-step5.abcd_123"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half of it")
    with FileLock(merged / ".tiny-qwen3-grpo-step5.lock"):  # it is being written
        merge_run(config, [100])
        assert left.exists()
    merge_run(config, [100])
    assert [path.name for path in merged.iterdir()] == ["tiny-qwen3-grpo-step100"]


def test_an_adapter_for_another_base_is_named_with_both(
    base: Path, base_maker: Callable, adapter_maker: Callable, tmp_path: Path
) -> None:
    twin = base_maker("other-qwen3", seed=9)  # same shapes, another name
    adapter = adapter_maker(twin, tmp_path / "adapter")
    with pytest.raises(ModelError, match="other-qwen3.*tiny-qwen3"):
        merge_lora_to_base(base, adapter, tmp_path / "out" / "merged")
    assert not (tmp_path / "out").exists()


def test_shapes_are_compared_before_any_weight_is_loaded(
    base_maker: Callable, adapter: Path, tmp_path: Path
) -> None:
    wide = base_maker("tiny-qwen3", hidden_size=48)  # same name, other shapes
    (wide / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(ModelError, match=r"does not fit.*self_attn\.\w_proj: 32 against 48"):
        merge_lora_to_base(wide, adapter, tmp_path / "merged")


def test_a_base_that_was_moved_is_still_the_same(
    base: Path, adapter_maker: Callable, tmp_path: Path
) -> None:
    adapter = adapter_maker(base, tmp_path / "adapter", trained_on="/gone/Tiny-Qwen3")
    merge_lora_to_base(base, adapter, tmp_path / "merged", "float32")
    linked = tmp_path / "by-another-name"
    linked.symlink_to(base)
    adapter = adapter_maker(base, tmp_path / "adapter2", trained_on=str(linked))
    merge_lora_to_base(base, adapter, tmp_path / "merged2", "float32")


def test_a_quantised_base_is_refused_with_the_way_out(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    quantised = Path(shutil.copytree(base, tmp_path / "quantised"))
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (quantised / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="unquantised"):
        merge_lora_to_base(quantised, adapter, tmp_path / "merged")


def test_a_damaged_base_is_one_sentence(base: Path, adapter: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(base, tmp_path / base.name))
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        merge_lora_to_base(broken, adapter, tmp_path / "merged")


def test_damaged_adapters_leave_nothing_behind(base: Path, adapter: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ModelError, match="no adapter"):
        merge_lora_to_base(base, tmp_path / "nowhere", out / "merged")
    broken = Path(shutil.copytree(adapter, tmp_path / "broken"))
    weights = load_file(broken / "adapter_model.safetensors")
    name = f"base_model.model.{MATRIX}.lora_B.weight"
    save_file(weights | {name: torch.full_like(weights[name], torch.nan)},
              broken / "adapter_model.safetensors")  # fmt: skip
    with pytest.raises(ModelError, match="cannot be merged"):
        merge_lora_to_base(base, broken, out / "merged")
    (broken / "adapter_model.safetensors").write_bytes(b"half a file")
    with pytest.raises(ModelError, match="damaged"):
        merge_lora_to_base(base, broken, out / "merged")
    assert not out.exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (peft.tuners.lora.Linear, r"q_proj is not W \+ \(alpha / r\) BA"),  # a layer left as it was
        (peft.tuners.lora.LoraModel, "changes the logits"),  # all right, and then lost
    ],
)
def test_a_wrong_merge_is_found_and_not_saved(
    wrong: type, words: str, base: Path, adapter: Path, tmp_path: Path, monkeypatch
) -> None:
    if wrong is peft.tuners.lora.Linear:
        monkeypatch.setattr(wrong, "merge", lambda self, **_: None)
        monkeypatch.setattr(merge, "TOLERANCE", 10.0)  # the matrices are looked at by themselves
    else:
        unload = wrong.unload

        def forgetful(self: peft.LoraModel) -> torch.nn.Module:
            self.unmerge_adapter()
            return unload(self)

        monkeypatch.setattr(wrong, "unload", forgetful)
    with pytest.raises(ModelError, match=words):
        merge_lora_to_base(base, adapter, tmp_path / "out" / "merged")
    assert not (tmp_path / "out").exists()


def test_what_is_more_than_lora_is_refused_with_the_way_out(
    base: Path, adapter_maker: Callable, tmp_path: Path
) -> None:
    adapter = adapter_maker(base, tmp_path / "dora", use_dora=True)
    with pytest.raises(ModelError, match="no plain LoRA .use_dora.*merge_and_unload"):
        merge_lora_to_base(base, adapter, tmp_path / "merged")


def test_rank_stabilised_lora_is_merged_with_its_own_scale(
    base: Path, adapter_maker: Callable, tmp_path: Path
) -> None:
    """alpha / sqrt(r) = 12 / 2 instead of 12 / 4: twice the update."""
    adapter = adapter_maker(base, tmp_path / "rslora", use_rslora=True)
    merge_lora_to_base(base, adapter, tmp_path / "merged", "float32")
    check_matrix(base, tmp_path / "merged", MATRIX, 2 * update_of(adapter, MATRIX))


@pytest.fixture()
def config(base: Path, adapter: Path, tmp_path: Path) -> RunConfig:
    """A run with the checkpoints 5 and 100."""
    config = RunConfig.from_sections(
        run_name="tiny",
        output_root=str(tmp_path),
        model={"base_model_path": str(base), "load_in_4bit": False},
        merge={"dtype": "float32"},
    )
    for step in (5, 100):
        keep_checkpoint(config, step, adapter)
    return config


def keep_checkpoint(config: RunConfig, step: int, model: Path) -> Path:
    """A folder as a checkpoint of the run, with its checksums."""
    folder = Run.open(config).checkpoints_folder / f"checkpoint-{step}"
    return write_checkpoint(
        folder, lambda there: shutil.copytree(model, there, dirs_exist_ok=True), {}, {}, {}
    )


def test_all_checkpoints_are_merged_and_a_second_time_changes_nothing(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = merge_run(config)
    assert folders == [
        tmp_path / "tiny" / "merged" / f"tiny-qwen3-grpo-step{step}" for step in (5, 100)
    ]
    before = {path: path.stat().st_mtime_ns for folder in folders for path in folder.iterdir()}
    capsys.readouterr()
    assert merge_run(config) == folders
    assert capsys.readouterr().out.count("exists already and is left as it is") == 2
    assert before == {path: path.stat().st_mtime_ns for f in folders for path in f.iterdir()}


def test_listed_checkpoints_go_where_they_are_asked_to(config: RunConfig, tmp_path: Path) -> None:
    (folder,) = merge_run(config, [100], tmp_path / "elsewhere")
    assert folder == tmp_path / "elsewhere" / "tiny-qwen3-grpo-step100"
    assert (folder / "certificate.json").is_file()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_run_in_4_bits_is_told_on_the_card_with_its_lineage(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    monkeypatch.setattr(merge, "merge_lora_to_base", lambda *_, run, **__: told.append(run))
    merge_run(config, [5], tmp_path / "a")
    monkeypatch.setattr(Run, "open", lambda *_, **__: Run(four, tmp_path / "tiny"))
    four = config.with_overrides("model.load_in_4bit=true")
    merge_run(four, [5], tmp_path / "b")
    assert told[0].notes == () and "trained on rounded weights" in told[1].notes[0]
    assert (told[0].lineage["run"], told[0].lineage["checkpoint"]) == ("tiny", "step 5")
    assert told[0].prompts is None and told[0].evaluation is None  # the run has neither


def test_a_fully_trained_checkpoint_is_saved_with_a_card_of_what_it_is(
    config: RunConfig, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = config.with_overrides("lora.enabled=false", "merge.dtype=bfloat16", "run_name=full")
    keep_checkpoint(full, 7, base)
    (folder,) = merge_run(full)
    stored = json.loads((folder / "certificate.json").read_text())
    card = (folder / "README.md").read_text()
    assert stored["base"] == {"name": str(base), **base_fingerprint(base)}
    assert stored["adapters"] == [] and "float32" not in stored
    assert "all of whose weights were trained, saved in bfloat16" in card
    assert stored["verdict"] in capsys.readouterr().out and "| checkpoint | step 7 |" in card
    assert "lora" not in card and "| merged |" not in card and "adapter" not in card
    weights = load_file(folder / "model.safetensors")[f"{MATRIX}.weight"]
    original = load_file(base / "model.safetensors")[f"{MATRIX}.weight"]
    assert torch.equal(weights, original.to(torch.bfloat16))


def test_a_checkpoint_that_was_changed_since_it_was_written_is_not_merged(
    config: RunConfig, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All matrices of layer 1 are gone from step 5; the file is a valid one."""
    place = Run.open(config).checkpoints_folder / "checkpoint-5"
    kept = {k: v for k, v in load_file(adapter / ADAPTER).items() if "layers.1" not in k}
    save_file(kept, place / ADAPTER)
    with pytest.raises(DataError, match="checkpoint-5/adapter_model.safetensors is missing or dam"):
        merge_run(config, [5])
    (only,) = merge_run(config)
    assert only.name.endswith("step100")
    assert "checkpoint-5 is passed over" in capsys.readouterr().out
    shutil.rmtree(only)
    (place / "trainer_state.json").unlink()
    with pytest.raises(ModelError, match=r"lacks 8 of the 16 tensors.*layers\.1"):
        merge_run(config, [5])
    (place.with_name("checkpoint-100") / "trainer_state.json").unlink()
    (only,) = merge_run(config, [100])
    assert "no trainer_state.json with checksums" in (only / "certificate.json").read_text()


def test_tensors_that_an_adapters_settings_leave_out_or_promise_are_told(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    """target_modules are q, k, v and o of two layers: 16 tensors, each of rank 4."""
    tensors = load_file(adapter / ADAPTER)
    up, b = (
        "base_model.model.model.layers.0.mlp.up_proj",
        f"base_model.model.{MATRIX}.lora_B.weight",
    )
    extra = {f"{up}.lora_A.weight": torch.ones(4, 32), f"{up}.lora_B.weight": torch.ones(64, 4)}
    for changed, words in (
        (tensors | extra, r"holds .*up_proj\.lora_A\.weight, which has no place"),
        ({k: v for k, v in tensors.items() if k != b}, f"lacks 1 of the 16 tensors.*{b}"),
        (tensors | {b: torch.ones(16, 3)}, r"shape \(16, 3\) for .*lora_B.*\(16, 4\) by its"),
        (tensors | {"odd": torch.ones(1)}, "holds odd, which has no place"),
    ):
        damaged = Path(shutil.copytree(adapter, tmp_path / "damaged", dirs_exist_ok=True))
        save_file(changed, damaged / ADAPTER)
        with pytest.raises(ModelError, match=words):
            merge_lora_to_base(base, damaged, tmp_path / "merged")


@pytest.mark.parametrize(
    "options",
    [
        {"targets": ["q_proj", "embed_tokens", "lm_head"]},
        {"layers_to_transform": [1]},
        {"rank_pattern": {"q_proj": 2, "layers.0.self_attn.v_proj": 3}},
        {"targets": ["q_proj"], "exclude_modules": ["model.layers.0.self_attn.q_proj"]},
    ],
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
def test_adapters_that_peft_saved_are_whole(
    options: dict, base: Path, adapter_maker: Callable, tmp_path: Path
) -> None:
    adapter = adapter_maker(base, tmp_path / "adapter", **options)
    model = AutoModelForCausalLM.from_pretrained(base)
    check_adapter(adapter, model, "the base", embeddings=True)
    adapted = peft.PeftModel.from_pretrained(model, adapter)
    if "targets" not in options:  # and beside another one, which is on the model already
        check_adapter(adapter, adapted.get_base_model(), "the base")


def test_an_adapter_with_the_embeddings_saved_beside_it_is_whole(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    """PEFT's `save_embedding_layers` writes the base's own matrix once more."""
    more = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    whole = Path(shutil.copytree(adapter, tmp_path / "whole"))
    name = "base_model.model.model.embed_tokens.weight"
    save_file(load_file(adapter / ADAPTER) | {name: more}, whole / ADAPTER)
    check_adapter(whole, AutoModelForCausalLM.from_pretrained(base), "the base")


def test_matrices_whose_update_is_zero_are_a_caution(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    half = Path(shutil.copytree(adapter, tmp_path / "half"))
    tensors = load_file(adapter / ADAPTER)
    zeroed = {k: v * 0 if "layers.1" in k and "lora_B" in k else v for k, v in tensors.items()}
    save_file(zeroed, half / ADAPTER)
    certificate = merge_lora_to_base(base, half, tmp_path / "merged", "float32")
    (caution,) = [c for c in certificate.cautions if "is zero" in c]
    assert caution.startswith("The update of 4 of 8 matrices is zero, first model.layers.1.self_at")


def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(config: RunConfig) -> None:
    with pytest.raises(RunError, match=r"no checkpoint of step 7; there are: 5, 100\."):
        merge_run(config, [5, 7])
    with pytest.raises(RunError, match="no run"):
        merge_run(config.with_overrides("run_name=other"))
