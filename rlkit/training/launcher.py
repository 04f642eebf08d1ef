"""What accelerate's launcher asks for in its environment variables, held against the parameters of
the run, which decide: its files say `auto` or the same, and a difference is an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from rlkit.errors import ConfigError
from rlkit.training.ranks import device_of

Log = Callable[[str], None]

PRECISIONS = {"fp16": "float16", "bf16": "bfloat16"}
SAME = {  # accelerate's variable: its name in a file, our key
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (
        "gradient_accumulation_steps",
        "training.gradient_accumulation_steps",
    ),
    "ACCELERATE_GRADIENT_CLIPPING": ("gradient_clipping", "grpo.max_grad_norm"),
}
_OPEN = ("", "no", "none", "auto")  # nothing is asked for
_ONE_OF_SEVERAL = (
    "accelerate launch was asked for several processes and started one, as it does without a word "
    "where it sees no second GPU; this one trains alone. accelerate launch --multi_gpu starts "
    "several, also on a CPU, and so does torchrun."
)


def check_launcher(config: Any, log: Log) -> None:
    """Raise ConfigError where the launcher names another precision, accumulation or clipping than
    the parameters do. `log` hears where accelerate was asked for several processes and started one.
    """
    launched_dtype(config)
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ
    if by_accelerate and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        log(_ONE_OF_SEVERAL)
    for variable, (name, key) in SAME.items():
        given, section, field = _given(variable), *key.split(".")
        ours = getattr(getattr(config, section), field)
        if given is not None and not _equal(given, ours):
            raise ConfigError(
                f"accelerate's {name} is {given} and {key} is {ours}; set the first to auto, or "
                "both to the same."
            )


def launched_dtype(config: Any, log: Log = lambda line: None) -> str:
    """`model.dtype`, or, where that is auto, the launcher's precision; `log` hears of a precision
    that a CPU cannot have.

    Raises ConfigError where both name one and they differ, and where all weights are trained,
    which takes float32.
    """
    given, ours = _given("ACCELERATE_MIXED_PRECISION"), config.model.dtype
    if given is None:
        return ours
    if given not in PRECISIONS:
        raise ConfigError(
            f"accelerate's mixed_precision is {given}, which is not supported here; allowed are "
            f"no, {' and '.join(PRECISIONS)}."
        )
    theirs = PRECISIONS[given]
    if not config.lora.enabled:
        raise ConfigError(
            f"accelerate's mixed_precision is {given} and lora.enabled is false, which trains all "
            "weights, in float32; set the first to no, or lora.enabled to true."
        )
    if ours not in ("auto", theirs):
        raise ConfigError(
            f"accelerate's mixed_precision is {given} ({theirs}) and model.dtype is {ours}; set "
            "model.dtype to auto, or both to the same."
        )
    on_cpu = device_of(int(os.environ.get("LOCAL_RANK", "0")), config.model.device) == "cpu"
    if theirs == "float16" and ours == "auto" and on_cpu:
        log("accelerate asks for fp16, which a CPU does not train in: the CPU's own is taken")
        return ours
    return theirs


def _given(variable: str) -> str | None:
    value = os.environ.get(variable, "").lower()
    return None if value in _OPEN else value


def _equal(given: str, ours: float) -> bool:
    try:
        return float(given) == float(ours)
    except ValueError:
        return False
