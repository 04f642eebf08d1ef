"""What a scan keeps of a question's recorded runs: enough to choose samples and to split them, some
hundred bytes a round however large its tables are, and the way back to the files.

| what | out of | by |
|---|---|---|
| `Recording`: question, gold, known documents | all runs of a question | `read_recording`, `.of` |
| `Run`: status, collector, digests of its files | its `meta.json` | `_read_run`, `_whole` |
| `Round` n: which known documents were missing | `round_<n-1>.json` | `_read_round`, `_whole` |
| `Round` n: how many clues; how many found | `meta.json`, `round_<n>.json` | the same |
| `State` before round n, without tables | the three above | `RecordedRound.state` |
| its tables, when they are asked for | `round_<n-1>.json` | `RecordedRound.load` |
| its recorded clues and results, likewise | `meta.json`, `round_<n>.json` | `RecordedRound.load` |

What `read_recording` returns is a line of the index (index.py), which spares the next scan that.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

from rlkit.errors import DataError, RlkitError
from rlkit.files import check_id
from rlkit.rounds.index import is_settled
from rlkit.rounds.reading import DamagedFile, Recorded, parse_recorded, read_file
from rlkit.rounds.stamps import (
    META_NAME,
    opened_files,
    round_name,
    run_names,
    short_names,
    stamp_of,
)
from rlkit.rounds.state import MetaFile, RoundFile, State, failure_of, make_state, state_from

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)
DIGITS = 32  # of a file's digest
LOADED = 32  # states whose tables stay in memory after they were asked for


class Round(NamedTuple):
    """A round from 1 on, without its tables."""

    strategy: str
    clues: int
    is_failed: bool
    missing: Sequence[str]  # known documents that were not seen before it
    found: int  # how many of these it brought back


class Run(NamedTuple):
    """A whole run; `files` are meta.json and then the round files from 0, `digests` is theirs, one
    after the other."""

    name: str
    files: Sequence[str]
    digests: str
    status: str
    collector: str | None
    failure: str | None
    hops: int | None
    rounds: Sequence[Round]


class Recording(NamedTuple):
    """The runs of one question; `damaged` has (run, file, line, reason)."""

    question: str
    gold: tuple[str, ...]
    known: frozenset[str]
    runs: Sequence[Run]
    unfinished: int
    damaged: Sequence[tuple[str, str, int | None, str]]

    @classmethod
    def of(cls, record: dict[str, Any]) -> Recording:
        """From what `read_recording` returns."""
        runs = [
            Run(name, opened_files(files), *whole[:-1], list(starmap(Round, whole[-1])))
            for name, files, whole in record["runs"]
            if whole
        ]
        gold = tuple(record["gold"])
        known = frozenset(gold if record["known"] is None else record["known"])
        return cls(record["question"], gold, known, runs, record["unfinished"], record["damaged"])


class RecordedRound:
    """A round of a run, as the source of its state."""

    __slots__ = ("folder", "recording", "run", "number")

    def __init__(self, folder: str, recording: Recording, run: Run, number: int) -> None:
        self.folder, self.recording, self.run, self.number = folder, recording, run, number

    @property
    def missing(self) -> frozenset[str]:
        return frozenset(self.run.rounds[self.number - 1].missing)

    @property
    def recorded_discovery(self) -> float | None:
        row = self.run.rounds[self.number - 1]
        return row.found / len(row.missing) if row.missing else None

    def state(self, question_id: str) -> State:
        """The state before the round, whose tables stay on the disk until they are asked for."""
        return state_from(
            self,
            f"{question_id}/{self.run.name}/{self.number}",
            question_id,
            self.recording.question,
            self.number,
            self.run.rounds[self.number - 1].strategy,
            self.recording.gold,
            self.recording.known,
            self.run.hops,
        )

    def knowing(self, known: frozenset[str]) -> State:
        """The state where these are the known documents, and no gold is; read from the files only
        where they are others than those that the scan found."""
        question_id = Path(self.folder).name
        if not self.recording.gold and self.recording.known == known:
            return self.state(question_id)
        state, rounds = self.load(), list(self.run.rounds)
        missing = known.difference(state.seen_docids)
        found = len(missing.intersection(row.docid for row in state.recorded_results))
        at = self.number - 1
        rounds[at] = rounds[at]._replace(missing=sorted(missing), found=found)
        recording = self.recording._replace(gold=(), known=known)
        hops = self.file(0, MetaFile).hops  # not as many as there is gold now
        run = self.run._replace(rounds=rounds, hops=hops)
        return RecordedRound(self.folder, recording, run, self.number).state(question_id)

    def load(self) -> State:
        return _load(self)

    def file(self, at: int, model: type[Recorded]) -> Recorded:
        """The run's file number `at`. Raises DataError where it is another one by now."""
        path = Path(self.folder, self.run.name, self.run.files[at])
        reason = "it has changed"
        try:
            raw, _ = read_file(path)
            file = parse_recorded(path, raw, model)
            if digest(raw, file) == self.run.digests[at * DIGITS : (at + 1) * DIGITS]:
                return file
        except DamagedFile as error:
            reason = error.damaged.reason
        raise DataError(
            f"{path} is not what it was when the rounds were scanned ({reason}); leave recorded "
            "rounds as they are while they are used, and start again."
        )


