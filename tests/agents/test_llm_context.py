"""What servers say about a prompt that is too long, and what is left of it."""

from __future__ import annotations

import pytest

from rlkit.agents.llm_context import (
    MARK,
    ContextLengthError,
    Overflow,
    read_overflow,
    shorten,
)

SAID = [  # (message, max_tokens asked for, limit, prompt, exact), worded as the servers word it
    (
        "This model's maximum context length is 4097 tokens. However, your messages resulted in "
        "6164 tokens. Please reduce the length of the messages.",
        100, 4097, 6164, True,
    ),
    (
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens "
        "(112946 in the messages, 10000 in the completion). Please reduce the length of the "
        "messages or completion.",
        10000, 16384, 112946, True,
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 64. This model's maximum context "
        "length is 8192 tokens and your request has 8150 input tokens (64 > 8192 - 8150).",
        64, 8192, 8150, True,
    ),
    (
        "This model's maximum context length is 8192 tokens. However, you requested 64 output "
        "tokens and your prompt contains 10000 input tokens, for a total of 10064 tokens.",
        64, 8192, 10000, True,
    ),
    (
        "This model's maximum context length is 8192 tokens. However, you requested 64 output "
        "tokens and your prompt contains at least 8129 input tokens, for a total of at least 8193 "
        "tokens.",
        64, 8192, 8129, False,
    ),
    (
        "You passed 8129 input tokens and requested 64 output tokens. However, the model's context "
        "length is only 8192 tokens, resulting in a maximum input length of 8128 tokens.",
        64, 8192, 8129, False,  # 8128 + 1: vLLM stopped counting there
    ),
    (
        "You passed 100000 input characters and requested 64 output tokens. However, the model's "
        "context length is only 8192 tokens, resulting in a maximum input length of 8128 tokens "
        "(at most 81280 characters). Please reduce the length of the input prompt.",
        64, 8192, None, False,
    ),
    (
        "max_completion_tokens=9000 cannot be greater than max_model_len=max_total_tokens=8192. "
        "Please request fewer output tokens.",
        9000, 8192, None, False,
    ),
    (
        "The decoder prompt (length 3000) is longer than the maximum model length of 2048. Make "
        "sure that `max_model_len` is no smaller than the number of text tokens.",
        64, 2048, 3000, True,
    ),
    (
        "request (3031 tokens) exceeds the available context size (1024 tokens), try increasing it",
        64, 1024, 3031, True,
    ),
    (
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You "
        "requested a total of 5000 tokens: 4500 tokens from the input messages and 500 tokens for "
        "the completion.",
        500, 4096, 4500, True,
    ),
    (
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        64, 4096, 5000, True,
    ),
    ("prompt is too long: 210000 tokens > 200000 maximum", 64, 200000, 210000, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "max_tokens", "limit", "prompt", "exact"), SAID, ids=[s[0][:40] for s in SAID]
)
def test_the_numbers_of_each_wording_are_read(message, max_tokens, limit, prompt, exact):
    found = read_overflow(400, {"message": message}, max_tokens)
    assert found == Overflow(limit, prompt, exact)


def test_llama_cpp_says_the_numbers_in_fields():
    error = {
        "message": "the request exceeds the available context size. try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 5000,
        "n_ctx": 4096,
    }
    assert read_overflow(400, error, 64) == Overflow(4096, 5000, True)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (500, {"message": SAID[0][0]}),
        (None, {}),
        (400, {"message": "temperature must be at most 2"}),
        (400, {}),
        (404, {"message": "The model `long-context` does not exist."}),
    ],
)
def test_other_refusals_are_not_taken_for_it(status, error):
    assert read_overflow(status, error, 64) is None


def test_numbers_that_no_model_has_are_not_believed():
    said = f"maximum context length is {'9' * 50} tokens"
    assert read_overflow(400, {"message": said}, 64) == Overflow(None, None, False)
    error = {"code": "context_length_exceeded", "n_ctx": -1, "n_prompt_tokens": float("nan")}
    assert read_overflow(400, error, 64) == Overflow(None, None, False)


def chat(text: str, rules: str = "Rules.") -> list[dict[str, str]]:
    return [{"role": "system", "content": rules}, {"role": "user", "content": text}]


def test_the_middle_of_the_longest_user_message_is_cut_and_marked():
    text = "FIRST " + "abcd " * 4000 + "LAST?"
    messages = [*chat("hello", "r" * 50_000), {"role": "user", "content": text}]
    short, max_tokens = shorten(messages, Overflow(4096, 5096), 100)
    assert short[:2] == messages[:2] and max_tokens == 100
    kept = short[2]["content"]
    assert kept.startswith("FIRST abcd") and kept.endswith("abcd LAST?")
    assert kept.count(MARK) == 1
    head, tail = kept.split(MARK)
    assert abs(len(head) - len(tail)) <= 8
    assert messages[2]["content"] == text  # the caller's own stay as they are


def test_as_much_is_kept_as_the_numbers_allow():
    # 20,000 letters of 5,000 tokens; 4,096 - 96 - 16 may stay, so that 1,016 tokens must go
    short, _ = shorten([{"role": "user", "content": "a" * 20_000}], Overflow(4096, 5000), 96)
    kept = len(short[0]["content"])
    assert 15_000 < kept < 20_000 * 3984 / 5000


def test_dense_scripts_count_for_more_than_letters():
    # 6,000 characters of 1 token each, then 14,000 letters of 4,000 tokens: by characters alone,
    # half of the tokens would stand in 30 % of the text, and too little would be cut
    text = "字" * 6000 + "abcd " * 2800
    short, _ = shorten([{"role": "user", "content": text}], Overflow(6016 + 100, 10_000), 100)
    kept = short[0]["content"]
    tokens = kept.count("字") + sum(c in "abcd " for c in kept) / 3.5
    assert 5000 < tokens <= 6000


def test_where_the_server_stopped_counting_the_text_itself_is_weighed():
    text = "abcdef " * 10_000  # 70,000 letters: 20,000 tokens by our count, "at least 8,129"
    short, _ = shorten([{"role": "user", "content": text}], Overflow(8192, 8129, False), 64)
    assert len(short[0]["content"]) <= (8192 - 64 - 16) * 3.5


def test_an_answer_that_wants_the_whole_context_gets_half():
    messages = chat("short")
    assert shorten(messages, Overflow(8192, None, False), 9000) == (messages, 4096)


@pytest.mark.parametrize(
    ("messages", "overflow"),
    [
        (chat("text " * 100), Overflow(None, None, False)),
        (chat("text " * 100), Overflow(128, 100_000)),
        (chat("hello", "rules " * 5000), Overflow(4096, 6000)),
        ([{"role": "system", "content": "rules " * 5000}], Overflow(4096, 6000)),
        ([], Overflow(4096, 6000)),
        (chat("text " * 100), Overflow(1, 2)),
    ],
)
def test_what_cannot_be_shortened_is_an_error_that_says_what_to_do(messages, overflow):
    with pytest.raises(ContextLengthError, match="max_document_chars.*longer context"):
        shorten(messages, overflow, 64)


def test_a_megabyte_is_shortened():
    short, _ = shorten(
        [{"role": "user", "content": "ab字 " * 250_000}], Overflow(4096, 500_000), 96
    )
    assert 1000 < len(short[0]["content"]) < 16_000
