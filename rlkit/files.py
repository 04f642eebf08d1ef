"""Files that are whole or absent: everything is written under a temporary name, flushed, and
renamed, so that a reader, or a run that was killed, never meets half a file."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlkit.errors import DataError

_SAFE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\-]{0,199}")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust end their message
_UMASK = re.compile(r"^Umask:\s*([0-7]+)$", re.MULTILINE)
_SHORT = re.compile(r"\d+ requested and \d+ written")  # numpy's, without an errno
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file so that it appears whole; creates the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _named_where_refused(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with _named_where_refused(path):
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return path


def write_text(path: str | Path, text: str) -> Path:
    """Write UTF-8 text so that it appears whole (lone surrogates become replacement marks)."""
    return write_bytes(path, text.encode("utf-8", errors="replace"))


def write_json(path: str | Path, value: Any) -> Path:
    """Write JSON so that it appears whole; NaN is refused, since JSON has none."""
    return write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def append_line(path: str | Path, line: str) -> None:
    """Append one line and flush it to the disk; the line must not hold a line break."""
    with _named_where_refused(path), open(path, "ab") as file:
        file.write(line.encode("utf-8", errors="replace") + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder to fill; on success it becomes `path`, which must not exist yet.

    Raises FileExistsError where `path` is there already, and OSError naming `path` where the system
    refuses a write, also to a library that says so in its own way; on any error nothing is left
    behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise FileExistsError(f"{path} exists already and is never overwritten")
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        os.chmod(temporary, 0o777 & ~_umask())
        with _named_where_refused(path):
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():  # safetensors makes its files readable to their owner alone
                    os.chmod(file, file.stat().st_mode | (0o666 & ~_umask()))
                    _sync(file)
            for folder in (temporary, *(f for f in temporary.rglob("*") if f.is_dir())):
                sync_folder(folder)
            os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


@contextmanager
def _named_where_refused(path: str | Path) -> Iterator[None]:
    """What the system refuses (a full disk, most of all) as an OSError that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno is None and _SHORT.fullmatch(str(error)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        temporary = Path(str(error.filename)).name.startswith(f".{Path(path).name}.")
        if error.errno is not None and (error.filename is None or temporary):
            error.filename = str(path)  # a failed write names no file, or one that nobody knows
        raise
    except Exception as error:  # safetensors and tokenizers have exceptions of their own
        found = _OS_ERROR.search(str(error))
        number = int(found[1]) if found else None
        if number not in _FULL:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def remove_leftovers(path: str | Path) -> None:
    """Remove what writers of `path` that were killed left beside it. For whoever alone writes it:
    what another process is writing at this moment would go, too."""
    path = Path(path)
    for left in path.parent.glob(f".{path.name}.????????"):  # the names that tempfile gives
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def read_json(path: str | Path) -> Any:
    """Read one JSON file.

    Raises DataError with the file, the line and the reason where it is missing or damaged.
    """
    path = Path(path)
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8."
        ) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: not JSON ({error.msg}); mend or remove the file."
        ) from error
    except ValueError as error:  # a whole number of more than 4300 digits
        raise DataError(f"{path} cannot be read ({error}); mend the file.") from error
    except RecursionError as error:
        raise DataError(f"{path} is nested too deeply to be read; mend the file.") from error


def read_object(path: str | Path) -> dict[str, Any]:
    """Read one JSON file that holds an object; raises DataError for anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(
            f"{path} holds a {type(value).__name__} where an object is wanted; mend or remove the "
            "file."
        )
    return value


def read_jsonl(
    path: str | Path, *, skip_half_line: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSON-lines file; blank lines are passed over.

    `skip_half_line` passes over a last line without a line break: its writer was killed.
    Raises DataError with the file, the line and the reason at the first damaged line.
    """
    path = Path(path)
    try:
        file = open(path, "rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    with file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip() or (skip_half_line and not raw.endswith(b"\n")):
                continue
            try:
                row = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, too big
                reason = getattr(error, "msg", None) or getattr(error, "reason", str(error))
                raise DataError(
                    f"{path}, line {number}: not a JSON object ({reason}); mend or remove the line."
                ) from error
            if not isinstance(row, dict):
                raise DataError(
                    f"{path}, line {number}: a {type(row).__name__} where an object is wanted; "
                    "every line must look like {...}."
                )
            yield number, row


def plain(value: Any) -> Any:
    """What JSON can hold: NumPy scalars as Python's, paths as text, NaN and infinity as null."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested dicts as one, with dotted keys: {"a": {"b": 1}} becomes {"a.b": 1}."""
    pairs: dict[str, Any] = {}
    for name, inner in values.items():
        if isinstance(inner, dict) and inner:
            pairs |= flat(inner, f"{above}{name}.")
        else:
            pairs[f"{above}{name}"] = inner
    return pairs


def check_id(identifier: str, what: str) -> str:
    """Return an id that may safely become part of a path.

    Raises DataError for ids with slashes, leading dots, other signs than letters, digits,
    `.`, `_`, `-`, or of more than 200 characters.
    """
    if not isinstance(identifier, str) or not _SAFE_ID.fullmatch(identifier):
        raise DataError(
            f"{what} {str(identifier)[:60]!r} cannot be used as a folder name; allowed are "
            "letters, digits, '.', '_' and '-', not starting with '.' or '-', at most 200 "
            "characters."
        )
    return identifier


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename survives a power cut."""
    if os.name == "posix":
        _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        with _named_where_refused(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """The permissions that new files go without. Linux tells; elsewhere it can only be read by
    setting it, which other threads see: what they make meanwhile is too private, not too open."""
    with suppress(OSError):
        found = _UMASK.search(Path("/proc/self/status").read_text(encoding="utf-8"))
        if found:
            return int(found[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
