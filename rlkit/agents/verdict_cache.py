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

from rlkit.errors import DataError
from rlkit.files import sync_folder
from rlkit.rounds.state import Verdict

APPLICATION_ID = 0x726C6B76  # "rlkv", SQLite's mark of who wrote the file
SCHEMA = 1
WAIT = 60.0  # seconds for another process's write
_CHUNK = 500  # keys asked for at once; SQLite allows 999 in its oldest builds
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_TABLES = f"""
CREATE TABLE verdicts (
    key TEXT PRIMARY KEY,
    verdict TEXT NOT NULL CHECK (verdict IN ('IMPORTANT', 'LOCAL', 'DISCARD')),
    model TEXT NOT NULL,
    question_id TEXT NOT NULL,
    docid TEXT NOT NULL,
    judged TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE servers (address TEXT PRIMARY KEY, model TEXT NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA};
"""

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
    the file is something else, or cannot be read or written; OSError on a full disk. It can be
    used from several threads and processes, forked ones included.
    """

    def __init__(self, path: str | Path, log: Callable[[str], None] = print) -> None:
        self.path, self.log = Path(path), log
        self._lock = threading.Lock()
        self._open: tuple[int, sqlite3.Connection] | None = None  # (process id, connection)

    def get_many(self, keys: Iterable[str]) -> dict[str, Verdict]:
        """The verdicts known of these keys; a key that is left out is not known."""
        return self._run(lambda database: _known(database, list(keys)))

    def put_many(self, rows: Sequence[Judged]) -> dict[str, Verdict]:
        """Keep verdicts, so that they outlive this process; returns what the file holds for their
        keys: the verdict of another process, where that was faster. `flush` before using them."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

        def put(database: sqlite3.Connection) -> dict[str, Verdict]:
            with _transaction(database):
                database.executemany(
                    "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    [tuple(map(_storable, (*row, now))) for row in rows],
                )
                return _known(database, [row.key for row in rows])

        return self._run(put)

    def flush(self) -> None:
        """Flush what was put to the disk, so that it outlives a power cut, too."""
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
        """Remember which model the server at this address serves."""
        if self.served_model(address) == model:
            return
        row = (verdict_key(address=address), _storable(model))

        def note(database: sqlite3.Connection) -> None:
            with _transaction(database):
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
                if not _is_damage(error):
                    raise
                self._set_aside(error)
            return work(self._database())

    def _database(self) -> sqlite3.Connection:
        """This process's own connection: one that was inherited by a fork must not be used."""
        if self._open is None or self._open[0] != os.getpid():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._open = (os.getpid(), _opened(self.path))
        return self._open[1]

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename a damaged file, with what belongs to it, unless another process did so first."""
        if self._open is not None:
            self._open[1].close()
        self._open = None
        with self._alone():
            try:
                _opened(self.path).close()
            except sqlite3.DatabaseError as still:
                if not _is_damage(still):
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


def _opened(path: Path) -> sqlite3.Connection:
    """A connection to a sound file of ours, made where it is not there yet."""
    database = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
    try:
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        database.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables == 0:
            database.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
            sync_folder(path.parent)
        elif (application, version) != (APPLICATION_ID, SCHEMA):
            raise DataError(
                f"{path} is no file of verdicts of schema {SCHEMA}; name another one as "
                "checker.cache_path."
            )
        (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            error = sqlite3.DatabaseError(state)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
    except BaseException:
        database.close()
        raise
    return database


def _known(database: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Verdict]:
    found: dict[str, Verdict] = {}
    waiting = iter(keys)
    while chunk := list(islice(waiting, _CHUNK)):
        marks = ",".join("?" * len(chunk))
        question = f"SELECT key, verdict FROM verdicts WHERE key IN ({marks})"
        found.update(database.execute(question, chunk).fetchall())
    return found


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # on a full disk SQLite has rolled back itself
            database.execute("ROLLBACK")
        raise


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


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _storable(text: str) -> str:
    """Text that UTF-8 can hold; lone surrogates become replacement marks."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
