"""How long to wait, and what may be said."""

from __future__ import annotations

import base64
import time
from urllib.parse import quote

import pytest

from rlkit.agents.llm_faults import (
    KEYS,
    Fault,
    Secrets,
    error_of,
    one_line,
    read_retry_after,
    status_fault,
    wait_before,
)

NOON = 1_767_268_800.0  # Thu, 01 Jan 2026 12:00:00 GMT
URL = "http://127.0.0.1:8000/v1"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0.5", 0.5),
        ("0", None),
        ("120", 120.0),
        ("9" * 400, 1e12),
        ("Thu, 01 Jan 2026 12:01:30 GMT", 90.0),
        ("Thu, 01 Jan 2026 12:01:30 -0000", 90.0),
        ("Thursday, 01-Jan-26 12:01:30 GMT", 90.0),
        ("Thu, 01 Jan 2026 13:01:30 +0100", 90.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", None),
        ("Thu, 99 Jan 2026 12:01:30 GMT", None),
        ("nan", None),
        ("inf", None),
        ("-5", None),
        ("1e3", None),
        ("", None),
        ("soon", None),
        ("5 seconds", None),
        ("\ud800", None),
    ],
)
def test_retry_after_is_read(value, seconds):
    assert read_retry_after({"retry-after": value}, NOON) == seconds


def test_dates_are_compared_with_the_servers_own_clock():
    headers = {
        "retry-after": "Thu, 01 Jan 2026 12:01:30 GMT",
        "date": "Thu, 01 Jan 2026 12:01:00 GMT",
    }
    assert read_retry_after(headers, NOON - 9999) == 30.0
    assert read_retry_after({}, NOON) is None


def test_pauses_double_up_to_half_a_minute_and_differ():
    for attempt, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (10_000, 30.0)):
        waits = {wait_before(attempt, None) for _ in range(50)}
        assert longest / 2 <= min(waits) < max(waits) <= longest
    waits = {wait_before(1, 20.0) for _ in range(50)}
    assert 20.0 <= min(waits) < max(waits) <= 21.0  # never earlier than told


@pytest.mark.parametrize(
    ("status", "retried"),
    [(None, True), (400, False), (401, False), (404, False), (408, True), (409, False),
     (422, False), (429, True), (500, True), (503, True), (529, True)],
)  # fmt: skip
def test_which_faults_deserve_another_try(status, retried):
    assert Fault("x", status).retried is retried


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "m", "code": 4}}, "m"),
        ({"object": "error", "message": "m"}, "m"),
        ({"detail": [{"msg": "field required"}]}, "[{'msg': 'field required'}]"),
        ({"error": "m"}, "m"),
        ([1], None),
        (None, None),
    ],
)
def test_errors_of_all_servers_are_read(body, message):
    assert error_of(body).get("message") == message


def test_a_text_of_a_server_is_one_short_line():
    assert one_line("a\n\x1b[31mb\x00\u2028c\ud800") == "a [31mb c\ufffd"
    assert len(one_line("x" * 10**6)) == 300
    fault = status_fault(500, b"<html>\n" + b"y" * 10**6, {}, Secrets(URL))
    assert fault.text.startswith("HTTP 500: <html> yyy") and len(fault.text) < 320
    assert status_fault(500, b"", {}, Secrets(URL)).text == "HTTP 500"


@pytest.mark.parametrize(
    "text",
    [
        "key sk-abcdefghijkl refused",
        "Incorrect API key provided: sk-ab****************wxyz.",
        "got Authorization: Bearer abc.def-123",
        "token hf_abcdefghijklmnop",
        "http://anna:hunter2@host/v1 is down",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    ],
)
def test_what_looks_like_a_key_is_taken_out(text):
    out = Secrets(URL).out_of(text)
    assert "***" in out
    for part in ("abcdefghijkl", "wxyz", "def-123", "hunter2", "eyJ"):
        assert part not in out


def test_the_key_itself_is_taken_out_whatever_it_looks_like(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "open sesame".replace(" ", ""))
    monkeypatch.setenv("RLKIT_API_KEY", " tok ")  # goes before the other; short
    secrets = Secrets(URL)
    assert secrets.key == "tok"
    assert secrets.out_of("tok, 'tok' and tokens") == "***, '***' and tokens"
    monkeypatch.delenv("RLKIT_API_KEY")
    assert Secrets(URL).out_of("is opensesamed wrong?") == "is ***d wrong?"
    assert "opensesame" not in repr(Secrets(URL))


@pytest.mark.parametrize("before", ["", "x", "me", "user:", "a-longer-user:"])
@pytest.mark.parametrize("key", ["sesame+open/up?", "opensesame1"])
def test_the_key_is_taken_out_of_base64_and_percent_encoding(monkeypatch, before, key):
    monkeypatch.setenv("RLKIT_API_KEY", key)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(f"{before}{key}".encode()).decode()
        for shown in (encoded, quote(encoded, safe=""), quote(quote(encoded, safe=""))):
            assert (
                Secrets(URL).out_of(f"bad header Basic {shown}, sir") == "bad header Basic ***, sir"
            )
    for shown in (quote(key, safe=""), quote(key, safe="").lower(), quote(quote(key, safe=""))):
        assert Secrets(URL).out_of(f"?key={shown}&x=1") == "?key=***&x=1"
    harmless = base64.b64encode(b"a text of some length without it").decode()
    assert Secrets(URL).out_of(harmless) == harmless


def test_a_long_text_is_searched_for_keys_in_no_time(monkeypatch):
    monkeypatch.setenv("RLKIT_API_KEY", "opensesame")
    began = time.thread_time()
    Secrets(URL).out_of("a" * 100_000)
    assert time.thread_time() - began < 2.0


def test_an_address_is_shown_without_user_password_and_query():
    secrets = Secrets("https://anna:p%40ss@example.org:8443/v1/?key=abc")
    assert secrets.address == "https://example.org:8443/v1"
    assert secrets.out_of("p@ss p%40ss anna:p@ss") == "*** *** ***"
    assert Secrets("http://[::1]:8000/v1").address == "http://[::1]:8000/v1"