@lru_cache(maxsize=LOADED)
def _load(source: RecordedRound) -> State:
    """The state in the file before the round (the training sample) with all its tables."""
    meta = source.file(0, MetaFile)
    before, after = source.file(source.number, RoundFile), source.file(source.number + 1, RoundFile)
    ref = next(ref for ref in meta.rounds if ref.round == source.number)
    return make_state(
        before,
        question_id=meta.question_id,
        question=meta.question,
        run=source.run.name,
        strategy=ref.strategy,
        subgoal=ref.subgoal,
        gold_docids=source.recording.gold,
        known_important=source.recording.known,
        recorded_clues=ref.clues or after.clues,
        recorded_results=after.results,
        hops=source.run.hops,
    )


def digest(raw: bytes, file: MetaFile | RoundFile) -> str:
    """Of the bytes of a round file; of what states take from meta.json, so that a run may be marked
    as failed, say, without harm to those that know it."""
    if isinstance(file, MetaFile):
        raw = file.model_dump_json(include={"question_id", "question", "rounds"}).encode()
    return hashlib.sha256(raw).hexdigest()[:DIGITS]


class _Short(NamedTuple):
    """What is kept of a round file while its question is read."""

    clues: int
    seen: frozenset[str]
    results: frozenset[str]
    important: list[str]

    @classmethod
    def of(cls, file: RoundFile) -> _Short:
        rows = (*file.document_table, *file.results)
        return cls(
            len(file.clues),
            frozenset(file.seen_docids),
            frozenset(row.docid for row in file.results),
            [row.docid for row in rows if row.verdict == "IMPORTANT"],
        )


class _Files:
    """Reads the files of one run, one at a time, and remembers which ones and how they were."""

    def __init__(self, folder: Path, clock: int | None) -> None:
        self.folder, self.clock = folder, clock
        self.names: list[str] = []
        self.digests: list[str] = []
        self.stamps: list[int] = []
        self.settled = clock is not None

    def exists(self, name: str) -> bool:
        stamp = stamp_of(self.folder / name)
        if -stamp[0] not in _ABSENT:
            return True
        self.names.append(name)
        self.stamps += stamp
        return False

    def read(self, name: str, model: type[Recorded]) -> Recorded:
        path = self.folder / name
        self.names.append(name)
        try:
            raw, status = read_file(path)
        except DamagedFile as error:
            self.settled &= isinstance(error.__cause__, FileNotFoundError)
            self.stamps.append(-errno.ENOENT)
            raise
        self.stamps += stamp_of(status)
        self.settled = self.settled and is_settled(status, self.clock)
        file = parse_recorded(path, raw, model)
        self.digests.append(digest(raw, file))
        return file


