"""How many groups a move of the optimiser is made of, what learning rate goes with them, and what
memory a device needs by strategy: worked out before a run, nothing is loaded.

    python -m rlkit.training.scaling --params params/qwen3-8b.yaml --devices 4

The total batch is groups per device x devices x accumulation. With k times the batch the noise of a
gradient falls by sqrt(k), and the square-root rule multiplies the rate by as much (Krizhevsky,
arXiv:1404.5997, section 5; for Adam: Malladi et al., arXiv:2205.10287); the linear rule multiplies
it by k (Goyal et al., arXiv:1706.02677). Nothing here changes a rate: `grpo.learning_rate` is what
a run takes, whatever the number of its processes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from rlkit.config import RunConfig
from rlkit.errors import ConfigError, RlkitError
from rlkit.training import estimate
from rlkit.training.precision import DTYPES, Precision

RULES: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "linear": lambda ratio: ratio}


@dataclass(frozen=True)
class Batch:
    """What one move of the optimiser is made of, and its rate."""

    per_device: int  # groups of a step, training.batch_size
    devices: int
    accumulation: int
    learning_rate: float

    @classmethod
    def of(cls, config: Any, devices: int = 1) -> Batch:
        """That of a run's parameters on so many devices."""
        training = config.training
        steps = training.gradient_accumulation_steps
        return cls(training.batch_size, devices, steps, config.grpo.learning_rate)

    @property
    def total(self) -> int:
        return total_batch(self.per_device, self.devices, self.accumulation)


def total_batch(per_device: int, devices: int, accumulation: int) -> int:
    """Groups that come together in one move. Raises ConfigError unless all are whole numbers of at
    least 1."""
    for name, value in (
        ("groups per device", per_device),
        ("devices", devices),
        ("accumulation", accumulation),
    ):
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1.")
    return per_device * devices * accumulation


def scaled_rate(rate: float, batch: int, new_batch: int, rule: str = "sqrt") -> float:
    """The learning rate at `new_batch` of one that is right at `batch`.

    Raises ConfigError for another rule than `sqrt` and `linear`, and where a rate or a batch is
    not above 0.
    """
    for name, value in (("rate", rate), ("batch", batch), ("new_batch", new_batch)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value}; it must be a number above 0.")
    if rule not in RULES:
        raise ConfigError(f"the rule is {rule!r}; allowed are {' and '.join(RULES)}.")
    return rate * RULES[rule](new_batch / batch)


def warnings(before: Batch, after: Batch) -> list[str]:
    """Sentences about a batch that changes while the rate does not, and the other way round."""
    b, a = before.total, after.total
    if b == a and not math.isclose(before.learning_rate, after.learning_rate):
        return [
            f"the learning rate changes from {before.learning_rate:g} to {after.learning_rate:g}, "
            f"and a move of the optimiser has {a} groups as before"
        ]
    if b == a or not math.isclose(before.learning_rate, after.learning_rate):
        return []
    rates = {rule: scaled_rate(before.learning_rate, b, a, rule) for rule in RULES}
    return [
        f"a move of the optimiser has {a} groups ({after.per_device} x {after.devices} devices x "
        f"{after.accumulation} steps) instead of {b}, and the learning rate stays "
        f"{after.learning_rate:g}; the square-root rule gives {rates['sqrt']:.3g}, the linear one "
        f"{rates['linear']:.3g}"
    ]


def process_warnings(config: Any, processes: int) -> list[str]:
    """What a run on so many processes changes of the same parameters on one."""
    found = warnings(Batch.of(config), Batch.of(config, processes))
    steps, left = divmod(config.training.gradient_accumulation_steps, processes)
    hint = "; set grpo.learning_rate"
    if steps and not left:
        hint += f", or training.gradient_accumulation_steps to {steps} for the batch of one process"
    return [f"warning: {line}{hint}" for line in found]


def batch_table(config: Any, devices: Sequence[int] = (1, 2, 4, 8, 16)) -> pd.DataFrame:
    """One row a number of devices: groups and actions of a move, and the rate by both rules."""
    one, rows = Batch.of(config), []
    for count in devices:
        total = Batch.of(config, count).total
        rates = {rule: scaled_rate(one.learning_rate, one.total, total, rule) for rule in RULES}
        actions = total * config.grpo.group_size
        rows.append({"devices": count, "groups": total, "actions": actions, **rates})
    return pd.DataFrame(rows).set_index("devices")


def memory_table(config: Any, devices: int, model: Any = None) -> pd.DataFrame | None:
    """GiB a device by strategy and term, a calculation (estimate.strategy_terms); None where the
    base's config is not on this machine. `model` is the base, or its skeleton."""
    base = config.model
    model = model or estimate.skeleton(
        base.base_model_path, trust_remote_code=base.trust_remote_code
    )
    if model is None:
        return None
    dtype = DTYPES.get(base.dtype, torch.bfloat16)  # auto: what GPUs of today have
    precision = Precision("cuda", dtype, base.load_in_4bit, "")
    shape = estimate.shape_of(model, config.lora)
    found = estimate.strategy_terms(shape, config, precision, devices)
    table = (pd.DataFrame(found).T / 2**30).fillna(0.0)
    device = [name for name in table if name != "main memory"]
    table.insert(0, "device", table[device].sum(axis=1))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m rlkit.training.scaling", description=__doc__)
    parser.add_argument("--params", help="a params file (default: the defaults)")
    parser.add_argument("--devices", type=int, default=4, help="devices of the job (default 4)")
    given = parser.parse_args(arguments)
    config = RunConfig.load(given.params) if given.params else RunConfig()
    if given.devices < 1:
        raise ConfigError(f"--devices is {given.devices}; a job has at least 1.")
    counts = sorted({1, 2, 4, 8, 16, given.devices})
    print(batch_table(config, counts).to_string(float_format="{:.3g}".format), "\n")
    for line in process_warnings(config, given.devices):
        print(line, "\n")
    table = memory_table(config, given.devices)
    if table is None:
        name = config.model.base_model_path
        print(f"The config of {name} is not on this machine: no table of memory.")
        return
    print(f"GiB by strategy on {given.devices} devices, worked out from shapes, not measured:")
    print(table.round(2).to_string())


if __name__ == "__main__":
    try:
        main()
    except RlkitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
