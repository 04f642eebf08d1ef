"""Small recorded runs for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

from rlkit.rounds.state import MetaFile, ResultRow, RoundFile, RoundRef, State, make_state
from rlkit.rounds.writer import RoundWriter, round_name


def round_file(number: int, **fields) -> RoundFile:
    return RoundFile(**{"schema": 1, "round": number, **fields})


def result(docid: str, verdict: str | None = "DISCARD") -> ResultRow:
    return ResultRow(docid=docid, clue="c", rank=1, score=1.5, verdict=verdict)


def ref(number: int, clues=("one", "two"), strategy="SEARCH", **fields) -> RoundRef:
    return RoundRef(
        round=number,
        strategy=strategy,
        clues=clues,
        checkpoint=round_name(number),
        **{"subgoal": f"goal {number}", **fields},
    )


def write_run(root: Path, question_id: str, *, refs=None, files=None, **meta_fields) -> Path:
    """A run of three rounds that finds g1 in round 1 and g2 in round 2."""
    refs = [ref(1), ref(2), ref(3)] if refs is None else refs
    if files is None:
        files = [
            round_file(0),
            round_file(1, seen_docids=("g1", "d1"), results=(result("g1", "IMPORTANT"),)),
            round_file(2, seen_docids=("g1", "d1", "g2"), results=(result("g2", "IMPORTANT"),)),
            round_file(3, seen_docids=("g1", "d1", "g2")),
        ][: len(refs) + 1]
    meta = MetaFile(
        **{
            "schema": 1,
            "question_id": question_id,
            "question": f"What is {question_id}?",
            "gold_docids": ("g1", "g2"),
            "status": "finished",
            "rounds": tuple(refs),
            **meta_fields,
        }
    )
    return RoundWriter(root).write_run(meta, files)


def a_state(question_id: str, *, question=None, found=0, of=4, hops=None, number=1) -> State:
    """A state whose recorded round found `found` of `of` missing documents."""
    known = tuple(f"{question_id}-g{i}" for i in range(of))
    return make_state(
        round_file(number - 1),
        question_id=question_id,
        question=question or f"What is {question_id}?",
        run="run_001",
        strategy="SEARCH",
        subgoal="",
        gold_docids=known,
        known_important=known,
        recorded_results=tuple(result(docid, "IMPORTANT") for docid in known[:found]),
        hops=hops,
    )