def read_recording(folder: Path, clock: int | None) -> dict[str, Any]:
    """Read all runs of one question into what JSON can hold and `Recording.of` takes; damaged ones
    are set aside. `stamps` tells the files as they were, or is null where it cannot tell that they
    stay so (`index.is_settled`, by `clock`)."""
    whole: list[tuple[MetaFile, list[_Short]] | None] = []
    opened, damaged, unfinished = [], [], 0
    first: tuple[str, str] | None = None  # name and question of the first whole run
    for name in run_names(folder):
        files = _Files(folder / name, clock)
        opened.append((name, files))
        whole.append(None)
        if not files.exists(META_NAME):
            unfinished += 1
            continue
        try:
            run = _read_run(files, folder.name)
            first = first or (name, run[0].question)
            if run[0].question != first[1]:
                reason = f"asks another question than {first[0]}"
                raise DamagedFile(files.folder / META_NAME, None, reason)
            whole[-1] = run
        except DamagedFile as error:
            damaged.append(
                [name, error.damaged.path.name, error.damaged.line, error.damaged.reason]
            )
    runs = [run for run in whole if run]
    gold = next((meta.gold_docids for meta, _ in runs if meta.gold_docids), ())
    known = frozenset(gold) or _labelled_important(runs)
    return {
        "stamps": (
            [number for _, files in opened for number in files.stamps]
            if all(files.settled for _, files in opened)
            else None
        ),
        "question": first[1] if first else "",
        "gold": list(dict.fromkeys(gold)),
        "known": None if gold else sorted(known),
        "runs": [
            [name, short_names(files.names), run and _whole(files.digests, *run, gold, known)]
            for (name, files), run in zip(opened, whole, strict=True)
        ],
        "unfinished": unfinished,
        "damaged": damaged,
    }


def _read_run(files: _Files, question_id: str) -> tuple[MetaFile, list[_Short]]:
    """Read a whole run. Raises DamagedFile at the first file that is missing or damaged."""
    path = files.folder / META_NAME
    meta = files.read(META_NAME, MetaFile)
    try:
        check_id(meta.question_id, "question_id")
    except RlkitError as error:
        raise DamagedFile(path, None, str(error)) from error
    if meta.question_id != question_id:
        reason = f"question_id is {meta.question_id!r}, and the folder is {question_id!r}"
        raise DamagedFile(path, None, reason)
    names = {0: round_name(0), **{ref.round: ref.checkpoint for ref in meta.rounds}}
    return meta, [_read_round(files, name, number) for number, name in names.items()]


def _read_round(files: _Files, name: str, number: int) -> _Short:
    file = files.read(name, RoundFile)
    if file.round != number:
        reason = f"holds round {file.round}, and the run lists it as round {number}"
        raise DamagedFile(files.folder / name, None, reason)
    return _Short.of(file)


def _whole(
    digests: Sequence[str],
    meta: MetaFile,
    files: Sequence[_Short],
    gold: Sequence[str],
    known: frozenset[str],
) -> list[Any]:
    """The fields of a `Run` after its files."""
    rounds = []
    for ref in meta.rounds:
        if ref.round:
            missing = known - files[ref.round - 1].seen
            found = len(missing & files[ref.round].results)
            clues = len(ref.clues) or files[ref.round].clues
            row = [ref.strategy, clues, ref.failed is not None, sorted(missing), found]
            rounds.append(row)
    hops = meta.hops or len(set(gold)) or None
    return ["".join(digests), meta.status, meta.collector, failure_of(meta), hops, rounds]


def _labelled_important(runs: Iterable[tuple[MetaFile, list[_Short]]]) -> frozenset[str]:
    """Every document that any record of the question labels IMPORTANT."""
    return frozenset(docid for _, files in runs for file in files for docid in file.important)
