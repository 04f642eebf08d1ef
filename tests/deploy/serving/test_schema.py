"""The OpenAPI document is kept: schemathesis sends what it allows and what it forbids."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

OPERATIONS = [
    ("POST", "/generate"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]
QUIET = settings(
    max_examples=30, deadline=None, database=None, derandomize=True,
    phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.fixture(scope="module")
def schema(live):
    return schemathesis.openapi.from_url(f"{live.url}/openapi.json")


def test_every_path_is_here(schema):
    found = [r.ok() for r in schema.get_all_operations()]
    assert {(o.method.upper(), o.path) for o in found} == set(OPERATIONS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_answers_are_those_of_the_document(schema, method, path, mode):
    if method == "GET" and mode is GenerationMode.NEGATIVE:
        pytest.skip("nothing can be sent that would be wrong")

    @QUIET
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def answered(case):
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            keep_short(case.body)
            make_whole(case.body)
        case.call_and_validate()

    answered()


def keep_short(body):
    """At most 8 tokens of answer: what fits into the context is not the document's to say."""
    given = [field for field in ("max_tokens", "max_completion_tokens") if body.get(field)]
    for field in given or ["max_tokens"]:
        body[field] = min(body.get(field) or 8, 8)


def make_whole(body):
    """Fields that the document cannot tie to one another."""
    for field, other in (("top_logprobs", "logprobs"), ("stream_options", "stream")):
        if body.get(field) is not None:
            body[other] = True
