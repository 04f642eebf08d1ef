"""The model that is served: where it is found, how it is loaded, and whether it is an Executor."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch import nn

from rlkit.agents.parse import parse_clues_from_output
from rlkit.deploy.loading import short_name
from rlkit.deploy.serving.settings import ServerSettings
from rlkit.errors import ModelError, RlkitError
from rlkit.run import Run
from rlkit.training.adapters import check_adapter
from rlkit.training.fingerprint import check_base
from rlkit.training.policy import load_base_model
from rlkit.training.precision import choose_precision
from rlkit.training.prefix import longest_text, read_prompts
from rlkit.training.text import end_ids

Clues = Callable[[str], list[str]]


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model, ready to answer. `clues` reads an Executor's answer; None where it is none.
    `context` is the longest prompt and answer together in tokens."""

    name: str
    model: nn.Module
    tokenizer: transformers.PreTrainedTokenizerBase
    ends: tuple[int, ...]
    context: int
    longest_token: int  # characters
    clues: Clues | None = None


def load_model(settings: ServerSettings, log: Callable[[str], None] = print) -> ServedModel:
    """Load a merged model's folder, a base and an adapter, or an adapter whose folder names its
    base. Raises ModelError where one is missing, damaged, or does not fit."""
    base, adapter = _base_and_adapter(settings)
    precision = choose_precision(settings.device, settings.dtype, settings.load_in_4bit)
    model, tokenizer = load_base_model(base, precision)
    if adapter is not None:
        check_adapter(adapter, model, base)
        check_base(adapter, base)
        model = peft.PeftModel.from_pretrained(model, adapter)
    log(f"model: {adapter or base} on {precision.reason}")
    return served(model.eval(), tokenizer, settings, short_name(adapter or base))


def served(
    model: nn.Module, tokenizer: Any, settings: ServerSettings, name: str = "model"
) -> ServedModel:
    """A model that is loaded already. Raises ModelError where its layers are not supported."""
    limit = longest_text(model.config)
    ends = end_ids(model, tokenizer)
    with torch.no_grad():
        read_prompts(model, [tokenizer("a")["input_ids"][:1] + [ends[0]]])
    return ServedModel(
        settings.name or name,
        model.eval().requires_grad_(False),
        tokenizer,
        ends,
        min(settings.context, limit or settings.context),
        max(map(len, tokenizer.get_vocab())),
        _clues(settings),
    )


def _base_and_adapter(settings: ServerSettings) -> tuple[str, str | None]:
    folder = Path(settings.model).expanduser()
    if settings.adapter is not None:
        return settings.model, str(Path(settings.adapter).expanduser())
    config = folder / "adapter_config.json"
    if not config.is_file() or (folder / "config.json").is_file():
        return settings.model, None
    try:
        base = json.loads(config.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, OSError, AttributeError):
        base = None
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"{folder} holds an adapter that does not say of which base; give the base as --model "
            "(RLKIT_MODEL) and the adapter as --adapter (RLKIT_ADAPTER)."
        )
    return base, str(folder)


def _clues(settings: ServerSettings) -> Clues | None:
    """How clues are read: as the run says whose `merged/` or `lora_checkpoints/` holds the model;
    elsewhere, and with `executor` yes, by the defaults."""
    if settings.executor == "no":
        return None
    folder = Path(settings.adapter or settings.model).expanduser().resolve().parent.parent
    try:
        config = Run.at(folder).config
    except RlkitError:
        config = None
    if settings.executor == "auto" and (config is None or config.task != "search"):
        return None
    options = {}
    if config is not None:
        options = {
            "max_clues": config.search.max_clues,
            "plain_lines": config.executor.plain_lines,
        }
    return partial(_read_clues, **options)


def _read_clues(text: str, **options: Any) -> list[str]:
    return list(parse_clues_from_output(text, **options))
