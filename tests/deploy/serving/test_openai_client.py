"""The server as the real openai client sees it."""

from __future__ import annotations

import math
import threading
import time

import openai
import pytest

from rlkit.deploy.inference import write

PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is it?"},
]
PARTS = [{"type": "text", "text": text} for text in ("Where is ", "it?")]
HELLO = [PLAIN[0], {"role": "user", "content": PARTS}]


def client(server, key="none", retries=0):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=retries, timeout=60)


@pytest.fixture(scope="module")
def chat(live, served):
    with client(live) as made:
        yield lambda **options: made.chat.completions.create(
            **{"model": served.name, "messages": HELLO, "max_tokens": 12, "temperature": 0}
            | options
        )


def test_a_completion_is_the_models_own(chat, served):
    made = chat()
    expected = write(served.model, served.tokenizer, PLAIN, max_tokens=12)
    choice = made.choices[0]
    assert choice.message.content == expected.text and choice.message.role == "assistant"
    assert choice.finish_reason == "length" and choice.logprobs is None
    assert made.object == "chat.completion" and made.id.startswith("chatcmpl-") and made.created
    usage = made.usage
    assert usage.completion_tokens == 12 and usage.total_tokens == usage.prompt_tokens + 12


def test_a_stream_is_the_same_answer_in_pieces(chat, served):
    options = {"temperature": 1.0, "seed": 3, "max_tokens": 40}
    whole = chat(**options)
    chunks = list(chat(stream=True, stream_options={"include_usage": True}, **options))
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].id != whole.id
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    *pieces, last, usage = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content for c in pieces) == whole.choices[0].message.content
    assert all(chunk.choices[0].finish_reason is None for chunk in pieces)
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert not usage.choices and usage.usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_without_include_usage_the_last_chunk_is_the_finish(chat):
    chunks = list(chat(stream=True))
    assert chunks[-1].choices[0].finish_reason == "length" and chunks[-1].usage is None


def test_logprobs_are_those_of_every_token_with_the_likeliest_beside_them(chat):
    whole = chat(logprobs=True, top_logprobs=2).choices[0]
    rows = whole.logprobs.content
    assert len(rows) == 12 and all(len(row.top_logprobs) == 2 for row in rows)
    for row in rows:  # greedy: the token is the likeliest
        first, second = row.top_logprobs
        assert first.token == row.token and first.logprob == pytest.approx(row.logprob)
        assert second.logprob <= first.logprob <= 0
    expected = math.exp(sum(row.logprob for row in rows) / 12)
    assert 0 < expected < 1
    chunks = list(chat(logprobs=True, stream=True))
    streamed = [row for c in chunks if (p := c.choices[0].logprobs) for row in p.content]
    assert [row.logprob for row in streamed] == pytest.approx([row.logprob for row in rows])


def test_bad_requests_are_the_clients_own_exceptions(chat, live, serving):
    with pytest.raises(openai.UnprocessableEntityError, match="max_tokens") as bad:
        chat(max_tokens=0)
    assert bad.value.param == "max_tokens" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as unknown:
        chat(model="gpt-9")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.UnprocessableEntityError) as long:
        chat(messages=[{"role": "user", "content": "a" * 5000}])
    assert long.value.code == "context_length_exceeded"
    with client(serving(api_key="s3cret-token")) as nobody:
        with pytest.raises(openai.AuthenticationError):
            nobody.models.list()


def test_models_are_listed_with_the_key(serving, served):
    with client(serving(api_key="s3cret-token"), "s3cret-token") as made:
        assert [model.id for model in made.models.list()] == [served.name]


def test_a_full_server_is_a_rate_limit_and_the_clients_retries_get_through(serving, served):
    server = serving(parallel=1, queue=0)
    ask = {"model": served.name, "messages": HELLO, "max_tokens": 1}
    with server.busy():
        with client(server) as hasty, pytest.raises(openai.RateLimitError) as full:
            hasty.chat.completions.create(**ask)
        assert full.value.code == "queue_full" and full.value.response.headers["retry-after"]
        patient, found = client(server, retries=5), []
        asking = threading.Thread(
            target=lambda: found.append(patient.chat.completions.create(**ask))
        )
        asking.start()
        while 'status="429"} 2.0' not in server.ask("/metrics").text:
            time.sleep(0.05)
    asking.join(60)
    patient.close()
    assert found[0].usage.completion_tokens == 1


def test_a_stream_that_fails_on_the_way_is_an_error_and_no_end(serving, served):
    server = serving().endless()
    with client(server) as made:
        stream = made.chat.completions.create(model=served.name, messages=HELLO, stream=True)
        seen = []
        with pytest.raises(openai.APIError, match="RuntimeError"):
            for chunk in stream:
                seen.append(chunk)
                if len(seen) == 2:
                    server.batcher._head = failing
    assert len(seen) >= 2 and seen[-1].choices[0].finish_reason is None


def failing(hidden):
    raise RuntimeError("no memory")


def test_our_own_client_knows_the_server(serving):
    from rlkit.agents.llm import ChatClient, ContextLengthError

    server = serving(parallel=4, context=700)
    chat = ChatClient(f"{server.url}/v1", log=lambda line: None)
    report = chat.probe()
    assert report.context == 700 and not report.schema
    long = [{"role": "user", "content": "word " * 300}]
    with pytest.raises(ContextLengthError, match="context of 700 tokens"):
        chat.chat(long, max_tokens=8, shorten=False)
    assert chat.chat(long, max_tokens=8).shortened
    chat.close()
