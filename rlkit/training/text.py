"""Between text and token ids: prompts in, completions out, and which tokens end an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import transformers
from jinja2 import TemplateError
from torch import nn

from rlkit.errors import ModelError


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


def completeness(
    complete: Callable[[str], bool] | None, tokenizer: transformers.PreTrainedTokenizerBase
) -> Callable[[Sequence[int]], bool] | None:
    """Whether token ids are a complete answer, where a task tells it of texts (`Task.complete`)."""
    return None if complete is None else lambda ids: complete(decode(tokenizer, ids))


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
