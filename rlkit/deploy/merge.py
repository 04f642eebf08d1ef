"""From checkpoints to model folders that can be served: adapters are merged into the base.

The base is loaded unquantised in float32 on the CPU, W + (alpha / r) · BA is added matrix by
matrix, each checked in float64, then cast and saved with tokenizer, chat template and generation
config. At most one float32 copy of the model is in memory at a time. Each merge proves itself
(certificate.py): in memory the logits must be those of base and adapter, or nothing is saved; those
of the model read back from disk are compared and reported. The figures are printed and stored as
`certificate.json` in the model's folder, a model card beside them.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from rlkit.config import RunConfig
from rlkit.deploy import certificate as proof
from rlkit.deploy.certificate import Certificate, Exported
from rlkit.deploy.held_out import held_out_prompts
from rlkit.deploy.loading import Base, check_adapters, short_name, untie, with_adapters
from rlkit.deploy.model_card import model_card, run_evaluation, run_lineage
from rlkit.deploy.place import check_shard_size, place_for, tidy
from rlkit.deploy.probe import (
    PROMPTS,
    Difference,
    Prompt,
    compare,
    encode,
    greedy,
    joined,
    largest_logit,
    last_logits,
)
from rlkit.deploy.rounding import merge_layers, total
from rlkit.errors import DataError, ModelError, RunError
from rlkit.files import new_folder, write_json, write_text
from rlkit.run import Run
from rlkit.training.checkpointing import PREFIX, check_sums, checkpoint_steps
from rlkit.training.fingerprint import base_fingerprint, base_record
from rlkit.training.precision import DTYPES

TOLERANCE = 1e-4  # of the largest logit: float32 rounds to 3e-6 of it, a wrong merge is far off
_FOUR_BITS = (
    "The run asked for a base in 4 bits (model.load_in_4bit): where its machine had them, the "
    "adapter was trained on rounded weights, and it is merged into the unquantised ones."
)
_NO_SUMS = (
    "The checkpoint has no trainer_state.json with checksums: nothing says whether it is as "
    "training wrote it."
)


def merge_run(
    config: RunConfig,
    checkpoints: Sequence[int] | None = None,
    output_dir: str | Path | None = None,
    *,
    max_shard_size: str = "5GB",
) -> list[Path]:
    """Merge checkpoints of a run: those listed, else those of `merge.checkpoints`, else all.

    Each goes to `<output_dir>/<base>-grpo-step<N>`, by default under `merged/` in the run's
    folder. An output that is there already is named and left as it is. Returns the folders. Where
    none is listed, damaged checkpoints are passed over, and that is said.

    Raises RunError where there is no run or no such checkpoint, DataError where one that is listed
    is damaged, ModelError as `merge_lora_to_base`.
    """
    run = Run.open(config, create=False)
    folder = run.checkpoints_folder
    there = {step: folder / f"{PREFIX}{step}" for step in checkpoint_steps(folder)}
    listed = checkpoints or config.merge.checkpoints
    steps = list(dict.fromkeys(listed or there))
    missing = [step for step in steps if step not in there]
    if missing or not steps:
        held = ", ".join(str(step) for step in there) or "none"
        asked = f"no checkpoint of step {missing[0]}" if missing else "no checkpoint to merge"
        raise RunError(f"{folder} holds {asked}; there are: {held}.")
    base = config.model.base_model_path
    check_shard_size(max_shard_size)
    root = Path(output_dir or config.merge.output_dir or run.merged_folder)
    for step in there:
        tidy(root / f"{short_name(base)}-grpo-step{step}")
    outputs = {step: root / f"{short_name(base)}-grpo-step{step}" for step in steps}
    new = {step: output for step, output in outputs.items() if not output.exists()}
    for output in outputs.values():
        if output not in new.values():
            print(f"{output} exists already and is left as it is")
    doubts = {step: _doubts(there[step], bool(listed)) for step in new}
    new = {step: output for step, output in new.items() if doubts[step] is not None}
    outputs = {step: o for step, o in outputs.items() if doubts.get(step, ()) is not None}
    if not outputs:
        raise RunError(f"{folder} holds no checkpoint that is whole; train the run again.")
    held_out = held_out_prompts(config, run) if new and config.lora.enabled else None
    for step, output in new.items():
        facts = RunFacts(
            held_out,
            config.model.enable_thinking,
            run_lineage(run, step),
            run_evaluation(run, step),
            (*[_FOUR_BITS] * config.model.load_in_4bit, *doubts[step]),
        )
        if not config.lora.enabled:
            export_model(there[step], output, base, config.merge.dtype, max_shard_size, facts)
            continue
        print(f"merging step {step} of {', '.join(map(str, new))} ...")
        merge_lora_to_base(
            base,
            there[step],
            output,
            config.merge.dtype,
            max_shard_size=max_shard_size,
            trust_remote_code=config.model.trust_remote_code,
            run=facts,
        )
    return list(outputs.values())


def _doubts(checkpoint: Path, listed: bool) -> tuple[str, ...] | None:
    """What speaks against a checkpoint's being what was trained; None where it is damaged, and one
    of all (not `listed`). Raises DataError for a damaged one that is listed."""
    try:
        return () if check_sums(checkpoint) else (_NO_SUMS,)
    except DataError as error:
        if listed:
            raise
        print(f"{checkpoint.name} is passed over: {error}")
        return None


@dataclass(frozen=True)
class RunFacts:
    """What a run adds to a merge: the prompts of held-out states, and what the card tells."""

    prompts: Mapping[str, Prompt] | None = None
    enable_thinking: bool = False
    lineage: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


def export_model(
    checkpoint: Path,
    output: Path,
    base_path: str | Path,
    dtype: str,
    max_shard_size: str = "5GB",
    run: RunFacts | None = None,
) -> Exported:
    """A checkpoint of all weights is a model already: saved in `dtype` with its tokenizer and a
    card, and without what only training needs. `base_path` is what training began with."""
    run, record = run or RunFacts(), base_record(base_path) or {}
    hashes = {part: record.get(part) for part in ("config", "weights", "rows")}
    check_shard_size(max_shard_size)
    told = Exported(output.name, dtype, {"name": str(base_path), **hashes}, str(checkpoint))
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=DTYPES[dtype])
    size = sum(p.numel() for p in model.parameters()) * DTYPES[dtype].itemsize
    with place_for(output, size), new_folder(output) as temporary:
        model.save_pretrained(temporary, max_shard_size=max_shard_size)
        tokenizer.save_pretrained(temporary)
        write_json(temporary / proof.FILE, told.as_dict())
        write_text(temporary / "README.md", model_card(told, run.lineage, run.evaluation))
    print(told)
    return told


def merge_lora_to_base(
    base_path: str | Path,
    adapter_path: str | Path | Sequence[str | Path],
    output_path: str | Path,
    dtype: str = "bfloat16",
    *,
    prompts: Mapping[str, Prompt] | None = None,
    max_shard_size: str = "5GB",
    trust_remote_code: bool = False,
    run: RunFacts | None = None,
) -> Certificate:
    """Merge an adapter into its base and save the whole model as `output_path`.

    A list of adapters is a stack: their updates are added and rounded once. (A warm start that
    GRPO continued is in the checkpoint already: give the checkpoint alone.) `dtype` is float32,
    bfloat16 or float16. The certificate is made on `prompts` ({id: text or chat messages}), else on
    those of `run`, else on three built-in texts. The folder appears whole, or not at all.

    Raises RunError where `output_path` exists or cannot be written, and ModelError where the base
    is quantised, where the adapter was trained on another base, is damaged, or where the merged
    logits differ.
    """
    output, adapters = Path(output_path), _listed(adapter_path)
    if output.exists():
        raise RunError(f"{output} exists already and is never overwritten; move it away.")
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}.")
    check_shard_size(max_shard_size)
    base, run = Base.of(base_path, trust_remote_code), run or RunFacts()
    empty = base.skeleton()
    doubts = check_adapters(base, adapters, empty)
    size = sum(parameter.numel() for parameter in empty.parameters()) * DTYPES[dtype].itemsize
    with place_for(output, size):
        return _merge(base, adapters, output, dtype, prompts, max_shard_size, run, doubts)


def _merge(
    base: Base,
    adapters: Sequence[Path],
    output: Path,
    dtype: str,
    prompts: Mapping[str, Prompt] | None,
    max_shard_size: str,
    run: RunFacts,
    doubts: Sequence[str],
) -> Certificate:
    """`merge_lora_to_base`, once all that can be known before anything is loaded is sound."""
    tokenizer = base.tokenizer()
    asked = encode(tokenizer, prompts or run.prompts or PROMPTS, run.enable_thinking)
    before = _served(base, adapters, tokenizer, asked, DTYPES[dtype])
    adapted = with_adapters(base.load(torch.float32), adapters)
    exact = last_logits(adapted.get_base_model(), before.texts)
    untied = untie(adapted.get_base_model())
    updates = merge_layers(adapted.get_base_model(), DTYPES[dtype])
    merged = adapted.unload()
    del adapted
    in_float32, allowed = _checked(exact, last_logits(merged, before.texts), adapters, base)
    with new_folder(output) as temporary:
        _cast(merged, DTYPES[dtype])
        in_memory = last_logits(merged, before.texts)
        merged.save_pretrained(temporary, max_shard_size=max_shard_size)
        tokenizer.save_pretrained(temporary)
        del merged  # so that two copies are never in memory at once
        gc.collect()
        reloaded = Base.of(temporary, base.trust_remote_code).load(DTYPES[dtype])
        after = _answers(reloaded, tokenizer, asked, before.texts)
        if not math.isfinite(compare(before.logits, after.logits).max_difference):
            raise ModelError(f"{base.name} does not fit into {dtype}; merge it as bfloat16.")
        certificate = Certificate(
            name=output.name,
            dtype=dtype,
            base={"name": base.name, **base_fingerprint(base.source), "checked": not doubts},
            adapters=tuple(map(proof.adapter_record, adapters)),
            float32=in_float32,
            allowed=allowed,
            in_memory=compare(before.logits, in_memory),
            reloaded=compare(before.logits, after.logits),
            reloaded_from_float32=compare(exact, after.logits),
            own_rounding=compare(exact, before.logits),
            greedy=proof.greedy_texts(asked, before.wrote, after.wrote, tokenizer),
            held_out=not prompts and bool(run.prompts),
            rounding={"all": total(updates).row(), "tensors": [x.row() for x in updates]},
            untied=untied,
            notes=(*run.notes, *doubts),
        )
        write_json(temporary / proof.FILE, certificate.as_dict())
        write_text(temporary / "README.md", model_card(certificate, run.lineage, run.evaluation))
    print(certificate)
    return certificate


def _listed(adapter_path: str | Path | Sequence[str | Path]) -> list[Path]:
    one = isinstance(adapter_path, (str, Path))
    adapters = [Path(path) for path in ([adapter_path] if one else adapter_path)]
    if not adapters or len({path.resolve() for path in adapters}) < len(adapters):
        raise ModelError(
            f"given are the adapters {[*map(str, adapters)]}; give one, or several that differ."
        )
    return adapters


class _Answers(NamedTuple):
    """Greedy completions of the prompts (ids), whole texts, and their logits."""

    wrote: list[list[int]]
    texts: list[Tensor]
    logits: list[Tensor]


def _answers(
    model: Any, tokenizer: Any, asked: Mapping[str, Tensor], texts: list[Tensor] | None = None
) -> _Answers:
    """What a model writes; the logits are of `texts`, by default of prompts and completions."""
    wrote = greedy(model, tokenizer, [*asked.values()])
    texts = texts or joined([*asked.values()], wrote)
    return _Answers(wrote, texts, last_logits(model, texts))


def _served(
    base: Base,
    adapters: Sequence[Path],
    tokenizer: Any,
    asked: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> _Answers:
    """What base and adapter write in the dtype that is saved; they are gone on return."""
    adapted = with_adapters(base.load(dtype), adapters)
    found = _answers(adapted.get_base_model(), tokenizer, asked)
    del adapted
    gc.collect()
    return found


def _checked(
    exact: list[Tensor], merged: list[Tensor], adapters: Sequence[Path], base: Base
) -> tuple[Difference, float]:
    """How far the merged model's logits are off in float32, and how far they may be; raises
    ModelError beyond that."""
    found, allowed = compare(exact, merged), TOLERANCE * max(1.0, largest_logit(exact))
    if not found.max_difference <= allowed:
        raise ModelError(
            f"merging {', '.join(map(str, adapters))} into {base.name} changes the logits by "
            f"{found.max_difference:.1e}, more than {allowed:.1e}; the merged model would not be "
            "the trained one, so nothing was saved."
        )
    return found, allowed


def _cast(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Every weight to `dtype`, one after the other. Buffers stay: a rotary embedding's
    frequencies are float32 in a model that is loaded in bfloat16, too."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
