"""What a server answers, as a `Reply`: thinking taken out, text that any file can hold.

A reply whose text is all thinking has an empty text and `thought` True. Reasoning is never taken
for an answer: it names the labels that it weighs and rejects."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_THINK = re.compile(r"<[ \t]*+(/?)[ \t]*+think(?:ing)?[ \t]*+>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `text` has no thinking, is stripped, and holds no NUL and no lone surrogate;
    `thought` tells whether the model thought, be it in `<think>` tags or in a field of its own;
    `shortened`, whether the prompt lost its middle (llm_context.py). Counts are in tokens, 0 where
    the server did not tell."""

    text: str
    thought: bool
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    shortened: bool = False


def read_json(body: bytes) -> Any:
    """The JSON value of an answer's body, or None."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def read_reply(body: Any) -> Reply | None:
    """The reply in a chat completion; None where the value is no chat completion."""
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return None
    text, thought = without_thinking(storable(_text(message.get("content"))))
    for field in ("reasoning_content", "reasoning"):  # llama.cpp and older vLLM; newer vLLM
        thought = thought or bool(_text(message.get(field)).strip())
    reason, usage = choice.get("finish_reason"), body.get("usage")
    return Reply(
        text,
        thought,
        storable(reason) if isinstance(reason, str) else None,
        _tokens(usage, "prompt_tokens"),
        _tokens(usage, "completion_tokens"),
    )


def without_thinking(text: str) -> tuple[str, bool]:
    """The text without blocks of thinking, stripped, and whether there was any thought.

    A block that was cut off reaches to the end; a `</think>` without its `<think>` (chat templates
    may open it in the prompt) ends one that began at 0. Empty blocks are no thought.
    """
    pieces: list[str] = []
    thought, done, opened = False, 0, None
    for tag in _THINK.finditer(text):
        if not tag[1]:
            if opened is None:
                pieces.append(text[done : tag.start()])
                opened = tag.end()
            continue
        start = done if opened is None else opened
        if opened is None:  # all that was kept so far belongs to it
            thought = thought or bool("".join(pieces).strip())
            pieces = []
        thought = thought or bool(text[start : tag.start()].strip())
        done, opened = tag.end(), None
    if opened is not None:
        return "".join(pieces).strip(), True
    return "".join([*pieces, text[done:]]).strip(), thought


def storable(text: str) -> str:
    """The text with U+FFFD for NULs and lone surrogates, which no UTF-8 file or server takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", "\ufffd")


def _text(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts of which some are texts."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _tokens(usage: Any, name: str) -> int:
    count = usage.get(name) if isinstance(usage, dict) else None
    is_count = isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 10**12
    return count if is_count else 0
