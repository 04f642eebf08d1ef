"""Datasets by name, from files and of one's own: what is read, what is refused, how it is split."""

from __future__ import annotations

import json
import re
import sys
import types

import pytest

from rlkit.answers import datasets as module
from rlkit.answers.datasets import (
    BadRow,
    Row,
    completion_text,
    load_rows,
    normalised,
    question_prompt,
    register_dataset,
    rl_rows,
    sft_rows,
    split_rows,
)
from rlkit.answers.rows import template
from rlkit.errors import ConfigError, DataError

CLIPS = {
    "question": "Natalia sold 48 clips in April and half as many in May. How many in all?",
    "answer": "In May she sold 48/2 = <<48/2=24>>24.\nIn all 48+24 = <<48+24=72>>72.\n#### 72",
}


def rows(count, start=0):
    return [
        Row(f"r{n}", f"What is {n} + 1?", f"{n} + 1 = {n + 1}\n#### {n + 1}", str(n + 1))
        for n in range(start, start + count)
    ]


def write(path, *lines, ending=b"\n"):
    path.write_bytes(
        ending.join(
            line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()
            for line in lines
        )
    )
    return str(path)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(module, "_registered", {})


# ---- rows of files


def test_a_gsm8k_row_gives_question_solution_and_answer(tmp_path):
    (row,) = load_rows(write(tmp_path / "mine.jsonl", CLIPS))
    assert row == Row("mine-1", CLIPS["question"], CLIPS["answer"], "72")
    assert completion_text(row) == (
        "In May she sold 48/2 = 24.\nIn all 48+24 = 72.\nFinal Answer: 72"
    )


def test_a_row_with_ground_truth_keeps_its_further_fields(tmp_path):
    given = {"id": 7, "question": "1+1?", "ground_truth": 2, "full_answer": "1+1=2", "level": "a"}
    (row,) = load_rows(write(tmp_path / "a.jsonl", given))
    assert row == Row("7", "1+1?", "1+1=2", "2", {"level": "a"})


@pytest.mark.parametrize(
    ("answer", "truth"), [(72, "72"), (72.0, "72"), (0, "0"), (0.5, "0.5"), ("-3", "-3")]
)
def test_a_bare_answer_is_the_ground_truth(tmp_path, answer, truth):
    (row,) = load_rows(write(tmp_path / "a.jsonl", {"question": "How many?", "answer": answer}))
    assert row.ground_truth == truth
    assert completion_text(row) == f"Final Answer: {truth}"


@pytest.mark.parametrize("worked", ["solution", "full_answer"])
@pytest.mark.parametrize("answer", ["72", 72, "48/2=24\n48+24=72\n#### 72"])
def test_an_answer_beside_a_worked_solution_is_the_ground_truth(tmp_path, worked, answer):
    given = {"problem": "How many in all?", worked: "24 in May,\nso 48+24=72.", "answer": answer}
    (row,) = load_rows(write(tmp_path / "mine.jsonl", given))
    assert (row.full_answer, row.ground_truth) == ("24 in May,\nso 48+24=72.", "72")


def test_the_last_hashes_are_the_answer(tmp_path):
    given = {"question": "q", "answer": "#### 1\nno:\n####  $1,234.00 \n"}
    assert load_rows(write(tmp_path / "a.jsonl", given))[0].ground_truth == "$1,234.00"


def test_bom_crlf_and_blank_lines_change_nothing(tmp_path):
    lines = (b"\xef\xbb\xbf" + json.dumps(CLIPS).encode(), b"", json.dumps(CLIPS | {"id": "b"}))
    lines = [line.encode() if isinstance(line, str) else line for line in lines]
    found = load_rows(write(tmp_path / "a.jsonl", *lines, b"", ending=b"\r\n"))
    assert [row.id for row in found] == ["a-1", "b"]
    assert found[0].question == CLIPS["question"]


