"""The training engine on a CUDA device: is it exact, repeatable, and how fast does it decode?

    python benchmarks/cuda_check.py --output cuda.json [--large]

Everything runs on random weights of committed configurations, so that nothing is downloaded. Each
check prints one line; the JSON has all figures. What has a bound is marked ok or NOT OK, and one
that is not ends the program with code 1; the other lines are figures only. `--large` adds a model
of 8B parameters (20 GiB in bfloat16): time and memory of a step. `--device cpu` tries the program.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # run as a file: packages are found from the root, not from here
    sys.path[0] = str(ROOT)

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks.machine import machine, versions  # noqa: E402
from benchmarks.measure import device_mib, wait_for  # noqa: E402
from benchmarks.ours import PromptState, PromptTask  # noqa: E402
from benchmarks.workload import (  # noqa: E402
    MODELS,
    TARGET_MODULES,
    load_tokenizer,
    make_prompts,
    prepare_model,
)
from rlkit.config import RunConfig  # noqa: E402
from rlkit.run import Run  # noqa: E402
from rlkit.training import attention, flash, sampling  # noqa: E402
from rlkit.training.adapters import save_lora_checkpoint  # noqa: E402
from rlkit.training.gradients import assert_gradients, trainable, without_dropout  # noqa: E402
from rlkit.training.logprobs import group_log_probs  # noqa: E402
from rlkit.training.policy import load_model_with_lora  # noqa: E402
from rlkit.training.precision import choose_precision  # noqa: E402
from rlkit.training.sampling import sample_actions, uniform_numbers  # noqa: E402
from rlkit.training.trainer import GRPOTrainer  # noqa: E402

SMALL, MEDIUM, LARGE = "qwen3-16m", "qwen3-0.6b", "qwen3-8b"
EXACT = 1e-5  # float32: of log-probabilities in nat, and of gradients against the largest entry
NO_END = (-1,)  # no token ends an action


class Report:
    """Runs checks, prints a line each, and keeps what they found so far in `output`."""

    def __init__(self, only: Sequence[str] = (), output: Path | None = None) -> None:
        self.found: dict[str, Any] = {}
        self.bad: list[str] = []
        self.only, self.output = only, output

    def check(self, name: str, function: Callable[..., dict[str, Any]], *given: Any) -> None:
        """`function` returns figures, and, where something is bound, `ok`."""
        if self.only and not any(word in name for word in self.only):
            return
        start = time.perf_counter()
        try:
            figures = function(*given)
        except Exception as error:  # one that breaks must not hide the others; it is not ok
            figures = {"ok": False, "error": f"{type(error).__name__}: {error}"[:600]}
            traceback.print_exc()
        figures["seconds"] = time.perf_counter() - start
        self.found[name] = figures
        mark = {True: "ok", False: "NOT OK"}.get(figures.get("ok"), "--")
        self.bad += [name] if figures.get("ok") is False else []
        print(f"{mark:<7}{name}: {_shown(figures)}", flush=True)
        self._write()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def _write(self) -> None:
        if self.output is None:
            return
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        made = {
            "benchmark": "cuda_check",
            "machine": {**machine(), "gpu": gpu},
            "versions": versions(),
            "checks": self.found,
            "not_ok": self.bad,
        }
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def _shown(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in figures.items()
        if k != "ok"
    )


class StatesTask(PromptTask):
    """A task that also knows its states, as going on from a checkpoint needs it."""

    def __init__(self, states: Sequence[PromptState]) -> None:
        self._states = list(states)

    def states(self, split: str) -> list[PromptState]:
        return self._states


class Models:
    """Random models, made once on the disk and loaded as a user's are."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, device
        self._made: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        if name not in self._made:
            self._made[name] = prepare_model(name, self.folder)
        return self._made[name]

    def config(self, name: str, run_name: str = "run", **sections: Any) -> RunConfig:
        defaults = {
            "model": {"base_model_path": str(self.path(name)), "load_in_4bit": False},
            "lora": {"rank": 16, "alpha": 32, "target_modules": list(TARGET_MODULES)},
            "grpo": {"group_size": 4, "max_new_tokens": 24, "learning_rate": 1e-3},
            "training": {"gradient_checkpointing": False, "gradient_accumulation_steps": 2},
            "monitoring": {"use_tensorboard": False},
        }
        for section, values in sections.items():
            defaults[section] = defaults.get(section, {}) | values
        return RunConfig.from_sections(
            run_name=run_name, output_root=str(self.folder / "outputs"), **defaults
        )

    def load(self, name: str, dtype: str, spread: float = 0.02, **options: Any) -> Any:
        """Model with an adapter whose B matrices are drawn with so large a spread (0: none)."""
        lora, options = self.config(name).lora, {"device": self.device} | options
        model, _ = load_model_with_lora(
            self.path(name), lora, dtype=dtype, log=lambda _: None, **options
        )
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter_name, parameter in trainable(model).items():
                if "lora_B" in parameter_name and spread:
                    drawn = torch.randn(parameter.shape, generator=generator) * spread
                    parameter.copy_(drawn)
        return model

    def trainer(
        self, config: RunConfig, model: Any, states: Sequence[PromptState] = (), run: bool = False
    ) -> GRPOTrainer:
        tokenizer = load_tokenizer(config.model.base_model_path)
        opened = Run.open(config) if run else None
        task = StatesTask(states)
        trainer = GRPOTrainer(config, task, model, tokenizer, opened, log=lambda _: None)
        trainer.ends = NO_END
        return trainer

    def states(self, name: str, tokens: int, count: int) -> list[PromptState]:
        texts = make_prompts(load_tokenizer(self.path(name)), tokens, 7, count)
        return [PromptState(f"s{i}", text) for i, text in enumerate(texts)]


