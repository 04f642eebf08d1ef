"""What a quality check finds: one sentence a kind of problem, with the numbers of its rows."""

from __future__ import annotations

import json
import random
import time

import pandas as pd
import pytest

from rlkit.answers import datasets as datasets_module
from rlkit.answers.datasets import Row, load_rows, register_dataset
from rlkit.answers.quality import (
    Finding,
    check_data_quality,
    find_problems,
    model_limits,
    problem_table,
)
from rlkit.answers.quality_checks import places
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError, ModelError


def good(n):
    return {"question": f"Ann {chr(97 + n % 26)}{n}x picks {n} and 1 more?", "answer": f"#### {n}"}


def kinds(dataset, **options):
    rows = dataset if isinstance(dataset, dict) else {"train": dataset}
    return {finding.kind: finding for finding in find_problems(rows, **options)}


def at(finding):
    return [number for _, number in finding.rows]


def test_a_sound_dataset_has_no_findings():
    assert check_data_quality([good(n) for n in range(200)]) == []


# ---- rows that cannot be used


@pytest.mark.parametrize(
    ("bad", "kind", "says"),
    [
        ({"answer": "#### 1"}, "missing field", "'question'"),
        ({"question": None, "answer": "#### 1"}, "missing field", "'question'"),
        ({"question": "q"}, "missing field", "'ground_truth'"),
        ({"question": float("nan"), "answer": "1"}, "missing field", "'question'"),
        ({"question": " \n", "answer": "#### 1"}, "empty value", "'question' is empty"),
        ({"question": "q", "answer": ""}, "empty value", "'ground_truth' is empty"),
        ({"question": "q", "answer": "no\nhashes"}, "bad row", "#### <number>"),
        ({"question": 3.5j, "answer": "1"}, "bad row", "complex where text is wanted"),
        ("text", "bad row", "a str where an object is wanted"),
        (None, "bad row", "a NoneType where an object is wanted"),
        (Row("a", "", "#### 1", "1"), "empty value", "'question' is empty"),
    ],
)
def test_a_row_that_cannot_be_used_is_a_finding_and_no_error(bad, kind, says):
    found = kinds([good(1), bad, good(2)])
    assert list(found) == [kind] and at(found[kind]) == [2]
    assert "train row 2:" in found[kind].message and says in found[kind].message


def test_nul_and_half_surrogates_are_told():
    found = kinds([good(1), {"question": "a\0?", "answer": "1"}])
    assert at(found["bad signs"]) == [2]


def test_every_damaged_line_of_a_file_is_told(tmp_path):
    lines = [json.dumps(good(1)), "{broken", json.dumps(good(2)), "[1]"]
    (tmp_path / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "test.jsonl").write_text(json.dumps(good(3)), encoding="utf-8")
    found = check_data_quality(tmp_path)
    assert len(found) == 2
    assert "train row 2" in found[0] and "line 2: not a JSON object" in found[0]
    assert "train row 4" in found[1]


# ---- duplicates and leakage


def test_duplicates_are_told_exact_and_folded():
    rows = [good(1), good(2), good(1), {**good(2), "question": good(2)["question"].upper()}]
    found = kinds(rows)
    assert at(found["duplicate"]) == [1, 3]
    assert at(found["near duplicate"]) == [2, 4]
    assert set(found) == {"duplicate", "near duplicate"}


def test_one_question_with_two_answers_and_one_id_twice_are_told():
    rows = [{**good(1), "id": "a"}, {**good(1), "answer": "#### 9"}, {**good(3), "id": "a"}]
    found = kinds(rows)
    assert at(found["conflicting answers"]) == [1, 2]
    assert at(found["duplicate id"]) == [1, 3]
    same = kinds([{"question": "q", "answer": "0.5"}, {"question": "q", "answer": "1/2"}])
    assert "conflicting answers" not in same


