"""A model is known by its content: by every tensor of it, and not by where it lies."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlkit.errors import ModelError
from rlkit.results.model_content import adapter_content, is_model_folder, model_content


def weights() -> dict[str, np.ndarray]:
    tensors = {f"layer{n}": np.full((64, 64), n, np.float32) for n in range(40)}
    return tensors | {"scalar": np.float32([1.0])}


@pytest.fixture()
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text('{"model": "BPE"}')
    save_file(weights(), folder / "model.safetensors")
    return folder


def test_a_moved_model_is_the_same_and_so_is_one_with_other_files_beside_it(folder: Path) -> None:
    before = model_content(folder)
    moved = shutil.copytree(folder, folder.with_name("elsewhere"))
    (moved / "README.md").write_text("a model card")
    (moved / "merge.json").write_text('{"output": "elsewhere"}')
    assert model_content(moved) == before


@pytest.mark.parametrize("name", ["layer0", "layer27", "layer39", "scalar"])
def test_one_other_tensor_makes_another_model(folder: Path, name: str) -> None:
    before, changed = model_content(folder), weights()
    changed[name] = changed[name] + 1
    save_file(changed, folder / "model.safetensors")
    assert model_content(folder) != before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_another_configuration_tokenizer_or_template_makes_another_model(
    folder: Path, name: str
) -> None:
    before = model_content(folder)
    (folder / name).write_text("{ }")
    assert model_content(folder) != before


def test_rows_between_the_quarters_of_a_large_tensor_count(folder: Path) -> None:
    """1 MiB is looked at every 32 KiB: at 64, 96 and 128 of the rows that are changed, bytes
    40,000 to 140,000; no quarter of it (0, 256, 512, 768 KiB) is near."""
    large = np.zeros((1024, 256), np.float32)
    save_file({"embeddings": large}, folder / "model.safetensors")
    before = model_content(folder)
    large.reshape(-1)[10_000:35_000] = 1
    save_file({"embeddings": large}, folder / "model.safetensors")
    assert model_content(folder) != before


def test_weights_in_another_format_count_as_well(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"a" * 100_000)
    before = model_content(folder)
    (folder / "pytorch_model.bin").write_bytes(b"a" * 99_999 + b"b")
    assert model_content(folder) != before


def test_an_adapter_is_its_settings_and_all_of_its_weights(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    with pytest.raises(ModelError, match="adapter_model.safetensors is missing"):
        adapter_content(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    (tmp_path / "trainer_state.json").write_text('{"step": 4}')
    before = adapter_content(tmp_path)
    (tmp_path / "trainer_state.json").write_text('{"step": 5}')
    assert adapter_content(tmp_path) == before
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weightz")
    assert adapter_content(tmp_path) != before


def test_what_a_whole_model_is(folder: Path, tmp_path: Path) -> None:
    assert is_model_folder(folder) and not is_model_folder(tmp_path)
    (folder / "trainer_state.json").write_text("{}")  # a checkpoint of all weights
    assert not is_model_folder(folder)
    with pytest.raises(ModelError, match="no model at"):
        model_content(tmp_path)
