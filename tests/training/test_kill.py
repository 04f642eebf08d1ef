"""Kill -9 at any moment: the run goes on, and is bitwise the run that was never interrupted.

The runs are real ones (`python -m rlkit train`, the debug model) in processes of their own. A
killer is armed in them: at the n-th call of a named function, before it, after it, or with half of
its file written, the process sends itself SIGKILL. The same command without a killer then goes on.

This file is also the program that starts those processes, so that the imports, which take longer
than a run, are paid once: it forks a process for every attempt, and never computes itself.

    echo '{"arguments": ["runs"], "kills": [null]}' | python -m tests.training.test_kill
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

# ---- the killer, in the process that is to die


@dataclass(frozen=True)
class Kill:
    """SIGKILL at the `n`-th call of `where` ("module:attribute") among those that name `match` in
    an argument; `when` is before, after, or half: after half of what it writes to a file. With
    full, nobody dies: the call finds the disk full."""

    where: str
    n: int = 1
    when: str = "before"
    match: str = ""

    def arm(self) -> None:
        module, path = self.where.split(":")
        owner, *rest = [importlib.import_module(module), *path.split(".")]
        for name in rest[:-1]:
            owner = getattr(owner, name)
        setattr(owner, rest[-1], self._armed(getattr(owner, rest[-1])))

    def _armed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        calls = 0

        def armed(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            files = [str(a) for a in args if isinstance(a, (str, Path))]
            meant = not self.match or any(self.match in file for file in files)
            calls += meant
            if not meant or calls < self.n:
                return function(*args, **kwargs)
            if self.when == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.when == "half":
                path = next(Path(f) for f in files if "/" in f)
                before = path.stat().st_size if path.exists() else 0
                function(*args, **kwargs)
                os.truncate(path, (before + path.stat().st_size) // 2)
            elif self.when == "after":
                function(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        return armed


def attempts(arguments: list[str], kills: list[Kill | None]) -> list[int]:
    """Exit code of `python -m rlkit ARGUMENTS` for each kill (-9: killed), one after the other."""
    from rlkit.cli import main

    codes = []
    for kill in kills:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            code = 70
            try:
                if kill:
                    kill.arm()
                code = main(arguments)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


def serve() -> None:
    """Read {arguments, kills} as JSON from stdin, and write the exit codes as the last line."""
    from rlkit.config import RunConfig
    from rlkit.demo import library
    from rlkit.training import stages

    given = json.load(sys.stdin)
    built = library.make_demo_library()  # the same for every run; a second of work
    library.make_demo_library = lambda: built
    os.fsync = lambda handle: None  # SIGKILL, unlike a power cut, loses nothing that was written
    stages.load_model(RunConfig.load("params/debug.yaml"))  # what transformers works out once
    codes = attempts(given["arguments"], [kill and Kill(**kill) for kill in given["kills"]])
    print(json.dumps(codes))


# ---- the tests

TRAINER, RESUME = "rlkit.training.trainer", "rlkit.training.resume"
CHECKPOINTING = "rlkit.training.checkpointing"
# A run of six steps; checkpoints at 2, 3 (the epoch ends in the middle of an accumulation), 4 and
# 6. Each kill meets the run that the one before it left behind.
EVERY_POINT = {
    "rounds are recorded": Kill("os:rename", 3, match="rounds"),
    "the split is kept": Kill("os:replace", when="after", match="splits.json"),
    "the warm start is written": Kill("rlkit.training.sft:save_lora_checkpoint", when="after"),
    "the reference is copied": Kill("shutil:copyfile", when="after"),
    "the second group is sampled": Kill(f"{TRAINER}:uniform_numbers", 2),
    "half a line of metrics": Kill("rlkit.run:append_line", 2, "half"),
    "the gradients of one step wait for the next": Kill("torch:Tensor.backward", 3, "after"),
    "rollouts are written": Kill("os:replace", match="step-2.parquet"),
    "before the optimiser moves": Kill("torch.optim:AdamW.step"),
    "between two passes over a window": Kill("torch.optim:AdamW.step", when="after"),
    "right after the step": Kill("torch.optim:AdamW.step", 2, "after"),
    "the checkpoint's first file": Kill(f"{RESUME}:save_lora_checkpoint", when="after"),
    "half of its second file": Kill(f"{CHECKPOINTING}:save_file", when="half"),
    "it is whole, but not yet there": Kill("os:rename", match="checkpoint-2"),
    "it is there, and no other is removed": Kill(f"{RESUME}:prune_checkpoints"),
    "dev is evaluated": Kill(f"{TRAINER}:GRPOTrainer.evaluate"),
    "the second pass, on a checkpoint's gradients": Kill("torch:Tensor.backward", 6, "after"),
    "a later checkpoint is written": Kill(f"{CHECKPOINTING}:write_json", match="checkpoint-4"),
    "what came after a checkpoint is forgotten": Kill("pathlib:Path.unlink", match="step-4"),
    "an old checkpoint is removed": Kill("shutil:rmtree", match="checkpoint-2.gone"),
    "the last checkpoint is there": Kill(f"{RESUME}:prune_checkpoints"),
}
FULL_DISK = {
    "no room for metrics": Kill("rlkit.run:append_line", when="full"),
    "no room for rollouts": Kill("os:replace", when="full", match="step-1.parquet"),
    "no room for a checkpoint": Kill(f"{CHECKPOINTING}:save_file", when="full"),
}
FEW = FULL_DISK | {
    name: EVERY_POINT[name]
    for name in (
        "half a line of metrics",
        "before the optimiser moves",
        "half of its second file",
        "the second pass, on a checkpoint's gradients",
        "an old checkpoint is removed",
    )
}


def run(root: Path, folder: Path, kills: list[Kill | None], hash_seed: int) -> subprocess.Popen:
    sets = "seed=11 grpo.num_iterations=2 grpo.learning_rate=0.05 grpo.lr_schedule=linear "
    sets += "training.batch_size=2 training.gradient_accumulation_steps=2 "
    sets += "training.steps_per_epoch=3 training.save_every_n_steps=2 training.keep_last=2 "
    sets += "grpo.max_new_tokens=8 sft.max_samples=4 "
    sets += f"data.max_questions=12 output_root={folder}"
    arguments = ["train", "--params", "params/debug.yaml", "--set", *sets.split()]
    order = {"arguments": arguments, "kills": [kill and asdict(kill) for kill in kills]}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.training.test_kill"],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(hash_seed)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    process.stdin.write(json.dumps(order))
    process.stdin.close()
    return process


def codes_of(process: subprocess.Popen) -> tuple[list[int], str]:
    with process.stdout:
        output = process.stdout.read()
    assert process.wait() == 0, output
    return json.loads(output.splitlines()[-1]), output


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory) -> Path:
    """The folder of the run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    codes, output = codes_of(run(root, folder, [None], hash_seed=1))
    assert codes == [0], output
    rows = metrics(folder / "debug")
    assert rows[-1]["kl"] > 0 and all(row["grad_norm"] > 0 for row in rows[2::2])  # it moved
    return folder / "debug"


