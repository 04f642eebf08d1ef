"""Calls in threads: each once, passed on in the caller's thread, and what an error leaves."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from rlkit.agents import side_by_side
from rlkit.agents.side_by_side import call_each


def test_every_call_is_made_once_and_passed_on_in_the_callers_thread():
    made, passed, threads = [], {}, set()

    def call(number):
        made.append(number)
        time.sleep(0.001 * (number % 3))
        return number * number

    def on_end(index, value):
        threads.add(threading.current_thread())
        passed[index] = value

    calls = [lambda number=number: call(number) for number in range(50)]
    call_each(calls, 8, on_end)
    assert sorted(made) == list(range(50))
    assert passed == {number: number * number for number in range(50)}
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_as_many_calls_are_under_way_as_allowed(threads):
    gate, peak, now, lock = threading.Barrier(threads, timeout=10), [0], [0], threading.Lock()

    def call():
        with lock:
            now[0] += 1
            peak[0] = max(peak[0], now[0])
        gate.wait()  # nobody gets on unless so many are here
        with lock:
            now[0] -= 1

    call_each([call] * (threads * 4), threads)
    assert peak == [threads]


def test_one_thread_is_the_callers_own():
    seen = []
    call_each([lambda: seen.append(threading.current_thread())] * 3, 1)
    call_each([lambda: seen.append(threading.current_thread())], 16)
    assert set(seen) == {threading.current_thread()}


def test_an_error_is_raised_after_what_is_done_was_passed_on_and_nothing_new_begins():
    passed, made = [], []
    done, raised = threading.Event(), threading.Event()

    def good(number):
        made.append(number)
        return number

    def bad():
        done.wait(10)
        raise ValueError("a bug")

    def last():
        done.set()
        raised.wait(30)

    calls = [bad, *(lambda n=n: good(n) for n in range(5)), last, *(lambda: good(9) for _ in "abc")]
    with pytest.raises(ValueError, match="a bug"):
        call_each(calls, 2, lambda index, value: passed.append(value))
    raised.set()
    time.sleep(0.5)
    assert passed == made == [0, 1, 2, 3, 4]


def test_an_interrupt_passes_on_what_is_done_and_leaves_the_rest():
    passed, gate = [], threading.Event()

    def wait():
        gate.wait(10)

    def interrupt():
        raise KeyboardInterrupt

    calls = [wait, wait, lambda: 1]
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call_each(calls, 3, lambda index, value: passed.append(value), on_wait=interrupt)
    assert passed == [1]
    assert time.monotonic() - start < 5.0
    gate.set()


def test_the_caller_is_told_while_it_waits(monkeypatch):
    monkeypatch.setattr(side_by_side, "TICK", 0.01)
    told = threading.Event()
    call_each([lambda: told.wait(30), lambda: None], 2, on_wait=told.set)
    assert told.is_set()


def test_calls_made_aside_leave_the_caller_free_to_hear_even_of_a_single_one(monkeypatch):
    monkeypatch.setattr(side_by_side, "TICK", 0.01)
    told, threads = threading.Event(), []

    def call():
        threads.append(threading.current_thread())
        told.wait(30)

    call_each([call], 1, on_wait=told.set, aside=True)
    assert told.is_set() and threads != [threading.current_thread()]
    with pytest.raises(SystemExit, match="3"):  # whatever is raised there is raised here
        call_each([lambda: sys.exit("3")], 1, aside=True)
