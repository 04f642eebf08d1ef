"""Where metrics go besides `metrics.jsonl`: TensorBoard and Weights & Biases, through their own
libraries."""

from __future__ import annotations

from typing import Any

from rlkit.errors import ConfigError


class Monitor:
    """Sends every numeric metric of a step to the trackers that `monitoring` names.

    Raises ConfigError, before training begins, where W&B is asked for and not installed.
    """

    def __init__(self, config: Any, run: Any, first_step: int = 0) -> None:
        self._board = self._wandb = None
        if config.monitoring.use_tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # Steps after the checkpoint that is resumed are written anew; the old ones are purged.
            self._board = SummaryWriter(str(run.tensorboard_folder), purge_step=first_step + 1)
        if config.monitoring.use_wandb:
            self._wandb = _start_wandb(config, run)

    def log(self, metrics: dict[str, Any]) -> None:
        step = int(metrics["step"])
        numbers = {
            k: float(v) for k, v in metrics.items() if isinstance(v, (int, float)) and k != "step"
        }
        if self._board:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()
        if self._wandb:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        if self._board:
            self._board.close()
        if self._wandb:
            self._wandb.finish()


def _start_wandb(config: Any, run: Any) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(
            "monitoring.use_wandb is true, but wandb is not installed; install the extra "
            "'tracking', or set monitoring.use_wandb to false."
        ) from error
    return wandb.init(
        project=config.monitoring.wandb_project,
        name=config.run_name,
        config=config.as_dict(),
        dir=str(run.folder),
        resume="allow",
        id=config.run_name,
    )
