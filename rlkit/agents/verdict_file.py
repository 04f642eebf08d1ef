"""The SQLite file that keeps verdicts: how it is opened, made and recognised.

Any other file is left as it is, to the byte: nothing is opened for writing before it is known
whose it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from rlkit.errors import DataError
from rlkit.files import sync_folder

APPLICATION_ID = 0x726C6B76  # "rlkv", SQLite's mark of who wrote the file
SCHEMA = 1
WAIT = 60.0  # seconds for another process's write
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_MAGIC = b"SQLite format 3\0"  # https://sqlite.org/fileformat.html, section 1.3
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


def opened(path: Path) -> sqlite3.Connection:
    """A connection to a sound file of ours, made where it is not there yet."""
    if path.exists() and path.stat().st_size:
        with closing(reading(path)) as database:
            _refuse_others(database, path)
    database = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
    with ExitStack() as undo:
        undo.callback(database.close)
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        database.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
        if _tables(database) == 0:
            database.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
            sync_folder(path.parent)
        undo.pop_all()
    return checked(database, path)


def reading(path: Path) -> sqlite3.Connection:
    """A connection that only reads. Where there is no WAL, no process has the file open, and it is
    taken as unchangeable: SQLite then makes no file beside it, and so needs no writable folder."""
    how = "mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1"
    where = f"{path.absolute().as_uri()}?{how}"
    return sqlite3.connect(
        where, uri=True, timeout=WAIT, isolation_level=None, check_same_thread=False
    )


def checked(database: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """The connection, if it leads to a sound file of ours; it is closed where it does not."""
    with ExitStack() as undo:
        undo.callback(database.close)
        _refuse_others(database, path)
        (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            error = sqlite3.DatabaseError(state)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        undo.pop_all()
    return database


def _refuse_others(database: sqlite3.Connection, path: Path) -> None:
    """Raise DataError for what is neither a file of verdicts nor an empty one. A file that does not
    begin as SQLite's do is somebody's own, unless it begins with zeros, as a power cut leaves it.
    """
    with path.open("rb") as file:
        begins = file.read(len(_MAGIC))
    if begins.strip(b"\0") and begins != _MAGIC:
        raise DataError(
            f"{path} is no file of verdicts, but one of another kind; name another one as "
            "checker.cache_path, or move this one away if it was yours and is damaged."
        )
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    empty = (application, version, _tables(database)) == (0, 0, 0)
    if not empty and (application, version) != (APPLICATION_ID, SCHEMA):
        raise DataError(
            f"{path} is no file of verdicts of schema {SCHEMA}; name another one as "
            "checker.cache_path."
        )


def _tables(database: sqlite3.Connection) -> int:
    return database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    finally:
        if database.in_transaction:  # on a full disk SQLite has rolled back itself
            database.execute("ROLLBACK")


def is_damage(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