def test_nul_and_half_surrogates_are_taken_out(tmp_path):
    line = rb'{"question": "a\u0000b \ud800?", "answer": "1", "note": {"n": ["\udc00"]}}'
    (row,) = load_rows(write(tmp_path / "a.jsonl", line))
    assert row.question == "a b \ufffd?"
    assert row.columns == {"note": {"n": ["\ufffd"]}}
    json.dumps(row.fields(), ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"question": "q", "answer"', "not a JSON object"),
        (b'{"question": "\xff", "answer": "1"}', "invalid start byte"),
        (b"[1]", "a list where an object is wanted"),
        (b"[" * 100_000, "not a JSON object"),
        ({"answer": "#### 1"}, "field 'question' or 'problem': missing"),
        ({"question": "q"}, "missing"),
        ({"question": "   ", "answer": "#### 1"}, "field 'question': empty"),
        ({"question": "q", "answer": ""}, "field 'answer': empty"),
        ({"question": ["q"], "answer": "#### 1"}, "field 'question': a list where text is wanted"),
        ({"question": "q", "answer": True}, "field 'answer': a bool where text is wanted"),
        ({"question": "q", "answer": "two\nlines"}, "no line '#### <number>'"),
        ({"question": "q", "answer": "a\n####  "}, "no line '#### <number>'"),
        ({"id": "first", "question": "q", "answer": "1"}, "the id 'first' is that of"),
    ],
)
def test_a_bad_row_is_named_with_file_line_and_reason(tmp_path, bad, reason):
    path = write(tmp_path / "train.jsonl", CLIPS | {"id": "first"}, b"", bad)
    with pytest.raises(BadRow) as error:
        load_rows(path)
    text = str(error.value)
    assert text.startswith(f"{path}, line 3") and reason in text
    assert "\n" not in text and text.endswith(".")


def test_a_folder_has_a_train_and_a_test_file_and_one_file_is_train(tmp_path):
    write(tmp_path / "train.jsonl", CLIPS)
    write(tmp_path / "test.json", b'[{"question": "1+1?", "answer": "#### 2"}]')
    assert [row.id for row in load_rows(str(tmp_path), "train")] == ["train-1"]
    assert [row.ground_truth for row in load_rows(str(tmp_path), "test")] == ["2"]
    assert load_rows(str(tmp_path / "train.jsonl"), "test") == []


def test_the_rows_that_the_formats_page_shows_are_read(root, tmp_path):
    page = (root / "docs" / "formats.md").read_text(encoding="utf-8")
    section = page.partition("## Questions with checkable answers")[2]
    example = re.findall(r"```jsonl\n(.*?)```", section, re.DOTALL)[0]
    (tmp_path / "a.jsonl").write_text(example, encoding="utf-8")
    clips, dogs = load_rows(tmp_path / "a.jsonl")
    assert clips.ground_truth == "72" and completion_text(clips).endswith("= 72.\nFinal Answer: 72")
    assert dogs == Row("dogs", "How many legs have 3 dogs?", "3 * 4 = 12", "12", {"level": 1})


def test_a_folder_without_train_and_an_empty_file_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no train\.jsonl"):
        load_rows(str(tmp_path))
    with pytest.raises(DataError, match="holds no rows"):
        load_rows(write(tmp_path / "a.jsonl", b""))


def test_real_gsm8k_is_read_whole(shared_data):
    train, test = (load_rows(str(shared_data / "gsm8k"), s) for s in ("train", "test"))
    assert (len(train), len(test)) == (2000, 300)
    assert train[0].ground_truth == "72"
    assert not any("<<" in completion_text(row) or "####" in completion_text(row) for row in train)
    parts = split_rows(train, test)
    assert (len(parts["train"]), len(parts["dev"]), len(parts["eval"])) == (1800, 200, 300)
    assert parts.dropped == 0


# ---- names


def test_gsm8k_without_a_network_says_how_to_give_a_folder():
    with pytest.raises(DataError, match=r"give a local folder .*train\.jsonl"):
        load_rows("gsm8k")


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean arithmetic"):
        load_rows("arithmetik")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "no/such.jsonl"])
def test_what_can_be_no_path_is_a_short_sentence(name):
    with pytest.raises(ConfigError, match="is neither a dataset") as error:
        load_rows(name)
    assert len(str(error.value)) < 300


def test_an_unknown_split_and_no_samples_are_refused():
    with pytest.raises(ConfigError, match="allowed are train and test"):
        load_rows("arithmetic", "dev")
    with pytest.raises(ConfigError, match="max_samples is 0"):
        load_rows("arithmetic", max_samples=0)


def test_the_generated_set_has_a_thousand_and_three_hundred_rows():
    assert len(load_rows("arithmetic")) == 1000
    assert len(load_rows("arithmetic", "test")) == 300


def test_max_samples_is_a_choice_by_seed_and_not_the_first_rows():
    everything = load_rows("arithmetic")
    chosen = load_rows("arithmetic", max_samples=100, seed=1)
    assert chosen == load_rows("arithmetic", max_samples=100, seed=1)
    assert chosen != load_rows("arithmetic", max_samples=100, seed=2)
    assert chosen != everything[:100] and all(row in everything for row in chosen)
    assert len(load_rows("arithmetic", max_samples=1500)) == 1500


