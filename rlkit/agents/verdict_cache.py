"""Every verdict that a judge ever gave, in one SQLite file: a document is judged once per question
and subgoal, ever, and rounds can be replayed with no server.

A key is the SHA-256 of a canonical JSON (`verdict_key`) of everything that a verdict depends on.
What is not in it, by intent: which other documents stood in the same request. How much that
matters, `python -m rlkit check-judge` measures. `docs/formats.md` describes the file.

Several processes may use the file at once (WAL). Where two have judged the same document, the
first verdict written holds for both, so that they train on the same reward.

A verdict is written as its answer arrives, in a transaction of its own, and flushed to the disk
before it is used (`flush`, once for all answers that were waited for together). `synchronous` is
NORMAL: in a WAL, what is committed outlives the process, however that ends, and only a power cut
asks for the flush. FULL would flush at every answer, 4.7 ms each on one machine: more than the
3 ms between the answers of a server that gives 16 at once in 50 ms. Without the flush a run that
resumes after a power cut would ask again, might be told otherwise, and were another run.

A file or folder that cannot be written to is read all the same, without a trace: replaying needs
no more. A new verdict is then an error, for one that was paid for must not be lost.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import filelock

from rlkit.agents.verdict_file import WAIT, checked, is_damage, opened, reading, transaction
from rlkit.errors import DataError
from rlkit.rounds.state import Verdict

_CHUNK = 150  # rows or keys a statement; SQLite allows 999 values in its oldest builds
# keeps, and tells what is held, in one statement: with three, a thread that asks for the
# interpreter between them waits longer than the disk takes
_PUT = (
    "INSERT INTO verdicts VALUES {} "
    "ON CONFLICT (key) DO UPDATE SET verdict = verdict RETURNING key, verdict"
)
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
Result = TypeVar("Result")


class Judged(NamedTuple):
    """One verdict to keep; all but key and verdict are there for people who read the file."""

    key: str
    verdict: Verdict
    model: str
    question_id: str
    docid: str


def verdict_key(**parts: str | int) -> str:
    """SHA-256 (hex) of a canonical JSON of everything that a verdict depends on."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class VerdictCache:
    """The verdicts in the file `path`, which is made where it is not there yet.

    A damaged file is set aside under another name, and a sentence says so. Raises DataError where
    the file is something else, or cannot be read, or made; OSError on a full disk. `read_only`
    tells, once something was looked up, whether it cannot be written. It can be used from several
    threads and processes, forked ones included.
    """

    def __init__(self, path: str | Path, log: Callable[[str], None] = print) -> None:
        self.path, self.log = Path(path), log
        self.read_only = False
        self._lock = threading.Lock()
        self._open: tuple[int, sqlite3.Connection] | None = None  # (process id, connection)

    def get_many(self, keys: Iterable[str]) -> dict[str, Verdict]:
        """The verdicts known of these keys; a key that is left out is not known."""
        return self._run(lambda database: _known(database, list(keys)))

    def put_many(self, rows: Sequence[Judged]) -> dict[str, Verdict]:
        """Keep verdicts, so that they outlive this process; returns what the file holds for their
        keys: the verdict of another process, where that was faster. `flush` before using them.

        Raises DataError where the file, or its folder, is read-only.
        """
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

        def put(database: sqlite3.Connection) -> dict[str, Verdict]:
            self.refuse_if_read_only()
            held: dict[str, Verdict] = {}
            for start in range(0, len(rows), _CHUNK):
                some = rows[start : start + _CHUNK]
                values = [_storable(value) for row in some for value in (*row, now)]
                marks = ",".join(["(?, ?, ?, ?, ?, ?)"] * len(some))
                held.update(database.execute(_PUT.format(marks), values).fetchall())
            return held

        return self._run(put)

    def refuse_if_read_only(self) -> None:
        """Raise DataError where it is known by now that new verdicts cannot be kept."""
        if self.read_only:
            raise DataError(
                f"{self.path} or its folder is read-only, so that new verdicts cannot be kept; "
                "copy the file to a folder that can be written, and name the copy as "
                "checker.cache_path."
            )

    def flush(self) -> None:
        """Flush what was put to the disk, so that it outlives a power cut, too."""
        if self.read_only:
            return
        try:
            log = os.open(f"{self.path}-wal", os.O_RDONLY)
        except FileNotFoundError:  # no WAL: every transaction was flushed
            return
        try:
            os.fsync(log)
        finally:
            os.close(log)

    def served_model(self, address: str) -> str | None:
        """The model that the server at this address served last; addresses are kept as hashes."""
        found = self._run(
            lambda database: database.execute(
                "SELECT model FROM servers WHERE address = ?", (verdict_key(address=address),)
            ).fetchone()
        )
        return found[0] if found else None

    def note_served(self, address: str, model: str) -> None:
        """Remember which model the server at this address serves, where that can be written."""
        if self.served_model(address) == model or self.read_only:
            return
        row = (verdict_key(address=address), _storable(model))

        def note(database: sqlite3.Connection) -> None:
            with transaction(database):
                database.execute("INSERT OR REPLACE INTO servers VALUES (?, ?)", row)

        self._run(note)

    def __len__(self) -> int:
        return self._run(
            lambda database: database.execute("SELECT count(*) FROM verdicts").fetchone()[0]
        )

    def close(self) -> None:
        with self._lock:
            if self._open is not None and self._open[0] == os.getpid():
                self._open[1].close()
            self._open = None

    def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Do some work on the database; where it turns out damaged, once more on a new one."""
        with self._lock, _named(self.path):
            try:
                return work(self._database())
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._set_aside(error)
            return work(self._database())

    def _database(self) -> sqlite3.Connection:
        """This process's own connection: one that was inherited by a fork must not be used."""
        if self._open is None or self._open[0] != os.getpid():
            self.read_only = not self._can_be_locked()
            if not self.read_only:
                with self._alone():
                    self.read_only = not self._can_be_written()
                    if not self.read_only:
                        self._open = (os.getpid(), opened(self.path))
            if self.read_only:
                self._open = (os.getpid(), checked(reading(self.path), self.path))
        return self._open[1]

    def _can_be_locked(self) -> bool:
        """Whether the lock beside the file can be opened for writing, or made; raises OSError
        where there is no file that could be read instead."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o666))  # as filelock
        except OSError as error:
            if error.errno in _REFUSED and self.path.is_file():
                return False
            raise
        return True

    def _can_be_written(self) -> bool:
        """Whether the file and what belongs to it can be written, or made. To be asked under the
        lock: then a part can only vanish meanwhile, as -wal and -shm do when somebody else's last
        connection is closed, and what is gone is not refused."""
        parts = [self.path.parent, *(Path(f"{self.path}{end}") for end in ("", "-wal", "-shm"))]
        return all(os.access(part, os.W_OK) or not part.exists() for part in parts)

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename a damaged file, with what belongs to it, unless another process did so first."""
        if self._open is not None:
            self._open[1].close()
        self._open = None
        if self.read_only:
            raise error
        with self._alone():
            try:
                opened(self.path).close()
            except sqlite3.DatabaseError as still:
                if not is_damage(still):
                    raise
            else:
                return
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            aside = self.path.with_name(f"{self.path.name}.damaged-{stamp}-{os.getpid()}")
            for end in ("", "-wal", "-shm"):
                part = Path(f"{self.path}{end}")
                if part.exists():
                    os.replace(part, f"{aside}{end}")
        said = " ".join(str(error).split())[:120]
        self.log(
            f"{self.path} is damaged ({said}) and was set aside as {aside.name}; documents are "
            "judged anew."
        )

    def _alone(self) -> filelock.BaseFileLock:
        """Held while the file is made, checked or set aside."""
        return filelock.FileLock(f"{self.path}.lock", timeout=WAIT)


def _known(database: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Verdict]:
    found: dict[str, Verdict] = {}
    waiting = iter(keys)
    while chunk := list(islice(waiting, _CHUNK)):
        marks = ",".join("?" * len(chunk))
        question = f"SELECT key, verdict FROM verdicts WHERE key IN ({marks})"
        found.update(database.execute(question, chunk).fetchall())
    return found


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What SQLite and the system refuse, as errors that name the file; damage passes through."""
    try:
        yield
    except filelock.Timeout as error:
        raise DataError(
            f"{path} is held by another process for over {WAIT:.0f} s; see what holds "
            f"{error.lock_file}, then give the same command again."
        ) from None
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise DataError(
            f"{path}, where verdicts are kept, cannot be used ({error}); check the path and its "
            "permissions, or name another file as checker.cache_path."
        ) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        refused = error.errno in _REFUSED
        raise DataError(
            f"verdicts cannot be kept in {path}, since "
            + (f"{path.parent} cannot be written to" if refused else f"{error.strerror}")
            + "; name a file in a folder that can be written as checker.cache_path."
        ) from error


def _storable(text: str) -> str:
    """Text that UTF-8 can hold; lone surrogates become replacement marks."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
