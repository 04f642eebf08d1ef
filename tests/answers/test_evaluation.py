"""A model's answers are measured: accuracy with its exact interval, reward, length, format."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pandas as pd
import pytest

from rlkit.answers.datasets import load_rows
from rlkit.answers.evaluation import (
    ModelEvaluation,
    evaluate_model,
    figures,
    figures_line,
    fingerprint,
    model_source,
)
from rlkit.answers.task import AnswerTask, answer_states
from rlkit.config import RunConfig
from rlkit.errors import DataError, ModelError
from rlkit.results.evaluate import Evaluation


def evaluation(rows: list[dict]) -> Evaluation:
    """One policy's rows, as evaluate_policies makes them."""
    frame = pd.DataFrame([{"policy": "model", "completion": "", **row} for row in rows])
    metrics = {name: list(metric) for name, metric in AnswerTask.metrics.items()}
    return Evaluation(frame, (), {"metrics": metrics, "primary": "accuracy"})


def answer(number: int, right: float, reward: float | None = None, **more) -> dict:
    place = {"state_id": f"q{number}", "question_id": f"q{number}"}
    reward = right if reward is None else reward
    return {**place, "accuracy": right, "reward": reward, "format": 1.0, "length": 10.0,
            "answer": "72", **more}  # fmt: skip


def test_figures_are_those_of_a_hand_count():
    found = figures(
        evaluation(
            [
                answer(1, 1.0, 0.9),
                answer(2, 0.0, length=30.0),
                answer(3, 0.0, answer=None, format=0.0),
                answer(4, 0.0, float("nan"), answer=None),
            ]
        ),
        "model",
    )
    assert (found["num_samples"], found["accuracy"]) == (4, 0.25)
    assert found["average_reward"] == pytest.approx(0.3)  # of the three that were scored
    assert (found["average_length"], found["format_correctness"]) == (15.0, 0.75)
    # each under one: the fourth has no reward, so that it is not told as having no answer
    assert found["errors"] == {"wrong_answer": 1, "no_answer": 1, "unscored": 1}
    # Clopper and Pearson for 1 of 4: the lower end is 1 - 0.975 ** (1 / 4)
    low, high = found["accuracy_interval"]
    assert low == pytest.approx(1 - 0.975**0.25) and high == pytest.approx(0.80588, abs=1e-5)
    assert "accuracy 0.250 [0.006, 0.806], n = 4; reward 0.300" in figures_line(found)


def test_answers_whose_gold_cannot_be_read_are_unscored_and_leave_the_n_of_the_accuracy():
    unread = [
        answer(n, float("nan"), float("nan"), answer=given) for n, given in ((3, "7"), (4, None))
    ]
    found = figures(evaluation([answer(1, 1.0), answer(2, 0.0), *unread]), "model")
    assert (found["num_samples"], found["num_judged"], found["accuracy"]) == (4, 2, 0.5)
    assert found["errors"] == {"wrong_answer": 1, "no_answer": 0, "unscored": 2}
    # Clopper and Pearson for 1 of 2
    assert found["accuracy_interval"] == pytest.approx([1 - 0.975**0.5, 0.975**0.5])
    line = figures_line(found)
    assert line.startswith(
        "accuracy 0.500 [0.013, 0.987], n = 2 of 4 whose gold answer can be read; reward 0.500"
    )
    none = figures(evaluation(unread), "model")
    assert (none["num_judged"], none["accuracy"]) == (0, None)
    assert figures_line(none).startswith("accuracy none, n = 0 of 2 whose gold answer can be read")


def test_details_say_neither_right_nor_wrong_where_the_gold_cannot_be_read():
    states = tuple(answer_states(load_rows("arithmetic", "test", 2), RunConfig().answers))
    made = evaluation([answer(1, float("nan"), float("nan")), answer(2, 0.0)])
    details = ModelEvaluation(made, states, "cpu").details()
    assert [row["correct"] for row in details] == [None, False]


def test_a_folder_with_an_adapter_names_its_base(tmp_path):
    assert model_source("debug") == ("debug", None)
    settings = tmp_path / "adapter_config.json"
    settings.write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-0.6B"}))
    assert model_source(str(tmp_path)) == ("Qwen/Qwen3-0.6B", tmp_path)
    settings.write_text("{}")
    with pytest.raises(ModelError, match="does not name a base model"):
        model_source(str(tmp_path))


def test_a_fingerprint_changes_with_a_file_and_with_a_value(tmp_path):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"one")
    before = fingerprint(tmp_path, 6)
    assert fingerprint(tmp_path, 6) == before != fingerprint(tmp_path, 7)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"two")
    assert fingerprint(tmp_path, 6) != before


def test_a_random_model_answers_every_question_in_batches_and_alone_alike():
    rows = load_rows("arithmetic", "test", 5)
    lines: list[str] = []

    def completions(batch: int) -> list[str]:
        config = RunConfig.from_sections(
            task="answers",
            model={"load_in_4bit": False, "dtype": "float32", "device": "cpu"},
            grpo={"max_new_tokens": 6},
            evaluation={"batch_size": batch},
        )
        found = evaluate_model("debug", rows, config, log=lines.append)
        assert found.figures()["num_samples"] == 5 and found.device == "cpu"
        assert found.figures()["average_length"] <= 6
        return [row["completion"] for row in found.details()]

    assert completions(2) == completions(5)
    assert any("5 of 5" in line for line in lines)


def test_details_hold_the_question_its_answer_and_the_verdict():
    rows = load_rows("arithmetic", "test", 3)
    config = RunConfig.from_sections(
        task="answers", model={"load_in_4bit": False}, grpo={"max_new_tokens": 4}
    )
    found = evaluate_model("debug", rows, config, log=lambda line: None)
    first, second = found.details(limit=2)
    assert set(first) == {
        "question", "completion", "answer", "ground_truth", "correct", "reward",
    }  # fmt: skip
    assert [first["question"], second["question"]] == [rows[0].question, rows[1].question]
    assert first["ground_truth"] == rows[0].ground_truth and first["correct"] is False


def test_without_rows_there_is_one_sentence():
    with pytest.raises(DataError, match="no questions to evaluate"):
        evaluate_model("debug", [], RunConfig.from_sections(task="answers"))


def test_a_prompt_of_ones_own_is_what_the_model_is_asked(monkeypatch):
    module = ModuleType("asking")
    module.ask = lambda row: [{"role": "user", "content": f"Briefly: {row.question}"}]
    monkeypatch.setitem(sys.modules, "asking", module)
    config = RunConfig.from_sections(
        task="answers", model={"load_in_4bit": False}, grpo={"max_new_tokens": 2},
        answers={"prompt": "asking:ask"},
    )  # fmt: skip
    rows = load_rows("arithmetic", "test", 1)
    (state,) = evaluate_model("debug", rows, config, log=lambda line: None).states
    assert state.messages == [{"role": "user", "content": f"Briefly: {rows[0].question}"}]
