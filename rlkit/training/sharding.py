"""A base model that is divided over the processes of a training, as accelerate's launcher asks for
in its environment variables (params/accelerate, docs/distributed.md).

    ddp     every process has everything
    zero2   AdamW's moments are divided (DeepSpeed ZeRO-2, zero.py)
    zero3   and the frozen base is, too (DeepSpeed ZeRO-3; arXiv:1910.02054)
    fsdp    the frozen base is divided (PyTorch's FSDP2; arXiv:2304.11277)

The base is divided before LoRA is put on it: the adapter stays whole on every process, and with it
gradients, clipping and checkpoints. Embedding and head that are one tensor stay whole, too.

A layer is gathered from all processes when it is called, so that they call the model in lock step:
as often, and backward as often (`Sharding.any`, `Sharding.all`); shapes may differ.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from rlkit.errors import ConfigError, ModelError

_TRUE = ("true", "1", "yes")


@dataclass(frozen=True)
class Strategy:
    """How a training is spread; offloaded is what waits in main memory."""

    name: str = "ddp"
    offload_base: bool = False
    offload_moments: bool = False
    reshard: bool = True  # fsdp: a gathered layer is let go after its call

    divides_base = property(lambda self: self.name in ("zero3", "fsdp"))
    divides_moments = property(lambda self: self.name in ("zero2", "zero3"))


def launched_strategy() -> Strategy:
    """What accelerate's variables ask for; in a process of its own nothing is divided.

    Raises ConfigError for what is not supported, and where DeepSpeed is not installed.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return Strategy()
    if _is_on("ACCELERATE_USE_MEGATRON_LM") or _is_on("ACCELERATE_USE_PARALLELISM_CONFIG"):
        raise ConfigError(
            "accelerate asks for Megatron-LM or a parallelism_config, which are not supported; "
            "take one of the files in params/accelerate."
        )
    if _is_on("ACCELERATE_USE_DEEPSPEED"):
        return _deepspeed_strategy()
    if not _is_on("ACCELERATE_USE_FSDP"):
        return Strategy()
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigError("accelerate asks for FSDP 1; set fsdp_version to 2.")
    return Strategy(
        "fsdp",
        offload_base=_is_on("FSDP_OFFLOAD_PARAMS"),
        reshard=os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() in _TRUE,
    )


def _deepspeed_strategy() -> Strategy:
    prefix = "ACCELERATE_DEEPSPEED_"
    if os.environ.get(f"{prefix}CONFIG_FILE"):
        raise ConfigError(
            "accelerate names a deepspeed_config_file, which is not read here; set zero_stage and "
            "the offload devices in accelerate's own file, as params/accelerate does."
        )
    stage = os.environ.get(f"{prefix}ZERO_STAGE", "2")
    if stage not in ("2", "3"):
        raise ConfigError(f"accelerate's zero_stage is {stage}; allowed are 2 and 3.")
    names = [f"{prefix}OFFLOAD_{what}_DEVICE" for what in ("PARAM", "OPTIMIZER")]
    devices = [os.environ.get(name, "none").lower() for name in names]
    for device in devices:
        if device not in ("none", "cpu"):
            raise ConfigError(f"accelerate offloads to {device}; allowed are none and cpu.")
    base, moments = (device == "cpu" for device in devices)
    import_deepspeed()
    return Strategy(f"zero{stage}", base and stage == "3", moments)


def import_deepspeed() -> Any:
    """The package, which decides at import where it computes; quiet but for warnings."""
    if not torch.cuda.is_available() or _is_on("ACCELERATE_USE_CPU"):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise ConfigError(
            "accelerate asks for DeepSpeed, which is not installed; install it with: pip install "
            "-c constraints.txt -e '.[distributed]', or take params/accelerate/fsdp.yaml."
        ) from error
    deepspeed.utils.logger.setLevel("WARNING")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    return deepspeed


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in _TRUE