@pytest.mark.parametrize(
    "source",
    [
        [CLIPS],
        {"train": [CLIPS], "test": [CLIPS]},
        lambda: [CLIPS],
        lambda split: [CLIPS],
        lambda split: {"train": [CLIPS]},
    ],
)
def test_rows_are_registered_as_a_list_as_splits_or_as_a_function(registered, source):
    register_dataset("mine", source)
    assert [(row.id, row.ground_truth) for row in load_rows("mine")] == [("mine-train-1", "72")]


def test_a_hub_dataset_and_its_splits_are_registered_as_they_are(registered):
    import datasets

    given = datasets.Dataset.from_list([CLIPS])
    register_dataset("one", given)
    register_dataset("both", datasets.DatasetDict({"train": given, "test": given}))
    assert load_rows("one")[0].ground_truth == "72" and load_rows("one", "test") == []
    assert load_rows("both", "test")[0].ground_truth == "72"


def test_what_is_no_dataset_is_refused(registered):
    with pytest.raises(ConfigError, match="built-in"):
        register_dataset("gsm8k", [CLIPS])
    register_dataset("text", "a text")
    with pytest.raises(DataError, match="gives a str as rows"):
        load_rows("text")
    register_dataset("odd", {"validation": [CLIPS]})
    with pytest.raises(DataError, match="has the splits validation; it needs 'train'"):
        load_rows("odd")


def test_a_dotted_path_names_rows_or_a_function(monkeypatch):
    mine = types.ModuleType("my_questions")
    mine.rows = lambda split: [CLIPS] if split == "train" else []
    monkeypatch.setitem(sys.modules, "my_questions", mine)
    assert load_rows("my_questions:rows")[0].ground_truth == "72"
    assert load_rows("my_questions:rows", "test") == []


# ---- when two questions are the same


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Tom has 5 apples.", "  TOM has\n5 apples"),
        ("It’s $1,200!", "its ＄１２００"),
        ("A 3-year-old dog?", "a 3 year old dog"),
        ("小明 有 3 个苹果。", "小明有3个苹果"),
        ("5 + 3 = ?", "5+3=?"),
    ],
)
def test_case_width_blanks_and_punctuation_make_no_other_question(a, b):
    assert normalised(a) == normalised(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("What is 1.5?", "What is 15?"),
        ("What is 5 - 3?", "What is 5 + 3?"),
        ("What is 1 2?", "What is 12?"),
        ("20% of 50", "20 of 50"),
        ("1/2 of 4", "12 of 4"),
    ],
)
def test_what_changes_a_number_or_a_formula_makes_another_question(a, b):
    assert normalised(a) != normalised(b)


def test_a_template_masks_every_number():
    assert template("Tom has 12 apples and 3.5 pears") == template("Tom has 7 apples and 9 pears.")


# ---- splits


def test_no_question_stands_in_two_parts():
    train = rows(100) + [Row("twin", "what is 3+1", "#### 4", "4")]
    parts = split_rows(train, rows(20, start=95))
    assert parts.dropped == 5 and parts.repeated == 1
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 85, "dev": 10, "eval": 20
    }  # fmt: skip
    texts = [normalised(row.question) for part in parts.values() for row in part]
    assert len(set(texts)) == len(texts)
    ids = [row.id for part in parts.values() for row in part]
    assert len(set(ids)) == len(ids), "r95 of test is renamed, since train has one, too"


def test_without_a_test_split_evaluation_is_cut_from_train():
    parts = split_rows(rows(100), train_ratio=0.7, dev_ratio=0.1, seed=3)
    assert [len(parts[name]) for name in ("train", "dev", "eval")] == [63, 7, 30]


def test_the_split_depends_on_the_questions_and_not_on_their_order():
    one, other = split_rows(rows(50)), split_rows(rows(50)[::-1])
    assert {r.id for r in one["dev"]} == {r.id for r in other["dev"]}
    assert {r.id for r in one["dev"]} != {r.id for r in split_rows(rows(50), seed=8)["dev"]}


def test_augmented_rows_stay_with_their_origin():
    new = [
        Row(f"r{n}-similar-1", f"What is {n} + 500?", "#### 1", "1", {}, "similar", f"r{n}")
        for n in range(40)
    ]
    parts = split_rows(rows(40) + new, rows(5))
    place = {row.id: name for name, part in parts.items() for row in part}
    assert all(place[f"r{n}"] == place[f"r{n}-similar-1"] for n in range(5, 40))
    assert parts.dropped == 10, "five test questions, and what was made of them"


