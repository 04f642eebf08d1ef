"""What policies wrote, kept by content in a run's `answers_cache/`, so that a second evaluation
costs nothing and a new checkpoint costs only itself.

One JSONL file an author (the base model's and the adapter's content, precision, and versions),
named by the hash of that. Its first line tells who it is, each further one holds the key of what
was asked (chat messages and how it was decoded), the answer, and a checksum over author, key and
answer. `docs/formats.md`
describes it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from rlkit.files import append_line, write_bytes

SCHEMA = 2  # 1, whose checksums left the author out, is not read: all is answered anew
FOLDER = "answers_cache"
# To be raised whenever the same model would answer otherwise: when sampling, decoding, the encoding
# of prompts, or the end tokens change (rlkit/training: sampling, text, policy).
DECODING = 1
Log = Callable[[str], None]


def content_key(value: Any) -> str:
    """SHA-256 (hex) of a canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class Answers:
    """The answers of one author, in the file that its identity names, read when first needed."""

    def __init__(self, folder: Path, author: Mapping[str, Any], log: Log = print) -> None:
        self.author = {"schema": SCHEMA, **author}
        self._key = content_key(self.author)
        self.path = folder / f"{self._key[:16]}.jsonl"
        self.log = log
        self._known: dict[str, str] | None = None

    def get(self, key: str) -> str | None:
        """The answer that is kept under a key; None where there is none."""
        return self._all().get(key)

    def put(self, answers: Mapping[str, str]) -> None:
        """Keep answers, so that they outlive this process, however it ends."""
        with self._alone():
            self._begin()
            for key, text in answers.items():
                append_line(self.path, self._line(key, text))
        self._all().update(answers)

    def _begin(self) -> None:
        """Make sure that the author's line is there, and cut off half a last line, whose writer
        was killed, so that nothing is appended to it."""
        with open(self.path, "a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                size = file.truncate(file.read().rfind(b"\n") + 1)
        if size == 0:
            append_line(self.path, json.dumps(self.author))

    def _all(self) -> dict[str, str]:
        if self._known is None:
            with self._alone():
                self._known = self._read() if self.path.exists() else {}
        return self._known

    def _read(self) -> dict[str, str]:
        """Every whole answer. Half a last line, whose writer was killed, is cut off; a file that
        is damaged elsewhere is set aside, and its whole lines go on in a new one: its name tells
        whose they are, unless its first line names another author."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()
        author = _author(lines[0]) if lines else self.author
        foreign = author is not None and content_key(author) != self._key
        rows = [self._row(raw) for raw in lines]
        rows = rows if author is None and rows[0] else rows[1:]  # the author's line may lack
        known = {} if foreign else dict(row for row in rows if row is not None)
        if damaged := foreign or author is None or None in rows:
            what = "is of another model" if foreign else "is damaged"
            self._set_aside(what, f"{len(known)} of {len(rows)}")
        if damaged or len(whole) < len(content):
            written = [json.dumps(self.author), *(self._line(*item) for item in known.items())]
            write_bytes(self.path, "".join(f"{line}\n" for line in written).encode("ascii"))
        return known

    def _set_aside(self, what: str, kept: str) -> None:
        names = (self.path.with_name(f"{self.path.name}.damaged-{n}") for n in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        self.path.rename(aside)
        self.log(
            f"{self.path} {what} and was set aside as {aside.name}; {kept} answers in it are whole "
            "and kept, the others are asked for anew."
        )

    def _line(self, key: str, text: str) -> str:
        return json.dumps({"key": key, "answer": text, "sum": self._sum(key, text)})

    def _row(self, raw: bytes) -> tuple[str, str] | None:
        """(key, answer) of a line; None where it is damaged, or another author's."""
        try:
            row = json.loads(raw)
            found = row["key"], row["answer"]
            return found if row["sum"] == self._sum(*found) else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def _sum(self, key: str, text: str) -> str:
        return content_key([self._key, key, text])[:16]

    def _alone(self) -> filelock.BaseFileLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(self.path.parent / ".lock", timeout=60)


def _author(raw: bytes) -> dict[str, Any] | None:
    """The author that a line tells; None where it tells none."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "schema" in found else None


class CachedPolicy:
    """A policy whose answers are kept. It is asked only for those that are lacking; `asked` and
    `found` count.

    `prompt` turns a state into chat messages; `decoding` is what else an answer depends on.
    """

    def __init__(
        self,
        policy: Any,
        answers: Answers,
        prompt: Callable[[Any], Any],
        decoding: Mapping[str, Any],
    ) -> None:
        self.policy, self.answers, self.prompt = policy, answers, prompt
        self.decoding = dict(decoding)
        self.asked = self.found = 0

    def write(self, state: Any) -> str:
        """See Policy."""
        return self.write_batch([state])[0]

    def write_batch(self, states: Sequence[Any]) -> list[str]:
        """The greedy answers, in order."""
        keys = [content_key([self.prompt(state), self.decoding]) for state in states]
        lacking = [i for i, key in enumerate(keys) if self.answers.get(key) is None]
        self._count(len(lacking), len(states))
        if lacking:
            written = self.policy.write_batch([states[i] for i in lacking])
            self.answers.put({keys[i]: text for i, text in zip(lacking, written, strict=True)})
        return [self.answers.get(key) for key in keys]

    def release(self) -> None:
        """See `evaluate_policies`."""
        if hasattr(self.policy, "release"):
            self.policy.release()

    def _count(self, lacking: int, wanted: int) -> None:
        self.asked, self.found = self.asked + lacking, self.found + wanted - lacking


class CachedSampler(CachedPolicy):
    """The same of a policy that can be sampled from as well; `sampling` is what a sampled answer
    depends on besides, apart from its state's id and its number."""

    def __init__(
        self,
        policy: Any,
        answers: Answers,
        prompt: Callable[[Any], Any],
        decoding: Mapping[str, Any],
        sampling: Mapping[str, Any],
    ) -> None:
        super().__init__(policy, answers, prompt, decoding)
        self.sampling = dict(sampling)

    def sample_batch(self, states: Sequence[Any], count: int) -> list[list[str]]:
        """`count` sampled answers of each state; a later call with more costs only the rest."""
        keys = [self._sample_keys(state, count) for state in states]
        have = [_leading(self.answers.get(key) is not None for key in row) for row in keys]
        self._count(sum(count - n for n in have), count * len(states))
        for first in sorted({n for n in have if n < count}):
            rows = [row for row, n in enumerate(have) if n == first]
            drawn = self.policy.sample_batch([states[row] for row in rows], count, first)
            for row, texts in zip(rows, drawn, strict=True):
                self.answers.put(dict(zip(keys[row][first:], texts, strict=True)))
        return [[self.answers.get(key) for key in row] for row in keys]

    def _sample_keys(self, state: Any, count: int) -> list[str]:
        asked = [self.prompt(state), self.decoding, self.sampling, state.state_id]
        return [content_key([*asked, number]) for number in range(count)]


def _leading(known: Iterable[bool]) -> int:
    return sum(1 for _ in itertools.takewhile(bool, known))
