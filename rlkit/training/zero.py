"""DeepSpeed, as it is used here: ZeRO-3 divides a frozen decoder (sharding.py), and `ZeroOptimizer`
divides AdamW's moments (ZeRO-2; arXiv:1910.02054). Summing, dividing and clipping of gradients stay
with the trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rlkit.errors import ModelError
from rlkit.training.estimate import MAX_LIVE
from rlkit.training.sharding import Strategy, import_deepspeed

MOMENTS = ("exp_avg", "exp_avg_sq")
BUCKET = 5 * 10**8  # numbers that are reduced together, at most


def initialize(
    module: nn.Module,
    stage: int,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    offload_base: bool = False,
    offload_moments: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """DeepSpeed's engine around a module, on the process group that is there: collective.

    Raises ModelError where it does not compute in the module's dtype.
    """
    deepspeed = import_deepspeed()
    on_cpu = deepspeed.get_accelerator().device_name() == "cpu"
    deepspeed.init_distributed(
        "gloo" if on_cpu else "nccl", auto_mpi_discovery=False, verbose=False
    )
    if on_cpu and dtype == torch.float16:
        raise ModelError(
            "DeepSpeed has no float16 on a CPU; set model.dtype to bfloat16 or float32, or take "
            "params/accelerate/fsdp.yaml."
        )
    bucket = min(BUCKET, max(sum(p.numel() for p in module.parameters()), 1))
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": False,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    if stage == 3:
        zero |= {"stage3_max_live_parameters": MAX_LIVE, "stage3_param_persistence_threshold": 0}
    pinned = {"device": "cpu", "pin_memory": not on_cpu}
    zero |= {"offload_param": pinned} if offload_base else {}
    zero |= {"offload_optimizer": pinned} if offload_moments else {}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,  # DeepSpeed's default is 1
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        "bf16": {"enabled": dtype == torch.bfloat16},
        "fp16": {"enabled": dtype == torch.float16},
    }
    if stage == 3:  # tensor by tensor; the engine would first move all of the module to its device
        deepspeed.zero.Init(module=module, config_dict_or_path=config, dtype=dtype)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    return engine


class ZeroOptimizer(torch.optim.AdamW):
    """AdamW whose moments DeepSpeed divides over the processes; what it computes is the same.

    Every process has the gradients that all have summed. The parameters' data become parts of
    DeepSpeed's buffer; what is written into them in place is taken up at the next step. `state` is
    only what `gather` returns and what `scatter` finds: `step`, `exp_avg` and `exp_avg_sq` of each
    parameter, as torch's AdamW has them, so that a checkpoint fits either.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, offload: bool
    ) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        ours = self.param_groups[0]["params"]
        self._theirs = [nn.Parameter(p.detach().clone()) for p in ours]
        inner = torch.optim.AdamW(self._theirs, lr=lr, weight_decay=weight_decay)
        module = nn.ParameterList(self._theirs)
        self._engine = initialize(module, 2, optimizer=inner, offload_moments=offload)
        for own, their in zip(ours, self._theirs, strict=True):
            own.data = their.data

    @property
    def _parts(self) -> Any:
        """DeepSpeed's optimiser, which holds a part."""
        return self._engine.optimizer

    def step(self, closure: None = None) -> None:
        """One move; collective."""
        self._parts.refresh_fp32_params()
        for group in self._parts.param_groups:
            group["lr"] = self.param_groups[0]["lr"]
        ours = self.param_groups[0]["params"]
        with torch.enable_grad():  # a loss whose gradients are ours
            loss = sum((t * p.grad).sum() for t, p in zip(self._theirs, ours, strict=True))
        self._engine.backward(loss)
        self._engine.step()

    def gather(self) -> dict[nn.Parameter, dict[str, Tensor]]:
        """The whole state of every parameter, in main memory; collective."""
        from deepspeed.utils import safe_get_full_optimizer_state

        inner = self._parts.optimizer
        if not inner.state:
            return {}
        (state,) = inner.state.values()
        return {
            own: {"step": torch.as_tensor(state["step"]).cpu()}
            | {name: safe_get_full_optimizer_state(their, name).cpu() for name in MOMENTS}
            for own, their in zip(self.param_groups[0]["params"], self._theirs, strict=True)
        }

    def scatter(self) -> None:
        """Take up what was put into `state`, each process its part; nothing there: be as new."""
        from deepspeed.utils import safe_set_full_optimizer_state

        parts, inner = self._parts, self._parts.optimizer
        inner.state.clear()
        parts._hp_optimizer_states_linked = False
        if not self.state:
            return
        (part,) = parts.single_partition_of_fp32_groups
        step = next(iter(self.state.values()))["step"]
        zeros = {name: torch.zeros_like(part.detach()) for name in MOMENTS}
        inner.state[part] = {"step": step.clone(), **zeros}
        parts._lazy_init_hp_params_optimizer_state()
        for own, their in zip(self.param_groups[0]["params"], self._theirs, strict=True):
            for name in MOMENTS:
                safe_set_full_optimizer_state(their, self.state[own][name], name)
        self.state.clear()


def make_optimizer(
    parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, strategy: Strategy
) -> torch.optim.Optimizer:
    """AdamW, whole or divided."""
    if strategy.divides_moments:
        return ZeroOptimizer(parameters, lr, weight_decay, strategy.offload_moments)
    return torch.optim.AdamW(list(parameters), lr=lr, weight_decay=weight_decay)
