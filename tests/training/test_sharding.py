"""DeepSpeed ZeRO-2, ZeRO-3 and FSDP2 on two gloo processes beside plain ones. This file is also
the program that they run:

    torchrun --nproc_per_node 2 -m tests.training.test_sharding FOLDER BASE WORKLOAD
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlkit.config import RunConfig
from rlkit.errors import ConfigError, ModelError
from rlkit.run import Run
from rlkit.training import sharding
from rlkit.training.logprobs import group_log_probs
from rlkit.training.models import byte_tokenizer
from rlkit.training.policy import load_model_with_lora
from rlkit.training.ranks import joined
from rlkit.training.schedule import state_order
from rlkit.training.sharding import Strategy, launched_strategy
from rlkit.training.trainer import GRPOTrainer
from rlkit.training.zero import make_optimizer
from tests.training.conftest import LetterTask, tiny_base, tiny_config

PROMPT, TOKENS = list(range(5, 25)), torch.arange(30, 42).view(3, 4)
DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true"}
ZERO2 = DEEPSPEED | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}
ZERO3 = DEEPSPEED | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
OFFLOAD = {f"ACCELERATE_DEEPSPEED_OFFLOAD_{what}_DEVICE": "cpu" for what in ("OPTIMIZER", "PARAM")}
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
# A base whose head is its embedding, and every group learns; or one of two matrices, with gradient
# checkpointing and two passes, and one process in two has nothing to learn
CASES = [
    ("zero2", ZERO2, "tied"),
    ("zero3", ZERO3, "tied"),
    ("fsdp", FSDP, "tied"),
    ("zero2-offload", ZERO2 | OFFLOAD, "untied"),
    ("zero3-offload", ZERO3 | OFFLOAD, "untied"),
    ("fsdp-offload", FSDP | {"FSDP_OFFLOAD_PARAMS": "true"}, "untied"),
]


# ---- what a launcher asks for


@pytest.fixture
def launched(monkeypatch):
    """`launched_strategy` under these variables and no others of accelerate's."""

    def ask(variables: dict[str, str], size: int = 2) -> Strategy:
        for name in [n for n in os.environ if n.startswith(("ACCELERATE_", "FSDP_"))]:
            monkeypatch.delenv(name)
        for name, value in {"WORLD_SIZE": str(size), **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sharding, "import_deepspeed", lambda: None)
        return launched_strategy()

    return ask


def test_the_launchers_variables_name_the_strategy(launched):
    assert launched({}) == Strategy()
    assert launched(ZERO2) == Strategy("zero2")
    assert launched(ZERO2 | OFFLOAD) == Strategy("zero2", offload_moments=True)
    assert launched(ZERO3 | OFFLOAD) == Strategy("zero3", True, True)
    assert launched(FSDP) == Strategy("fsdp")
    keeps = {"FSDP_OFFLOAD_PARAMS": "true", "FSDP_RESHARD_AFTER_FORWARD": "false"}
    assert launched(FSDP | keeps) == Strategy("fsdp", offload_base=True, reshard=False)


def test_a_process_of_its_own_divides_nothing(launched):
    assert launched(ZERO3, size=1) == Strategy()


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (DEEPSPEED | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}, "zero_stage is 1"),
        (ZERO3 | {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "nvme"}, "offloads to nvme"),
        (ZERO3 | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds.json"}, "deepspeed_config_file"),
        (FSDP | {"FSDP_VERSION": "1"}, "fsdp_version to 2"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "Megatron-LM"),
    ],
)
def test_what_is_not_supported_is_told(launched, variables, told):
    with pytest.raises(ConfigError, match=told):
        launched(variables)


def test_all_weights_are_not_trained_in_shards():
    lora = SimpleNamespace(enabled=False)
    with pytest.raises(ModelError, match="deepspeed_zero2.yaml"):
        load_model_with_lora("debug", lora, strategy=Strategy("fsdp"))


def test_without_zero_the_optimizer_is_torchs():
    optimizer = make_optimizer([torch.nn.Parameter(torch.ones(2))], 0.1, 0.0, Strategy("fsdp"))
    assert type(optimizer) is torch.optim.AdamW


# ---- two processes


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, str]:
    untied = tmp_path_factory.mktemp("models") / "untied"
    tiny_base(tie_word_embeddings=False).save_pretrained(untied)
    byte_tokenizer().save_pretrained(untied)
    return {"tied": "debug", "untied": str(untied)}