def test_a_run_that_was_killed_is_bitwise_the_run_that_was_never_interrupted(whole, root, tmp_path):
    codes, output = codes_of(run(root, tmp_path, [*FEW.values(), None], hash_seed=2))
    assert codes == [2] * 3 + [-signal.SIGKILL] * 5 + [0], output
    assert_same_run(whole, tmp_path / "debug")
    # a full disk is one line, and the run goes on when there is room
    said = [line for line in output.splitlines() if line.startswith("error: ")]
    for line, file in zip(said, ("", "step-1.parquet: ", "checkpoint-2: "), strict=True):
        assert f"{file}No space left on device; check the path" in line
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_run_killed_at_every_point_is_bitwise_the_run_that_was_never_interrupted(
    whole, root, tmp_path
):
    codes, output = codes_of(run(root, tmp_path, [*EVERY_POINT.values(), None], hash_seed=3))
    died = [name for name, code in zip(EVERY_POINT, codes, strict=False) if code == -9]
    assert died == [*EVERY_POINT] and codes[-1] == 0, output
    assert_same_run(whole, tmp_path / "debug")


# ---- what bitwise means

VOLATILE = ("time", "seconds", "tokens_per_second", "memory", "verdict_cache_hit_rate", "judge_")
# Where the run is, when and by whom it was made; metrics.jsonl is compared line by line.
OF_THE_PROCESS = ("config.yaml", "status.json", "lineage.json", "metrics.jsonl", ".lock")


def assert_same_run(whole: Path, other: Path) -> None:
    """Every file has the same bytes and none is left over: rounds, split, warm start, adapters,
    optimiser, pending gradients, visits, rollouts; metrics but for time, memory and what a live
    judge was spared."""
    assert metrics(whole) == metrics(other)
    names = files(whole)
    assert files(other) == names
    for name in names:
        if name.name not in OF_THE_PROCESS and (whole / name).is_file():
            assert content(whole / name) == content(other / name), name


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return lasting([json.loads(line) for line in lines])


def lasting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not any(w in k for w in VOLATILE)} for row in rows]


def files(folder: Path) -> list[Path]:
    """All but half-recorded rounds (others may record there, so that nobody clears them away), and
    what it cost to collect them."""
    found = [path.relative_to(folder) for path in folder.rglob("*")]
    passed_over = ("rounds/*/.*", "rounds/collected.jsonl")
    return sorted(p for p in found if not any(fnmatch(str(p), one) for one in passed_over))


def content(path: Path) -> Any:
    """A file's bytes; of the warm start's metrics, what does not measure time."""
    if path.name == "sft_metrics.json":
        return lasting(json.loads(path.read_text()))
    return path.read_bytes()


if __name__ == "__main__":
    serve()
