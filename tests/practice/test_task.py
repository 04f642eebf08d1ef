"""The search task: from a run's parameters to states, prompts and scores; its kept split."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from rlkit.agents.executor import OraclePolicy, RawQuestionPolicy
from rlkit.agents.recording import MAX_TRIES, now_and_then
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError
from rlkit.practice.collect_run import collect_run
from rlkit.practice.source import chosen_ids, load_library
from rlkit.practice.task import (
    SearchTask,
    build_search_task,
    estimate_tokens,
    grounded_ratio,
    shown_words,
)
from rlkit.rounds.split import Splits
from rlkit.run import Run
from tests.practice.toys import STATE, make_env


def demo_run(root: Path, **data: object) -> Run:
    config = RunConfig.from_sections(
        output_root=str(root), data={"max_questions": 12, "max_rounds": 2} | data
    )
    return Run.open(config)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, SearchTask]:
    run = demo_run(tmp_path_factory.mktemp("outputs"))
    return run, build_search_task(run.config, run)


def toy_task(**table: str) -> SearchTask:
    done = replace(STATE, state_id="q1/run_001/3", seen_docids=tuple("abe"))
    splits = Splits([STATE, done], [], [done], how="random", shared_gold=0)
    return SearchTask(splits, make_env(table), RunConfig.from_sections())


def test_states_that_miss_nothing_are_left_out_and_counted() -> None:
    task = toy_task()
    assert task.states("train") == [STATE] and task.states("eval") == []
    assert task.left_out == {"train": 1, "dev": 0, "eval": 1}


def test_scores_carry_every_component() -> None:
    task = toy_task(one="abcd", title="a")
    first, second, third = task.score(
        STATE, ["<clue>one</clue><clue>ONE</clue>", "1. title\n2. elsewhere", "word " * 40]
    )
    assert first.reward == 5.1
    assert first.components["clues"] == ["one"]
    assert first.components["distinct_clue_ratio"] == 0.5
    assert first.components["reward_without_seen"] == 5.0
    assert first.components["important_new"] == 2 and first.components["local_seen"] == 1
    assert first.components["documents_read"] == 3
    assert first.components["clue_values"] == [5.1]
    assert first.components["clue_spans"] == [[6, 9]]
    assert first.components["documents"][0] == {
        "docid": "a",
        "title": "Title a",
        "verdict": "IMPORTANT",
        "new": True,
        "clue": "one",
    }
    assert second.components["parsed_how"] == "plain_lines"
    assert second.components["grounded_clue_ratio"] == 0.5  # `title` stands in the question
    assert third.reward == -2.1 and third.components["invalid"] == 1
    assert third.components["grounded_clue_ratio"] is None
    assert third.components["distinct_clue_ratio"] is None
    json.dumps(first.components)


def test_the_score_of_an_action_does_not_depend_on_its_group() -> None:
    task = toy_task(one="abcd", two="d")
    texts = ["<clue>one</clue>", "<clue>two</clue>"]
    together = task.score(STATE, texts)
    assert together == [task.score(STATE, [text])[0] for text in texts]
    assert task.score(STATE, []) == []


def test_grounded_means_that_the_words_stand_in_the_state() -> None:
    shown = shown_words(STATE)
    assert grounded_ratio(["Which of the Titles"], shown) == 0.5  # which yes, titles no
    assert grounded_ratio(["find the title"], shown) == 1.0
    assert grounded_ratio(["the"], shown) is None


def test_tokens_are_estimated_from_words_and_wide_characters() -> None:
    assert estimate_tokens("one two three four five") == 7
    assert estimate_tokens("活着的导演") == 5
    assert estimate_tokens("") == 0


def test_the_demo_task_has_prompts_and_scores_for_every_part(
    demo: tuple[Run, SearchTask],
) -> None:
    _, task = demo
    for part in ("train", "dev", "eval"):
        assert task.states(part) and all(state.missing for state in task.states(part))
    state = task.states("eval")[0]
    assert task.prompt(state)[-1]["content"].endswith(state.question)
    oracle = OraclePolicy(task.env.orchestrator.corpus)
    score = task.score(state, [oracle.write(state)])[0]
    assert score.components["discovery_rate"] == 1.0
    lineage = task.lineage()
    assert lineage["known"] == "gold" and lineage["parts"]["train"]["questions"] > 5
    json.dumps(lineage)


def test_a_second_build_adds_nothing_and_keeps_the_split(demo: tuple[Run, SearchTask]) -> None:
    run, task = demo
    before = sorted(path for path in run.folder.rglob("*") if path.is_file())
    reports = []
    again = build_search_task(run.config, run, progress=reports.append)
    assert sorted(path for path in run.folder.rglob("*") if path.is_file()) == before
    for part in ("train", "dev", "eval"):
        assert again.states(part) == task.states(part)


def test_rounds_recorded_later_do_not_move_the_split(tmp_path: Path) -> None:
    run = demo_run(tmp_path, min_clues_per_round=1)
    task = build_search_task(run.config, run)
    collect_run(run.config, run.rounds_folder, {"raw_question": RawQuestionPolicy()})
    assert len(list(run.rounds_folder.glob("*/run_002"))) == 12
    again = build_search_task(run.config, run)
    assert [s.state_id for s in again.states("train")] == [s.state_id for s in task.states("train")]


class Refused:
    """A planner whose server refuses every question."""

    def __init__(self, config: object, corpus: object) -> None: ...

    def plan(self, question: str, history: object) -> None:
        raise ConfigError("the server refuses this text.")


def test_where_every_question_failed_the_first_reason_is_told(tmp_path: Path) -> None:
    run = demo_run(tmp_path, planner=f"{__name__}:Refused")
    lines: list[str] = []
    for _ in range(MAX_TRIES + 1):
        with pytest.raises(
            DataError, match=r"; all 12 questions failed; the first: \S+: the server refuses this"
        ):
            build_search_task(run.config, run, progress=now_and_then(lines.append, math.inf))
    assert len(lines) == MAX_TRIES + 1  # the last report of each
    assert "12 failed (first: the server refuses this text.)" in lines[0]
    assert len(list(run.rounds_folder.glob("*/run_*"))) == 12 * MAX_TRIES
    assert lines[-1].count("not tried again:") == 6  # five by name, and how many more


def test_a_failed_question_that_is_played_again_later_leaves_the_split_as_it_was(
    tmp_path: Path,
) -> None:
    run = demo_run(tmp_path, min_clues_per_round=1)
    collect_run(run.config, run.rounds_folder)
    for path in run.rounds_folder.glob("*/run_001/meta.json"):  # as if the last round had failed
        meta = json.loads(path.read_text())
        path.write_text(json.dumps({**meta, "status": "failed"}))
    task = build_search_task(run.config, run)
    assert len(list(run.rounds_folder.glob("*/run_002"))) == 12  # tried again before the split
    for path in run.rounds_folder.glob("*/run_002/meta.json"):
        meta = json.loads(path.read_text())
        path.write_text(json.dumps({**meta, "status": "failed"}))
    assert build_search_task(run.config, run).scan.superseded_runs == 12
    assert not list(run.rounds_folder.glob("*/run_003"))  # not after it
    collect_run(run.config, run.rounds_folder)
    again = build_search_task(run.config, run)
    for part in ("train", "dev", "eval"):
        assert again.states(part) == task.states(part)
        assert {state.state_id.split("/")[1] for state in again.states(part)} <= {"run_002"}


def test_a_kept_split_whose_states_are_gone_or_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    run = demo_run(tmp_path)
    build_search_task(run.config, run)
    path = run.folder / "splits.json"
    kept = json.loads(path.read_text())
    kept["states"]["train"].append("nobody/run_001/1")
    path.write_text(json.dumps(kept))
    with pytest.raises(DataError, match="1 states that are no longer recorded, first nobody"):
        build_search_task(run.config, run)
    path.write_text('{"schema": 1, "states": {"train": 3}}')
    with pytest.raises(DataError, match="is no splits file of schema 1"):
        build_search_task(run.config, run)


def test_no_question_stands_in_two_parts(demo: tuple[Run, SearchTask]) -> None:
    run, _ = demo
    questions = json.loads((run.folder / "splits.json").read_text())["questions"]
    assert len(sum(questions.values(), [])) == len(set(sum(questions.values(), []))) == 12


def test_rounds_of_another_folder_are_used_and_never_written_to(
    demo: tuple[Run, SearchTask], tmp_path: Path
) -> None:
    recorded, _ = demo
    run = demo_run(tmp_path, rounds_path=str(recorded.rounds_folder))
    assert len(build_search_task(run.config, run).states("train")) > 0
    assert not run.rounds_folder.exists()


def test_rounds_without_a_corpus_are_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    config = RunConfig.from_sections(data={"source": "rounds", "rounds_path": str(tmp_path)})
    with pytest.raises(ConfigError, match="data.corpus_path is not set"):
        load_library(config)


def test_rounds_of_another_library_are_an_error(
    demo: tuple[Run, SearchTask], tmp_path: Path
) -> None:
    recorded, _ = demo
    (tmp_path / "corpus.jsonl").write_text('{"id": "other", "title": "A", "text": "a town"}')
    data = {"rounds_path": str(recorded.rounds_folder), "source": "rounds"}
    run = demo_run(tmp_path, corpus_path=str(tmp_path / "corpus.jsonl"), **data)
    with pytest.raises(DataError, match="is among the 1 documents of the library"):
        build_search_task(run.config, run)


def test_a_library_of_files_is_collected_and_split(tmp_path: Path) -> None:
    corpus = [{"id": f"d{n}", "title": f"Name{n} Town", "text": f"It is near Name{n + 1} Town."}
              for n in range(8)]  # fmt: skip
    questions = [
        {"id": f"q{n}", "question": f"What is near Name{n} Town?", "gold": [f"d{n}", f"d{n + 1}"]}
        for n in range(0, 6, 2)
    ]
    for name, rows in (("corpus", corpus), ("questions", questions)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = demo_run(
        tmp_path / "outputs",
        source="library",
        corpus_path=str(tmp_path / "corpus.jsonl"),
        questions_path=str(tmp_path / "questions.jsonl"),
    )
    task = build_search_task(run.config, run)
    assert task.splits.describe()["eval"]["questions"] == 1


def test_questions_are_chosen_by_their_ids_alone() -> None:
    ids = [f"q{n}" for n in range(50)]
    assert chosen_ids(ids, 10) == chosen_ids(ids[::-1], 10)
    assert chosen_ids(ids, 10) < chosen_ids(ids, 20) < chosen_ids(ids, None) == frozenset(ids)


def test_a_corpus_without_questions_cannot_be_collected(tmp_path: Path) -> None:
    config = RunConfig.from_sections()
    library = load_library(config)
    with pytest.raises(DataError, match="no questions to play"):
        collect_run(config, tmp_path, library=replace(library, questions=()))


def test_questions_without_any_gold_are_refused_before_they_are_played(tmp_path: Path) -> None:
    config = RunConfig.from_sections()
    library = load_library(config)
    bare = tuple(replace(question, gold_docids=()) for question in library.questions[:3])
    with pytest.raises(DataError, match="none of the 3 questions has gold documents"):
        collect_run(config, tmp_path / "rounds", library=replace(library, questions=bare))
    assert not (tmp_path / "rounds").exists()


def test_earlier_rounds_are_no_samples_where_the_first_one_is_given(tmp_path: Path) -> None:
    run = demo_run(tmp_path, first_round=2)
    task = build_search_task(run.config, run)
    states = [state for part in ("train", "dev", "eval") for state in task.splits.part(part)]
    assert {state.round for state in states} == {2}


def test_the_runs_of_a_study_have_one_split_whatever_their_seeds(tmp_path: Path) -> None:
    def questions(name: str, seed: int, **data: object) -> list[set[str]]:
        config = demo_run(tmp_path, rounds_path=str(tmp_path / "demo" / "rounds"), **data).config
        run = Run.open(config.with_overrides(f"run_name={name}", f"seed={seed}"))
        splits = build_search_task(run.config, run).splits
        return [{s.question_id for s in splits.part(p)} for p in ("train", "dev", "eval")]

    first = demo_run(tmp_path).config
    collect_run(first, tmp_path / "demo" / "rounds")
    shared = {"split": "random", "split_seed": 3}
    one, other = questions("one", 7, **shared), questions("other", 8, **shared)
    assert one == other
    assert questions("three", 3, split="random") == one
    assert questions("own", 8, split="random") != one
