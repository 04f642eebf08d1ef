"""Total batches, rates and memory by strategy: figures of the rules and by hand."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlkit.config import RunConfig
from rlkit.errors import ConfigError
from rlkit.training import scaling
from rlkit.training.estimate import MAX_LIVE, Shape, memory_terms, strategy_terms
from rlkit.training.precision import Precision
from rlkit.training.scaling import Batch, process_warnings, scaled_rate, total_batch, warnings
from tests.training.test_estimate import MODELS


def test_the_square_root_rule_doubles_the_rate_at_four_times_the_batch():
    assert scaled_rate(5e-5, 16, 64) == pytest.approx(1e-4, rel=1e-12)
    assert scaled_rate(5e-5, 16, 64, "linear") == pytest.approx(2e-4, rel=1e-12)
    assert scaled_rate(1e-4, 64, 16) == pytest.approx(5e-5, rel=1e-12)
    with pytest.raises(ConfigError, match="sqrt and linear"):
        scaled_rate(5e-5, 16, 64, "cubic")


def test_the_total_batch_is_the_product():
    assert total_batch(2, 4, 8) == 64
    with pytest.raises(ConfigError, match="devices is 0"):
        total_batch(2, 0, 8)


@pytest.mark.parametrize("groups", [0, -1, 1.5, "4", None])
def test_a_batch_that_is_none_is_told(groups):
    with pytest.raises(ConfigError, match="groups per device is .*whole number of at least 1"):
        total_batch(groups, 2, 8)


@pytest.mark.parametrize(
    "given", [(5e-5, 0, 64), (5e-5, 16, -64), (5e-5, 16, 0), (-1, 16, 64), (math.nan, 16, 64)]
)
def test_a_rate_or_a_batch_that_is_none_is_told(given):
    with pytest.raises(ConfigError, match="must be a number above 0"):
        scaled_rate(*given)


def test_the_command_says_a_mistake_in_one_sentence(root):
    command = [sys.executable, "-m", "rlkit.training.scaling", "--devices", "0"]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (
        2, "error: --devices is 0; a job has at least 1.",
    )  # fmt: skip
    assert "Traceback" not in ended.stderr


def test_a_batch_that_changes_under_the_same_rate_is_told_with_both_rates():
    (said,) = warnings(Batch(4, 1, 4, 5e-5), Batch(4, 4, 4, 5e-5))
    assert "64 groups" in said and "instead of 16" in said
    assert "rule gives 0.0001, the linear one 0.0002" in said


def test_a_rate_that_changes_under_the_same_batch_is_told():
    (said,) = warnings(Batch(4, 1, 4, 5e-5), Batch(1, 4, 4, 1e-4))
    assert "from 5e-05 to 0.0001" in said and "16 groups" in said


def test_nothing_is_told_where_neither_changes_or_both_do():
    assert warnings(Batch(4, 1, 4, 5e-5), Batch(2, 4, 2, 5e-5)) == []
    assert warnings(Batch(4, 1, 4, 5e-5), Batch(4, 4, 4, 1e-4)) == []


def test_more_processes_are_told_with_the_accumulation_that_keeps_the_batch():
    config = RunConfig()  # 1 group, 2 steps
    assert process_warnings(config, 1) == []
    (two,), (three,) = (process_warnings(config, n) for n in (2, 3))
    assert two.endswith("gradient_accumulation_steps to 1 for the batch of one process")
    assert three.endswith("set grpo.learning_rate")  # no number of steps keeps 2


def test_memory_by_strategy_by_hand():
    config = RunConfig.from_sections(executor={"max_prompt_tokens": 100})
    shape = Shape(10_000, 8_000, 4, 8, 16, 32, 16, 100, 60, None)  # ends 2000: tied would be 800
    bf16 = Precision("cuda", torch.bfloat16, True, "")
    found = strategy_terms(shape, config, bf16, 4)
    assert found["DDP"] == memory_terms(shape, config, bf16) | {"main memory": 0}
    whole = 60 * (4 + 8 + 2 * 4)
    assert found["DDP"]["training"] == whole
    assert found["ZeRO-2"]["training"] == found["ZeRO-3"]["training"] == whole - 60 * 8 + 60 * 4
    assert found["ZeRO-3"]["weights"] == found["FSDP2"]["weights"] == 2 * 10_000 // 4
    assert found["FSDP2"]["gathered"] == 2 * (2 * 8_000 // 4 + 2_000)
    assert found["ZeRO-3"]["gathered"] == 2 * 10_000 and MAX_LIVE > 10_000  # all of so small a one
    offload = found["ZeRO-3, offload"]  # without the head, which stays on the device
    assert offload["weights"] == 2 * 1_000 // 4
    assert offload["main memory"] == (2 * 9_000 + 60 * 16) // 4


def test_the_table_in_the_docs_is_what_the_calculation_gives(root):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(MODELS["8B"])
    four_bit, config = RunConfig(), RunConfig().with_overrides("model.load_in_4bit=false")
    table = scaling.memory_table(config, 4, model)
    table.loc["DDP, 4-bit"] = scaling.memory_table(four_bit, 4, model).loc["DDP"]
    columns = ["device", "weights", "gathered", "training", "activations", "cache", "main memory"]
    rows = (root / "docs" / "distributed.md").read_text(encoding="utf-8").splitlines()
    for name, row in table[columns].iterrows():
        assert " | ".join([f"| {name}", *(f"{size:.1f}" for size in row)]) + " |" in rows


def test_all_weights_are_trained_under_ddp_and_zero_2_only():
    config = RunConfig.from_sections(lora={"enabled": False}, model={"load_in_4bit": False})
    shape = Shape(10_000, 8_000, 4, 8, 16, 32, 16, 100, 10_000, None)
    found = strategy_terms(shape, config, Precision("cuda", torch.float32, False, ""), 4)
    assert list(found) == ["DDP", "ZeRO-2"]


def test_the_command_prints_both_tables(capsys):
    scaling.main(["--params", "params/debug.yaml", "--devices", "2"])
    said = capsys.readouterr().out
    assert "groups" in said and "ZeRO-3, offload" in said and "not measured" in said
