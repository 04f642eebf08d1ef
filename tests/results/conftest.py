"""A made-up run: a toy task whose clues find documents by name, policies of rising skill, hostile
texts, and the files that a run's folder holds."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml

from rlkit.results.evaluate import REWARD_PARTS, Evaluation, evaluate_policies
from rlkit.rounds.split import Splits
from rlkit.rounds.state import State

VALUES = dict(zip(REWARD_PARTS, (2.5, 0.3, 0.3, 0.1, 0.0, -0.1), strict=True))
SCRIPT = "<script>alert(1)</script>"
BROKEN_CELL = "</td><img src=x onerror=alert(2)>"
LONG_QUESTION = "Which of these harbours was dredged first? " + "W" * 300 + " harbour" * 2463
CHINESE = "《红楼梦》的作者出生在哪座城市，这座城市的旧称是什么？"


@dataclass(frozen=True)
class ToyScore:
    reward: float | None
    components: dict[str, Any]


@dataclass
class ToyTask:
    """Scores `<clue>` lines: a clue that names a missing document finds it, others find chaff."""

    searches: ClassVar[bool] = True
    splits: Splits
    env: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            max_documents=8, calculator=SimpleNamespace(values=VALUES, function=None)
        )
    )
    depths: list[int | None] = field(default_factory=list)

    def states(self, split: str) -> list[State]:
        return self.splits.part(split)

    def score(
        self, state: State, completions: Sequence[str], top_k: int | None = None
    ) -> list[ToyScore]:
        self.depths.append(top_k)
        return [self._score(state, text) for text in completions]

    def _score(self, state: State, text: str) -> ToyScore:
        clues = re.findall(r"<clue>(.*?)</clue>", text)[:4]
        documents = [document for clue in clues for document in _found(state, clue)]
        counts = dict.fromkeys(REWARD_PARTS, 0)
        for document in documents:
            if document["verdict"] is not None:
                counts[f"{document['verdict'].lower()}_{_age(document)}"] += 1
        reward = round(sum(VALUES[part] * n for part, n in counts.items()), 6)
        unjudged = sum(document["verdict"] is None for document in documents)
        if not clues:
            reward = -2.1
        elif documents and unjudged == len(documents):
            reward = None
        read = [d for d in documents if d["new"] and d["verdict"]]
        important = counts["important_new"]
        return ToyScore(
            reward,
            {
                "clues": clues, "parsed_how": "bare", "documents": documents,
                "n_clues": len(clues), "unjudged": unjudged, "documents_read": len(read),
                "important_rate": important / len(read) if read else 0.0,
                "discovery_rate": important / len(state.missing) if state.missing else None,
                "invalid": int(not clues), "reward_without_seen": reward, **counts,
            },
        )  # fmt: skip


def _age(document: dict[str, Any]) -> str:
    return "new" if document["new"] else "seen"


def _found(state: State, clue: str) -> list[dict[str, Any]]:
    if clue.startswith("unjudged"):
        return [_document("u1", "A document that nobody judged", None, True, clue)]
    hits = [docid for docid in sorted(state.missing) if docid in clue]
    found = [_document(docid, f"The page of {docid}", "IMPORTANT", True, clue) for docid in hits]
    number = zlib.crc32(clue.encode())
    verdict = "LOCAL" if number % 3 == 0 else "DISCARD"
    found.append(_document(f"chaff-{number % 97}", f"Chaff {SCRIPT}", verdict, True, clue))
    if number % 4 == 0:
        found.append(_document(state.seen_docids[0], "Known already", "IMPORTANT", False, clue))
    return found


def _document(docid: str, title: str, verdict: str | None, new: bool, clue: str) -> dict[str, Any]:
    return {"docid": docid, "title": title, "verdict": verdict, "new": new, "clue": clue}


@dataclass
class ToyPolicy:
    """Names each missing document with a chance of `skill` in 100, decided by a checksum."""

    skill: int
    deep: bool = False

    def write(self, state: State) -> str:
        def lucky(docid: str) -> bool:
            return zlib.crc32(f"{state.state_id} {docid}".encode()) % 100 < self.skill

        named = [docid for docid in sorted(state.missing) if lucky(docid)]
        clues = [f"{docid} 的历史 {BROKEN_CELL}" for docid in named]
        clues.append(f"{state.subgoal[:80]} {self.skill % 7}")
        return "<analysis>Look for the place.</analysis>\n" + "\n".join(
            f"<clue>{clue}</clue>" for clue in clues
        )


@dataclass
class BatchPolicy(ToyPolicy):
    sizes: list[int] = field(default_factory=list)

    def write_batch(self, states: Sequence[State]) -> list[str]:
        self.sizes.append(len(states))
        return [self.write(state) for state in states]


def toy_state(question: int, round_: int, text: str | None = None) -> State:
    gold = tuple(f"doc-{question}-{hop}" for hop in range(2 + question % 3))
    seen = gold[:round_] if question % 9 else gold  # every ninth question has nothing missing
    return State(
        state_id=f"q{question}/run_001/{round_}",
        question_id=f"q{question}",
        question=text or f"Where was the founder of the firm that built bridge {question} born?",
        round=round_,
        strategy="SEARCH",
        subgoal=f"Find who founded the firm that built bridge {question}",
        seen_docids=("seen-0", *seen),
        gold_docids=gold,
        known_important=frozenset(gold),
        hops=len(gold),
    )


@pytest.fixture(scope="session")
def toy_states() -> list[State]:
    texts = {1: LONG_QUESTION, 2: f"{SCRIPT} {BROKEN_CELL}", 3: CHINESE}
    return [toy_state(q, r, texts.get(q)) for q in range(1, 37) for r in (1, 2)]


@pytest.fixture()
def toy_task(toy_states: list[State]) -> ToyTask:
    return make_task(toy_states)


def make_task(toy_states: list[State]) -> ToyTask:
    train = [toy_state(question, 1) for question in range(100, 220)]
    return ToyTask(Splits(train, train[:10], toy_states, how="random", shared_gold=0))


@pytest.fixture()
def toy_policies() -> dict[str, ToyPolicy]:
    return make_policies()


def make_policies() -> dict[str, ToyPolicy]:
    return {
        "raw_question": ToyPolicy(15, deep=True),
        "untouched": ToyPolicy(25),
        "warm_start": BatchPolicy(45),
        "tuned": BatchPolicy(70),
        "oracle": ToyPolicy(100),
    }


@pytest.fixture(scope="session")
def toy_evaluation(toy_states: list[State]) -> Evaluation:
    return evaluate_policies(make_task(toy_states), make_policies(), toy_states)


def toy_metrics(steps: int) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl that look like a run's: rising reward, falling entropy."""
    lines = []
    for step in range(1, steps + 1):
        wobble = zlib.crc32(str(step).encode()) % 100 / 100 - 0.5
        lines.append(
            {
                "step": step, "epoch": 1 + (step - 1) // 10, "reward": 1 + 0.04 * step + wobble,
                "reward_std": 0.8, "frac_reward_zero_std": float(step % 5 == 0),
                "kl": 0.0004 * (step - 1), "entropy": 1.2 - 0.01 * step, "loss": 0.01 * wobble,
                "grad_norm": 0.5 + abs(wobble), "learning_rate": 5e-5,
                "completions/mean_length": 42 + 8 * wobble, "completions/clipped_ratio": 0.0,
                "important_rate": 0.2 + 0.004 * step, "discovery_rate": 0.3 + 0.006 * step,
                "clues_per_action": 2.5, "distinct_clue_ratio": 0.9, "invalid_share": 0.02,
                "unjudged_share": 0.0, "step_time": 8.5 + wobble,
            }
        )  # fmt: skip
        if step % 10 == 0:
            rise = {"eval/reward": 1.1 + 0.03 * step, "eval/kl": 0.001 * step}
            lines[-1] |= rise | {"eval/discovery_rate": 0.32 + 0.004 * step}
    return lines


