"""Where metrics go besides `metrics.jsonl`: TensorBoard and Weights & Biases, through their own
libraries."""

from __future__ import annotations

import uuid
from typing import Any

from rlkit.errors import ConfigError
from rlkit.files import write_text


def check_trackers(config: Any) -> None:
    """Raise ConfigError where W&B is asked for and not installed, before anything is done."""
    if not config.monitoring.use_wandb:
        return
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "monitoring.use_wandb is true, but wandb is not installed; install it with: pip "
            "install -c constraints.txt -e '.[tracking]', or set monitoring.use_wandb to false."
        ) from error


class Monitor:
    """Sends the numeric metrics of a step, and its alarms, to the trackers that `monitoring` names.
    A `part` of the run that counts steps of its own (`sft`) stands apart from the rest.

    Raises ConfigError, before training begins, where W&B is asked for and not installed, or does
    not start. `WANDB_MODE=offline` keeps its files in the run's folder, with no account.
    """

    def __init__(self, config: Any, run: Any, first_step: int = 0, part: str = "") -> None:
        self._board = self._wandb = None
        if config.monitoring.use_tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # Steps after the checkpoint that is resumed are written anew; the old ones are purged.
            folder = run.tensorboard_folder / part
            self._board = SummaryWriter(str(folder), purge_step=first_step + 1)
        if config.monitoring.use_wandb:
            self._wandb = _start_wandb(config, run, part)

    def log(self, metrics: dict[str, Any]) -> None:
        step = int(metrics["step"])
        numbers = {
            k: float(v) for k, v in metrics.items() if isinstance(v, (int, float)) and k != "step"
        }
        if self._board:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
            for alarm in metrics.get("alarms", ()):
                self._board.add_text("alarms", alarm, step)
            self._board.flush()
        if self._wandb:
            self._wandb.log(numbers, step=step)
            for alarm in metrics.get("alarms", ()):
                self._wandb.alert(title=f"step {step}: {alarm.split(':')[0]}", text=alarm)

    def close(self) -> None:
        if self._board:
            self._board.close()
        if self._wandb:
            self._wandb.finish()


def _start_wandb(config: Any, run: Any, part: str) -> Any:
    check_trackers(config)
    import wandb

    try:
        return wandb.init(
            project=config.monitoring.wandb_project,
            name="-".join(filter(None, (config.run_name, part))),
            config=config.as_dict(),
            dir=str(run.folder),
            resume="allow",
            id=_wandb_id(run, part),
        )
    except wandb.Error as error:
        raise ConfigError(
            f"monitoring.use_wandb is true, and Weights & Biases does not start: {error} Set "
            "WANDB_API_KEY, or WANDB_MODE=offline, or monitoring.use_wandb to false."
        ) from error


def _wandb_id(run: Any, part: str) -> str:
    """One id a folder and part, kept there: a resumed run goes on with its curves, and a new run of
    the same name, whose steps W&B would drop as repeated ones, gets curves of its own."""
    path = run.folder / "wandb" / part / "run_id"
    if not path.exists():
        write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8").strip()