@pytest.fixture(scope="module")
def plain(root, bases, tmp_path_factory):
    """What two processes with everything find in a workload."""

    @functools.cache
    def found(workload: str) -> dict:
        folder = tmp_path_factory.mktemp(workload)
        return _launch(root, {}, folder, bases[workload], workload)

    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variables", "workload"), CASES, ids=[c[0] for c in CASES])
def test_three_steps_are_those_of_the_plain_run(
    root, tmp_path, bases, plain, name, variables, workload
):
    if "DEEPSPEED" in str(variables):
        pytest.importorskip("deepspeed")
    one = plain(workload)
    two = _launch(root, variables, tmp_path, bases[workload], workload)
    assert two["tokens"] == one["tokens"] and len(two["moves"]) == len(one["moves"]) >= 3
    logp = max((a - b).abs().max() for a, b in zip(one["logp"], two["logp"], strict=True))
    gradient = max(
        (a - b).norm() / a.norm() for a, b in zip(one["moves"], two["moves"], strict=True)
    )
    update = one["after"] - one["before"]
    adapter = (one["after"] - two["after"]).norm() / update.norm()
    print(f"{name}: log-probabilities {logp:.1e}, gradients {gradient:.1e}, adapter {adapter:.1e}")
    assert torch.equal(one["before"], two["before"])
    assert logp < 1e-4 and gradient < 1e-4 and adapter < 1e-3
    for key in ("reward", "kl", "states"):
        assert two["dev"][key] == pytest.approx(one["dev"][key], rel=1e-3, abs=1e-6)

    # a checkpoint goes on bitwise, and is an adapter that PEFT loads by itself
    assert torch.equal(two["resumed"], two["after"])
    checkpoint = tmp_path / "whole" / "lora_checkpoints" / "checkpoint-3"
    assert (checkpoint / "adapter_model.safetensors").is_file()
    base = AutoModelForCausalLM.from_pretrained(two["base"], dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, str(checkpoint)).eval()
    assert torch.equal(_adapter(model), two["after"])
    difference = (_scored_densely(model) - two["scored"]).abs().max()
    print(f"{name}: a single process differs by {difference:.1e} nat")
    assert difference < 1e-4
    divided = name.startswith(("zero3", "fsdp"))
    whole = sum(parameter.numel() for parameter in base.parameters())
    assert (two["numbers"] < 0.8 * whole) == divided  # what one process holds of the base
    share = two["moments"] / two["before"].numel()
    assert share == 1 if name.startswith("fsdp") else 0.5 <= share < 0.6  # with some padding


@pytest.mark.slow
def test_a_process_that_fails_under_a_divided_base_ends_the_job_with_its_reason(
    root, tmp_path, capfd
):
    with pytest.raises(subprocess.CalledProcessError):
        _launch(root, FSDP, tmp_path, "debug", "fails")
    said = capfd.readouterr().err
    assert "JobError: rank 1 failed: ValueError: the judge is gone" in said


@pytest.mark.slow
@pytest.mark.parametrize(("name", "strategy"), [("fsdp", "fsdp"), ("deepspeed_zero3", "zero3")])
def test_a_shipped_file_trains_through_the_command_line(root, tmp_path, name, strategy):
    if strategy == "zero3":
        pytest.importorskip("deepspeed")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    command += ["--config_file", f"params/accelerate/{name}.yaml", "--main_process_port", "0"]
    command += ["-m", "rlkit", "train", "--params", "params/debug.yaml", "--set"]
    command += [f"output_root={tmp_path}", f"run_name={name}", "training.num_epochs=1"]
    done = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"divided by {strategy}" in done.stdout and "learning rate stays" in done.stdout
    run = Run.open(RunConfig.load(tmp_path / name / "config.yaml"), create=False)
    assert run.status()["state"] == "finished" and len(run.read_metrics()) == 3  # with step 0
    assert (tmp_path / name / "lora_checkpoints/checkpoint-2/adapter_model.safetensors").is_file()


def _adapter(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for n, p in model.named_parameters() if ".lora_" in n])


def _scored_densely(model) -> torch.Tensor:
    rows = torch.cat([torch.tensor(PROMPT).expand(3, -1), TOKENS], dim=1)
    with torch.no_grad():
        logits = model(input_ids=rows).logits[:, len(PROMPT) - 1 : -1]
    return logits.log_softmax(-1).gather(2, TOKENS[..., None])[..., 0]


