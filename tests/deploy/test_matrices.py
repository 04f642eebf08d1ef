"""What an adapter adds, matrix by matrix, against values worked out here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlkit.deploy.matrices import merged_matrix, update_sizes
from rlkit.deploy.merge import merge_lora_to_base
from rlkit.errors import ModelError


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    settings = {"r": 2, "lora_alpha": 6}
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_the_size_of_an_update_is_the_frobenius_norm(tmp_path: Path) -> None:
    """B A = [[1, 0], [0, 2]], alpha / r = 3: the norm is 3 · √5."""
    name = "base_model.model.model.layers.4.self_attn.q_proj.lora"
    adapter = write_adapter(
        tmp_path / "adapter",
        {f"{name}_A.weight": torch.eye(2), f"{name}_B.weight": torch.diag(torch.tensor([1.0, 2]))},
    )
    (row,) = update_sizes(adapter).to_dict("records")
    assert (row["layer"], row["module"]) == (4, "q_proj")
    assert row["size"] == pytest.approx(6.7082039, abs=1e-6)


def test_update_sizes_of_a_real_adapter_are_those_of_the_whole_matrices(adapter: Path) -> None:
    sizes = update_sizes(adapter).set_index(["layer", "module"])["size"]
    lora = load_file(adapter / "adapter_model.safetensors")
    assert len(sizes) == len(lora) // 2
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora"
    expected = 12 / 4 * torch.linalg.norm(lora[f"{name}_B.weight"] @ lora[f"{name}_A.weight"])
    assert sizes[1, "v_proj"] == pytest.approx(float(expected), rel=1e-5)


def test_the_matrix_shown_is_w_plus_alpha_over_r_times_b_a(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    merge_lora_to_base(base, adapter, tmp_path / "merged", "float32")
    matrix = merged_matrix(base, adapter, tmp_path / "merged")
    weights = load_file(base / "model.safetensors")
    assert torch.equal(matrix.base, weights[f"{matrix.name}.weight"]) and matrix.scale == 3.0
    worked_out = matrix.base + matrix.scale * matrix.b @ matrix.a
    torch.testing.assert_close(matrix.merged, worked_out, atol=1e-6, rtol=0)
    assert (matrix.merged - matrix.base).abs().max() > 0.01


def test_a_folder_without_lora_matrices_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        update_sizes(tmp_path / "nothing")
    empty = write_adapter(tmp_path / "empty", {"other": torch.zeros(1)})
    with pytest.raises(ModelError, match="holds no LoRA matrices"):
        update_sizes(empty)
