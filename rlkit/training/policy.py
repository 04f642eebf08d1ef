"""The policy: a base model with a LoRA adapter, or all of its weights, how it is loaded, and asked
to write."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from rlkit.errors import ModelError
from rlkit.training import attention, sharding
from rlkit.training.adapter_check import adapter_files, check_adapter
from rlkit.training.adapters import (
    REFERENCE,
    TRAINED,
    _peft_config,
    using_adapter,
)
from rlkit.training.fingerprint import base_record, check_base
from rlkit.training.four_bit import mend_four_bit
from rlkit.training.logprobs import check_sharing
from rlkit.training.mlp import keep_less
from rlkit.training.models import resolve_base_model
from rlkit.training.precision import Precision, choose_precision
from rlkit.training.sampling import sample_actions
from rlkit.training.sharding import Strategy
from rlkit.training.text import completeness, decode, encode_prompt, end_ids, token_counter
from rlkit.training.weights import check_model_folder, load_weights, train_all_weights


def load_model_with_lora(
    base_path: str | Path,
    lora_config: Any,
    *,
    device: str = "auto",
    dtype: str = "auto",
    load_in_4bit: bool = False,
    gradient_checkpointing: bool = False,
    adapter: str | Path | None = None,
    seed: int = 7,
    trust_remote_code: bool = False,
    strategy: Strategy | None = None,
    log: Callable[[str], None] = print,
) -> tuple[transformers.PreTrainedModel | peft.PeftModel, transformers.PreTrainedTokenizerBase]:
    """Load a base model and put a trainable LoRA adapter on it.

    `lora_config` has `rank`, `alpha`, `dropout`, `target_modules`. With `adapter`, the adapter is
    continued from that folder, and a frozen copy of it named `reference` stands beside it (the
    model whose KL is penalised). Adapter weights are float32 whatever the base's dtype.

    Where `lora_config.enabled` is false, there is no adapter: the plain model comes back, float32,
    with all weights trainable, and `adapter` is a model folder whose weights it starts from.

    A `strategy` that divides the base (sharding.py) does so before the adapter is put on it; every
    process of the training calls this then.

    Raises ModelError where the base or adapter is missing, or the adapter is for another base, or
    where all weights of a 4-bit, 16-bit or divided model were to be trained.
    """
    strategy = strategy or Strategy()
    if not getattr(lora_config, "enabled", True):
        if strategy.divides_base:
            raise ModelError(
                f"lora.enabled is false, which trains all weights, and {strategy.name} divides a "
                "frozen base; take params/accelerate/ddp.yaml or deepspeed_zero2.yaml, or set "
                "lora.enabled to true."
            )
        options = (device, dtype, load_in_4bit, gradient_checkpointing, adapter, trust_remote_code)
        return _load_for_all_weights(base_path, *options, log)
    if strategy.divides_base and load_in_4bit:
        load_in_4bit = False
        log(f"not 4-bit: {strategy.name} divides weights of 16 bits or more")
    precision = choose_precision(device, dtype, load_in_4bit)
    if adapter is not None:
        adapter_files(adapter)  # a slip in its path should not wait for the base
    base, tokenizer = load_base_model(
        base_path, precision, trust_remote_code=trust_remote_code, strategy=strategy
    )
    record = base_record(base_path)
    divided = f", divided by {strategy.name}" if strategy.divides_base else ""
    log(f"model: {base_path} on {precision.reason}{divided}")
    if gradient_checkpointing:
        base.config.use_cache = False
        base.activation_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(seed)  # LoRA's A matrices are drawn here
    if adapter is None:
        model = peft.get_peft_model(base, _peft_config(base, base_path, lora_config))
    else:
        check_adapter(adapter, base, str(base_path))
        check_base(adapter, base_path, record)
        model = peft.PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
        model.load_adapter(str(adapter), adapter_name=REFERENCE, is_trainable=False)
        model.set_adapter(TRAINED)
    if strategy.divides_base:  # PEFT puts it beside weights that may wait elsewhere
        sharding.place(model)
    model.base_record = record  # a checkpoint says what was loaded, whatever the disk holds by then
    for config in model.peft_config.values():  # the name that was given, no folder of this machine
        config.base_model_name_or_path = str(base_path)
    return model.eval(), tokenizer


def _load_for_all_weights(
    base_path: str | Path,
    device: str,
    dtype: str,
    load_in_4bit: bool,
    gradient_checkpointing: bool,
    start_from: str | Path | None,
    trust_remote_code: bool,
    log: Callable[[str], None],
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """`load_model_with_lora` without LoRA. The model's config is left as it is: it is saved."""
    if load_in_4bit:
        raise ModelError(
            "lora.enabled is false, which trains all weights, and 4-bit weights cannot be trained; "
            "set model.load_in_4bit to false, or lora.enabled to true."
        )
    if start_from is not None:
        check_model_folder(start_from)  # a slip in its path should not wait for the base
    precision = choose_precision(device, "float32" if dtype == "auto" else dtype)
    base, tokenizer = load_base_model(base_path, precision, trust_remote_code=trust_remote_code)
    model = train_all_weights(base, tokenizer)
    log(f"model: {base_path} on {precision.device}, float32, all weights are trained")
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if start_from is not None:
        load_weights(model, start_from)
    return model.eval(), tokenizer


