"""Memory and disk: what the run will need, against what is free."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from rlkit.doctor.look import Look, Said

GIB, MIB, KIB = 2**30, 2**20, 2**10
TIGHT = 0.8  # of what is free; the estimates are good to about a third
FULL = 200 * MIB  # with less, nothing is safe on a disk


def memory(look: Look) -> Said:
    from rlkit.training.estimate import free_memory, memory_terms
    from rlkit.training.precision import choose_precision

    if look.shape is None:
        return "warn", "no estimate: the model's config is not on this machine yet"
    asked = look.config.model
    precision = choose_precision(asked.device, asked.dtype, asked.load_in_4bit)
    terms = memory_terms(look.shape, look.config, precision)
    return judge_memory(terms, free_memory(precision.device), precision.device)


def disk(look: Look) -> Said:
    place = next(p for p in (look.folder, *look.folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if look.shape is None:
        return judge_disk({}, free)
    from rlkit.training.estimate import disk_terms

    return judge_disk(disk_terms(look.shape, look.config), free)


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


def judge_disk(terms: Mapping[str, int], free: int) -> Said:
    """`terms`: the bytes that the run leaves, where they are known; `free`: those that are free."""
    total = sum(terms.values())
    text = f"{size(free)} free"
    if terms:
        text = f"the run leaves about {size(total)} ({listed(terms)}); {text}"
    facts = {"terms": dict(terms), "free": free}
    todo = "free space, take another output_root, or lower training.keep_last"
    if free < max(total, FULL):
        return "fail", f"the disk is full: {text}", todo, facts
    if total > TIGHT * free:
        return "warn", f"the disk is nearly full: {text}", todo, facts
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
