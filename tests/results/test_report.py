"""The report: whole with all parts, honest without them, escaped, offline, always the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from rlkit.config import RunConfig
from rlkit.errors import DataError, RlkitError, RunError
from rlkit.files import flat
from rlkit.results.evaluation import Evaluation
from rlkit.results.report import best_step, changed_parameters, write_report
from rlkit.results.report_facts import lineage
from rlkit.results.report_page import number, signed
from rlkit.run import Run

NOON = datetime(2026, 1, 2, 12, 0)


class Page(HTMLParser):
    """Collects tags, addresses and ids, as a browser would meet them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "srcset", "action", "data", "poster"):
                self.addresses.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)


@pytest.fixture(scope="module")
def report(finished_run: Path) -> str:
    return write_report(finished_run, now=NOON).read_text(encoding="utf-8")


def test_nothing_is_loaded_from_anywhere(report: str) -> None:
    page = Page(report)
    assert page.addresses
    assert all(a.startswith("data:image/svg+xml;base64,") for a in page.addresses)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert page.handlers == []
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in report
    style = report[report.index("<style>") : report.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_texts_of_documents_and_models_stay_text(report: str) -> None:
    assert "<script>alert" not in report and "<img src=x" not in report
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in report
    assert "&lt;/td&gt;&lt;img src=x onerror=alert(2)&gt;" in report


def test_every_picture_has_a_text(report: str) -> None:
    images = re.findall(r"<img [^>]*>", report)
    assert len(images) >= 9 + 4
    assert all(re.search(r'alt="[^"]{20,}"', image) for image in images)


def test_all_parts_are_there(report: str) -> None:
    for part in (
        "difference of +0.44", "n = 32 held-out questions", "grpo.group_size",
        "16 states that have nothing missing", "gold documents", "0123abc",
        "Discovery rate by policy",
        "What the reward is made of", "tuned Executor minus warm start", "IMPORTANT",
        "metrics.jsonl",
        "120 questions, 120 states",
    ):  # fmt: skip
        assert part in report, part


def test_the_same_run_gives_the_same_bytes_apart_from_the_date(
    finished_run: Path, report: str
) -> None:
    later = write_report(finished_run, now=datetime(2027, 3, 4, 5, 6)).read_text(encoding="utf-8")
    assert later != report
    made = re.compile(r"<time .*?</time>")
    assert made.sub("", later) == made.sub("", report)


def test_alarms_of_the_training_stand_below_its_curves(toy_run: Path, report: str) -> None:
    assert "None was raised during training." in report
    alarm = "the KL jumps: <script>alert(1)</script>"
    with open(toy_run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 41, "reward": 1.0, "alarms": [alarm]}) + "\n")
    text = write_report(toy_run).read_text(encoding="utf-8")
    assert "<li>Step 41: the KL jumps: &lt;script&gt;" in text and "None was raised" not in text


def test_the_checkpoint_that_was_evaluated_and_the_best_on_dev_are_named(toy_run: Path) -> None:
    path = toy_run / "evaluation.json"
    data = json.loads(path.read_text())
    played = {"folder": "lora_checkpoints/checkpoint-8", "step": 8, "precision": "bfloat16"}
    data |= {"precisions": {"tuned": "bfloat16", "untouched": "float32"}}
    data |= {"adapters": {"tuned": played}, "judge": "llm <b>x</b>", "corpus_fingerprint": "ab12"}
    path.write_text(json.dumps(data))
    rows = [{"step": step, "eval/reward": value} for step, value in ((0, 9.0), (4, 2.0), (8, 2.0))]
    (toy_run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(toy_run).read_text(encoding="utf-8")
    assert "<dt>Evaluated as tuned Executor</dt>" in text
    assert "<dd>lora_checkpoints/checkpoint-8 (step 8), in bfloat16</dd>" in text
    assert "<dt>Precision of the untouched model</dt>\n  <dd>float32</dd>" in text
    assert "Precision of the tuned" not in text  # it stands beside its checkpoint
    assert "<dd>llm &lt;b&gt;x&lt;/b&gt;</dd>" in text and "<dd>ab12</dd>" in text
    assert "<dd>step 4; <code>eval --checkpoint best</code> evaluates it</dd>" in text


def test_missing_parts_are_named(toy_run: Path) -> None:
    (toy_run / "evaluation.json").unlink()
    assert "has not been evaluated yet" in write_report(toy_run).read_text(encoding="utf-8")
    for name in ("metrics.jsonl", "config.yaml", "lineage.json", "status.json"):
        (toy_run / name).unlink()
    text = write_report(toy_run).read_text(encoding="utf-8")
    for said in ("no metrics yet", "no config.yaml", "no lineage.json", "<dd>new</dd>"):
        assert said in text, said


def test_an_empty_folder_gets_a_report_too(tmp_path: Path) -> None:
    assert "The folder is empty" in write_report(tmp_path).read_text(encoding="utf-8")


def test_damaged_files_and_missing_folders_are_named(toy_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere"):
        write_report(tmp_path / "nowhere")
    (toy_run / "evaluation.json").write_text('{"schema": 1, "rows": [')
    with pytest.raises(DataError, match="evaluation.json"):
        write_report(toy_run)
    assert not (toy_run / "report.html").exists()


@pytest.mark.parametrize("content", ["5", "[1]"])
def test_parameters_of_another_shape_end_it_since_runs_are_compared_by_them(
    toy_run: Path, content: str
) -> None:
    (toy_run / "config.yaml").write_text(content)
    with pytest.raises(RlkitError, match="config.yaml"):
        write_report(toy_run)
    assert not (toy_run / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, text) for name in ("lineage.json", "status.json") for text in ("5", "[1]", '{"sta')]
    + [("lineage.json", '{"versions": 5}'), ("lineage.json", '{"earlier": 5}')]
    + [("status.json", "{}")],
)
def test_files_of_another_shape_are_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RlkitError, match=name):
        Run(RunConfig(), tmp_path).status()
        lineage(tmp_path / name)


