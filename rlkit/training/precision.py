"""Where and in which precision the base model computes, chosen here and said in words: CUDA with
bf16 where it has it, else fp16; a CPU with bf16 only where it multiplies bf16 in hardware, else
fp32; 4-bit through bitsandbytes where that works, else without it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from rlkit.errors import ModelError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """Where and in which dtype the base model computes, and why."""

    device: str
    dtype: torch.dtype
    four_bit: bool
    reason: str


def choose_precision(
    device: str = "auto", dtype: str = "auto", load_in_4bit: bool = False
) -> Precision:
    """Choose device, dtype and 4-bit; `reason` is the sentence that the log shows.

    Raises ModelError where CUDA is asked for and none is there.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            "model.device is 'cuda', but torch sees no CUDA device; use 'auto' or 'cpu'."
        )
    where = "cuda" if device in ("auto", "cuda") and torch.cuda.is_available() else "cpu"
    if dtype != "auto":
        kind, why = DTYPES[dtype], f"{dtype} because model.dtype says so"
    elif where == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        kind = torch.bfloat16 if fast else torch.float16
        why = "bfloat16, which this GPU has" if fast else "float16, since this GPU has no bfloat16"
    else:
        fast = _cpu_multiplies_bfloat16()
        kind = torch.bfloat16 if fast else torch.float32
        why = (
            "bfloat16, which this CPU multiplies"
            if fast
            else "float32, since this CPU has no bfloat16 unit"
        )
    if not load_in_4bit:
        return Precision(where, kind, False, f"{where}, {why}")
    problem = _four_bit_problem()
    if problem:
        return Precision(where, kind, False, f"{where}, {why}; not 4-bit: {problem}")
    return Precision(
        where, kind, True, f"{where}, 4-bit weights (bitsandbytes nf4), computing in {why}"
    )


def _cpu_multiplies_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _four_bit_problem() -> str | None:
    """Why bitsandbytes cannot be used here, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import bitsandbytes
    except (ImportError, RuntimeError, OSError) as error:
        return f"bitsandbytes cannot be imported ({type(error).__name__})"
    return (
        None if hasattr(bitsandbytes.nn, "Linear4bit") else "this bitsandbytes has no 4-bit layers"
    )
