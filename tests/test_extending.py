"""The examples of docs/extending.md run as they stand."""

from __future__ import annotations

import json
import re

import pytest

from rlkit.config import RunConfig
from rlkit.errors import ConfigError
from rlkit.practice.task import build_search_task, build_task
from rlkit.run import Run

BLOCK = re.compile(r"```python\n# (\w+)\.py\n(.*?)```", re.DOTALL)


@pytest.fixture
def task_with(root, tmp_path, monkeypatch):
    text = (root / "docs" / "extending.md").read_text(encoding="utf-8")
    modules = dict(BLOCK.findall(text))
    assert set(modules) == {
        "my_prompt",
        "my_checker",
        "my_backend",
        "my_policy",
        "my_documents",
        "my_reward",
        "my_task",
        "my_planner",
        "my_entities",
    }
    for name, code in modules.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def build(*overrides):
        config = RunConfig.load(
            root / "params" / "debug.yaml", [f"output_root={tmp_path / 'outputs'}", *overrides]
        )
        return build_search_task(config, Run.open(config))

    return build


@pytest.fixture
def answers_with(task_with, root, tmp_path):
    """The question-answering task, with a module of the page on the path."""

    def build(*overrides):
        folder = f"output_root={tmp_path / 'outputs'}"
        config = RunConfig.load(root / "params" / "debug-answers.yaml", [folder, *overrides])
        return build_task(config, Run.open(config))

    return build


def test_a_reward_of_documents_of_one_s_own_takes_the_place_of_the_values(task_with):
    task = task_with("reward.function=my_documents:first_hits", "reward.invalid=-1")
    state = task.states("train")[0]
    title = task.env.orchestrator.corpus.get(sorted(state.missing)[0]).title
    found, invalid = task.score(state, [f"<clue>{title}</clue>", "<clue></clue>"])
    assert invalid.reward == -1
    new = task.env.step([title]).read
    assert any(d.verdict == "IMPORTANT" for d in new)
    by_hand = sum(1 / d.rank for d in new if d.verdict == "IMPORTANT")
    assert found.reward == pytest.approx(by_hand - 0.01 * len(new), abs=1e-6)


def test_a_reward_of_documents_wants_to_know_what_an_invalid_action_is_paid(task_with):
    with pytest.raises(ConfigError, match="reward.invalid is not; give it a number below"):
        task_with("reward.function=my_documents:first_hits")


def test_a_reward_of_one_s_own_is_added_up_with_its_weight(answers_with):
    task = answers_with(
        'answers.rewards=[accuracy, "my_reward:polite"]', "answers.reward_weights=[1.0, 0.1]"
    )
    state = task.states("train")[0]
    right = f"Final Answer: {state.ground_truth}"
    scores = task.score(state, [right, f"Thank you. {right}", "Thank you!", "no"])
    assert [score.reward for score in scores] == [1.0, 1.1, 0.1, 0.0]


def test_a_task_of_one_s_own_is_trained_and_evaluated(task_with, root, tmp_path):
    from rlkit.results.compare import evaluate_run
    from rlkit.training.loop import train_run

    config = RunConfig.load(
        root / "params" / "debug.yaml",
        [f"output_root={tmp_path / 'outputs'}", "task=my_task:build", "model.init_adapter=null"],
    )
    run = train_run(config, log=lambda _: None)
    assert run.status()["state"] == "finished"
    evaluation = evaluate_run(config, log=lambda _: None)
    assert evaluation.policies == ["untouched", "tuned"]
    assert list(evaluation.metrics) == ["reward"]
    assert sorted(evaluation.question_values("tuned", "reward")) == ["black", "white"]


def test_a_prompt_of_one_s_own_is_what_the_model_reads(task_with):
    task = task_with("executor.prompt=my_prompt:short")
    state = task.states("train")[0]
    system, user = task.prompt(state)
    assert system["content"] == "Write up to 3 search clues, each in <clue> tags."
    assert user["content"].endswith(f"Question: {state.question}")


def test_a_checker_of_one_s_own_gives_the_verdicts(task_with):
    task = task_with("checker.kind=my_checker:AnswerChecker")
    state = task.states("train")[0]
    (score,) = task.score(state, [f"<clue>{state.question}</clue>"])
    word = max(state.question.rstrip("?").split(), key=len)
    corpus = task.env.orchestrator.corpus
    for document in score.components["documents"]:
        expected = "IMPORTANT" if word in corpus.get(document["docid"]).text else "DISCARD"
        assert document["verdict"] == expected


def test_a_backend_of_one_s_own_finds_the_documents(task_with):
    task = task_with("search.backend=my_backend:TitleBackend")
    state = task.states("train")[0]
    title = task.env.orchestrator.corpus.get(state.gold_docids[0]).title
    (score,) = task.score(state, [f"<clue>{title}</clue>"])
    assert state.gold_docids[0] in [d["docid"] for d in score.components["documents"]]


def test_a_policy_of_one_s_own_is_compared_with_the_others(task_with, root, tmp_path):
    from rlkit.results.compare import evaluate_run

    config = RunConfig.load(
        root / "params" / "debug.yaml",
        [
            f"output_root={tmp_path / 'outputs'}",
            'evaluation.policies=[raw_question, "my_policy:SubgoalPolicy", oracle]',
        ],
    )
    evaluation = evaluate_run(config, baseline=True, log=lambda _: None)
    assert evaluation.policies == ["raw_question", "my_policy:SubgoalPolicy", "oracle"]


def test_a_planner_and_an_entity_manager_of_one_s_own_play_the_rounds(task_with, tmp_path):
    overrides = ["data.planner=my_planner:HopPlanner", "data.entities=my_entities:NoNames"]
    task_with(*overrides)
    metas = sorted((tmp_path / "outputs").rglob("meta.json"))
    runs = [(m, json.loads(m.read_text(encoding="utf-8"))) for m in metas]
    asked = [ref["subgoal"] for _, meta in runs for ref in meta["rounds"]]
    assert asked and all(" Known: [" in subgoal for subgoal in asked)
    answered = [(path, meta) for path, meta in runs if meta["final_answer"]]
    assert answered
    for path, meta in answered:
        last = json.loads((path.parent / meta["rounds"][-1]["checkpoint"]).read_text())
        important = [d for d in last["document_table"] if d["verdict"] == "IMPORTANT"]
        assert meta["final_answer"] == important[-1]["title"] and len(important) >= 2
        assert last["entity_table"] == []
