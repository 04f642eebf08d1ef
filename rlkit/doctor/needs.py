"""Memory and disk: what the run will need, against what is free."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlkit.doctor.look import Look, Said

GIB, MIB, KIB = 2**30, 2**20, 2**10
TIGHT = 0.8  # of what is free; the estimates are good to about a third
FULL = 200 * MIB  # with less, nothing is safe on a disk
# where a run's folder holds what `disk_terms` counts
HELD = {
    "checkpoints": ("lora_checkpoints",),
    "warm start": ("sft", "reference_adapter"),
    "rollouts": ("rollouts",),
}


def memory(look: Look) -> Said:
    from rlkit.training.estimate import free_memory

    if look.shape is None:
        return "warn", "no estimate: the model's config is not on this machine yet"
    device = _precision(look).device
    return judge_memory(memory_needed(look), free_memory(device), device)


def memory_needed(look: Look) -> dict[str, int]:
    """Bytes by term, of a model whose shape is known."""
    from rlkit.training.estimate import memory_terms

    return memory_terms(look.shape, look.config, _precision(look))


def _precision(look: Look) -> Any:
    from rlkit.training.precision import choose_precision

    asked = look.config.model
    return choose_precision(asked.device, asked.dtype, asked.load_in_4bit)


def disk(look: Look) -> Said:
    place = next(p for p in (look.folder, *look.folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    from rlkit.training.estimate import disk_terms, weights_are_here

    terms = {} if look.shape is None else disk_terms(look.shape, look.config)
    here = weights_are_here(look.config.model.base_model_path)
    return judge_disk(still_to_come(terms, look.folder), free, here=here)


def still_to_come(terms: Mapping[str, int], folder: Path) -> dict[str, int]:
    """The terms, in bytes, less what the run's folder holds of each already."""
    held = {
        name: sum(
            path.stat().st_size
            for part in parts
            for path in (folder / part).rglob("*")
            if path.is_file()
        )
        for name, parts in HELD.items()
    }
    return {name: max(terms[name] - held.get(name, 0), 0) for name in terms}


def judge_memory(terms: Mapping[str, int], free: int, device: str) -> Said:
    """`terms` and `free` in bytes."""
    total = sum(terms.values())
    text = f"about {size(total)} of {device} memory ({listed(terms)}); free: {size(free)}"
    facts = {"terms": dict(terms), "free": free}
    largest = max(terms, key=lambda name: terms[name])
    todo = {
        "weights": "take a smaller model, model.dtype bfloat16, or model.load_in_4bit",
        "training": "lower lora.rank, or train an adapter (lora.enabled)",
        "activations": "set training.gradient_checkpointing to true, or lower grpo.group_size, "
        "grpo.max_new_tokens or executor.max_prompt_tokens",
    }.get(largest, "free memory, or lower grpo.group_size or executor.max_prompt_tokens")
    if total > free:
        return "fail", f"too little memory: {text}", todo, facts
    if total > TIGHT * free:
        return "warn", f"memory may just suffice: {text}", todo, facts
    return "ok", text, "", facts


def judge_disk(terms: Mapping[str, int], free: int, *, here: bool = True) -> Said:
    """`terms`: the bytes that the run will still write, where they are known; `free`: those that
    are free; `here`: whether the model's weights are on this machine."""
    total = sum(terms.values())
    text = f"{size(free)} free"
    if terms:
        text = f"the run writes about {size(total)} ({listed(terms)}); {text}"
    if not here:
        text += f"{'' if terms else '; no estimate'}; the model's download needs room, too"
    facts = {"terms": dict(terms), "free": free}
    todo = "free space, take another output_root, or lower training.keep_last"
    if free < max(total, FULL):
        return "fail", f"the disk is full: {text}", todo, facts
    if total > TIGHT * free:
        return "warn", f"the disk is nearly full: {text}", todo, facts
    return "ok" if here else "warn", text, "", facts


def judge_peak(peak: int, terms: Mapping[str, int]) -> Said:
    """What a step took of a GPU's memory, beside the estimate for it; both in bytes."""
    guess = sum(terms.values()) - terms.get("libraries", 0)  # torch counts its own memory alone
    text = (
        f"the step took {size(peak)} at its largest; the estimate for long prompts: {size(guess)}"
    )
    facts = {"peak": peak, "estimate": guess}
    if peak * TIGHT > guess:
        return "warn", f"more memory than was estimated: {text}", "leave more room", facts
    return "ok", text, "", facts


def listed(terms: Mapping[str, int]) -> str:
    """The terms that matter, largest first."""
    order = sorted(terms, key=lambda name: -terms[name])
    return ", ".join(f"{name} {size(terms[name])}" for name in order if terms[name] >= KIB)


def size(count: int) -> str:
    """Bytes in words.

    >>> size(3 * 2**29), size(5 * 2**20)
    ('1.5 GiB', '5 MiB')
    """
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.0f} MiB" if count >= MIB else f"{count / KIB:.0f} KiB"