@pytest.fixture()
def toy_run(tmp_path: Path, toy_evaluation: Evaluation) -> Path:
    return make_run(tmp_path / "made-up", toy_evaluation)


def make_run(folder: Path, evaluation: Evaluation) -> Path:
    """A finished run's folder."""
    folder.mkdir(parents=True)
    sections = {
        "run_name": "made-up",
        "model": {"base_model_path": "smollm2-135m-instruct", "load_in_4bit": False},
        "grpo": {"group_size": 8, "learning_rate": 1e-4},
        "output_root": str(folder.parent),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(sections))
    lines = "".join(json.dumps(line) + "\n" for line in toy_metrics(40))
    (folder / "metrics.jsonl").write_text(lines)
    lineage = {"git_commit": "0123abc" * 5, "dirty": False, "versions": {"torch": "2.13.0"}}
    (folder / "lineage.json").write_text(json.dumps(lineage | {"note": SCRIPT}))
    (folder / "status.json").write_text(json.dumps({"state": "finished", "step": 40}))
    evaluation.save(folder / "evaluation.json")
    return folder


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, toy_evaluation: Evaluation) -> Path:
    """The same folder, shared by tests that only read what is made from it."""
    return make_run(tmp_path_factory.mktemp("outputs") / "made-up", toy_evaluation)


@pytest.fixture(scope="session")
def seed_runs(tmp_path_factory: pytest.TempPathFactory, toy_states: list[State]) -> list[Path]:
    """Two runs that differ by their seed only, each with policies of its own skill."""
    root, found = tmp_path_factory.mktemp("seeds"), []
    for seed, skill in ((7, 70), (8, 60)):
        policies = {"untouched": ToyPolicy(25), "tuned": ToyPolicy(skill)}
        evaluation = evaluate_policies(make_task(toy_states), policies, toy_states)
        folder = make_run(root / f"seed{seed}", evaluation)
        sections = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump(sections | {"seed": seed}))
        rewards = "".join(f'{{"step": {n}, "reward": {n / seed}}}\n' for n in range(1, 9))
        (folder / "metrics.jsonl").write_text(rewards)  # one curve is enough to lay over another
        found.append(folder)
    return found
