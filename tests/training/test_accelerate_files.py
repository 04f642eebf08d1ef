"""params/accelerate: read by accelerate's own loader and launcher, as `accelerate launch` does, and
held against the parameters of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import launch
from torch.distributed.run import get_rdzv_endpoint

from rlkit.config import RunConfig
from rlkit.training.launcher import check_launcher

FOLDER = Path(__file__).resolve().parents[2] / "params" / "accelerate"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
MACHINES = ["multi_node_main", *(f"multi_node_worker{i}" for i in (1, 2, 3))]
PREFIXES = ("ACCELERATE_", "FSDP_")


def launched(monkeypatch, *arguments: str):
    """What `accelerate launch` would start: its arguments as it understands them, and its part of
    the environment."""
    monkeypatch.setattr(launch, "is_port_in_use", lambda port: False)
    words = [*arguments, "-m", "rlkit", "train"]
    args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        _, environment = launch.prepare_deepspeed_cmd_env(args)
    else:
        environment = launch.prepare_multi_gpu_env(args)
    return args, {k: v for k, v in environment.items() if k.startswith(PREFIXES)}


@pytest.fixture
def started(monkeypatch):
    """`launched` by a file's name, with nothing of accelerate's in the environment before."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    return lambda name: launched(monkeypatch, "--config_file", str(FOLDER / f"{name}.yaml"))


def test_the_eight_files_are_there_and_each_is_documented():
    named = ["ddp", "fsdp", "deepspeed_zero2", "deepspeed_zero3", *MACHINES]
    assert sorted(FILES) == sorted(f"{name}.yaml" for name in named)
    text = (FOLDER.parents[1] / "docs" / "distributed.md").read_text(encoding="utf-8")
    assert [name for name in FILES if name not in text] == []


@pytest.mark.parametrize("name", FILES)
def test_accelerate_reads_it_and_the_defaults_of_a_run_agree_with_it(name, started, monkeypatch):
    config = load_config_from_file(str(FOLDER / name))
    machines = 4 if name.startswith("multi_node") else 1
    assert (config.num_machines, config.num_processes) == (machines, 4 * machines)
    _, environment = started(name.removesuffix(".yaml"))
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    check_launcher(RunConfig(), print)


def test_ddp_is_four_processes_in_fp16(started):
    args, environment = started("ddp")
    assert args.nproc_per_node == "4" and args.multi_gpu
    assert environment["ACCELERATE_MIXED_PRECISION"] == "fp16"


def test_fsdp_is_the_second_one(started):
    args, environment = started("fsdp")
    assert args.nproc_per_node == "4"
    wanted = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    wanted |= {"FSDP_OFFLOAD_PARAMS": "false", "FSDP_RESHARD_AFTER_FORWARD": "true"}
    assert wanted.items() <= environment.items()


@pytest.mark.parametrize(
    ("name", "stage", "offload"),
    [("deepspeed_zero2", "2", "none"), ("deepspeed_zero3", "3", "cpu")],
)
def test_deepspeed_leaves_accumulation_and_clipping_to_the_run(name, stage, offload, started):
    args, environment = started(name)
    wanted = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": stage,
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": offload,
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": offload,
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "auto",
        "ACCELERATE_GRADIENT_CLIPPING": "auto",
    }
    assert args.nproc_per_node == "4" and wanted.items() <= environment.items()


@pytest.mark.parametrize("rank", range(4))
def test_four_machines_meet_at_the_main_one(rank, started):
    args, environment = started(MACHINES[rank])
    assert (args.nnodes, args.nproc_per_node, args.node_rank) == ("4", "4", rank)
    assert get_rdzv_endpoint(args) == f"{args.main_process_ip}:29500"
    assert args.rdzv_backend == "static"  # nobody but this address is asked
    assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert environment["ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"] == "cpu"


def test_without_a_file_the_precision_is_the_one_of_the_command_line(started, monkeypatch):
    monkeypatch.setattr("accelerate.commands.launch.default_config_file", "/nowhere/at/all.yaml")
    args, environment = launched(
        monkeypatch, "--multi_gpu", "--num_processes", "4", "--mixed_precision", "fp16"
    )
    assert (args.nproc_per_node, environment["ACCELERATE_MIXED_PRECISION"]) == ("4", "fp16")
