"""Which base an adapter was trained on, by hashes that survive a change of precision."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from rlkit.errors import ModelError
from rlkit.files import write_json
from rlkit.training.fingerprint import (
    FILE,
    base_fingerprint,
    base_record,
    check_base,
    record_base,
    same_name,
    trained_on_quantised,
)
from rlkit.training.models import debug_config


def make_base(folder: Path, seed: int = 0, **changes: object) -> Path:
    torch.manual_seed(seed)
    Qwen3ForCausalLM(debug_config(64, **changes)).save_pretrained(folder)
    return folder


def adapter_of(base: Path, folder: Path) -> Path:
    """An adapter's folder that says which base it is of."""
    record_base(folder, base)
    return folder


def edit(folder: Path, **settings: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def with_tensors(folder: Path, **changed: torch.Tensor) -> Path:
    weights = load_file(folder / "model.safetensors") | changed
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("models") / "base")


def test_a_copy_in_another_precision_or_in_shards_is_the_same_base(
    base: Path, tmp_path: Path
) -> None:
    found = base_fingerprint(base)
    assert len(found["config"]) == len(found["weights"]) == 64
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(
        tmp_path / "bf16"
    )
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(
        tmp_path / "shards", max_shard_size="10KB"
    )
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert base_fingerprint(tmp_path / "bf16") == base_fingerprint(tmp_path / "shards") == found