def load_base_model(
    base_path: str | Path,
    precision: Precision,
    *,
    trust_remote_code: bool = False,
    strategy: Strategy | None = None,
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Load base model and tokenizer, with attention that can share a prompt; divided over the
    processes where `strategy` says so.

    Raises ModelError with what was asked for where transformers cannot load it.
    """
    transformers.utils.logging.disable_progress_bar()
    if "FSDP_CPU_RAM_EFFICIENT_LOADING" in os.environ:  # accelerate launch, with FSDP
        # else transformers reads weights in one process a machine only, for accelerate to hand on
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    source = resolve_base_model(base_path)
    options: dict[str, Any] = {"dtype": precision.dtype, "attn_implementation": attention.NAME}
    if precision.four_bit:
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=precision.dtype
        )
        options["device_map"] = {"": precision.device}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, trust_remote_code=trust_remote_code, **options
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"the model {str(base_path)!r} cannot be loaded: {first[:300]}") from error
    tokenizer = load_tokenizer(base_path, trust_remote_code=trust_remote_code)
    if precision.four_bit:
        mend_four_bit(model)
    elif strategy is None or not strategy.divides_base:
        model.to(precision.device)
    keep_less(model)
    config = model.config.get_text_config()
    for name in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(config, name, None) not in (None, 0, 1):
            raise ModelError(
                f"{base_path} caps or scales its logits ({name}: Gemma 2, Granite, Cohere), which "
                "is not supported; choose another model."
            )
    if strategy is not None and strategy.divides_base:
        sharding.divide_base(model, strategy, torch.device(precision.device))
    check_sharing(model)
    if tokenizer.eos_token_id is None:  # warm-start examples end with it
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end_ids(model, tokenizer)[0])
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.eval(), tokenizer


def load_tokenizer(
    base_path: str | Path, *, trust_remote_code: bool = False
) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer of a base model, without the model.

    Raises ModelError with what was asked for where transformers cannot load it, or makes an empty
    one, as it does of a folder without the tokenizer's files.
    """
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            resolve_base_model(base_path), trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the tokenizer of {str(base_path)!r} cannot be loaded: {first[:300]}"
        ) from error
    if not tokenizer("plain text", add_special_tokens=False)["input_ids"]:
        raise ModelError(
            f"{base_path} holds a model but no tokenizer (plain text gives no tokens); put its "
            "tokenizer's files beside the weights."
        )
    return tokenizer


def prompt_counter(config: Any) -> Callable[[str], int]:
    """Counts tokens as training does, with the tokenizer of the base model; it is loaded when it
    is first needed, which only the policy `served` does."""

    @cache
    def count() -> Callable[[str], int]:
        model = config.model
        return token_counter(
            load_tokenizer(model.base_model_path, trust_remote_code=model.trust_remote_code)
        )

    return lambda text: count()(text)


class ModelPolicy:
    """An Executor that a model plays: `write(state)` greedily, `write_batch` for several states.

    `prompt` turns a state into chat messages. Policies may share one model: `adapter` names which
    of its adapters writes (`default` is the trained one; None: the untouched base).
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: transformers.PreTrainedTokenizerBase,
        prompt: Callable[[Any], list[dict[str, str]]],
        *,
        max_new_tokens: int,
        adapter: str | None = TRAINED,
        batch_size: int = 8,
        enable_thinking: bool = False,
        complete: Callable[[str], bool] | None = None,
    ) -> None:
        """`complete`: whether a text needs no more tokens; without it, the model ends it."""
        self.complete = completeness(complete, tokenizer)
        self.model, self.tokenizer, self.prompt = model, tokenizer, prompt
        self.max_new_tokens, self.adapter, self.batch_size = max_new_tokens, adapter, batch_size
        self.enable_thinking = enable_thinking

    def write(self, state: Any) -> str:
        """The greedy completion for one state."""
        return self.write_batch([state])[0]

    def write_batch(self, states: Sequence[Any]) -> list[str]:
        """Greedy completions, `batch_size` prompts at a time."""
        texts: list[str] = []
        ends = end_ids(self.model, self.tokenizer)
        for start in range(0, len(states), self.batch_size):
            part = states[start : start + self.batch_size]
            prompts = [self.prompt_ids(state) for state in part]
            with using_adapter(self.model, self.adapter):
                sampled = sample_actions(
                    self.model,
                    prompts,
                    1,
                    self.max_new_tokens,
                    end_ids=ends,
                    complete=self.complete,
                )
            texts += [decode(self.tokenizer, ids) for ids in sampled.rows()]
        return texts

    def prompt_ids(self, state: Any) -> list[int]:
        """The token ids of a state's prompt, ready for the model to answer."""
        return encode_prompt(self.tokenizer, self.prompt(state), self.enable_thinking)