def ids(model: Any, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    high = model.config.vocab_size
    return torch.randint(2, high, shape, generator=generator).to(next(model.parameters()).device)


# -- one prompt for all actions, against every action by itself ---------------------------------


def dense(model: Any, prompt: list[int], tokens: Tensor) -> Tensor:
    """(K, C) log-probabilities, each action behind its own copy of the prompt, by transformers."""
    rows = torch.cat(
        [torch.tensor(prompt, device=tokens.device).expand(len(tokens), -1), tokens], 1
    )
    logits = model(input_ids=rows, use_cache=False).logits[:, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(2, tokens[..., None])[..., 0]


def values_and_gradients(model: Any, function: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """(K, C) values, and all gradients of a weighted sum of them as one vector."""
    model.zero_grad()
    with without_dropout(model):
        value = function()
        weights = torch.arange(value.numel(), device=value.device).cos().view_as(value)
        (value * weights).sum().backward()
    assert_gradients(model)
    found = torch.cat([p.grad.flatten() for p in trainable(model).values()])
    return value.detach().float(), found.float()


def apart(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> dict[str, float]:
    difference = (one[0] - other[0]).abs()
    gradient = (one[1] - other[1]).norm() / other[1].norm()
    largest = (one[1] - other[1]).abs().max() / other[1].abs().max()
    return {
        "logp_max": float(difference.max()),
        "logp_mean": float(difference.mean()),
        "gradient_max": float(largest),
        "gradient_norm": float(gradient),
    }


def exact(make: Callable[[], Any], p: int, k: int, c: int) -> dict[str, Any]:
    """Shared against dense in float32."""
    model = make()
    base, prompt, tokens = model.get_base_model(), ids(model, p).tolist(), ids(model, k, c, seed=1)
    ours = values_and_gradients(model, lambda: group_log_probs(model, prompt, tokens)[0])
    base.set_attn_implementation("eager")
    base.config.use_cache = False
    theirs = values_and_gradients(model, lambda: dense(model, prompt, tokens))
    figures = apart(ours, theirs)
    ok = figures["logp_max"] <= EXACT and figures["gradient_max"] <= EXACT
    return {"ok": ok, **figures}


def sliding(device: str, p: int, k: int, c: int) -> dict[str, Any]:
    """The same for windows shorter and longer than the prompt (Gemma 3's layers)."""
    import peft
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    def make() -> Any:
        torch.manual_seed(0)
        config = Gemma3TextConfig(
            vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, sliding_window=p // 3,
            layer_types=["sliding_attention", "full_attention"] * 2,
            attn_implementation=attention.NAME,
        )  # fmt: skip
        base = Gemma3ForCausalLM(config)
        lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(TARGET_MODULES))
        model = peft.get_peft_model(base, lora).eval()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        return model.to(device)

    return exact(make, p, k, c)


@contextmanager
def scores_kept() -> Iterator[None]:
    """Without flash attention on CUDA."""
    kept, flash.on_cuda = flash.on_cuda, lambda query: False
    try:
        yield
    finally:
        flash.on_cuda = kept


def sixteen_bits(models: Models, name: str, p: int, k: int, c: int) -> dict[str, Any]:
    """bfloat16: how far the shared pass and the dense one are from float32's values."""
    model = models.load(name, "float32")
    prompt, tokens = ids(model, p).tolist(), ids(model, k, c, seed=1)
    reference = values_and_gradients(model, lambda: group_log_probs(model, prompt, tokens)[0])
    model = models.load(name, "bfloat16")

    def shared() -> Tensor:
        return group_log_probs(model, prompt, tokens)[0]

    found = {"flash": values_and_gradients(model, shared)}
    again = values_and_gradients(model, shared)
    with scores_kept():
        found["scores kept"] = values_and_gradients(model, shared)
    model.get_base_model().set_attn_implementation("sdpa")
    found["dense"] = values_and_gradients(model, lambda: dense(model, prompt, tokens))
    figures = {f"{n}, {k}": v for n, f in found.items() for k, v in apart(f, reference).items()}
    between = apart(found["flash"], found["dense"])
    same = all(torch.equal(a, b) for a, b in zip(found["flash"], again, strict=True))
    limit = 1.5 * figures["dense, gradient_norm"]
    return {
        "ok": same and figures["flash, gradient_norm"] <= limit,
        "the same twice": same,
        **figures,
        **{f"flash to dense, {k}": v for k, v in between.items()},
    }


# -- the first pass ------------------------------------------------------------------------------


def first_step(
    models: Models, name: str, dtype: str, warm: bool, **training: Any
) -> dict[str, Any]:
    """KL 0 and ratio 1 at the first step, with B = 0 or a warm start and its frozen copy."""
    options: dict[str, Any] = {"spread": 0.0}
    if warm:
        folder = models.folder / f"warm-{name}-{dtype}"
        save_lora_checkpoint(models.load(name, dtype), folder)
        options["adapter"] = folder
    checkpointing = bool(training.get("gradient_checkpointing"))
    model = models.load(name, dtype, gradient_checkpointing=checkpointing, **options)
    trainer = models.trainer(models.config(name, training=training), model)
    metrics = trainer.training_step(models.states(name, 200, 1))
    group = trainer.last_groups[0]
    logp = group.old_logp
    figures = {
        "kl": metrics["kl"],
        "largest reference difference": float((group.ref_logp - logp).abs().max()),
        "sampled against policy, mean nat": metrics["sampling_logp_difference"],
    }
    return {"ok": figures["kl"] == 0 and figures["largest reference difference"] == 0, **figures}


# -- sampling ------------------------------------------------------------------------------------


@contextmanager
def unrecorded() -> Iterator[None]:
    """Without CUDA graphs."""
    kept, sampling.can_record = sampling.can_record, lambda *_: False
    try:
        yield
    finally:
        sampling.can_record = kept


def sample(model: Any, prompts: list[list[int]], k: int, c: int, only: int | None = None) -> Any:
    import numpy as np

    draws = [uniform_numbers(7, f"s{i}", 0, k, c) for i in range(len(prompts))]
    if only is not None:
        draws, k = [d[only : only + 1] for d in draws], 1
    uniforms = np.concatenate(draws)
    return sample_actions(model, prompts, k, c, end_ids=NO_END, temperature=0.7, uniforms=uniforms)


def repeatable(models: Models, name: str, dtype: str, p: int, k: int, c: int) -> dict[str, Any]:
    """Sampled twice; recorded and not; alone and in the group; and teacher-forced."""
    model = models.load(name, dtype)
    prompts = [ids(model, p).tolist()]
    first, second = (sample(model, prompts, k, c) for _ in range(2))
    with unrecorded():
        plain = sample(model, prompts, k, c)
    alone = [sample(model, prompts, k, c, only=i).tokens[0] for i in range(k)]
    with torch.no_grad():
        forced, _ = group_log_probs(model, prompts[0], first.tokens, temperature=0.7)
    difference = (forced - first.logprobs).abs()
    share = float((torch.stack(alone) == first.tokens).all(1).float().mean())
    same = torch.equal(first.tokens, second.tokens) and torch.equal(first.logprobs, second.logprobs)
    return {
        "ok": same and (dtype != "float32" or share == 1.0),
        "the same twice": same,
        "alone as in the group, share of actions": share,
        "unrecorded the same, share of actions": _equal_rows(plain.tokens, first.tokens),
        "sampled to teacher-forced, max": float(difference.max()),
        "sampled to teacher-forced, mean": float(difference.mean()),
    }


def _equal_rows(one: Tensor, other: Tensor) -> float:
    return float((one == other).all(1).float().mean())


def greedy_on_cpu(models: Models, name: str, c: int) -> dict[str, Any]:
    """float32: greedy tokens of three prompts of other lengths, here and on a CPU, at once and
    one by one."""
    model = models.load(name, "float32")
    prompts = [ids(model, n, seed=n).tolist() for n in (40, 17, 1)]
    here = sample_actions(model, prompts, 1, c, end_ids=NO_END).tokens.cpu()
    one_by_one = [sample_actions(model, [p], 1, c, end_ids=NO_END).tokens.cpu() for p in prompts]
    on_cpu = models.load(name, "float32", device="cpu")
    there = sample_actions(on_cpu, prompts, 1, c, end_ids=NO_END).tokens
    figures = {
        "CPU the same, share": _equal_rows(here, there),
        "one by one the same, share": _equal_rows(torch.cat(one_by_one), here),
    }
    return {"ok": min(figures.values()) == 1.0, **figures}


def decoding_time(make: Callable[[], Any], p: int, k: int, c: int) -> dict[str, Any]:
    """Milliseconds a token, recorded and not. A replayed graph is the GPU's own time, next to it
    what Python's launches add."""
    model = make()
    prompts, device = [ids(model, p).tolist()], next(model.parameters()).device.type

    def once(length: int) -> float:
        wait_for(device)
        start = time.perf_counter()
        sample(model, prompts, k, length)
        wait_for(device)
        return time.perf_counter() - start

    def a_token() -> float:
        once(c)
        return statistics.median((once(c) - once(8)) / (c - 8) * 1e3 for _ in range(3))

    recorded, whole = a_token(), once(c)
    with unrecorded():
        plain, plain_whole = a_token(), once(c)
    return {
        "recorded, ms a token": recorded,
        "unrecorded, ms a token": plain,
        "share of launches": 1 - recorded / plain,
        "recorded, s an action group": whole,
        "unrecorded, s an action group": plain_whole,
    }


# -- training ------------------------------------------------------------------------------------


def resumed(models: Models, name: str, dtype: str, run_name: str, **changes: Any) -> dict[str, Any]:
    """Six steps at once, and again with a checkpoint and a new trainer behind the third (in the
    middle of an update): the same adapter, bit for bit?"""
    states = models.states(name, 200, 6)
    checkpointing = bool(changes.get("training", {}).get("gradient_checkpointing"))

    def new(name_of_run: str) -> GRPOTrainer:
        changed = {"model": {"base_model_path": str(models.path(name)), "dtype": dtype}} | changes
        config = models.config(name, name_of_run, **changed)
        model = models.load(name, dtype, 0.0, gradient_checkpointing=checkpointing)
        return models.trainer(config, model, states, run=True)

    def steps(trainer: GRPOTrainer, which: Sequence[PromptState]) -> list[float]:
        return [trainer.training_step([state])["loss"] for state in which]

    straight = new(f"{run_name}-a")
    losses = steps(straight, states)
    broken = new(f"{run_name}-b")
    steps(broken, states[:3])
    broken.save_checkpoint()
    again = new(f"{run_name}-b")
    at = again.load_checkpoint()
    steps(again, states[3:])
    pairs = zip(straight.parameters.values(), again.parameters.values(), strict=True)
    largest = max(float((a - b).detach().abs().max()) for a, b in pairs)
    moved = max(float((p - straight.untrained[n]).detach().abs().max())
                for n, p in straight.parameters.items())  # fmt: skip
    return {
        "ok": largest == 0 and at == 3 and moved > 0,
        "largest difference": largest,
        "moved by": moved,
        "last loss": losses[-1],
    }


def resumed_harder(models: Models, dtype: str) -> dict[str, Any]:
    changes = {"training": {"gradient_checkpointing": True}, "grpo": {"num_iterations": 2}}
    return resumed(models, SMALL, dtype, f"resume-{dtype}-2", **changes)


def four_bits(models: Models, name: str) -> dict[str, Any]:
    """A step on 4-bit weights; `load_model_with_lora` itself checks that sharing holds there."""
    precision = choose_precision(models.device, "auto", True)
    model = models.load(name, "auto", 0.0, load_in_4bit=True)
    trainer = models.trainer(models.config(name), model)
    metrics = trainer.training_step(models.states(name, 200, 1))
    return {
        "ok": precision.four_bit and metrics["kl"] == 0,
        "chosen": precision.reason,
        "kl": metrics["kl"],
        "sampled against policy, mean nat": metrics["sampling_logp_difference"],
    }


def precision(device: str) -> dict[str, Any]:
    found = choose_precision("auto", "auto")
    return {"ok": found.device == device, "chosen": found.reason}


# -- 8B ------------------------------------------------------------------------------------------


def large_model(name: str, device: str, checkpointing: bool) -> Any:
    """A random model made on the device itself, in bfloat16."""
    import peft
    from transformers import AutoModelForCausalLM, Qwen3Config

    from rlkit.training.mlp import keep_less

    config = Qwen3Config.from_json_file(str(MODELS / f"{name}.json"))
    config._attn_implementation = attention.NAME
    with torch.device(device):
        base = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=attention.NAME
        )
    keep_less(base)
    if checkpointing:
        base.activation_checkpointing_enable({"use_reentrant": False})
    lora = peft.LoraConfig(r=16, lora_alpha=32, target_modules=list(TARGET_MODULES))
    return peft.get_peft_model(base, lora).eval()


def large_step(
    models: Models, name: str, checkpointing: bool, p: int, k: int, c: int, steps: int = 4
) -> dict[str, Any]:
    """A whole step: seconds, sampled tokens a second, peak of torch's memory on the device."""
    model = large_model(name, models.device, checkpointing)
    config = models.config(
        MEDIUM,
        grpo={"group_size": k, "max_new_tokens": c, "kl_estimator": "k3"},
        training={"gradient_accumulation_steps": 1, "gradient_checkpointing": checkpointing},
    )
    trainer = models.trainer(config, model)
    states = models.states(MEDIUM, p, steps + 1)
    before = device_mib(models.device)
    trainer.training_step(states[:1])
    taken, sampling_share = [], []
    for state in states[1:]:
        wait_for(models.device)
        start = time.perf_counter()
        metrics = trainer.training_step([state])
        wait_for(models.device)
        taken.append(time.perf_counter() - start)
        sampling_share.append(metrics["time/sampling"])
    return {
        "median_s": statistics.median(taken),
        "n": len(taken),
        "range_s": f"{min(taken):.3f} to {max(taken):.3f}",
        "sampled tokens a second": k * c / statistics.median(taken),
        "sampling, share": statistics.median(sampling_share),
        "weights, MiB": before,
        "peak, MiB": device_mib(models.device, peak=True),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--large", action="store_true", help="add the model of 8B parameters")
    parser.add_argument("--small", action="store_true", help="leave out that of 0.6B, too")
    parser.add_argument("--only", nargs="*", default=[], help="checks whose name has such a word")
    options = parser.parse_args(arguments)
    torch.set_float32_matmul_precision("highest")  # no TF32
    with tempfile.TemporaryDirectory() as folder:
        report = Report(options.only, options.output)
        _all_checks(report, Models(Path(folder), options.device), options)
    print(f"{len(report.found)} checks, not ok: {', '.join(report.bad) or 'none'}")
    return int(bool(report.bad))


def _all_checks(report: Report, models: Models, options: argparse.Namespace) -> None:
    check, device = report.check, models.device
    check("precision", precision, device)
    for on in (False, True):
        named = "with" if on else "without"

        def make(on: bool = on) -> Any:
            return models.load(SMALL, "float32", gradient_checkpointing=on)

        check(f"exact in float32, {named} gradient checkpointing", exact, make, 300, 4, 24)
    check("exact in float32, sliding window", sliding, device, 90, 4, 24)
    check("greedy in float32", greedy_on_cpu, models, SMALL, 24)
    for dtype in ("float32", "bfloat16"):
        check(f"sampling in {dtype}", repeatable, models, SMALL, dtype, 300, 8, 32)
        for warm in (False, True):
            kind = "warm start" if warm else "B = 0"
            check(f"first step in {dtype}, {kind}", first_step, models, SMALL, dtype, warm)
        run = f"resume-{dtype}"
        check(f"resume in {dtype}", resumed, models, SMALL, dtype, run)
        check(f"resume in {dtype}, checkpointing, two passes", resumed_harder, models, dtype)
    check("4-bit", four_bits, models, SMALL)
    if options.small:
        return
    check("bfloat16 against float32", sixteen_bits, models, MEDIUM, 512, 8, 64)
    check("sampling in bfloat16, 0.6B", repeatable, models, MEDIUM, "bfloat16", 512, 8, 64)
    check("first step in bfloat16, 0.6B", first_step, models, MEDIUM, "bfloat16", True)
    check("decoding, 0.6B", decoding_time, lambda: models.load(MEDIUM, "bfloat16"), 1024, 8, 24)
    if not options.large:
        return
    for on in (False, True):
        named = "with" if on else "without"
        name = f"step of 8B, {named} gradient checkpointing"
        check(name, large_step, models, LARGE, on, 1024, 8, 64)
    check("decoding, 8B", decoding_time, lambda: large_model(LARGE, device, False), 1024, 8, 24)


if __name__ == "__main__":
    sys.exit(main())
