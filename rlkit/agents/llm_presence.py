"""Whether the server is there, for all requests of a client together: one of them looks, the others
wait with it, and the log tells once that the server is away, each minute, and when it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rlkit.agents.llm_faults import Fault, wait_before
from rlkit.agents.llm_wire import Wire
from rlkit.errors import ServerAwayError

LOOK = 5.0  # seconds that a server has to list its models
_FIRST, _LONGEST = 0.25, 5.0  # seconds between looks
_BLINK = 0.5  # seconds; who is back sooner was not away
_STILL = 1.0  # seconds for which a look at a server that was waited for in vain holds
_EVERY = 60.0  # seconds between lines of the log


class Presence:
    """`wait` and `endure` return when a request may be sent again."""

    def __init__(self, wire: Wire, log: Callable[[str], None]) -> None:
        self._wire = wire
        self._log = log
        self._looking = asyncio.Lock()
        self._away_since: float | None = None
        self._last_line: float | None = None  # None: nothing was said yet
        self._given_up: tuple[float, Fault] | None = None  # when, and why
        self._last_answer: float | None = None

    def seen(self) -> None:
        """The server answered a request."""
        self._last_answer = time.monotonic()
        if self._last_line is not None:
            self._log(f"{self._address} is back after {self._gone():.0f} s; going on.")
        self._away_since = self._last_line = self._given_up = None

    def answered_since(self, moment: float) -> bool:
        """Whether the server answered any request after a moment of `time.monotonic`."""
        return self._last_answer is not None and self._last_answer > moment

    async def is_there(self) -> bool:
        """Whether the server lists its models, whatever its gateway says of one request."""
        there = not isinstance(await self._wire.models(LOOK), Fault)
        if there:
            self.seen()
        return there

    async def before_asking(self, patience: float) -> None:
        """Raise ServerAwayError if the server was waited for in vain and is still away, so that
        the requests that are left do not each have to find that out in their own time."""
        if self._given_up is not None and self._given_up[1].away:
            await self.wait(self._given_up[1], patience)

    async def arrive(self, patience: float) -> None:
        """Return once the server answers anything. Raises ServerAwayError after `patience`
        seconds."""
        models = await self._wire.models(LOOK)
        if isinstance(models, Fault) and (models.away or models.gateway):
            await self.wait(models, patience)

    async def wait(self, fault: Fault, patience: float) -> None:
        """Return as soon as the server answers anything; one that does is not away at all, and
        the fault was the request's own. Raises ServerAwayError after `patience` seconds."""
        async with self._looking:
            pause = _FIRST
            if self._given_up is not None and self._gone() >= patience:
                looked, why = self._given_up
                if time.monotonic() - looked < _STILL:
                    raise self._gone_error(why)
            while True:
                left = LOOK if self._away_since is None else max(1.0, patience - self._gone())
                models = await self._wire.models(min(LOOK, left))
                if not isinstance(models, Fault) or not (models.away or models.gateway):
                    return self.seen()
                self._still_away(models if models.gateway else fault, patience)
                await asyncio.sleep(min(pause, max(0.01, patience - self._gone())))
                pause = min(_LONGEST, 2 * pause)

    async def endure(self, fault: Fault, patience: float) -> None:
        """Return when it is time to ask again a server whose gateway says that it is away or
        loading. Raises ServerAwayError after `patience` seconds of nothing else."""
        self._still_away(fault, patience)
        pause = wait_before(1 + int(self._gone()), fault.retry_after)
        if fault.retry_after is None:
            pause = min(pause, _LONGEST, max(0.01, patience - self._gone()))
        await asyncio.sleep(pause)

    @property
    def _address(self) -> str:
        return self._wire.secrets.address

    def _gone(self) -> float:
        """Seconds since the server was first found away."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    def _still_away(self, fault: Fault, patience: float) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
        gone = self._gone()
        if gone >= patience:
            self._given_up = time.monotonic(), fault
            raise self._gone_error(fault)
        if self._last_line is None and gone >= _BLINK:
            self._last_line = time.monotonic()
            self._log(
                f"{self._address} does not answer ({fault.text}); waiting up to {patience:.0f} s."
            )
        elif self._last_line is not None and time.monotonic() - self._last_line >= _EVERY:
            self._last_line = time.monotonic()
            self._log(f"{self._address} still does not answer, {gone:.0f} s now ({fault.text}).")

    def _gone_error(self, fault: Fault) -> ServerAwayError:
        return ServerAwayError(
            f"{self._address} has not answered for {self._gone():.0f} s ({fault.text}); start it "
            "again, and give the same command again (checker.patience says how long is waited)."
        )
