"""Requests answered together as they come: continuous batching (Orca, OSDI 2022, section 3.1).

One thread owns the model. Between two tokens of the batch it drops requests whose clients have
gone or whose time is up, admits new ones where rows are free, and reads their prompts: short ones
together in one pass, a long one part by part, so that nobody's tokens are held up for longer than
`CHUNK` tokens take. A row is computed as if it were alone: in float32 its tokens do not depend on
what else is in the batch, up to rounding.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from rlkit.deploy.serving.answer_text import AnswerText
from rlkit.deploy.serving.drawing import Drawn, Rule, draw
from rlkit.deploy.serving.metrics import ServerMetrics
from rlkit.deploy.serving.model import ServedModel
from rlkit.deploy.serving.settings import ServerSettings
from rlkit.deploy.serving.slots import PromptReader, RowCache
from rlkit.training.decoding import PlainDecoder
from rlkit.training.prefix import decoder_and_head
from rlkit.training.sampling import step_function, uniform_numbers
from rlkit.training.text import decode

CHUNK = 256  # prompt tokens that are read between two tokens of the batch
_LOG = logging.getLogger("rlkit.serve")


@dataclass(frozen=True)
class Written:
    """One token of an answer. `text` is what has become certain with it: nothing of half a
    character, or of what may be a stop string. `finish` (stop, length) is set on the last one;
    `end` where the token is the model's end of turn, which is no text."""

    drawn: Drawn
    text: str
    end: bool = False
    finish: str | None = None


@dataclass(frozen=True)
class Failed:
    """No answer, or none to the end: an HTTP status, and a sentence for the client."""

    status: int
    message: str


@dataclass(eq=False)
class Job:
    """One request. `emit` is called from the model's thread, with each token, or a failure last;
    setting `gone` gives up the answer."""

    prompt: list[int]
    max_tokens: int
    emit: Callable[[Written | Failed], None]
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stops: tuple[str, ...] = ()
    top: int = 0
    gone: bool = False
    arrived: float = field(default_factory=time.monotonic)


class _Row:
    """A job that has a place: its prompt being read, then its answer being written."""

    def __init__(self, job: Job, served: ServedModel) -> None:
        self.job, self.admitted = job, time.monotonic()
        self.reader: PromptReader | None = PromptReader(served.model, job.prompt)
        self.last, self.count = job.prompt[-1], 0
        self.text = AnswerText(partial(decode, served.tokenizer), job.stops)
        self._numbers = None
        if job.temperature > 0:
            self._numbers = uniform_numbers(job.seed, "", 0, 1, job.max_tokens)[0]

    def rule(self) -> Rule:
        uniform = 0.0 if self._numbers is None else float(self._numbers[self.count])
        return Rule(self.job.temperature, self.job.top_p, uniform, self.job.top)

    def take(self, drawn: Drawn, ends: tuple[int, ...]) -> Written:
        """The row's next token."""
        self.last, self.count = drawn.token, self.count + 1
        if drawn.token in ends:
            return Written(drawn, self.text.end(), True, "stop")
        text = self.text.add(drawn.token)
        if self.text.stopped:
            return Written(drawn, text, finish="stop")
        if self.count < self.job.max_tokens:
            return Written(drawn, text)
        text += self.text.end()
        return Written(drawn, text, finish="stop" if self.text.stopped else "length")


