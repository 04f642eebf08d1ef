"""What an adapter adds to its base, matrix by matrix: W + (α/r)·BA, for whoever checks a merge
by hand. Adapter tensors are (rank, in) for A and (out, rank) for B."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rlkit.errors import ModelError
from rlkit.training.models import resolve_base_model

_PREFIX = "base_model.model."


@dataclass(frozen=True)
class MergedMatrix:
    """One adapted matrix: `base` W and `merged` (out, in), `a` (r, in), `b` (out, r), float32
    but for `merged`, which has the dtype that it was saved in; `scale` is α/r."""

    name: str
    base: Tensor
    a: Tensor
    b: Tensor
    scale: float
    merged: Tensor


def merged_matrix(
    base_path: str | Path,
    adapter: str | Path,
    merged_folder: str | Path,
    *,
    trust_remote_code: bool = False,
) -> MergedMatrix:
    """The adapter's first matrix, as it is in the base and in the merged model.

    Loads both models on the CPU, one after the other.
    """
    pairs, scale = _pairs(adapter)
    name, (a, b) = next(iter(pairs.items()))
    weights = [
        transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, trust_remote_code=trust_remote_code
        ).get_parameter(f"{name}.weight")
        for source, dtype in (
            (resolve_base_model(base_path), torch.float32),
            (str(merged_folder), "auto"),
        )
    ]
    base, merged = (weight.detach().clone() for weight in weights)
    return MergedMatrix(name, base, a, b, scale, merged)


def update_sizes(adapter: str | Path) -> pd.DataFrame:
    """One row a matrix: layer, module, size; the size is the Frobenius norm of (α/r)·BA."""
    pairs, scale = _pairs(adapter)
    rows = []
    for name, (a, b) in pairs.items():
        layer = next((int(part) for part in name.split(".") if part.isdigit()), 0)
        # ‖BA‖² = tr(AᵀBᵀBA) = sum of (BᵀB) ∘ (AAᵀ): r × r instead of out × in
        square = ((b.T @ b) * (a @ a.T)).sum().clamp_min(0)
        rows.append((layer, name.rsplit(".", 1)[-1], scale * float(square.sqrt())))
    frame = pd.DataFrame(rows, columns=["layer", "module", "size"])
    return frame.sort_values(["module", "layer"], ignore_index=True)


def _pairs(adapter: str | Path) -> tuple[dict[str, tuple[Tensor, Tensor]], float]:
    """{module name: (A, B)} in float32, in the order of the names, and α/r."""
    folder = Path(adapter)
    try:
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        rank = settings["r"] ** (0.5 if settings.get("use_rslora") else 1)
        scale = settings["lora_alpha"] / rank
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(f"the adapter at {folder} cannot be read: {error}") from error
    ending = ".lora_A.weight"
    names = sorted(key.removesuffix(ending) for key in tensors if key.endswith(ending))
    if not names:
        raise ModelError(f"the adapter at {folder} holds no LoRA matrices; use another checkpoint.")
    if lone := [name for name in names if f"{name}.lora_B.weight" not in tensors]:
        raise ModelError(f"the adapter at {folder} has no B for {lone[0]}; use another checkpoint.")
    return {
        name.removeprefix(_PREFIX): (
            tensors[f"{name}{ending}"].float(),
            tensors[f"{name}.lora_B.weight"].float(),
        )
        for name in names
    }, scale
