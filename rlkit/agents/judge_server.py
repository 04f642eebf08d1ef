"""The judge's server as the live checker sees it: looked at before it is asked, waited for while it
is away, and known by the name that it gave last while no verdict is needed of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlkit.agents.llm import ChatClient, ServerReport
from rlkit.agents.llm_faults import RefusedError
from rlkit.agents.verdict_cache import VerdictCache
from rlkit.errors import AgentError, ServerAwayError


class JudgeServer:
    """`model` is the judge's name; None until it is known. May be called from several threads."""

    def __init__(
        self,
        client: ChatClient,
        cache: VerdictCache,
        model: str | None,
        address: str,
        log: Callable[[str], None],
    ) -> None:
        self.client, self.cache, self.log = client, cache, log
        self.model, self.address = model, address
        self._report: ServerReport | None = None
        self._looking = threading.Lock()
        self._failed: tuple[float, AgentError] | None = None  # the last look in vain, and when
        self._told: set[str] = set()

    def prepare(self) -> None:
        """Open the cache and look at the server, before any question is played or practised on.

        Raises DataError where the cache cannot be used, AgentError where the server refuses, or
        gives no sound reply. One that is away may come back, and may not be needed; one that has
        judged for this cache before may not be needed either: the log says what is wrong, and the
        first document that the cache lacks waits for the server, or raises RefusedError.
        """
        before = self.cache.served_model(self.address)
        with self._one_look():
            if self._report is not None:
                return
            try:
                report = self._probed()
            except AgentError as error:
                needed = before is None or self.model not in (None, before)
                if needed and not _is_away(error):
                    raise
                return self._say_awaited(error)
            self.model = self.model or report.model
            if report.model == self.model:
                self._met(report)

    @property
    def name(self) -> str:
        """The judge's name. Where the parameters name none, a server is looked for; without one,
        the name that it gave last holds, so that known verdicts can be replayed."""
        with self._one_look():
            if self.model is None:
                try:
                    self.model = self._met(self._probed()).model
                except AgentError as error:
                    self.model = self.cache.served_model(self.address)
                    if self.model is None:
                        self.model = self._met(self._awaited(error)).model
                    else:
                        self.log(
                            f"the judge: {error} Verdicts of {self.model}, which was served last, "
                            "are taken from the cache."
                        )
            return self.model

    @contextmanager
    def _one_look(self) -> Iterator[None]:
        """One thread looks at the server; where that fails, it fails for those that wait, too."""
        began = time.monotonic()
        with self._looking:
            if self._failed is not None and self._failed[0] > began:
                raise self._failed[1]
            try:
                yield
            except AgentError as error:
                self._failed = time.monotonic(), error
                raise

    def look(self) -> ServerReport:
        """Probe the server before it is asked for the first time; one that is away is waited for,
        as `checker.patience` says."""
        with self._one_look():
            if self._report is None:
                try:
                    report = self._probed()
                except AgentError as error:
                    report = self._awaited(error)
                self.model = self.model or report.model
                if report.model != self.model:
                    raise RefusedError(
                        f"verdicts of {self.model} were taken from the cache, since no server "
                        f"answered, and now {report.model} is served; name the judge in "
                        "model.checker_model."
                    )
                self._met(report)
            return self._report

    def _met(self, report: ServerReport) -> ServerReport:
        """Take note of the server that will be asked."""
        self.log(f"the judge: {report}")
        self._report = report
        return report

    def _awaited(self, error: AgentError) -> ServerReport:
        """What the probe finds once the server is there, after the probe's `error`; raises
        RefusedError where it then fails again, since no document would fare better."""
        if isinstance(error, RefusedError):
            raise error
        self._say_awaited(error)
        self.client.wait_until_there()
        try:
            self.client.chat([{"role": "user", "content": "Say hello."}], max_tokens=8)
            return self._probed()
        except ServerAwayError:
            raise
        except AgentError as again:
            raise RefusedError(str(again)) from None

    def _say_awaited(self, error: AgentError) -> None:
        """Say once what is wrong with the server, and what follows."""
        patience = self.client.limits.patience
        waiting = f" A document that no verdict is kept of waits for it, up to {patience:.0f} s."
        self.say_once(f"the judge: {error}{waiting if _is_away(error) else ''}")

    def _probed(self) -> ServerReport:
        report = self.client.probe()
        if self.address:
            self.cache.note_served(self.address, report.model)
        return report

    def say_once(self, line: str, kind: str | None = None) -> None:
        """Log a line unless one of its kind (None: its beginning) was logged before."""
        kind = line.split(" for ")[0][:60] if kind is None else kind
        if kind not in self._told:
            self._told.add(kind)
            self.log(line)


def _is_away(error: AgentError) -> bool:
    """Whether the server may come back without anybody's changing a parameter."""
    return isinstance(error, ServerAwayError) and not isinstance(error, RefusedError)