def test_a_question_in_two_splits_is_leakage_and_other_numbers_only_a_warning():
    train = [good(1), {"question": "Tom has 3 apples?", "answer": "3"}]
    test = [
        {**good(1), "question": good(1)["question"].lower() + " !"},
        {"question": "Tom has 4 apples?", "answer": "4"},
    ]
    found = kinds({"train": train, "test": test})
    assert set(found) == {"leakage", "shared template"}
    assert set(found["leakage"].rows) == {("train", 1), ("test", 1)}
    assert found["shared template"].rows == (("test", 2),)
    assert "no leakage" in found["shared template"].message


# ---- answers


def test_answers_that_cannot_be_read_and_solutions_that_end_otherwise_are_told():
    rows = [
        {"question": "one?", "answer": "Paris"},
        {"question": "two?", "ground_truth": "5", "full_answer": "2+3=5\n#### 6"},
        {"question": "three?", "ground_truth": "1,234", "full_answer": "so\n#### $1234.00"},
        {"question": "four?", "ground_truth": "5", "full_answer": "no number at all"},
    ]
    found = kinds(rows)
    assert at(found["unparsable answer"]) == [1]
    assert at(found["other answer"]) == [2, 4]


def test_a_false_equation_is_told_with_an_example():
    found = kinds([good(1), {"question": "q?", "answer": "48/2=25 clips\n#### 25"}])
    assert at(found["wrong equation"]) == [2] and "48/2 = 25" in found["wrong equation"].message


def test_all_solutions_of_real_gsm8k_end_with_their_answer(shared_data):
    found = {f.kind: f for f in find_problems({"train": load_rows(str(shared_data / "gsm8k"))})}
    assert set(found) == {"wrong equation"} and at(found["wrong equation"]) == [
        168,
        169,
        199,
        225,
        503,
        717,
    ]


# ---- lengths and balance


def test_rows_beyond_the_model_are_told_where_tokens_can_be_counted():
    rows = [good(1), {"question": "word " * 100 + "?", "answer": "1"}]
    found = kinds(rows, count_tokens=lambda text: len(text.split()), max_tokens=80)
    assert (
        at(found["too long"]) == [2] and "more than 80 tokens, up to 1" in found["too long"].message
    )
    assert kinds(rows) == {}


@pytest.mark.parametrize(("same", "told"), [(10, False), (11, True)])
def test_one_answer_in_more_than_a_fifth_of_fifty_rows_is_told(same, told):
    rows = [{**good(n), "answer": "7.0" if n % 2 else "7"} for n in range(same)]
    rows += [{**good(n), "answer": str(100 + n)} for n in range(same, 50)]
    found = kinds(rows)
    assert ("label imbalance" in found) is told
    if told:
        assert at(found["label imbalance"]) == list(range(1, 12))
    assert kinds(rows[:49]) == {}, "fewer rows say little"


def test_one_template_in_more_than_a_fifth_is_told():
    rows = [good(n) for n in range(40)] + [
        {"question": f"Tom has {n} apples?", "answer": str(n)} for n in range(100, 115)
    ]
    found = kinds(rows)
    assert set(found) == {"template imbalance"}
    assert at(found["template imbalance"]) == list(range(41, 56))
    assert "tom has # apples" in found["template imbalance"].message


# ---- what may be asked about


def test_many_row_numbers_are_cut_off():
    rows = [("train", n) for n in range(1, 46)]
    assert places(rows) == "train rows 1, 2, 3, 4, 5, 6, 7, 8 and 37 more"
    assert places([("train", 3), ("test", 1)]) == "train row 3; test row 1"


@pytest.mark.parametrize("wrap", [list, tuple, iter, pd.DataFrame, lambda rows: {"train": rows}])
def test_rows_may_come_in_any_container(wrap):
    rows = [good(1), {"question": "q", "answer": ""}]
    assert len(check_data_quality(wrap(rows))) == 1


