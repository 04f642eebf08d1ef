"""A row as the model meets it: the prompt of its question, and the completion that SFT teaches."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rlkit.agents.prompt import Messages, safe
from rlkit.answers.rows import Row
from rlkit.library.tokenize import dominant_language

RULES = {
    "en": "Solve the problem step by step, with short equations. "
    'End with the line "Final Answer: <number>".',
    "zh": "请用简短的算式一步一步解题，最后一行写“Final Answer: <数字>”。",
}
_TAG = re.compile(r"<(?=[|/!]|[A-Za-z_]+>)")
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_HASHES_LINE = re.compile(r"^[ \t]*####.*$", re.MULTILINE)


def question_prompt(row: Any, language: str = "auto") -> Messages:
    """The prompt of anything with a `question`: [{role, content}, ...], in the question's own
    language where `language` is `auto`."""
    if language == "auto":
        language = dominant_language(row.question)
    return [
        {"role": "system", "content": RULES[language]},
        {"role": "user", "content": harmless(row.question)},
    ]


def harmless(text: str) -> str:
    """A question's text, in which nothing can end a turn of the chat or open a tag."""
    return safe(_TAG.sub("‹", text))


def completion_text(row: Row) -> str:
    """The solution without calculator marks, and `Final Answer: 72` as its last line."""
    solution = _HASHES_LINE.sub("", _CALCULATOR.sub("", row.full_answer)).strip()
    last = f"Final Answer: {row.ground_truth}"
    return last if solution in ("", row.ground_truth) else f"{solution}\n{last}"


def sft_rows(
    rows: Iterable[Row], tokenizer: Any = None, language: str = "auto"
) -> list[dict[str, str]]:
    """{prompt, completion, text} of each row; `tokenizer` puts its chat template around them."""
    end = (getattr(tokenizer, "eos_token", None) or "") if tokenizer is not None else ""
    made = []
    for row in rows:
        prompt, completion = _prompt_text(row, tokenizer, language), completion_text(row)
        text = prompt + completion + end
        made.append({"prompt": prompt, "completion": completion, "text": text})
    return made


def rl_rows(
    rows: Iterable[Row], tokenizer: Any = None, language: str = "auto"
) -> list[dict[str, Any]]:
    """{prompt, ground_truth, question, full_answer} of each row, and its further columns."""
    return [
        {
            **row.columns,
            "prompt": _prompt_text(row, tokenizer, language),
            "ground_truth": row.ground_truth,
            "question": row.question,
            "full_answer": row.full_answer,
        }
        for row in rows
    ]


def _prompt_text(row: Row, tokenizer: Any, language: str) -> str:
    messages = question_prompt(row, language)
    if tokenizer is None:
        return "\n\n".join(message["content"] for message in messages) + "\n\n"
    from rlkit.training.text import encode_prompt  # loads transformers

    ids = encode_prompt(tokenizer, messages)
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False)
