"""A merged model, asked here with transformers: in the precision of this machine, 8 or 4 bits.

    model, tokenizer = load_merged("outputs/run1/merged/smollm2-135m-instruct-grpo-step24", bits=4)
    written = write(model, tokenizer, [{"role": "user", "content": "What is 3 * 4?"}])
    written.text, written.confidence

bitsandbytes rounds the matrices of all layers while they are loaded: in 8 bits LLM.int8 (Dettmers
et al. 2022, arXiv 2208.07339), in 4 bits nf4 (Dettmers et al. 2023, arXiv 2305.14314). Embeddings,
norms and the LM head stay in the precision of the machine. Both work without a GPU, too; there they
save memory and no time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from rlkit.deploy.confidence import confidence
from rlkit.deploy.loading import Base
from rlkit.deploy.probe import Prompt, encode
from rlkit.errors import ModelError
from rlkit.training.four_bit import mend_four_bit
from rlkit.training.models import resolve_base_model
from rlkit.training.policy import load_tokenizer
from rlkit.training.precision import Precision, choose_precision
from rlkit.training.text import decode, end_ids


def load_merged(
    folder: str | Path,
    bits: int | None = None,
    *,
    dtype: str = "auto",
    trust_remote_code: bool = False,
    log: Callable[[str], None] = print,
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """A model folder (or a hub id, or one of our own names) for inference, frozen, with its
    tokenizer; `device_map="auto"` spreads it over the devices that there are.

    `bits` is 8 or 4 (bitsandbytes), or None: not quantised. `dtype` is that of what is not
    quantised and, in 4 bits, of the arithmetic: float32, bfloat16, float16, or what fits the
    machine. Raises ModelError where the folder holds an adapter, no model, or one that is quantised
    already, where bitsandbytes is missing, and where the model cannot be loaded or does not fit.
    """
    if bits not in (None, 8, 4):
        raise ModelError(f"bits is {bits!r}; allowed are 8, 4, or None for not quantised.")
    base = Base(str(folder), _source(folder), trust_remote_code)
    precision = choose_precision("auto", dtype, load_in_4bit=bits is not None)
    options: dict[str, Any] = {"device_map": "auto"}
    if bits is not None:
        options["quantization_config"] = _quantisation(base, bits, precision)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    model = base.load(precision.dtype, **options).requires_grad_(False)
    if bits == 4:
        mend_four_bit(model)
    log(
        f"{folder}: {f'{bits} bits' if bits else 'not quantised'}, the rest in "
        f"{str(precision.dtype).removeprefix('torch.')}, {model.get_memory_footprint() / 2**20:.0f}"
        f" MiB on {model.device}"
    )
    return model, tokenizer


def _source(folder: str | Path) -> str:
    """Where transformers finds it; an adapter's folder it would load unasked with its base."""
    path = Path(folder).expanduser()
    if (path / "adapter_config.json").is_file():
        raise ModelError(
            f"{path} holds an adapter and no whole model; merge it first (`python -m rlkit merge`, "
            "or rlkit.merge_lora_to_base) and give the merged folder."
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(f"there is no model in {path}: config.json is missing; check the path.")
    return resolve_base_model(folder)


def _quantisation(base: Base, bits: int, precision: Precision) -> transformers.BitsAndBytesConfig:
    if getattr(base.config(), "quantization_config", None) is not None:
        raise ModelError(f"{base.name} is quantised already; load it without `bits`.")
    if not precision.four_bit:  # one check for both: whether bitsandbytes can be used
        raise ModelError(
            f"{bits} bits need bitsandbytes ({precision.reason}); install it with `pip install -c "
            "constraints.txt bitsandbytes`, or load without `bits`."
        )
    # in 8 bits it says at every call that it casts to float16, which is what LLM.int8 is
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    if bits == 8:
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=precision.dtype
    )


class Written(NamedTuple):
    """What a model answered, without the prompt, and how sure it was: see `confidence`."""

    text: str
    confidence: float


@torch.no_grad()
def write(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    prompt: Prompt,
    max_tokens: int = 512,
    temperature: float = 0.0,
    enable_thinking: bool = False,
) -> Written:
    """One answer to a text or to chat messages, by transformers' own `generate`; greedy at
    temperature 0."""
    ids = encode(tokenizer, {"": prompt}, enable_thinking)[""].to(model.device)  # (1, P)
    ends = list(end_ids(model, tokenizer))
    pad = tokenizer.pad_token_id
    config = transformers.GenerationConfig(
        max_new_tokens=max_tokens,
        do_sample=temperature > 0,
        temperature=temperature or 1.0,
        top_p=1.0,
        top_k=0 if temperature > 0 else 50,  # 50: its default, of which it says nothing
        repetition_penalty=1.0,
        eos_token_id=ends,
        pad_token_id=ends[0] if pad is None else pad,
        output_logits=True,  # before the temperature
        return_dict_in_generate=True,
    )
    found = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config
    )
    new = found.sequences[0, ids.shape[1] :]  # (C,)
    logprobs = torch.stack([row[0].float() for row in found.logits]).log_softmax(-1)  # (C, V)
    chosen = logprobs.gather(1, new[:, None].to(logprobs.device))[:, 0]
    return Written(decode(tokenizer, new.tolist()), confidence(chosen.tolist()))
