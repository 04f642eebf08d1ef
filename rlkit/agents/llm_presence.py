"""Whether the server is there, for all requests of a client together: one of them looks, the others
wait with it, and the log tells once that the server is away, each minute, and when it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rlkit.agents.llm_faults import Fault, wait_before
from rlkit.agents.llm_wire import Wire
from rlkit.errors import ServerAwayError

_LOOK = 5.0  # seconds that a server has to list its models
_FIRST, _LONGEST = 0.25, 5.0  # seconds between looks
_EVERY = 60.0  # seconds between lines of the log


class Presence:
    """`wait` and `endure` return when a request may be sent again."""

    def __init__(self, wire: Wire, log: Callable[[str], None]) -> None:
        self._wire = wire
        self._log = log
        self._looking = asyncio.Lock()
        self._away_since: float | None = None
        self._last_line = 0.0

    def seen(self) -> None:
        """The server answered a request."""
        if self._away_since is not None:
            gone = time.monotonic() - self._away_since
            self._log(f"{self._address} is back after {gone:.0f} s; going on.")
            self._away_since = None

    async def wait(self, fault: Fault, patience: float) -> None:
        """Return as soon as the server answers anything; one that does is not away at all, and
        the fault was the request's own. Raises ServerAwayError after `patience` seconds."""
        async with self._looking:
            pause = _FIRST
            while True:
                models = await self._wire.models(_LOOK)
                if not isinstance(models, Fault) or not (models.away or models.gateway):
                    return self.seen()
                self._still_away(models if models.gateway else fault, patience)
                await asyncio.sleep(min(pause, self._left(patience)))
                pause = min(_LONGEST, 2 * pause)

    async def endure(self, fault: Fault, patience: float) -> None:
        """Return when it is time to ask again a server whose gateway says that it is away or
        loading. Raises ServerAwayError after `patience` seconds of nothing else."""
        self._still_away(fault, patience)
        gone = time.monotonic() - (self._away_since or 0.0)
        pause = wait_before(1 + int(gone), fault.retry_after)
        await asyncio.sleep(min(pause, max(_LONGEST, fault.retry_after or 0.0)))

    @property
    def _address(self) -> str:
        return self._wire.secrets.address

    def _left(self, patience: float) -> float:
        """Seconds of patience that are left, at least a little."""
        return max(0.01, patience - (time.monotonic() - (self._away_since or 0.0)))

    def _still_away(self, fault: Fault, patience: float) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = self._last_line = now
            if patience > 0:
                self._log(
                    f"{self._address} does not answer ({fault.text}); waiting up to "
                    f"{patience:.0f} s for it."
                )
        gone = now - self._away_since
        if gone >= patience:
            raise ServerAwayError(
                f"{self._address} has not answered for {gone:.0f} s ({fault.text}); start it "
                "again, and give the same command again: what was received is kept. "
                "checker.patience says how long is waited."
            )
        if now - self._last_line >= _EVERY:
            self._last_line = now
            self._log(f"{self._address} still does not answer, {gone:.0f} s now ({fault.text}).")