def test_what_was_made_of_a_test_row_never_trains_however_long_the_line_of_origins():
    made = Row("new1", "What is 900 + 1?", "#### 901", "901", {}, "similar", "t100")
    again = Row("new2", "What is 901 + 1?", "#### 902", "902", {}, "paraphrase", "new1")
    test = [Row("t100", "What is 100 + 1?", "#### 101", "101")]
    parts = split_rows([*rows(40), made, again], test)
    assert parts.dropped == 2
    assert not {"new1", "new2"} & {r.id for name in ("train", "dev") for r in parts[name]}


def test_a_line_of_origins_stays_in_one_part():
    first = [
        Row(f"a{n}", f"What is {n} + 500?", "#### 1", "1", {}, "s", f"r{n}") for n in range(40)
    ]
    second = [
        Row(f"b{n}", f"What is {n} + 900?", "#### 1", "1", {}, "s", f"a{n}") for n in range(40)
    ]
    parts = split_rows(rows(40) + first + second, rows(5, 700), dev_ratio=0.3)
    place = {row.id: name for name, part in parts.items() for row in part}
    assert {place[f"r{n}"] for n in range(40)} == {"train", "dev"}
    assert all(place[f"r{n}"] == place[f"a{n}"] == place[f"b{n}"] for n in range(40))


def test_a_train_row_from_which_a_test_row_was_made_is_dropped():
    test = [Row("t1", "What is 3 + 700?", "#### 703", "703", {}, "similar", "r3")]
    parts = split_rows(rows(40), test)
    assert parts.dropped == 1 and "r3" not in {r.id for r in parts["train"] + parts["dev"]}


def test_an_origin_that_no_row_has_is_one_sentence():
    lost = Row("new", "What is 900 + 1?", "#### 901", "901", {}, "similar", "r99")
    with pytest.raises(DataError, match="'new' was made from 'r99'.*the id of no row"):
        split_rows([*rows(40), lost])


def test_too_few_questions_and_bad_shares_are_refused():
    with pytest.raises(DataError, match="too few"):
        split_rows(rows(1))
    with pytest.raises(ConfigError, match="dev_ratio is 1"):
        split_rows(rows(9), dev_ratio=1)


# ---- as the model meets them


def test_the_prompt_is_in_the_questions_language_and_ends_with_it():
    english = question_prompt(Row("a", "How many?", "1", "1"))
    chinese = question_prompt(Row("a", "一共有多少个苹果？", "1", "1"))
    assert english[-1] == {"role": "user", "content": "How many?"}
    assert "Final Answer" in english[0]["content"] and "一步一步" in chinese[0]["content"]


def test_a_question_cannot_end_its_turn():
    for tag in ("<|im_end|>", "<end_of_turn>", "</s>", "[INST]"):
        assert tag not in question_prompt(Row("a", f"1?{tag} hi", "1", "1"))[-1]["content"]
    formula = "Is 3 < 5 and x<y?"
    assert question_prompt(Row("a", formula, "1", "1"))[-1]["content"] == formula


def test_with_a_tokenizer_the_text_is_what_the_trainer_reads(tmp_path):
    from rlkit.training.models import byte_tokenizer
    from rlkit.training.text import encode_prompt

    tokenizer = byte_tokenizer()
    row = Row("a", "1 + 1, 两个？", "1 + 1 = 2\n#### 2", "2")
    (sft,) = sft_rows([row], tokenizer)
    assert sft["prompt"] == tokenizer.decode(encode_prompt(tokenizer, question_prompt(row)))
    assert sft["text"] == f"{sft['prompt']}1 + 1 = 2\nFinal Answer: 2{tokenizer.eos_token}"


def test_sft_and_rl_rows_have_the_fields_that_trainers_read(tmp_path):
    found = load_rows(write(tmp_path / "a.jsonl", CLIPS | {"level": 1}))
    (sft,), (rl,) = sft_rows(found), rl_rows(found)
    assert set(sft) == {"prompt", "completion", "text"}
    assert sft["text"] == sft["prompt"] + sft["completion"]
    assert sft["completion"].endswith("Final Answer: 72")
    assert rl == {
        "prompt": sft["prompt"],
        "ground_truth": "72",
        "question": CLIPS["question"],
        "full_answer": CLIPS["answer"],
        "level": 1,
    }


def test_the_easy_problems_have_two_steps_and_numbers_to_twelve():
    rows = load_rows("arithmetic-easy", "train", 50)
    assert {row.columns["steps"] for row in rows} == {2}
    assert max(value for row in rows for value in row.columns["values"]) <= 12
    assert len(load_rows("arithmetic-easy", "test")) == 300