def test_hub_datasets_rows_and_registered_names_are_taken(monkeypatch):
    import datasets

    given = datasets.Dataset.from_list([good(1), good(1)])
    assert len(check_data_quality(given)) == 1
    leak = check_data_quality(datasets.DatasetDict({"train": given, "test": given}))
    assert any(sentence.startswith("leakage") for sentence in leak)
    monkeypatch.setattr(datasets_module, "_registered", {})
    register_dataset("mine", [good(1), {"question": "q"}])
    assert len(check_data_quality("mine")) == 1


def test_the_generated_set_has_shared_templates_and_no_other_finding():
    splits = {split: load_rows("arithmetic", split) for split in ("train", "test")}
    assert [f.kind for f in find_problems(splits)] == ["shared template"]


@pytest.mark.parametrize("wrong", [5, None, {"question": "q", "answer": "1"}, b"bytes"])
def test_a_wrong_kind_of_argument_is_one_sentence(wrong):
    with pytest.raises(DataError, match="is no dataset; give a list of rows"):
        check_data_quality(wrong)


def test_an_unknown_name_is_an_error_and_no_rows_are_a_finding():
    with pytest.raises(ConfigError, match="did you mean arithmetic"):
        check_data_quality("arithmetics")
    assert check_data_quality([]) == ["The dataset holds no rows."]


def test_the_table_has_a_line_a_finding():
    table = problem_table([Finding("duplicate", "duplicate, train rows 1, 2: x.", (("train", 1),))])
    assert table.to_dict("records") == [
        {"kind": "duplicate", "rows": 1, "finding": "duplicate, train rows 1, 2: x."}
    ]
    assert list(problem_table([]).columns) == ["kind", "rows", "finding"]


@pytest.mark.slow
def test_the_inspect_notebook_shows_the_table_of_the_answers_task(root, tmp_path, monkeypatch):
    import papermill
    import yaml

    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("PYTHONPATH", str(root))
    given = yaml.safe_load((root / "params" / "debug-answers.yaml").read_text(encoding="utf-8"))
    given["output_root"] = str(tmp_path)
    source, out = root / "notebooks" / "inspect.ipynb", tmp_path / "out.ipynb"
    notebook = papermill.execute_notebook(
        source, out, given, kernel_name="python3", progress_bar=False, cwd=root
    )
    (cell,) = [cell for cell in notebook.cells if "problem_table(findings)" in cell.source]
    shown = "".join(o.get("data", {}).get("text/html", "") for o in cell.outputs)
    assert "shared template" in shown and "test rows 2, 3, 5" in shown


def test_ten_thousand_rows_take_seconds():
    rng = random.Random(1)
    words = [a + b for a in "abcdefghijklmnopqrst" for b in "abcdefghijklmnopqrst"]
    rows = [
        {
            "question": " ".join(rng.choices(words, k=40)) + f" {n}?",
            "answer": f"{n} + 1 = {n + 1}\n{n + 1} + 2 = {n + 3}\n#### {n + 3}",
        }
        for n in range(10_000)
    ]
    start = time.process_time()
    assert check_data_quality({"train": rows[:9000], "test": rows[9000:]}) == []
    assert time.process_time() - start < 20


def test_the_models_own_positions_bound_a_row_and_not_what_its_tokenizer_says():
    limits = model_limits(RunConfig.from_sections(model={"base_model_path": "debug"}))
    most = limits["max_tokens"]
    assert 100 < most < 10**6 and limits["count_tokens"]("two words") > 1
    long = {"question": "How many? " + "and so on " * most, "answer": "1\n#### 1"}
    (said,) = [s for s in check_data_quality([long], **limits) if s.startswith("too long")]
    assert f"more than {most} tokens" in said


def test_a_model_without_a_config_is_one_sentence(tmp_path):
    config = RunConfig.from_sections(model={"base_model_path": str(tmp_path)})
    with pytest.raises(ModelError, match="no config|no model|config.json"):
        model_limits(config)
