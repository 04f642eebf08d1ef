"""What both trainers are given to do: model, lengths, adapter, prompts and reward.

A model is a committed configuration (`models/*.json`) with random weights from a fixed seed and a
tokenizer of one word a token, so that nothing is downloaded, or SmolLM2 from its package. Prompts
are drawn anew for every step from (seed, step), have exactly P tokens, and are the same for both.

Shape letters: K actions a state, P prompt tokens, C action tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MODELS = Path(__file__).resolve().parent / "models"
SMOLLM2 = "smollm2"
WEIGHT_SEED = 0
CONTENT_ONLY = "{{ messages[0]['content'] }}"  # a chat template that adds nothing


@dataclass(frozen=True)
class Workload:
    """One step of GRPO: K actions of C tokens for one state of P tokens, and one update."""

    model: str  # a file in models/, or smollm2
    prompt_tokens: int  # P
    action_tokens: int  # C, all of them sampled: no action ends earlier
    actions: int  # K
    dtype: str = "float32"  # of the base; adapters are float32
    device: str = "cpu"
    rank: int = 16
    alpha: int = 32
    kl_penalty: float = 0.01  # beta, of the k3 estimator
    temperature: float = 0.7
    learning_rate: float = 5e-5
    max_grad_norm: float = 1.0


PRESETS = {
    "small-1024": Workload("qwen3-16m", 1024, 64, 8),
    "small-2048": Workload("qwen3-16m", 2048, 64, 16),
    "small-2048-k8": Workload("qwen3-16m", 2048, 64, 8),
    "smollm2": Workload(SMOLLM2, 512, 48, 8, dtype="bfloat16"),
    "smollm2-fp32": Workload(SMOLLM2, 512, 48, 8),
    "qwen3-0.6b-1024": Workload("qwen3-0.6b", 1024, 64, 8, dtype="bfloat16", device="cuda"),
    "qwen3-0.6b-2048": Workload("qwen3-0.6b", 2048, 64, 16, dtype="bfloat16", device="cuda"),
    "tiny": Workload("tiny", 24, 6, 4),
}
TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")


def model_names() -> list[str]:
    return [*sorted(path.stem for path in MODELS.glob("*.json")), SMOLLM2]


def prepare_model(name: str, folder: Path) -> Path:
    """The folder of an ordinary model for `name`, made under `folder` where it is a random one."""
    if name == SMOLLM2:
        from rlkit.training.models import SMOLLM2 as packaged
        from rlkit.training.models import resolve_base_model

        return Path(resolve_base_model(packaged))
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = Qwen3Config.from_json_file(str(MODELS / f"{name}.json"))
    torch.manual_seed(WEIGHT_SEED)
    made = folder / name
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(made)
    word_tokenizer(config.vocab_size).save_pretrained(made)
    return made


def word_tokenizer(vocabulary: int) -> Any:
    """One token a word: `<pad>`, `<end>`, and the words w2, w3, ... up to the vocabulary's size."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<end>", *(f"w{i}" for i in range(2, vocabulary))]
    ids = {word: i for i, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocab=ids, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<end>", unk_token="<pad>"
    )


def load_tokenizer(folder: str | Path) -> Any:
    """The model folder's tokenizer, whose chat template here is the message's content alone."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = CONTENT_ONLY
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def single_token_words(tokenizer: Any) -> list[str]:
    """The vocabulary's plain words that stay one token behind a space, so that n of them make n
    tokens, whatever their order."""
    special = set(tokenizer.all_special_ids)
    ids = [i for i in range(len(tokenizer)) if i not in special]
    words = [text.strip() for text in tokenizer.batch_decode([[i] for i in ids])]
    plain = [word for word in words if word.isascii() and word.isalnum()]
    encoded = tokenizer([f" {word}" for word in plain], add_special_tokens=False)["input_ids"]
    return sorted({w for w, tokens in zip(plain, encoded, strict=True) if len(tokens) == 1})


def make_prompts(tokenizer: Any, length: int, seed: int, count: int) -> list[str]:
    """`count` different texts of exactly `length` tokens, drawn from (seed, index)."""
    words = single_token_words(tokenizer)
    prompts = []
    for index in range(count):
        drawn = np.random.default_rng([seed, index]).integers(len(words), size=length)
        prompts.append("".join(f" {words[i]}" for i in drawn))
    for prompt in prompts:
        found = len(tokenizer(prompt)["input_ids"])
        if found != length:
            raise ValueError(f"a prompt has {found} tokens where {length} were asked for.")
    return prompts


def reward(text: str) -> float:
    """A number in [0, 1) that depends on the whole text, so that a group's rewards differ."""
    return sum(map(ord, text)) % 101 / 101
