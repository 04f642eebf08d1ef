"""The policy: a base model with a LoRA adapter, how it is loaded, saved, and asked to write.

Device and precision are chosen here and said in words (`Precision.reason`): CUDA with bf16 where
it has it, else fp16; a CPU with bf16 only where it multiplies bf16 in hardware, else fp32; 4-bit
through bitsandbytes where that works, else without it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from jinja2 import TemplateError
from safetensors import SafetensorError, safe_open
from torch import nn

from rlkit.errors import ModelError
from rlkit.training import attention
from rlkit.training.models import resolve_base_model
from rlkit.training.sampling import sample_actions

TRAINED, REFERENCE = "default", "reference"  # names of adapters
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """Where and in which dtype the base model computes, and why."""

    device: str
    dtype: torch.dtype
    four_bit: bool
    reason: str


def choose_precision(
    device: str = "auto", dtype: str = "auto", load_in_4bit: bool = False
) -> Precision:
    """Choose device, dtype and 4-bit; `reason` is the sentence that the log shows.

    Raises ModelError where CUDA is asked for and none is there.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            "model.device is 'cuda', but torch sees no CUDA device; use 'auto' or 'cpu'."
        )
    where = "cuda" if device in ("auto", "cuda") and torch.cuda.is_available() else "cpu"
    if dtype != "auto":
        kind, why = DTYPES[dtype], f"{dtype} because model.dtype says so"
    elif where == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        kind = torch.bfloat16 if fast else torch.float16
        why = "bfloat16, which this GPU has" if fast else "float16, since this GPU has no bfloat16"
    else:
        fast = _cpu_multiplies_bfloat16()
        kind = torch.bfloat16 if fast else torch.float32
        why = (
            "bfloat16, which this CPU multiplies"
            if fast
            else "float32, since this CPU has no bfloat16 unit"
        )
    if not load_in_4bit:
        return Precision(where, kind, False, f"{where}, {why}")
    problem = _four_bit_problem()
    if problem:
        return Precision(where, kind, False, f"{where}, {why}; not 4-bit: {problem}")
    return Precision(
        where, kind, True, f"{where}, 4-bit weights (bitsandbytes nf4), computing in {why}"
    )


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
    log: Callable[[str], None] = print,
) -> tuple[peft.PeftModel, transformers.PreTrainedTokenizerBase]:
    """Load a base model and put a trainable LoRA adapter on it.

    `lora_config` has `rank`, `alpha`, `dropout`, `target_modules`. With `adapter`, the adapter is
    continued from that folder, and a frozen copy of it named `reference` stands beside it (the
    model whose KL is penalised). Adapter weights are float32 whatever the base's dtype.

    Raises ModelError where the base or adapter is missing, or the adapter is for another base.
    """
    precision = choose_precision(device, dtype, load_in_4bit)
    if adapter is not None:
        _adapter_files(adapter)  # a slip in its path should not wait for the base
    base, tokenizer = load_base_model(base_path, precision, trust_remote_code=trust_remote_code)
    log(f"model: {base_path} on {precision.reason}")
    if gradient_checkpointing:
        base.config.use_cache = False
        base.activation_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(seed)  # LoRA's A matrices are drawn here
    if adapter is None:
        model = peft.get_peft_model(base, _peft_config(base, base_path, lora_config))
    else:
        check_adapter(adapter, base, str(base_path))
        model = peft.PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
        model.load_adapter(str(adapter), adapter_name=REFERENCE, is_trainable=False)
        model.set_adapter(TRAINED)
    for (
        config
    ) in model.peft_config.values():  # the name that was given, not a folder of this machine
        config.base_model_name_or_path = str(base_path)
    return model.eval(), tokenizer


