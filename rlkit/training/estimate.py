"""What a run will need of memory and disk, worked out from the model's shape: nothing is loaded.

Memory, in bytes, at the largest moment of a step (one group at a time, its prompt once):

    weights      parameters x itemsize; 4-bit: half a byte and its scales for linear layers
    training     trained parameters x 4 (gradient) + 8 (AdamW); of an adapter 4 for itself, 4 for
                 the copy before training, 4 for a reference where there is one; of all weights 4
                 for the copy that is the reference, where grpo.kl_penalty is above 0
    activations  (P + K C) tokens x layers x [s (2 I + 4 E + 4 Q) + 4 (2 E + 2 Q)]; with gradient
                 checkpointing s E a layer, and one layer whole; with rollout.overlap P more, where
                 the next group's prompt has its graph, with rollout.groups_at_once those of all
    cache        (P + K C) tokens x layers x keys and values x s, of the groups that are sampled
                 together
    logits       128 rows (or 2^20 numbers) x vocabulary x 4, three times
    libraries    0.6 GiB

P prompt, C action tokens, K actions, E hidden size, I size of the MLP, Q sizes of queries, keys and
values together, s itemsize of the base. The bracket was fitted to measured peaks (docs/results.md:
0.6B and 8B in bfloat16 on a GPU, SmolLM2 in float32 on a CPU), which it meets within a third.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from torch import nn

from rlkit.errors import ModelError
from rlkit.training.logprobs import _chunk_size
from rlkit.training.models import resolve_base_model
from rlkit.training.precision import Precision
from rlkit.training.prefix import longest_text

MAX_LIVE = 10**9  # parameters that ZeRO-3 may hold gathered (its stage3_max_live_parameters)
LIBRARIES = 600 * 2**20  # bytes; measured with a small model: 535 to 602 MiB
ANSWER_PROMPT = 512  # tokens; prompts of other tasks than search have no limit of their own
SFT_ROW = 2048  # tokens that pass the model together in a warm start, at most
ROLLOUT_TOKEN, ROLLOUT_ACTION = 12, 2000  # bytes on disk, compressed


@dataclass(frozen=True)
class Shape:
    """The sizes of a base model that memory depends on; `adapter` counts trained parameters."""

    parameters: int
    linear: int
    layers: int
    hidden: int
    mlp: int
    queries_keys_values: int
    keys_values: int
    vocabulary: int
    adapter: int
    context: int | None


def skeleton(base_path: str | Path, *, trust_remote_code: bool = False) -> nn.Module | None:
    """The base model without its weights; None where its config is not on this machine.

    Nothing is downloaded. Raises ModelError where a model folder's config cannot be read.
    """
    source = resolve_base_model(base_path)
    options = {"trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(source, local_files_only=True, **options)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config, **options)
    except (OSError, ValueError, KeyError) as error:
        if Path(source).is_dir():
            raise ModelError(
                f"the config of {base_path} cannot be read ({str(error).splitlines()[0][:200]}); "
                "check model.base_model_path."
            ) from error
        return None


def weights_are_here(base_path: str | Path) -> bool:
    """Whether a base model's weights are on this machine, in a folder or in the hub's cache."""
    folder = Path(resolve_base_model(base_path))
    if not folder.is_dir():
        try:
            folder = Path(huggingface_hub.snapshot_download(str(folder), local_files_only=True))
        except (OSError, ValueError):
            return False
    return any(any(folder.glob(f"*.{ending}")) for ending in ("safetensors", "bin"))


def shape_of(model: nn.Module, lora: Any) -> Shape:
    """The shape of a model (its skeleton will do) with the adapter that `lora` asks for."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    keys_values = 2 * head * (getattr(config, "num_key_value_heads", None) or heads)
    layers = [(n, m) for n, m in model.named_modules() if hasattr(m, "in_features")]
    blocks = [m for name, m in layers if name != "lm_head"]
    parameters = sum(p.numel() for p in model.parameters())
    adapted = [m for name, m in layers if name.rsplit(".", 1)[-1] in lora.target_modules]
    adapter = sum(lora.rank * (m.in_features + m.out_features) for m in adapted)
    return Shape(
        parameters=parameters,
        linear=sum(m.in_features * m.out_features for m in blocks),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        mlp=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        queries_keys_values=head * heads + keys_values,
        keys_values=keys_values,
        vocabulary=config.vocab_size,
        adapter=adapter if lora.enabled else parameters,
        context=longest_text(config),
    )


def memory_terms(shape: Shape, config: Any, precision: Precision) -> dict[str, int]:
    """Bytes by term, as the head of this file says; their sum is the estimate."""
    s = precision.dtype.itemsize if config.lora.enabled else 4
    tokens, row = _tokens(shape, config)
    small = shape.linear if precision.four_bit else 0
    width, q = shape.hidden, shape.queries_keys_values
    layer = s * (2 * shape.mlp + 4 * width + 4 * q) + 4 * (2 * width + 2 * q)
    every = shape.layers * layer
    if config.training.gradient_checkpointing:
        every = shape.layers * s * width + layer
    if config.lora.enabled:
        copies = 3 if config.model.init_adapter is not None else 2
    else:
        copies = 1 if config.grpo.kl_penalty > 0 else 0  # the weights are counted themselves
    trained = 4 + 8 + 4 * copies
    terms = {
        "weights": s * (shape.parameters - small) + 0.5625 * small,
        "training": trained * shape.adapter,
        "activations": row * every,
        "cache": tokens * shape.layers * shape.keys_values * s,
        "logits": 3 * 4 * _chunk_size(shape.vocabulary),
        "libraries": LIBRARIES,
    }
    return {name: int(size) for name, size in terms.items()}


