"""Runs of several processes: what they learn is what one process learns, and however one of them
or the whole job ends, the reason is told, nothing hangs, and the same command goes on.

This file is also the program that starts the processes, so that the imports are paid once: for each
attempt it forks torchrun's own agent, which forks the ranks.

    echo '[{"arguments": ["runs"], "size": 1}]' | python -m tests.training.test_ranks_run
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from rlkit.run import Run, load_run
from tests.training.test_kill import assert_same_run

pytestmark = pytest.mark.slow

# ---- what happens to a rank, in the ranks


def _agent() -> int:
    """Whom the user's keyboard and the cluster's scheduler reach: torchrun, or the only process."""
    return os.getppid() if os.environ.get("WORLD_SIZE") else os.getpid()


def _raise() -> None:
    raise ValueError("a bug in the reward")


def _refuse() -> None:
    from rlkit.errors import DataError

    raise DataError("a sentence for the user.")


def _interrupt() -> None:
    os.kill(_agent(), signal.SIGINT)
    time.sleep(2)  # until it has reached all of them


def _terminate() -> None:
    os.kill(_agent(), signal.SIGTERM)
    time.sleep(60)


def _kill_all() -> None:
    children = Path(f"/proc/{_agent()}/task/{_agent()}/children").read_text().split()
    for pid in [_agent(), *map(int, children)]:
        os.kill(pid, signal.SIGKILL)


DEEDS = {
    "raise": _raise,
    "refuse": _refuse,
    "interrupt": _interrupt,
    "terminate": _terminate,
    "kill-all": _kill_all,
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def _rank(arguments: list[str], at: tuple[int, int, str] | None) -> None:
    """One rank: `at` (rank, step, deed) is what happens to which one in the middle of a step."""
    from rlkit.cli import main
    from rlkit.training.grouping import Grouping

    signal.signal(signal.SIGINT, signal.default_int_handler)  # the agent's own are inherited
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sample = Grouping.one

    def sampled(grouping: Any, *given: Any, **more: Any) -> Any:
        trainer = grouping._trainer
        if at and (trainer.ranks.rank, trainer.progress.step + 1) == (at[0], at[1]):
            DEEDS[at[2]]()
        return sample(grouping, *given, **more)

    Grouping.one = sampled
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if code or (at and at[2] == "interrupt"):  # a forked rank's return waits for the agent
        os._exit(code)


def _attempt(size: int, **given: Any) -> None:
    if size == 1:
        return _rank(given["arguments"], given.get("at"))
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=size, rdzv_backend="c10d", max_restarts=0,
        rdzv_endpoint="localhost:0", run_id=str(os.getpid()), monitor_interval=0.1,
        start_method="fork",
    )  # fmt: skip
    elastic_launch(config, _rank)(given["arguments"], given.get("at"))


def serve() -> None:
    """Read attempts as JSON; write the exit code and what was said in each as the last line."""
    from rlkit.config import RunConfig
    from rlkit.demo import library
    from rlkit.training import stages

    given = json.load(sys.stdin)
    built = library.make_demo_library()  # the same for every run; a second of work
    library.make_demo_library = lambda: built
    stages.load_model(RunConfig.load("params/debug.yaml"))  # what transformers works out once
    ended = []
    for attempt in given:
        sys.stdout.flush()
        with tempfile.TemporaryFile("w+") as said:
            child = os.fork()
            if not child:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                try:
                    _attempt(**attempt)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
                sys.stdout.flush()
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            ended.append((code, said.read()))
    print(json.dumps(ended))


# ---- the tests

ACCUMULATION = "training.gradient_accumulation_steps"


def arguments(folder: Path, *changes: str) -> list[str]:
    sets = "seed=11 grpo.learning_rate=0.05 grpo.kl_penalty=0.1 grpo.max_new_tokens=8 "
    sets += "training.steps_per_epoch=4 training.num_epochs=2 training.keep_last=9 "
    sets += f"sft.max_samples=4 data.max_questions=12 output_root={folder}"
    return ["train", "--params", "params/debug.yaml", "--set", *sets.split(), *changes]


def attempt(root: Path, *attempts: dict[str, Any]) -> list[tuple[int, str]]:
    """The exit code and the words of each attempt. `at`: rank, step, deed."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.training.test_ranks_run"],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        input=json.dumps(attempts),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def launch(root: Path, *launcher: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *launcher],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def two(root, tmp_path_factory) -> Path:
    """The folder of a run of two processes, as torchrun starts them."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "rlkit"]
    process = launch(root, *torchrun, *arguments(folder))
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("loop: 8 steps\n") == 1  # main alone speaks
    assert process.stdout.count("next: python -m rlkit eval") == 1
    return folder


def rollouts(folder: Path) -> pd.DataFrame:
    return load_run("debug", folder).rollouts


def test_two_processes_learn_what_one_learns_with_twice_the_accumulation(root, two, tmp_path):
    twice = arguments(tmp_path, f"{ACCUMULATION}=4", "training.steps_per_epoch=8")
    [(code, said)] = attempt(root, {"arguments": twice, "size": 1})
    assert code == 0, said
    rows, of_two = rollouts(tmp_path), rollouts(two)
    for column in ("state_id", "visit", "action", "reward"):
        assert rows[column].tolist() == of_two[column].tolist()
    assert [list(a) for a in rows["token_ids"]] == [list(a) for a in of_two["token_ids"]]
    assert of_two.groupby("step").state_id.nunique().tolist() == [2] * 8
    norms = [load_run("debug", folder).metrics["grad_norm"].dropna() for folder in (tmp_path, two)]
    assert len(norms[0]) == 4 and norms[0].min() > 0
    assert norms[1].tolist() == pytest.approx(norms[0].tolist(), rel=1e-3)
    before = weights(two / "debug" / "reference_adapter")
    one, both = (
        weights(folder / "debug" / "lora_checkpoints" / step)
        for folder, step in ((tmp_path, "checkpoint-16"), (two, "checkpoint-8"))
    )
    assert (one - both).norm() / (one - before).norm() < 1e-3


def weights(folder: Path) -> torch.Tensor:
    tensors = load_file(folder / "adapter_model.safetensors")
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


def test_however_two_processes_end_the_same_command_goes_on_bitwise(root, two, tmp_path):
    deeds = {
        "raise": (1, 1), "interrupt": (1, 2), "refuse": (1, 3), "terminate": (0, 4),
        "kill-all": (0, 5), "die": (1, 6),
    }  # fmt: skip
    given = {"arguments": arguments(tmp_path), "size": 2}
    tries = [given | {"at": [*place, deed]} for deed, place in deeds.items()]
    ended = attempt(root, *tries, given | {"at": [0, 7, "die"]}, given)
    codes = dict(zip([*deeds, "main dies", "end"], (code for code, _ in ended), strict=True))
    assert codes["end"] == 0 and codes["kill-all"] == -signal.SIGKILL
    assert all(code == 1 for deed, code in codes.items() if deed not in ("end", "kill-all"))
    said = dict(zip([*deeds, "main dies", "end"], (text for _, text in ended), strict=True))
    assert said["raise"].count("error: rank 1 failed: ValueError: a bug in the reward\n") == 1
    told = "error: rank 1 failed: DataError: a sentence for the user.\n"
    assert said["refuse"].count(told) == said["refuse"].count("error: ") == 1
    assert "stopped after step 2; the same command goes on" in said["interrupt"]
    assert "error: another process of the job ended" in said["die"]
    assert "loop: step 7 to 8" in said["end"]
    assert_same_run(two / "debug", tmp_path / "debug")


def test_the_status_says_why_the_job_ended(root, tmp_path):
    expected = {
        "raise": ("failed", "rank 1 failed: ValueError: a bug in the reward"),
        "die": ("failed", "another process of the job ended"),
        "interrupt": ("stopped", ""),
        "terminate": (
            "failed",
            "another process of the job ended, or the job was ended from outside",
        ),
        "kill-all": ("interrupted", ""),  # nobody was left to say it
    }
    run = {"size": 2}
    attempt(
        root,
        *(run | {"arguments": arguments(tmp_path / deed), "at": [1, 1, deed]} for deed in expected),
    )
    for deed, (state, reason) in expected.items():
        found = Run.at(tmp_path / deed / "debug").status()
        assert found["state"] == state and found.get("reason", "").startswith(reason), deed
        assert found["step"] == (1 if state == "stopped" else 0)


def test_another_number_of_processes_goes_on_in_the_data_with_what_waited(root, tmp_path):
    """Two stop in the middle of an update, one makes the move of all three groups, two go on."""
    mixed, plain = tmp_path / "mixed", tmp_path / "plain"
    run = {"arguments": arguments(mixed)}
    alone = arguments(plain, f"{ACCUMULATION}=3", "training.max_steps=3")
    ended = attempt(
        root,
        run | {"size": 2, "at": [0, 1, "interrupt"]},
        run | {"size": 1, "at": [0, 2, "interrupt"]},
        run | {"size": 2},
        {"arguments": alone, "size": 1},
    )
    assert [code for code, _ in ended] == [1, 130, 0, 0], ended
    assert "goes on with other processes (was 2, now 1)" in ended[1][1]
    moved, expected, before = (
        weights(folder / "debug" / name)
        for folder, name in (
            (mixed, "lora_checkpoints/checkpoint-2"),
            (plain, "lora_checkpoints/checkpoint-3"),
            (plain, "reference_adapter"),
        )
    )
    assert (moved - expected).norm() / (expected - before).norm() < 1e-3
    assert rollouts(mixed).groupby("step").state_id.nunique().tolist() == [2, 1, 2, 2, 2, 2, 2, 2]
    first = rollouts(plain).drop_duplicates(["state_id", "visit"]).state_id.tolist()
    assert rollouts(mixed).drop_duplicates(["state_id", "visit"]).state_id.tolist()[:3] == first


def test_two_processes_end_early_together_with_what_waits_applied_and_dev_evaluated(root, tmp_path):
    """Main alone adds up the processor time; the move and the evaluation take both."""
    run = {"size": 2}
    run["arguments"] = arguments(tmp_path, f"{ACCUMULATION}=3", "training.cpu_minutes=1e-9")
    (code, said), (again, told) = attempt(root, run, run)
    assert (code, again) == (0, 0), said + told
    assert said.count("ended after step 1: ") == 1
    rows = Run.at(tmp_path / "debug").read_metrics()
    assert [row["step"] for row in rows] == [0, 1]
    assert rows[1]["learning_rate"] == 0.05 and rows[1]["eval/reward"] is not None
    kept = tmp_path / "debug" / "lora_checkpoints" / "checkpoint-1" / "trainer_state.json"
    state = json.loads(kept.read_text())
    assert (state["moves"], state["denominator"]) == (1, 0.0)
    assert [waits["denominator"] for waits in state["others"]] == [0.0]
    assert "is finished (1 steps: 0.0 minutes of processor time are spent)" in told


@pytest.mark.parametrize("launcher", ["--multi_gpu", "--cpu"])
def test_accelerate_starts_two_only_with_multi_gpu_and_else_it_is_said(root, tmp_path, launcher):
    """Where it sees no second GPU."""
    options = [launcher, "--num_processes=2", "--num_machines=1", "--mixed_precision=no"]
    options += ["--dynamo_backend=no", "--main_process_port=0", "-m", "rlkit"]
    run = arguments(tmp_path, "training.max_steps=2")
    process = launch(root, "accelerate.commands.launch", *options, *run)
    assert process.returncode == 0, process.stderr
    size = 2 if launcher == "--multi_gpu" else 1
    assert load_run("debug", tmp_path).lineage["processes"] == size
    assert rollouts(tmp_path).groupby("step").state_id.nunique().tolist() == [size] * 2
    assert ("asked for several processes and started one" in process.stdout) == (size == 1)


if __name__ == "__main__":
    serve()