def load_base_model(
    base_path: str | Path, precision: Precision, *, trust_remote_code: bool = False
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Load base model and tokenizer, with attention that can share a prompt.

    Raises ModelError with what was asked for where transformers cannot load it.
    """
    transformers.utils.logging.disable_progress_bar()
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
        _keep_autograd_in_4bit(model)
    else:
        model.to(precision.device)
    config = model.config.get_text_config()
    for name in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(config, name, None) not in (None, 0, 1):
            raise ModelError(
                f"{base_path} caps or scales its logits ({name}: Gemma 2, Granite, Cohere), which "
                "is not supported; choose another model."
            )
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


def check_adapter(adapter: str | Path, base: nn.Module, base_path: str) -> None:
    """Make sure that an adapter folder is there and was trained on this base.

    Raises ModelError naming both bases, or the tensor whose shape does not fit.
    """
    folder = Path(adapter)
    config, weights = _adapter_files(adapter)
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        trained_on = settings.get("base_model_name_or_path")
        if settings.get("peft_type") != "LORA":
            raise ValueError(f"its peft_type is {settings.get('peft_type')!r}, not 'LORA'")
        peft.LoraConfig.from_pretrained(str(folder))
        modules = dict(base.named_modules())
        with safe_open(str(weights), framework="pt") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}
    except (ValueError, KeyError, TypeError, SafetensorError, OSError, AttributeError) as error:
        raise ModelError(
            f"the adapter at {folder} is damaged ({error}); use another checkpoint."
        ) from error
    for key, shape in shapes.items():
        if ".lora_" not in key:
            continue
        name = key.removeprefix("base_model.model.").split(".lora_")[0]
        module = modules.get(name)
        size = None
        if module is not None:
            size = module.in_features if ".lora_A." in key else module.out_features
        given = shape[1] if ".lora_A." in key else shape[0]
        if size != given:
            raise ModelError(
                f"the adapter at {folder} was trained on {trained_on!r} and does not fit "
                f"{base_path!r} ({name}: {given} against {size}); use its own base."
            )
    if not shapes:
        raise ModelError(f"the adapter at {folder} holds no weights; use another checkpoint.")


def _adapter_files(adapter: str | Path) -> tuple[Path, Path]:
    """Its configuration and its weights; raises ModelError where one is missing."""
    folder = Path(adapter)
    files = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    for file in files:
        if not file.is_file():
            raise ModelError(
                f"there is no adapter at {folder}: {file.name} is missing; check the path."
            )
    return files


def save_lora_checkpoint(model: peft.PeftModel, path: str | Path) -> Path:
    """Save the trained adapter in PEFT's own format (adapter_config.json, safetensors)."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, selected_adapters=[TRAINED], save_embedding_layers=False)
    return folder


def load_lora_checkpoint(model: peft.PeftModel, path: str | Path) -> None:
    """Put a saved adapter's weights into the trained adapter, in place.

    Raises ModelError where the folder is missing, damaged, for another base, or of another rank,
    alpha or modules.
    """
    ours = model.peft_config[TRAINED]
    check_adapter(path, model.get_base_model(), str(ours.base_model_name_or_path))
    theirs = peft.LoraConfig.from_pretrained(str(path))
    for name in ("r", "lora_alpha", "target_modules"):
        if getattr(theirs, name) != getattr(ours, name):
            raise ModelError(
                f"the adapter at {path} has {name} {getattr(theirs, name)}, the model's has "
                f"{getattr(ours, name)}; give the lora section that it was trained with."
            )
    weights = peft.utils.load_peft_weights(str(path), device="cpu")
    outcome = peft.set_peft_model_state_dict(model, weights, adapter_name=TRAINED)
    if outcome.unexpected_keys:
        raise ModelError(
            f"the adapter at {path} has other modules than the model "
            f"({outcome.unexpected_keys[0]})."
        )


@contextmanager
def using_adapter(model: nn.Module, name: str | None) -> Iterator[None]:
    """The model with another adapter than the trained one, frozen; None: the untouched base."""
    if not isinstance(model, peft.PeftModel) or name == TRAINED:
        yield
    elif name is None:
        with model.disable_adapter():
            yield
    else:
        model.set_adapter(name, inference_mode=True)
        try:
            yield
        finally:
            model.set_adapter(TRAINED)


def as_reference(model: peft.PeftModel) -> AbstractContextManager[None]:
    """The model as the reference: its frozen warm start where there is one, else adapter off."""
    return using_adapter(model, REFERENCE if REFERENCE in model.peft_config else None)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Training mode (which gradient checkpointing needs) with every dropout off."""
    model.train()
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    for module in dropouts:
        module.eval()
    try:
        yield
    finally:
        model.eval()


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, by name, in a fixed order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def assert_gradients(model: nn.Module) -> None:
    """Raise ModelError unless every trainable parameter has a finite gradient.

    4-bit layers on some CPUs lose gradients with no more than a warning; this finds it.
    """
    for name, parameter in trainable(model).items():
        if parameter.grad is None:
            raise ModelError(
                f"after the first backward pass {name} has no gradient; it would learn nothing."
            )
        if not torch.isfinite(parameter.grad).all():
            raise ModelError(f"after the first backward pass the gradient of {name} is not finite.")


def clip_gradients(model: nn.Module, max_norm: float) -> float:
    """Clip the trainable parameters' gradients to a norm; returns the norm that they had.

    Raises ModelError where it is not finite: a step with it would leave an adapter of NaN.
    """
    norm = float(nn.utils.clip_grad_norm_(trainable(model).values(), max_norm))
    if not math.isfinite(norm):
        raise ModelError(
            f"the norm of the gradient is {norm}, so the optimiser does not move; lower the "
            "learning rate, or set model.dtype to float32."
        )
    return norm


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
    ) -> None:
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
                sampled = sample_actions(self.model, prompts, 1, self.max_new_tokens, end_ids=ends)
            texts += [decode(self.tokenizer, ids) for ids in sampled.rows()]
        return texts

    def prompt_ids(self, state: Any) -> list[int]:
        """The token ids of a state's prompt, ready for the model to answer."""
        return encode_prompt(self.tokenizer, self.prompt(state), self.enable_thinking)


def encode_prompt(
    tokenizer: transformers.PreTrainedTokenizerBase,
    messages: list[dict[str, str]],
    enable_thinking: bool = False,
) -> list[int]:
    """Chat messages as token ids, up to where the answer begins.

    A tokenizer without a chat template gets the messages' text, one below the other; one whose
    template refuses a system message gets its text at the head of the next one.
    """
    if tokenizer.chat_template is None:
        text = "\n\n".join(message["content"] for message in messages) + "\n\n"
        return tokenizer(text)["input_ids"]
    options = dict(add_generation_prompt=True, tokenize=False, enable_thinking=enable_thinking)
    try:
        text = tokenizer.apply_chat_template(messages, **options)
    except TemplateError as error:
        if len(messages) < 2 or messages[0]["role"] != "system":
            raise ModelError(f"the model's chat template refuses the prompt: {error}") from error
        system, first, *rest = messages
        joined = {**first, "content": f"{system['content']}\n\n{first['content']}"}
        return encode_prompt(tokenizer, [joined, *rest], enable_thinking)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def token_counter(tokenizer: transformers.PreTrainedTokenizerBase) -> Callable[[str], int]:
    """Counts the tokens of a text, special ones left out."""
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def decode(tokenizer: transformers.PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Token ids as text, special tokens left out."""
    return tokenizer.decode(ids, skip_special_tokens=True)


def token_texts(tokenizer: transformers.PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The piece of `decode(ids)` that each token adds; joined, they are the whole text."""
    texts = [decode(tokenizer, ids[: i + 1]) for i in range(len(ids))]
    # Half a character decodes to a replacement mark, which the next token takes back.
    whole = [text.rstrip("\ufffd") for text in texts]
    pieces, length = [], 0
    for text in [*whole[:-1], *texts[-1:]]:
        pieces.append(text[length:])
        length = max(length, len(text))
    return pieces


def end_ids(model: nn.Module, tokenizer: transformers.PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end an answer: the tokenizer's, and those of the generation config."""
    config = getattr(model, "generation_config", None)
    given = getattr(config, "eos_token_id", None)
    given = [] if given is None else [given] if isinstance(given, int) else list(given)
    ids = {tokenizer.eos_token_id, *given} - {None}
    if not ids:
        raise ModelError(
            "neither tokenizer nor generation config names an end-of-turn token; set one in the "
            "model folder."
        )
    return tuple(sorted(ids))


def _peft_config(base: nn.Module, base_path: str | Path, lora: Any) -> peft.LoraConfig:
    names = {
        name.rsplit(".", 1)[-1] for name, m in base.named_modules() if hasattr(m, "in_features")
    }
    missing = [name for name in lora.target_modules if name not in names]
    if missing:
        raise ModelError(
            f"lora.target_modules names {missing[0]!r}, which {base_path} does not have; it has "
            + ", ".join(sorted(names - {"lm_head"}))
            + "."
        )
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules),
        task_type="CAUSAL_LM",
    )


def _cpu_multiplies_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _four_bit_problem() -> str | None:
    """Why bitsandbytes cannot be used here, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import bitsandbytes
    except (ImportError, RuntimeError, OSError) as error:
        return f"bitsandbytes cannot be imported ({type(error).__name__})"
    return (
        None if hasattr(bitsandbytes.nn, "Linear4bit") else "this bitsandbytes has no 4-bit layers"
    )


def _keep_autograd_in_4bit(model: nn.Module) -> None:
    """On CPUs with avx512_bf16 the first evaluation repacks the weights for a kernel without
    gradients; this switches that off."""
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
