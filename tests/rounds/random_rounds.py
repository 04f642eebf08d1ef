"""Small random folders of recorded rounds, with damage of every kind."""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = ("elm", "row", "ada", "holt", "埃尔姆", "trent", 'quo"te', "nul")
VERDICTS = ("IMPORTANT", "LOCAL", "DISCARD", None)


def make_random(root: Path, seed: int, questions: int = 12) -> None:
    chance = random.Random(seed)
    root.mkdir(parents=True, exist_ok=True)
    for number in range(questions):
        _question(root / f"q{number}", chance)
    (root / ".hidden" / "run_001").mkdir(parents=True)
    (root / "a file").write_text("{}")
    (root / "no question").mkdir()


def _question(folder: Path, chance: random.Random) -> None:
    gold = chance.choice([None, [], ["d1", "d2"], ["d1", "d1", "d7"]])
    for number in range(1, chance.choice([1, 1, 2, 4]) + 1):
        run = folder / f"run_{number:03d}"
        run.mkdir(parents=True)
        _run(run, folder.name, gold, chance)
        if chance.random() < 0.4:
            chance.choice(DAMAGE)(run)


def _run(run: Path, question_id: str, gold: list[str] | None, chance: random.Random) -> None:
    count = chance.randint(0, 6)
    prefix = chance.choice(["round_", "round_0"])  # both are names that a run may list
    refs = [_ref(n, f"{prefix}{n:03d}.json", chance) for n in range(1, count + 1)]
    for n, name in enumerate(["round_000.json", *(ref["checkpoint"] for ref in refs)]):
        content = json.dumps(_file(n, chance), indent=1, ensure_ascii=False)
        (run / name).write_text(chance.choice(["", "", "\ufeff"]) + content, encoding="utf-8")
    if chance.random() < 0.2:
        refs.insert(0, _ref(0, "round_000.json", chance))
    meta = {
        "schema": 1,
        "question_id": question_id,
        "question": f"Which {chance.choice(WORDS[:2])} is {question_id}?",
        "gold_docids": gold if chance.random() < 0.8 else None,
        "hops": chance.choice([None, None, 3]),
        "status": chance.choice(["finished", "failed", "odd"]),
        "collector": chance.choice([None, "one", "two"]),
        "rounds": refs,
        "extra": 1,
    }
    (run / "meta.json").write_text(json.dumps(meta))


def _ref(number: int, name: str, chance: random.Random) -> dict:
    ref = {
        "round": number,
        "strategy": chance.choice(["SEARCH", "SEARCH", "SEARCH", "ANSWER", ""]),
        "subgoal": chance.choice(WORDS),
        "clues": chance.sample(WORDS, chance.randint(0, 4)),
        "checkpoint": name,
    }
    return ref | ({"failed": "no model."} if chance.random() < 0.15 else {})


def _file(number: int, chance: random.Random) -> dict:
    ids = [f"d{n}" for n in range(10)]
    return {
        "schema": 1,
        "round": number,
        "clues": chance.sample(WORDS, chance.randint(0, 4)),
        "entity_table": [
            {"id": "e1", "name": chance.choice(WORDS), "attributes": {"a": [1, None]}}
        ],
        "document_table": [
            {"docid": docid, "title": "T", "verdict": chance.choice(VERDICTS), "kept": True}
            for docid in chance.sample(ids, 2)
        ],
        "context_table": [{"docid": "d1", "text": " ".join(chance.choices(WORDS, k=5))}],
        "seen_docids": chance.choices(ids, k=4),
        "results": [
            {"docid": chance.choice(ids), "rank": 1, "verdict": chance.choice(VERDICTS)}
            for _ in range(chance.randint(0, 4))
        ],
    }


def _cut(run: Path) -> None:
    path = sorted(run.glob("round_*.json"))[-1]
    path.write_bytes(path.read_bytes()[:30])


def _changed(name: str, **fields):
    def change(run: Path) -> None:
        row = json.loads((run / name).read_text("utf-8-sig"))
        (run / name).write_text(json.dumps(row | fields))

    return change


def _folder(run: Path) -> None:
    (run / "round_000.json").unlink()
    (run / "round_000.json").mkdir()


def _dead_link(run: Path) -> None:
    (run / "meta.json").unlink()
    (run / "meta.json").symlink_to("nowhere.json")


DAMAGE = (
    _cut,
    _folder,
    _dead_link,
    lambda run: (run / "round_000.json").unlink(),
    lambda run: (run / "meta.json").unlink(),
    lambda run: (run / "meta.json").write_bytes(b"\xff{"),
    lambda run: (run / "meta.json").rename(run / "meta.jso"),
    lambda run: run.rename(run.with_name(".run")) if not run.with_name(".run").exists() else None,
    lambda run: run.rename(run.with_name("run_0012")),
    _changed("meta.json", question_id="other"),
    _changed("meta.json", question_id="../q"),
    _changed("meta.json", question="Another?"),
    _changed("meta.json", schema=2),
    _changed("round_000.json", round=1),
    _changed("round_000.json", seen_docids=[3]),
    _changed("round_000.json", entity_table=[{"id": "e", "name": "n"}] * 2),
)