def _launch(root: Path, variables: dict[str, str], folder: Path, *arguments: str) -> dict:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node=2", "-m", "tests.training.test_sharding", str(folder)]
    subprocess.run(
        [*command, *arguments],
        cwd=root,
        env={**os.environ, **variables, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        check=True,
        timeout=900,  # DeepSpeed compiles for some minutes when it is first used
    )
    return torch.load(folder / "seen.pt")


# ---- the program


def main(folder: Path, base: str, workload: str) -> None:
    torch.set_num_threads(1)
    with joined("cpu") as ranks:
        whole = _trainer(folder, "whole", base, workload, ranks)
        before, moves, seen = _adapter(whole.model), [], []
        step = whole.optimizer.step

        def stepping() -> None:
            moves.append(torch.cat([p.grad.flatten() for p in whole.parameters.values()]))
            step()

        whole.optimizer.step = stepping
        for number in range(3):
            _one_step(whole, number)
            seen += whole.last_groups
        whole.save_checkpoint()
        dev = whole.evaluate(whole.task.states("train")[:3])  # one rank has one, the other two
        with torch.no_grad():
            scored, _ = group_log_probs(whole.model, PROMPT, TOKENS)
        first = _trainer(folder, "parts", base, workload, ranks)
        for number in range(2):
            _one_step(first, number)
        first.save_checkpoint()
        again = _trainer(folder, "parts", base, workload, ranks)
        assert again.load_checkpoint() == 2
        _one_step(again, 2)
        if ranks.is_main:
            kept = {
                "tokens": [(g.state.state_id, g.visit, g.sampled.rows()) for g in seen],
                "logp": [g.old_logp for g in seen],
                "moves": moves,
                "before": before,
                "after": _adapter(whole.model),
                "resumed": _adapter(again.model),
                "dev": dev,
                "scored": scored,
                "base": whole.model.get_base_model().config._name_or_path,
                "numbers": _numbers_here(whole.model),
                "moments": _moments_here(whole.optimizer),
            }
            torch.save(kept, folder / "seen.pt")


def _numbers_here(model) -> int:
    """How many numbers of the base this process holds."""
    frozen = {p for n, p in model.named_parameters() if ".lora_" not in n}
    local = [getattr(p, "_local_tensor", getattr(p, "ds_tensor", p)) for p in frozen]
    return sum(tensor.numel() for tensor in local)


def _moments_here(optimizer) -> int:
    """Of how many numbers this process holds the moments."""
    state = getattr(optimizer, "_parts", optimizer).state
    return sum(moments["exp_avg"].numel() for moments in state.values())


def _one_step(trainer: GRPOTrainer, number: int) -> None:
    states, size = trainer.task.states("train"), trainer.ranks.size
    trainer.training_step(state_order(states, 7, number * size, size))


def _gone(state, texts) -> None:
    raise ValueError("the judge is gone")


def _trainer(folder: Path, name: str, base: str, workload: str, ranks) -> GRPOTrainer:
    tied = workload != "untied"
    changes = {"kl_penalty": 0.1} if tied else {"kl_penalty": 0.0, "num_iterations": 2}
    config = tiny_config(folder, **changes)
    config = config.with_overrides(f"run_name={name}", "training.gradient_accumulation_steps=1")
    model, tokenizer = load_model_with_lora(
        base,
        config.lora,
        device="cpu",
        dtype="float32",
        gradient_checkpointing=not tied,
        strategy=launched_strategy(),
        log=lambda line: None,
    )
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.normal_(std=0.2, generator=generator)
    task = LetterTask(6)
    if not tied:  # nothing to learn from some states
        score = task.score
        task.score = lambda state, texts: [
            type(one)(0.0 if state.state_id in ("s1", "s3", "s5") else one.reward, one.components)
            for one in score(state, texts)
        ]
    if workload == "fails" and not ranks.is_main:
        task.score = _gone
    run = Run.open(config, create=ranks.is_main) if ranks.is_main else None
    ranks.barrier()
    run = run or Run.open(config, create=False)
    trainer = GRPOTrainer(config, task, model, tokenizer, run, log=lambda line: None, ranks=ranks)
    trainer.ends = [*trainer.ends, *range(3, 60)]  # so that actions differ in length
    return trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    os._exit(0)  # as rlkit/__main__.py: DeepSpeed can abort Python's end
