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
from rlkit.training.fingerprint import base_fingerprint, check_base, record_base, same_name
from rlkit.training.models import debug_config


def make_base(folder: Path, seed: int = 0, **changes: object) -> Path:
    torch.manual_seed(seed)
    Qwen3ForCausalLM(debug_config(64, **changes)).save_pretrained(folder)
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


def test_an_adapter_of_another_base_is_refused_with_both_names(base: Path, tmp_path: Path) -> None:
    adapter, twin = tmp_path / "adapter", make_base(tmp_path / "twin", seed=1)
    assert not check_base(adapter, base)  # nothing is known
    record_base(adapter, base)
    assert check_base(adapter, base)
    with pytest.raises(ModelError, match=r"trained on '.*base', and '.*twin' .*its weights differ"):
        check_base(adapter, twin)


def test_weights_that_cannot_be_read_are_unknown_and_not_different(
    base: Path, tmp_path: Path
) -> None:
    adapter, other = tmp_path / "adapter", Path(shutil.copytree(base, tmp_path / "other"))
    record_base(adapter, base)
    (other / "model.safetensors").unlink()
    assert base_fingerprint(other)["weights"] is None
    assert not check_base(adapter, other)
    record_base(tmp_path / "lost", tmp_path / "gone")  # a checkpoint goes on without it
    assert not (tmp_path / "lost").exists()
    assert base_fingerprint("nobody/never-downloaded") == {"config": None, "weights": None}


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
    (tmp_path / "by-another-name").symlink_to(base)
    assert same_name(str(tmp_path / "by-another-name"), str(base))
