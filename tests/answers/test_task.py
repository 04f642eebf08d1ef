"""The question-answering task: states, prompts, scores, and the split that a run keeps."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlkit.answers.rewards import AnswerReward
from rlkit.answers.task import AnswerState, AnswerTask, build_answer_task
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError, RunError
from rlkit.practice.task import build_task
from rlkit.run import Run


def rows(first: int, last: int) -> list[dict[str, str]]:
    return [
        {"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"}
        for n in range(first, last)
    ]


def write(folder: Path, **splits: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, items in splits.items():
        text = "".join(json.dumps(item) + "\n" for item in items)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data", train=rows(1, 41), test=rows(100, 110))


def run_of(folder: Path, **sections: Any) -> Run:
    answers = {"dataset": str(folder)} | sections.pop("answers", {})
    config = RunConfig.from_sections(
        task="answers", output_root=str(folder.parent / "outputs"), answers=answers, **sections
    )
    return Run.open(config)


def build(run: Run) -> AnswerTask:
    return build_answer_task(run.config, run)


def ids(task: AnswerTask, split: str) -> list[str]:
    return [state.state_id for state in task.states(split)]


def test_evaluation_is_the_test_split_and_dev_is_cut_from_train(data: Path) -> None:
    task = build(run_of(data, data={"dev_ratio": 0.25}))
    questions = {s: {state.question for state in task.states(s)} for s in ("train", "dev", "eval")}
    assert [len(questions[part]) for part in ("train", "dev", "eval")] == [30, 10, 10]
    assert questions["eval"] == {row["question"] for row in rows(100, 110)}
    assert not questions["train"] & questions["dev"]
    assert len({i for part in questions for i in ids(task, part)}) == 50


def test_max_samples_cuts_train_alone_and_by_the_seed(data: Path, tmp_path: Path) -> None:
    whole = build(run_of(data, run_name="whole"))
    task = build(run_of(data, run_name="one", answers={"max_samples": 5}))
    other = build(run_of(data, run_name="other", answers={"max_samples": 5}, seed=8))
    assert len(ids(task, "train")) == 5 and set(ids(task, "train")) < set(ids(whole, "train"))
    assert ids(task, "dev") == ids(whole, "dev") and ids(task, "eval") == ids(whole, "eval")
    assert ids(task, "train") != ids(other, "train")


def test_the_runs_of_a_study_have_one_split_whatever_their_seeds(data: Path) -> None:
    def dev(name: str, seed: int, **split: int) -> list[str]:
        return ids(
            build(run_of(data, run_name=name, seed=seed, data={"dev_ratio": 0.4} | split)), "dev"
        )

    one = dev("one", 7, split_seed=3)
    assert one == dev("other", 8, split_seed=3) == dev("three", 3)
    assert one != dev("own", 8)


def test_a_generated_set_has_as_many_training_rows_as_are_asked_for(tmp_path: Path) -> None:
    run = run_of(tmp_path / "-", answers={"dataset": "arithmetic", "max_samples": 1100})
    task = build(run)
    assert len(task.states("train")) == 1100 and len(task.states("eval")) >= 200


def test_the_seam_builds_it_by_its_name(data: Path) -> None:
    run = run_of(data)
    assert isinstance(build_task(run.config, run, count_tokens=len), AnswerTask)


def test_the_split_is_kept_and_rows_that_came_later_stay_out(data: Path) -> None:
    run = run_of(data)
    first = build(run)
    write(data, train=rows(1, 61))
    again = build(run)
    for part in ("train", "dev", "eval"):
        assert ids(again, part) == ids(first, part)
    assert again.lineage() == first.lineage()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (rows(1, 20), "no longer has, first train-"),
        ([row | {"answer": "#### 1"} for row in rows(1, 41)], "was made of other rows"),
    ],
)
def test_a_changed_dataset_is_one_sentence(data: Path, changed: list, words: str) -> None:
    run = run_of(data)
    build(run)
    write(data, train=changed)
    with pytest.raises(DataError, match=words):
        build(run)


@pytest.mark.parametrize("damaged", [[], {"schema": 1}, {"schema": 1, "rows": {"train": [1]}}])
def test_a_splits_file_of_another_kind_is_one_sentence(data: Path, damaged: Any) -> None:
    run = run_of(data)
    (run.folder / "splits.json").write_text(json.dumps(damaged), encoding="utf-8")
    with pytest.raises(DataError, match="is no splits file of schema 1 .it needs `rows`"):
        build(run)


def test_training_answers_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    words = [{"question": f"Who is {n}?", "ground_truth": "Ann"} for n in range(9)]
    run = run_of(write(tmp_path / "data", train=words))
    with pytest.raises(DataError, match="none of the .* training answers is a number, such as 'An"):
        build(run)


def test_a_train_question_that_stands_in_test_never_trains(tmp_path: Path) -> None:
    leaked = [{"question": "what is 100+100", "answer": "#### 200"}]
    run = run_of(write(tmp_path / "data", train=rows(1, 21) + leaked, test=rows(100, 110)))
    task = build(run)
    assert task.lineage()["dropped"] == 1
    assert all("100" not in s.question for part in ("train", "dev") for s in task.states(part))


def state(name: str, question: str, **columns: Any) -> AnswerState:
    return AnswerState(name, name, question, "72", "48 + 24 = 72", "Final Answer: 72", [], columns)


def toy_task(reward: Any = None, **columns: Any) -> AnswerTask:
    config = RunConfig.from_sections(task="answers")
    splits = {"train": [state("a", "One?", **columns)], "eval": [state("b", "Two?")]}
    return AnswerTask(splits, reward or AnswerReward(config.answers), config)


def test_a_question_in_two_parts_is_refused() -> None:
    config = RunConfig.from_sections(task="answers")
    splits = {"train": [state("a", "How many?")], "eval": [state("b", "how  many")]}
    with pytest.raises(DataError, match="'how  many' stands in train and in eval"):
        AnswerTask(splits, AnswerReward(config.answers), config)


def test_a_split_of_another_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="'test' is no part of a split"):
        toy_task().states("test")


def test_examples_are_the_training_states_with_their_solutions(data: Path) -> None:
    task = build(run_of(data))
    pairs = task.examples()
    assert [pair[0] for pair in pairs] == task.states("train")
    for one, text in pairs:
        n = one.question.split()[2]
        assert text == f"{n} + {n} = {one.ground_truth}\nFinal Answer: {one.ground_truth}"
        assert task.score(one, [text])[0].reward == 1.0


def test_lengths_are_tokens_once_something_counts_them() -> None:
    task = toy_task()
    (train,) = task.states("train")
    assert task.score(train, ["two words"])[0].components["length"] == 2
    task.count_tokens = len
    assert task.score(train, ["two words"])[0].components["length"] == 9


def test_a_reward_gets_the_rows_columns_and_none_of_them_hides_the_tasks_own() -> None:
    got: dict[str, Any] = {}

    def look(completions: list[str], **columns: Any) -> list[float]:
        got.update(columns)
        return [0.0] * len(completions)

    config = RunConfig.from_sections(task="answers")
    reward = AnswerReward(config.answers, (look,))
    task = toy_task(reward, level="hard", ground_truth="5", completions=["x"], lengths=[9])
    scores = task.score(task.states("train")[0], ["72", "so 5"])
    assert [score.reward for score in scores] == [1.0, 0.0]
    assert got["level"] == ["hard", "hard"] and got["ground_truth"] == ["72", "72"]
    assert got["question"] == ["One?", "One?"] and got["lengths"] == [1, 2]
    assert got["full_answer"][0] == "48 + 24 = 72" and got["prompts"][0][-1]["content"] == "One?"


def test_every_metric_of_a_step_and_of_an_evaluation_is_a_component_or_the_reward() -> None:
    task = toy_task()
    (score,) = task.score(task.states("train")[0], ["72"])
    assert set(task.step_metrics) <= set(score.components)
    assert set(task.metrics) - {"reward"} <= set(score.components)
    assert task.primary in task.metrics


def test_a_prompt_of_ones_own_is_taken_from_the_row(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("my_prompt")
    module.ask = lambda row: [{"role": "user", "content": f"{row.question} Be brief."}]
    module.wrong = lambda row: row.question
    monkeypatch.setitem(sys.modules, "my_prompt", module)
    task = build(run_of(data, answers={"prompt": "my_prompt:ask"}))
    one = task.states("train")[0]
    assert task.prompt(one) == [{"role": "user", "content": f"{one.question} Be brief."}]
    with pytest.raises(ConfigError, match="answers.prompt my_prompt:wrong returned 'What is"):
        build(run_of(data, run_name="other", answers={"prompt": "my_prompt:wrong"}))


def test_every_gold_solution_of_gsm8k_scores_one(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "gsm8k" / "train.jsonl").is_file():
        pytest.skip("no gsm8k here")
    run = run_of(tmp_path / "-", answers={"dataset": str(shared_data / "gsm8k")})
    task = build(run)
    for part in ("train", "dev", "eval"):
        for one in task.states(part):
            scores = task.score(one, [one.completion, one.full_answer])
            assert [score.components["accuracy"] for score in scores] == [1.0, 1.0], one.state_id
            assert [score.reward for score in scores] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "refused"),
    [("max_samples=10", True), ("dataset=arithmetic", True), ("augment=[similar]", True),
     ("rewards=[accuracy,steps]", False), ("sft_accuracy_threshold=0.1", False)],
)  # fmt: skip
def test_once_the_split_is_kept_what_made_it_may_not_change(
    data: Path, change: str, refused: bool
) -> None:
    run = run_of(data)
    Run.open(run.config.with_overrides("answers.max_samples=20"))  # nothing depends on it yet
    Run.open(run.config)
    build(run)
    changed = run.config.with_overrides(f"answers.{change}")
    if refused:
        with pytest.raises(RunError, match=f"answers.{change.partition('=')[0]} "):
            Run.open(changed)
    else:
        Run.open(changed)


def test_augmented_rows_join_the_training_part_alone_and_are_kept(tmp_path: Path) -> None:
    def opened(**answers: Any) -> Run:
        wanted = {"dataset": "arithmetic", "max_samples": 20, **answers}
        return run_of(tmp_path / "none", run_name="augmented", answers=wanted)

    plain = build(run_of(tmp_path / "none", answers={"dataset": "arithmetic", "max_samples": 20}))
    run = opened(augment=["paraphrase", "similar"])
    task = build(run)
    added = set(ids(task, "train")) - set(ids(plain, "train"))
    facts = task.lineage()
    assert len(added) == facts["augmented"] > 20
    assert facts["augmented"] + sum(facts["unfit"].values()) == 2 * 20
    assert [ids(task, part) for part in ("dev", "eval")] == [
        ids(plain, part) for part in ("dev", "eval")
    ]
    again = build(run)
    assert again.lineage() == facts and again.examples() == task.examples()
    (run.folder / "augmented.json").unlink()
    with pytest.raises(DataError, match="augmented.json is gone"):
        build(run)


def test_a_models_rows_are_asked_for_once_and_bad_ones_dropped(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Client:
        def __init__(self, url: str, model: str | None) -> None:
            asked.append(url)

        def close(self) -> None:
            asked.append("closed")

    def replied(jobs: list, client: Any, reason: Any) -> list:
        retold = [replace(j.row, question=f"Say what {j.row.question[8:]}") for j in jobs]
        return [jobs[0].row, *retold[1:]]  # the first reply only repeats its question

    monkeypatch.setattr("rlkit.answers.splits.ChatClient", Client)
    monkeypatch.setattr("rlkit.answers.augment_llm.asked", replied)
    run = run_of(data, answers={"augment": ["paraphrase"]})
    task = build(run)
    facts = task.lineage()
    assert facts["unfit"] == {"the same question is there already": 1}
    assert facts["augmented"] == len(task.states("train")) // 2
    assert build(run).lineage() == facts
    assert asked == [run.config.model.vllm_base_url, "closed"], "a second look asks nobody"