class Sharding:
    """What a divided model knows of itself, as its attribute `sharding`. All methods are
    collective."""

    def __init__(self, device: torch.device, engine: Any = None) -> None:
        self.device, self._engine = device, engine  # the engine's hooks gather

    def all(self, flag: bool) -> bool:
        """Whether it holds on every process."""
        held = torch.tensor(int(flag))
        dist.all_reduce(held, dist.ReduceOp.MIN)
        return bool(held)

    def any(self, flag: bool) -> bool:
        """Whether it holds on one of the processes."""
        return not self.all(not flag)


def of(model: nn.Module) -> Sharding | None:
    """None for a model that this process has whole."""
    return getattr(model, "sharding", None)


def computes_on(model: nn.Module) -> torch.device:
    """The device of a model's activations; shards of its weights may wait elsewhere."""
    found = of(model)
    return next(model.parameters()).device if found is None else found.device


def whole_head(head: nn.Module) -> nn.Module:
    """The LM head with all of its weights, gathered where they are divided."""
    weight = head.weight
    if not isinstance(weight, DTensor):
        return head
    whole = nn.Linear(head.in_features, head.out_features, bias=False, device="meta")
    whole.weight = nn.Parameter(weight.full_tensor(), requires_grad=False)
    return whole


def divide_base(base: nn.Module, strategy: Strategy, device: torch.device) -> None:
    """Freeze a base model and divide it over the processes: collective.

    Raises ModelError where its parts are not those of a plain decoder.
    """
    decoder, head = base.get_decoder(), base.get_output_embeddings()
    table = decoder.get_input_embeddings()
    layers = getattr(decoder, "layers", None)
    plain = type(head) is nn.Linear and head.bias is None
    if not plain or not isinstance(layers, nn.ModuleList):
        raise ModelError(
            f"{type(base).__name__} cannot be divided over processes: its decoder has no list of "
            "layers, or its head is more than a matrix; take params/accelerate/ddp.yaml."
        )
    base.requires_grad_(False)
    tied = head.weight is table.weight
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    engine = None
    if strategy.name == "fsdp":
        _divide_by_fsdp(decoder, layers, strategy, mesh, {table.weight} if tied else set())
    else:
        engine = _divide_by_zero(base, decoder, table if tied else None, strategy)
    if tied:
        table.weight.data = table.weight.data.to(device)
    else:
        head.weight = nn.Parameter(_shard(head.weight.data.to(device), mesh), requires_grad=False)
    for buffer in base.buffers():
        buffer.data = buffer.data.to(device)
    base.sharding = Sharding(device, engine)


def place(model: nn.Module) -> None:
    """Move a model's adapters to where it computes."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(computes_on(model))


def _shard(weight: Tensor, mesh: Any) -> Tensor:
    """Its rows, divided; every process has all of them before."""
    return distribute_tensor(weight, mesh, [Shard(0)], src_data_rank=None)


def _divide_by_fsdp(
    decoder: nn.Module, layers: nn.ModuleList, strategy: Strategy, mesh: Any, whole: set[Tensor]
) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    pinned = torch.cuda.is_available()
    options = {
        "mesh": mesh,
        "reshard_after_forward": strategy.reshard,
        "offload_policy": CPUOffloadPolicy(pinned) if strategy.offload_base else OffloadPolicy(),
    }
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(decoder, **options, ignored_params=whole)


def _divide_by_zero(
    base: nn.Module, decoder: nn.Module, whole: nn.Module | None, strategy: Strategy
) -> Any:
    from rlkit.training.zero import initialize

    names = [name for name, module in decoder.named_children() if module is whole]
    for name in names:  # out of its sight
        setattr(decoder, name, None)
    engine = initialize(decoder, 3, offload_base=strategy.offload_base, dtype=base.dtype)
    for name in names:
        setattr(decoder, name, whole)
    return engine
