"""Makes recorded rounds in any number, for benchmarks/checkpoints.py: four SEARCH rounds a question
over a made-up library, about 20 KB a round on average, the same ones for the same seed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from rlkit.rounds.writer import META_NAME, round_name

ROUNDS = 4  # of a question
DOCUMENTS = 20_000  # of the library
TEXT = 190  # words of a document
READ, KEPT, FOUND = 8, 4, 16  # documents a round: read, kept in the tables, brought back
VERDICTS = ("IMPORTANT", "LOCAL", "LOCAL", "LOCAL", *["DISCARD"] * 4)  # of the documents read


def make_rounds(root: Path, questions: int, seed: int = 7, words_a_text: int = TEXT) -> int:
    """Write the runs of so many questions below `root`; returns the bytes of the round files."""
    generator = random.Random(seed)
    words = ["".join(generator.choices("aeioubdklmnrst", k=n % 7 + 3)) for n in range(3000)]
    library = [_document(n, words, words_a_text, generator) for n in range(DOCUMENTS)]
    return sum(_write_question(root, number, library, generator) for number in range(questions))


def _document(
    number: int, words: list[str], length: int, generator: random.Random
) -> dict[str, str]:
    text = " ".join(generator.choices(words, k=length))
    return {"docid": f"d{number:06d}", "title": text[:24].title(), "text": text}


def _write_question(
    root: Path, number: int, library: list[dict[str, str]], generator: random.Random
) -> int:
    name = f"q{number:05d}"
    folder = root / name / "run_001"
    folder.mkdir(parents=True)
    found = generator.sample(library, ROUNDS * READ)
    gold = [found[at]["docid"] for at in range(0, len(found), READ)]
    file: dict[str, Any] = {"schema": 1, "round": 0}
    size, refs, texts = _write(folder / round_name(0), file), [], [row["text"] for row in found]
    for n in range(1, ROUNDS + 1):
        done = {
            "round": n,
            "strategy": "SEARCH",
            "subgoal": f"Find out {texts[n][:50]}",
            "clues": [text[n : n + 40] for text in texts[:4]],
        }
        refs.append(done | {"checkpoint": round_name(n)})
        file = {"schema": 1, **done, **_tables(found[: n * READ]), **_results(found, n)}
        size += _write(folder / round_name(n), file)
    meta = {
        "schema": 1,
        "question_id": name,
        "question": f"What is {texts[0][:70]}?",
        "gold_docids": gold,
        "status": "finished",
        "collector": "made",
        "rounds": refs,
    }
    _write(folder / META_NAME, meta)
    return size


def _tables(seen: list[dict[str, str]]) -> dict[str, Any]:
    kept = [(at // READ + 1, row) for at, row in enumerate(seen) if at % READ < KEPT]
    return {
        "entity_table": [
            {"id": f"e{at}", "name": row["title"], "type": "place",
             "attributes": {"near": row["text"][30:60], "built": 1900 + at},
             "docids": [row["docid"]]}
            for at, (_, row) in enumerate(kept)
        ],
        "target_table": [
            {"id": f"t{at}", "description": row["text"][:60], "status": "open", "value": None,
             "docids": []}
            for at, row in enumerate(seen[:3])
        ],
        "document_table": [
            {"docid": row["docid"], "title": row["title"], "verdict": VERDICTS[at % KEPT],
             "summary": row["text"][:240], "round": n}
            for at, (n, row) in enumerate(kept)
        ],
        "context_table": [
            {"docid": row["docid"], "text": row["text"], "round": n} for n, row in kept
        ],
        "seen_docids": [row["docid"] for row in seen],
    }  # fmt: skip


def _results(found: list[dict[str, str]], n: int) -> dict[str, Any]:
    back = found[max(0, n * READ - FOUND) : n * READ]
    return {
        "results": [
            {"docid": row["docid"], "clue": found[0]["text"][n : n + 40], "rank": at % 5 + 1,
             "score": 20.5 - at, "verdict": VERDICTS[at % READ]}
            for at, row in enumerate(back)
        ]
    }  # fmt: skip


def _write(path: Path, content: dict[str, Any]) -> int:
    raw = to_json(content, indent=1)
    path.write_bytes(raw)
    return len(raw)
