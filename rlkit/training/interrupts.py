"""An interrupt that waits until what is under way is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

noted = 0  # interrupts of this process that became a flag: for whoever works above a training


@contextmanager
def interrupt_flag(log: Callable[[str], None], what: str = "step") -> Iterator[threading.Event]:
    """Turn the first interrupt into a flag, so that a step (an update) is never left half done."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        global noted
        signal.signal(signal.SIGINT, before)
        flag.set()
        noted += 1
        log(f"interrupted: finishing this {what}; interrupt again to stop at once")

    signal.signal(signal.SIGINT, note)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