class Batcher:
    """Answers jobs with one model, at most `settings.parallel` at once."""

    def __init__(
        self, served: ServedModel, settings: ServerSettings, metrics: ServerMetrics | None = None
    ) -> None:
        self.served, self.settings = served, settings
        self.metrics = metrics or ServerMetrics()
        self._step = step_function(served.model, PlainDecoder.of(served.model))
        self._head = decoder_and_head(served.model)[1]
        self._device = next(served.model.parameters()).device
        self._cache = RowCache(settings.parallel)
        self._waiting: deque[Job] = deque()
        self._reading: list[_Row] = []
        self._writing: list[_Row] = []  # in the order of the cache's rows
        self._changed = threading.Condition()
        self._stopping = False
        self._mean = 1.0  # seconds that an answer took lately
        self.metrics.running.set_function(lambda: len(self._reading) + len(self._writing))
        self.metrics.waiting.set_function(lambda: len(self._waiting))
        self._thread = threading.Thread(target=self._run, name="rlkit-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Take a job; what comes of it is told to its `emit`."""
        with self._changed:
            if not self._stopping:
                self._waiting.append(job)
                self._changed.notify()
                return
        job.emit(Failed(503, "the server is being stopped; ask again later, or another one."))

    def stop(self) -> None:
        """End; jobs that are not finished fail."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def wait_seconds(self, inside: int) -> int:
        """How long one who comes now should wait before asking again, from 1 to 60 seconds.
        `inside` counts all requests that are answered, wait, or are still being read."""
        ahead = max(0, inside - self.settings.parallel) + 1
        return round(min(60.0, max(1.0, self._mean * ahead / self.settings.parallel)))

    def _run(self) -> None:
        with torch.no_grad():
            while True:
                with self._changed:
                    while not (self._stopping or self._waiting or self._reading or self._writing):
                        self._changed.wait()
                    if self._stopping:
                        break
                try:
                    self._turn()
                except Exception as error:  # a bug, or no memory: it costs these jobs, no others
                    _LOG.exception("the model failed")
                    name = type(error).__name__
                    failure = Failed(500, f"the model failed ({name}); see the server's log.")
                    self._fail(failure, waiting=False)
        self._fail(Failed(503, "the server was stopped before the answer's end."))

    def _turn(self) -> None:
        self._drop()
        self._admit()
        if self._reading:
            self._read()
        if self._writing:
            self._write()

    def _drop(self) -> None:
        """Let go of jobs whose client has gone, or whose time is up."""
        now, limits = time.monotonic(), self.settings
        with self._changed:
            waiting, self._waiting = list(self._waiting), deque()
            for job in waiting:
                late = now - job.arrived > limits.queue_timeout
                if not job.gone and not late:
                    self._waiting.append(job)
                elif not job.gone:
                    self._tell(job, Failed(503, "no place became free in "
                        f"{limits.queue_timeout:g} s; ask again later."))  # fmt: skip
                else:
                    self.metrics.ended.labels("gone").inc()
        for row in [*self._reading, *self._writing]:
            if not row.job.gone and now - row.admitted > limits.request_timeout:
                self._tell(row.job, Failed(504, "the answer was not finished in "
                    f"{limits.request_timeout:g} s; ask for fewer tokens."))  # fmt: skip
            elif row.job.gone:
                self.metrics.ended.labels("gone").inc()
            else:
                continue
            self._leave(row)

    def _admit(self) -> None:
        while len(self._reading) + len(self._writing) < self.settings.parallel:
            with self._changed:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
            self._reading.append(_Row(job, self.served))

    def _read(self) -> None:
        """One pass over waiting prompts; a row whose prompt is read begins to write."""
        PromptReader.read_together([row.reader for row in self._reading], CHUNK)
        for row in [row for row in self._reading if not row.reader.left]:
            self._cache.admit(row.reader.layers(), len(row.job.prompt) - 1)
            row.reader = None
            self._reading.remove(row)
            self._writing.append(row)
            self.metrics.prompt_tokens.inc(len(row.job.prompt))

    def _write(self) -> None:
        """One token of every row."""
        tokens = torch.tensor([row.last for row in self._writing], device=self._device)
        self._cache.begin(self._device)
        logits = self._head(self._step(tokens, self._cache))  # (N, V)
        drawn = draw(logits, [row.rule() for row in self._writing])
        self.metrics.rows.observe(len(drawn))
        self.metrics.answer_tokens.inc(len(drawn))
        for row, token in zip(list(self._writing), drawn, strict=True):
            if token is None:
                self._tell(row.job, Failed(500, "the model's logits are not finite; set RLKIT_DTYPE"
                    " to float32 or bfloat16, or look at the model."))  # fmt: skip
                self._leave(row)
                continue
            if row.count == 0:
                self.metrics.first_token.observe(time.monotonic() - row.job.arrived)
            written = row.take(token, self.served.ends)
            self._tell(row.job, written)
            if written.finish:
                self._mean += 0.2 * (time.monotonic() - row.admitted - self._mean)
                self._leave(row)

    def _leave(self, row: _Row) -> None:
        if row in self._writing:
            self._cache.remove(self._writing.index(row))
            # the last row takes the place of the one that left, as in the cache
            self._writing[self._writing.index(row)] = self._writing[-1]
            self._writing.pop()
        else:
            self._reading.remove(row)

    def _fail(self, failure: Failed, waiting: bool = True) -> None:
        with self._changed:
            jobs = [row.job for row in [*self._reading, *self._writing]]
            if waiting:
                jobs += self._waiting
                self._waiting.clear()
        self._reading, self._writing = [], []
        self._cache.clear()
        for job in jobs:
            self._tell(job, failure)

    def _tell(self, job: Job, event: Written | Failed) -> None:
        how = str(event.status) if isinstance(event, Failed) else event.finish
        if how:
            self.metrics.ended.labels(how).inc()
        job.emit(event)