def test_other_weights_and_other_settings_are_told_apart(base: Path, tmp_path: Path) -> None:
    found = base_fingerprint(base)
    twin = base_fingerprint(make_base(tmp_path / "twin", seed=1))
    assert twin["config"] == found["config"] and twin["weights"] != found["weights"]
    turned = Path(shutil.copytree(base, tmp_path / "turned"))
    config = json.loads((turned / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500_000.0
    (turned / "config.json").write_text(json.dumps(config))
    turned_found = base_fingerprint(turned)
    assert turned_found["config"] != found["config"]
    assert turned_found["weights"] == found["weights"]


def test_one_matrix_that_was_tuned_is_enough(base: Path, tmp_path: Path) -> None:
    tuned = Path(shutil.copytree(base, tmp_path / "tuned"))
    weights = load_file(tuned / "model.safetensors")
    weights["model.layers.1.self_attn.v_proj.weight"] *= 1.01
    save_file(weights, tuned / "model.safetensors", metadata={"format": "pt"})
    assert base_fingerprint(tuned)["weights"] != base_fingerprint(base)["weights"]


def test_rows_far_from_the_middle_are_looked_at_and_files_of_before_still_hold(
    base: Path, tmp_path: Path
) -> None:
    """Of 64 embeddings those from 5 to 9 are moved: rows 6 and 8 of the 32 that lie evenly, at
    every 63/31 = 2.03, are looked at; the middle one, 32, is as it was."""
    weights = load_file(base / "model.safetensors")
    weights["model.embed_tokens.weight"][5:10] += 1.0
    other = with_tensors(Path(shutil.copytree(base, tmp_path / "other")), **weights)
    found, moved = base_fingerprint(base), base_fingerprint(other)
    assert moved["weights"] == found["weights"] and moved["rows"] != found["rows"]
    adapter = adapter_of(base, tmp_path / "adapter")
    with pytest.raises(ModelError, match="some of its weights differ"):
        check_base(adapter, other)
    record = json.loads((adapter / FILE).read_text())
    del record["rows"]  # as it was written before
    write_json(adapter / FILE, record)
    assert check_base(adapter, base)


def test_an_adapter_of_another_base_is_refused_with_both_names(base: Path, tmp_path: Path) -> None:
    adapter, twin = tmp_path / "adapter", make_base(tmp_path / "twin", seed=1)
    assert not check_base(adapter, base)  # nothing is known
    adapter_of(base, adapter)
    assert check_base(adapter, base)
    with pytest.raises(ModelError, match=r"trained on '.*base', and '.*twin' .*its weights differ"):
        check_base(adapter, twin)


def test_what_cannot_be_read_is_unknown_and_neither_different_nor_an_error(
    base: Path, tmp_path: Path
) -> None:
    adapter = adapter_of(base, tmp_path / "adapter")
    other = Path(shutil.copytree(base, tmp_path / "other"))
    (other / "model.safetensors").unlink()
    assert base_fingerprint(other)["weights"] is None
    assert not check_base(adapter, other)
    (other / "model.safetensors.index.json").write_text("{}")  # no weight_map
    assert base_record(other) is None and not check_base(adapter, other)
    (other / "config.json").write_text("{half")
    assert base_record(other) is None and not check_base(adapter, other)
    assert base_record(tmp_path / "gone") is None and not check_base(adapter, tmp_path / "gone")
    record_base(tmp_path / "lost", tmp_path / "gone")
    assert not (tmp_path / "lost").exists()
    unknown = base_fingerprint("nobody/never-downloaded")
    assert unknown == {"config": None, "weights": None, "rows": None}
    (adapter / FILE).write_text("{half")
    assert not check_base(adapter, base)
    write_json(adapter / FILE, base_record(base) | {"schema": 1, "weights": "hashed otherwise"})
    assert not check_base(adapter, base)


def test_what_float16_holds_less_exactly_makes_no_other_base(base: Path, tmp_path: Path) -> None:
    """Of bfloat16's steps float16 has all from 2^-14 on: 1.5078125 · 2^-18 loses digits there,
    1.5078125 · 2^-14 none; a value that it does hold is looked at."""
    coarse = Path(shutil.copytree(base, tmp_path / "coarse"))
    weights = {n: x.to(torch.bfloat16) for n, x in load_file(coarse / "model.safetensors").items()}
    weights["model.norm.weight"][:4] = 1.5078125 * torch.tensor([2.0**-18, -(2.0**-30), 2**-14, 1])
    with_tensors(coarse, **weights)
    halved = {n: x.to(torch.float16) for n, x in weights.items()}
    assert (halved["model.norm.weight"].float() != weights["model.norm.weight"].float()).any()
    copy = with_tensors(Path(shutil.copytree(coarse, tmp_path / "fp16")), **halved)
    assert base_fingerprint(copy) == base_fingerprint(coarse)
    halved["model.norm.weight"][2] *= 1.02
    other = with_tensors(Path(shutil.copytree(coarse, tmp_path / "tuned")), **halved)
    assert base_fingerprint(other)["weights"] != base_fingerprint(coarse)["weights"]


def test_a_tied_matrix_that_is_saved_twice_is_the_same_base(base: Path, tmp_path: Path) -> None:
    twice = Path(shutil.copytree(base, tmp_path / "twice"))
    embeddings = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    with_tensors(twice, **{"lm_head.weight": embeddings.clone()})
    assert base_fingerprint(twice) == base_fingerprint(base)
    parted = edit(Path(shutil.copytree(twice, tmp_path / "parted")), tie_word_embeddings=False)
    moved = with_tensors(
        Path(shutil.copytree(parted, tmp_path / "moved")), **{"lm_head.weight": 2 * embeddings}
    )
    assert base_fingerprint(moved)["weights"] != base_fingerprint(parted)["weights"]


def test_of_a_quantised_base_the_settings_alone_are_compared(base: Path, tmp_path: Path) -> None:
    quantised = Path(shutil.copytree(base, tmp_path / "base-bnb-4bit"))
    edit(quantised, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    found = base_fingerprint(quantised)
    assert found == {"config": base_fingerprint(base)["config"], "weights": None, "rows": None}
    adapter = adapter_of(quantised, tmp_path / "adapter")
    assert not check_base(adapter, base)  # no error, and no claim
    with pytest.raises(ModelError, match="its settings differ"):
        check_base(adapter, make_base(tmp_path / "wide", hidden_size=48))
    assert trained_on_quantised(adapter, "gone/by-now")
    assert trained_on_quantised(tmp_path, str(quantised))  # an adapter that says nothing
    assert not trained_on_quantised(adapter_of(base, tmp_path / "other"), str(quantised))
    assert not trained_on_quantised(tmp_path, None)
    assert not trained_on_quantised(tmp_path, "/gone/base")


def test_names_mean_one_base_by_their_last_part_or_by_where_they_lead(
    base: Path, tmp_path: Path
) -> None:
    for one, other in [
        ("Qwen/Qwen3-8B", "/models/qwen3-8b/"),
        ("D:\\models\\Qwen3-8B", "Qwen/Qwen3-8B"),
        (None, "Qwen/Qwen3-8B"),
        ("", "Qwen/Qwen3-8B"),
    ]:
        assert same_name(one, other)
    assert not same_name("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B")
    assert not same_name("Qwen", "Qwen/Qwen3-8B")  # an owner is not a model
    assert not same_name("/gone/one", str(base)) and not same_name("no id!/..", str(base))
    assert not same_name("x" * 300, str(base))  # longer than a folder's name can be
    (tmp_path / "by-another-name").symlink_to(base)
    assert same_name(str(tmp_path / "by-another-name"), str(base))
