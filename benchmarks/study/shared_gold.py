"""Questions whose gold documents also belong to a question that was trained on: no question text is
shared, but a document can be."""

from __future__ import annotations

from pathlib import Path

from benchmarks.study.parts import ROUNDS
from rlkit.errors import RunError
from rlkit.files import read_object

SPLITS = "splits.json"


def shared_with_training(output: Path, run: str) -> frozenset[str]:
    """The ids of the questions outside of a run's train part that share a gold document with one
    in it; none where the run has no split yet."""
    path = output / run / SPLITS
    if not path.exists():
        return frozenset()
    trained = frozenset(read_object(path)["questions"]["train"])
    gold = {
        meta["question_id"]: frozenset(meta.get("gold_docids") or ())
        for file in (output / ROUNDS / "rounds").glob("*/run_*/meta.json")
        if (meta := read_object(file))
    }
    if not trained <= set(gold):
        raise RunError(
            f"{output / ROUNDS} lacks rounds of questions that {run} was trained on; collect them "
            "(run.py --only collect)."
        )
    known = frozenset().union(*(gold[question] for question in trained))
    return frozenset(q for q, documents in gold.items() if q not in trained and documents & known)
