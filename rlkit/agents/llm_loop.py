"""One asyncio loop in a thread of its own, so that asynchronous work can be asked for from any
thread: from a script, from a notebook's running loop, from several workers at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rlkit.errors import AgentError

T = TypeVar("T")
_PATIENCE = 5.0  # seconds that closing may take


class BackgroundLoop:
    """Runs coroutines until `close`. The thread is a daemon: it keeps no program alive."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start `work`; its future can be waited for in any thread but the loop's own."""
        with self._lock:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise RuntimeError("this client is closed; make a new one.")

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; an interrupt of the caller cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this would wait for itself; inside of a coroutine, await ask().")
        future = self.submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise AgentError("the client was closed while a request was under way.") from None
        except BaseException:  # an interrupt, too, must end what is under way
            future.cancel()
            raise

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel what is under way, run `last`, and end the thread. Closing twice does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if threading.current_thread() is self._thread:  # the last who knew the client was a task
            self._leaving = self.loop.create_task(self._leave(last))
            return
        work = self._end(last)
        ending = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            ending.result(_PATIENCE)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            pass  # a daemon thread may be left behind
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            self.loop.close()
            work.close()  # nobody has begun it where the thread was lost to a fork

    async def _leave(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await self._end(last)
        self.loop.stop()

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await last()
        await self.loop.shutdown_asyncgens()


@contextmanager
def held_interrupts(on_interrupt: Callable[[], None]) -> Iterator[threading.Event]:
    """Inside, the first interrupt calls `on_interrupt` and sets the event in place of raising
    KeyboardInterrupt wherever the program stands; a second one raises it.

    Only in the main thread, and where nobody else handles interrupts; else nothing is held."""
    held = threading.Event()
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield held
        return

    def note(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        held.set()
        on_interrupt()

    signal.signal(signal.SIGINT, note)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