def strategy_terms(
    shape: Shape, config: Any, precision: Precision, devices: int
) -> dict[str, dict[str, int]]:
    """`memory_terms` of one of `devices` by strategy of training (sharding.py), with what else a
    strategy adds to a device, and, as `main memory`, what a process keeps outside of it.

    ZeRO-2 and ZeRO-3 divide AdamW's moments (8 bytes a trained parameter) and add two divided
    float32 copies (8). ZeRO-3 and FSDP2 divide the frozen base, in 16 bits or float32 (embedding
    and head that are one tensor stay whole), and gather parts of it: ZeRO-3 up to MAX_LIVE
    parameters and the head, FSDP2 two layers, embedding and head. They take an adapter.
    """
    plain = memory_terms(shape, config, precision)
    moments = 8 * shape.adapter
    divided = plain["training"] - moments + 2 * moments // devices
    offloaded = plain["training"] - moments
    found = {
        "DDP": plain | {"main memory": 0},
        "ZeRO-2": plain | {"training": divided, "main memory": 0},
    }
    if not config.lora.enabled:
        return found
    whole = memory_terms(shape, config, dataclasses.replace(precision, four_bit=False))
    s = precision.dtype.itemsize
    ends = shape.parameters - shape.linear  # embedding, head where it is another, norms
    tied = ends < 2 * shape.vocabulary * shape.hidden
    head = 0 if tied else ends // 2
    decoder = shape.linear + head
    live = s * (min(decoder, MAX_LIVE) + head)
    base = s * (decoder // devices + (ends if tied else head // devices))
    left = s * (ends if tied else head // devices)  # with offload
    waiting = (s * decoder + 2 * moments) // devices
    layers = s * (2 * shape.linear // shape.layers + 2 * head)
    return found | {
        "ZeRO-3": whole
        | {"weights": base, "training": divided, "gathered": live, "main memory": 0},
        "ZeRO-3, offload": whole
        | {"weights": left, "training": offloaded, "gathered": live, "main memory": waiting},
        "FSDP2": whole | {"weights": base, "gathered": layers, "main memory": 0},
    }


def disk_terms(shape: Shape, config: Any) -> dict[str, int]:
    """Bytes that a run leaves, by term: its checkpoints (keep_last, the best one, and one that is
    being written: weights 4, AdamW 8, waiting gradients 4 a trained parameter), the warm start
    and its frozen copy, and every sampled action."""
    training, grpo = config.training, config.grpo
    steps = training.num_epochs * (training.steps_per_epoch or 1000)
    actions = min(steps, training.max_steps or steps) * training.batch_size * grpo.group_size
    warm = {None: 0, "auto": 2}.get(config.model.init_adapter, 1)
    return {
        "checkpoints": 16 * shape.adapter * (training.keep_last + 2),
        "warm start": 4 * shape.adapter * warm,
        "rollouts": actions * (ROLLOUT_ACTION + ROLLOUT_TOKEN * grpo.max_new_tokens),
    }


def free_memory(device: str) -> int:
    """Bytes that are free on the device; on a CPU within what this container may take."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    import psutil  # a requirement of accelerate and peft

    free, allowed = psutil.virtual_memory().available, container_free(Path("/sys/fs/cgroup"))
    return free if allowed is None else max(min(free, allowed), 0)


def container_free(cgroup: Path) -> int | None:
    """Bytes that a container may still take; the page cache makes room when it must. None where
    there is no limit."""
    limit, used = (_number(cgroup / f"memory.{name}") for name in ("max", "current"))
    if limit is None or used is None:
        return None
    try:
        lines = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    counted = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return (
        limit - used + sum(int(counted.get(f"{kind}_file", 0)) for kind in ("inactive", "active"))
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no cgroup, or no limit (`max`)
        return None


def _tokens(shape: Shape, config: Any) -> tuple[int, int]:
    """Tokens of the groups that are sampled together, prompts included, and of the longest row
    that carries gradients."""
    prompt = config.executor.max_prompt_tokens if config.task == "search" else ANSWER_PROMPT
    prompt = min(prompt, shape.context or prompt)
    action = config.grpo.max_new_tokens
    group = prompt + config.grpo.group_size * action
    together = min(config.rollout.groups_at_once, config.training.batch_size)
    graphs = 2 if config.rollout.overlap != "none" else together
    if config.grpo.reuse_prompt_graph == "never" or config.training.gradient_checkpointing:
        graphs = 1
    row = group + (graphs - 1) * prompt
    sft = min(SFT_ROW, config.sft.batch_size * (prompt + action))
    return group * together, max(row, sft) if config.model.init_adapter == "auto" else row