def test_the_rest_is_told_where_files_beside_the_claims_are_damaged(toy_run: Path) -> None:
    half = ["lineage.json", "status.json", "rollouts/step-3.parquet"]
    for name in half:
        (toy_run / name).parent.mkdir(exist_ok=True)
        (toy_run / name).write_text('{"half a fi')
    text = write_report(toy_run).read_text(encoding="utf-8")
    said = re.findall("Left out, since it is damaged: ([^<]*)", text)
    assert len(said) == 3 and all(any(name in one for one in said) for name in half)
    assert "a difference of +0.44" in text and "<dd>unknown</dd>" in text


def test_signs_that_html_has_not_are_shown_as_replaced(
    toy_run: Path, toy_evaluation: Evaluation
) -> None:
    states = [s | {"question": "a\x00b\x0bc\ufffed\te"} for s in toy_evaluation.states]
    replace(toy_evaluation, states=tuple(states)).save(toy_run / "evaluation.json")
    page = write_report(toy_run).read_text(encoding="utf-8")
    assert "a\ufffdb\ufffdc\ufffdd\te" in page
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe]", page)


def test_only_parameters_that_differ_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("run_name: x\ngrpo:\n  group_size: 8\n  clip_epsilon: 0.2\n")
    (row,) = changed_parameters(path)
    assert (row["key"], row["value"], row["default"]) == ("grpo.group_size", 8, 4)


def test_small_helpers() -> None:
    assert flat({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "a.c": {}, "d": [2]}
    assert [number(v) for v in (None, float("nan"), -0.001, 1.005)] == ["–", "–", "0.00", "1.00"]
    values = (None, -0.004, -0.0049, 0.25, -0.25, 4e-5)
    assert [signed(v) for v in values] == ["–", "-0.004", "-0.005", "+0.25", "-0.25", "0.00"]


def test_the_best_step_is_the_highest_in_what_training_best_names(toy_run: Path) -> None:
    rows = [
        {"step": 0, "eval/reward": 9.0, "eval/discovery_rate": 0.9},  # before training
        {"step": 10, "eval/reward": 1.0, "eval/discovery_rate": 0.5},
        {"step": 20, "eval/reward": 2.0, "eval/discovery_rate": 0.25},
        {"step": 30, "eval/reward": 2.0, "eval/discovery_rate": None},
    ]
    assert best_step(rows) == 20 and best_step(rows, "discovery_rate") == 10
    assert best_step(rows, "accuracy") is None
    (toy_run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for changes, said in (
        ({}, ("Best checkpoint by the reward on dev", "<dd>step 20;")),
        ({"best": "discovery_rate"}, ("by the discovery rate on dev", "<dd>step 10;")),
    ):
        put(toy_run, training=changes)
        text = write_report(toy_run, now=NOON).read_text(encoding="utf-8")
        assert all(part in text for part in said)


def test_the_runs_own_prices_and_the_warm_start_of_all_weights_are_told(toy_run: Path) -> None:
    asked = {"judge_requests": 10, "judge_prompt_tokens": 1e6, "judge_completion_tokens": 5e5}
    (toy_run / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward": 1.0, **asked}) + "\n")
    (toy_run / "sft" / "model").mkdir(parents=True)
    updates = [{"seconds": 30.0, "tokens": 500}, {"seconds": 30.0, "tokens": 700}]
    (toy_run / "sft" / "model" / "sft_metrics.json").write_text(json.dumps(updates))
    put(toy_run, lora={"enabled": False}, monitoring={"price_in": 2, "price_out": 8})
    text = write_report(toy_run, now=NOON).read_text(encoding="utf-8")
    assert "500,000 written, cost 6.00" in text  # 1 million at 2, half a million at 8
    assert "60 s for 2 updates, 1,200 tokens learnt from" in text


def put(run: Path, **sections: dict) -> None:
    """Change a run's `config.yaml`."""
    given = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(given | sections))
