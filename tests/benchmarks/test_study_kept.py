"""What is kept of a study's output, and brought back elsewhere."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import yaml

from benchmarks.study.kept import keep, restore, without_texts
from benchmarks.study.ledger import NAME, sha256
from benchmarks.study.parts import best_checkpoint, parts
from benchmarks.study.run import DONE, Queue
from rlkit.errors import RunError
from rlkit.yaml_text import read_yaml

ROW = {
    "schema": 1, "rows": [{"completion": "a secret", "reward": 1.5, "clues": ["x"], "n_clues": 1}],
    "states": [{"question_id": "q1", "question": "who?", "missing": ["d1"], "n_missing": 1}],
}  # fmt: skip


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def adapter(folder: Path, weights: bytes) -> None:
    write(folder / "adapter_model.safetensors", weights)
    write(folder / "adapter_config.json", "{}")


@pytest.fixture
def output(tmp_path) -> Path:
    """Seed 7: warm start, GRPO (best at step 20 of 30) and two rows; a control that is begun."""
    place = tmp_path / "first" / "output"
    adapter(place / "study-sft-7" / "sft" / "adapter", b"warm")
    write(place / "study-sft-7" / "sft" / "adapter" / "sft_metrics.json", "[]")
    grpo = place / "study-grpo-7"
    adapter(grpo / "reference_adapter", b"warm")
    for step in (20, 30):
        adapter(grpo / "lora_checkpoints" / f"checkpoint-{step}", f"tuned {step}".encode())
    curve = [{"step": 20, "eval/discovery_rate": 0.6}, {"step": 30, "eval/discovery_rate": 0.5}]
    write(grpo / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in curve))
    write(grpo / "status.json", json.dumps({"state": "finished"}))
    rounds = {"rounds_path": f"{place}/study-rounds/rounds"}
    write(grpo / "config.yaml", yaml.safe_dump({"output_root": str(place), "data": rounds}))
    for name in ("dev-sft-7", "test-sft-7"):
        write(place / "rows" / f"{name}.json", json.dumps(ROW))
    write(place / NAME, '{"row": "test/sft-7"}\n')
    adapter(place / "study-sft-continued-7" / "sft" / "checkpoint", b"half")
    return place


def test_what_is_kept_makes_the_same_parts_done_elsewhere(output, tmp_path):
    kept, there = tmp_path / "kept", tmp_path / "second" / "output"
    keep(output, tmp_path / "data", kept)
    restore(there, tmp_path / "data", kept)
    states = [
        {name: Queue(parts(), place, Path()).state(part) for name, part in parts().items()}
        for place in (output, there)
    ]
    assert states[0] == states[1]
    done = [name for name, state in states[0].items() if state == DONE]
    assert done == ["sft/7", "grpo/7", "dev/sft-7", "test/sft-7"]
    assert best_checkpoint(there / "study-grpo-7").name == "checkpoint-20"


def test_an_adapter_is_kept_once_and_only_where_a_later_part_needs_it(output, tmp_path):
    keep(output, tmp_path / "data", tmp_path / "kept")
    names = {path.name for path in (tmp_path / "kept" / "weights").iterdir()}
    assert names == {f"{sha256(content)}.safetensors" for content in (b"warm", b"tuned 20")}
    restore(tmp_path / "there", tmp_path / "data", tmp_path / "kept")
    run = tmp_path / "there" / "study-grpo-7"
    assert (run / "reference_adapter" / "adapter_model.safetensors").read_bytes() == b"warm"
    assert not (run / "lora_checkpoints" / "checkpoint-30").exists()
    assert not (tmp_path / "there" / "study-sft-continued-7").exists()


def test_paths_are_those_of_the_place(output, tmp_path):
    keep(output, tmp_path / "data", tmp_path / "kept")
    kept = "".join(p.read_text() for p in (tmp_path / "kept").rglob("*.*") if p.suffix != ".gz")
    assert str(tmp_path) not in kept
    restore(tmp_path / "there", tmp_path / "data", tmp_path / "kept")
    config = read_yaml(tmp_path / "there" / "study-grpo-7" / "config.yaml")
    assert config["data"]["rounds_path"] == f"{tmp_path}/there/study-rounds/rounds"
    assert config["output_root"] == f"{tmp_path}/there"


def test_a_path_of_the_machine_that_is_neither_output_nor_data_is_refused(output, tmp_path):
    config = output / "study-grpo-7" / "config.yaml"
    write(config, yaml.safe_dump({"model": {"init_adapter": "/elsewhere/adapter"}}))
    with pytest.raises(RunError, match="model.init_adapter is /elsewhere/adapter, which lies"):
        keep(output, tmp_path / "data", tmp_path / "kept")


def test_no_text_of_a_question_a_document_or_a_model_is_kept(output, tmp_path):
    keep(output, tmp_path / "data", tmp_path / "kept")
    row = json.loads(gzip.decompress((tmp_path / "kept/rows/dev-sft-7.json.gz").read_bytes()))
    assert row["states"] == [
        {"question_id": "q1", "question": "", "missing": [], "n_missing": 1},
    ]
    assert row["rows"] == [{"completion": "", "reward": 1.5, "clues": [], "n_clues": 1}]
    assert without_texts({"documents": 3}) == {"documents": 3}  # a count is none


def test_keeping_again_adds_what_came_and_another_study_is_refused(output, tmp_path):
    kept = tmp_path / "kept"
    before = keep(output, tmp_path / "data", kept)
    write(output / "rows" / "dev-grpo-7.json", json.dumps(ROW))
    write(output / NAME, '{"row": "test/sft-7"}\n{"row": "test/grpo-7"}\n')
    after = keep(output, tmp_path / "data", kept)
    assert {path.name for path in after} - {path.name for path in before} == {
        "dev-grpo-7.json.gz", "dev-grpo-7.json",
    }  # fmt: skip
    write(output / "study-grpo-7" / "metrics.jsonl", "")
    with pytest.raises(RunError, match="metrics.jsonl is there and differs"):
        keep(output, tmp_path / "data", kept)
    with pytest.raises(RunError, match="metrics.jsonl is there and differs"):
        restore(output, tmp_path / "data", kept)


def test_an_older_output_takes_the_ledger_that_has_grown(output, tmp_path):
    kept, there = tmp_path / "kept", tmp_path / "there"
    keep(output, tmp_path / "data", kept)
    restore(there, tmp_path / "data", kept)
    longer = (output / NAME).read_text() + '{"row": "test/grpo-7"}\n'
    write(output / NAME, longer)
    keep(output, tmp_path / "data", kept)
    restore(there, tmp_path / "data", kept)
    assert (there / NAME).read_text() == longer
    write(there / NAME, longer + '{"row": "test/grpo-8"}\n')
    restore(there, tmp_path / "data", kept)  # which has opened one more meanwhile
    assert (there / NAME).read_text().count("\n") == 3
    with pytest.raises(RunError, match="there and differs"):  # what is kept is ahead of this one
        keep(there, tmp_path / "data", kept)
        keep(output, tmp_path / "data", kept)


def test_a_row_that_another_python_packed_is_the_same_row(output, tmp_path):
    keep(output, tmp_path / "data", tmp_path / "kept")
    row = tmp_path / "kept" / "rows" / "dev-sft-7.json.gz"
    row.write_bytes(gzip.compress(gzip.decompress(row.read_bytes()), 1, mtime=5))
    keep(output, tmp_path / "data", tmp_path / "kept")


def test_an_adapter_whose_row_is_still_to_come_is_kept_too(output, tmp_path):
    run = output / "study-sft-continued-7"
    adapter(run / "sft" / "adapter", b"longer")
    weights = tmp_path / "kept" / "weights" / f"{sha256(b'longer')}.safetensors"
    keep(output, tmp_path / "data", tmp_path / "kept")
    assert weights.exists()
    for row in ("dev", "test"):
        write(output / "rows" / f"{row}-sft-continued-7.json", json.dumps(ROW))
    keep(output, tmp_path / "data", tmp_path / "new")
    assert not (tmp_path / "new" / "weights" / weights.name).exists()


def test_where_rounds_are_to_be_collected_again_all_that_needs_them_waits(output, tmp_path):
    keep(output, tmp_path / "data", tmp_path / "kept")
    restore(tmp_path / "there", tmp_path / "data", tmp_path / "kept")
    queue = Queue(parts(), tmp_path / "there", Path())
    ready = [name for name, part in queue.parts.items() if queue.state(part) == "ready"]
    assert ready == ["collect", "hotpotqa-rounds"]


def test_restoring_leaves_what_is_there_and_says_where_weights_are_damaged(output, tmp_path):
    kept, there = tmp_path / "kept", tmp_path / "there"
    keep(output, tmp_path / "data", kept)
    write(there / "study-grpo-7" / "config.yaml", "mine")
    restore(there, tmp_path / "data", kept)
    assert (there / "study-grpo-7" / "config.yaml").read_text() == "mine"
    next((kept / "weights").iterdir()).write_bytes(b"cut")
    with pytest.raises(RunError, match="missing or damaged"):
        restore(tmp_path / "third", tmp_path / "data", kept)
    with pytest.raises(RunError, match="holds nothing"):
        restore(tmp_path / "third", tmp_path / "data", tmp_path / "empty")
