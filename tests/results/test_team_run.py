"""Whole questions played side by side, with the Executor behind a server: who plays, what is kept,
what the server is sent."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from rlkit import cli
from rlkit.agents.llm_faults import RefusedError
from rlkit.config import RunConfig
from rlkit.practice.task import build_search_task
from rlkit.results.team_run import compare_teams, identity
from rlkit.results.teams import load_teams
from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.run import Run
from rlkit.training.policy import load_tokenizer
from rlkit.training.stages import prepare_data
from rlkit.training.text import token_counter
from tests.agents.fault_server import Answer, FaultServer

NAME = re.compile(r"[A-Z]\w+(?: [A-Z]\w+)+")

FEW = "data.max_questions=12"


def write_names(body: dict, n: int) -> Answer:
    """An Executor by rule: the names in the last line, which is the question."""
    question = body["messages"][-1]["content"].strip().splitlines()[-1]
    names = NAME.findall(question)[:3] or [question[:40]]
    return Answer("".join(f"<clue>{name}</clue>" for name in names))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A folder with a run whose rounds are recorded and split."""
    folder = tmp_path_factory.mktemp("teams")
    config = RunConfig.load("params/debug.yaml", [f"output_root={folder}", FEW])
    build_search_task(config, Run.open(config))
    return folder


@pytest.fixture
def root(recorded, tmp_path) -> Path:
    shutil.copytree(recorded, tmp_path / "outputs")
    return tmp_path / "outputs"


def config(root: Path, server: FaultServer, *changes: str) -> RunConfig:
    changes = (
        f"output_root={root}",
        FEW,
        f"executor.served_url={server.url}",
        "evaluation.policies=[raw_question, served]",
        *changes,
    )
    return RunConfig.load("params/debug.yaml", changes)


def test_every_team_plays_the_same_held_out_questions_and_the_comparison_is_kept(root):
    said: list[str] = []
    with FaultServer(write_names, models=["merged"]) as server:
        found = compare_teams(config(root, server), log=said.append)
    run = Run.at(root / "debug")
    assert found.teams == ["raw_question", "served"] and found.pairs() == [
        ("served", "raw_question")
    ]
    held_out = {state.question_id for state in build_search_task(run.config, run).states("eval")}
    asked = {team: set(found.question_values(team, "discovery")) for team in found.teams}
    assert asked["served"] == asked["raw_question"] >= held_out
    assert found.facts["questions"] == len(asked["served"])
    assert found.interval("served", "failed").mean == 0
    assert load_teams(root / "debug" / "teams.json").table().equals(found.table())
    assert any(line.startswith("teams: ") for line in said)


def test_a_second_call_plays_nothing_and_finds_the_same(root):
    with FaultServer(write_names, models=["merged"]) as server:
        first = compare_teams(config(root, server), log=lambda _: None)
        asked = [body for body in server.requests if is_prompt(body)]
        again = compare_teams(config(root, server), log=lambda _: None)
        assert [body for body in server.requests if is_prompt(body)] == asked
    assert again.table().equals(first.table())


def test_behind_the_question_every_team_begins_with_it_and_plays_anew(root):
    games = root / "debug" / "teams"
    with FaultServer(write_names, models=["merged"]) as server:
        compare_teams(config(root, server), log=lambda _: None)
        before = len(server.requests)
        given = config(root, server, "evaluation.question_first=true")
        found = compare_teams(given, log=lambda _: None)
        assert len(server.requests) > before
    assert found.facts["question_first"]
    behind = 0
    for path in games.glob("*/run_*/round_001.json"):
        meta = json.loads((path.parent / "meta.json").read_text())
        if meta["collector"].endswith(" behind the question"):
            behind += 1
            assert json.loads(path.read_text())["clues"] == [meta["question"]]
    assert behind == 2 * found.facts["questions"]


def test_another_served_model_plays_anew(root):
    games = root / "debug" / "teams"
    for model in ("first", "second"):
        with FaultServer(write_names, models=[model]) as server:
            compare_teams(config(root, server), log=lambda _: None)
    collectors = {path.read_text().split('"collector": "')[1].split('"')[0]
                  for path in games.glob("*/run_*/meta.json")}  # fmt: skip
    assert collectors == {"raw_question", "served first", "served second"}


def test_the_served_executor_is_sent_the_messages_of_training(root):
    """The budget binds, and only the model's own tokenizer counts as training does."""
    small = "executor.max_prompt_tokens=420"
    with FaultServer(write_names, models=["merged"]) as server:
        given = config(root, server, "run_name=small", small, "evaluation.policies=[served]")
        compare_teams(given, log=lambda _: None)
        sent = [body["messages"] for body in server.requests if is_prompt(body)]
    run = Run.at(root / "small")
    task = build_search_task(run.config, run)
    by_estimate = [task.prompt(state) for state in played(run)]
    task.count_tokens = token_counter(load_tokenizer("debug"))
    by_tokenizer = [task.prompt(state) for state in played(run)]
    assert sorted(map(str, sent)) == sorted(map(str, by_tokenizer)) != sorted(map(str, by_estimate))


def test_eval_teams_takes_the_policies_by_name_and_prints_the_table(root, capsys):
    with FaultServer(write_names, models=["merged"]) as server:
        arguments = ["eval", "--teams", "--policy", "served", "--params", "params/debug.yaml"]
        changes = [FEW, f"output_root={root}", f"executor.served_url={server.url}"]
        changes += ["evaluation.max_questions=2"]
        assert cli.main([*arguments, "--set", *changes]) == 0
    out = capsys.readouterr().out
    assert "served Executor" in out and "Discovery after round 1" in out
    assert "one team only, nothing to compare" in out and "Empty DataFrame" not in out
    assert load_teams(root / "debug" / "teams.json").facts["questions"] == 2


def test_a_served_model_that_is_not_there_is_said_before_anything_is_played(tmp_path):
    with FaultServer(write_names, models=["merged"]) as server:
        given = config(tmp_path, server, "executor.served_model=nosuch")
        with pytest.raises(RefusedError, match="does not serve 'nosuch'"):
            compare_teams(given, log=lambda _: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("by_name", [True, False])
def test_collect_lets_the_served_executor_record_rounds(by_name, tmp_path, capsys):
    with FaultServer(write_names, models=["merged"]) as server:
        changes = [FEW, f"output_root={tmp_path}", f"executor.served_url={server.url}"]
        named = ["--policy", "served"] if by_name else []
        changes += [] if by_name else ["data.collectors=[served]"]
        arguments = ["collect", "--params", "params/debug.yaml", *named]
        assert cli.main([*arguments, "--set", *changes]) == 0
        assert any(is_prompt(body) for body in server.requests)
    assert capsys.readouterr().out.count("served: 12 of 12 questions played") == 1


def test_training_records_its_own_rounds_with_the_served_executor(tmp_path):
    with FaultServer(write_names, models=["merged"]) as server:
        changes = [FEW, f"output_root={tmp_path}", f"executor.served_url={server.url}"]
        given = RunConfig.load("params/debug.yaml", [*changes, "data.collectors=[served]"])
        task = prepare_data(given, Run.open(given), log=lambda _: None)
    assert task.states("train")


def test_a_team_is_known_by_its_adapter(tmp_path):
    for step, content in (("a", b"1"), ("b", b"2")):
        (tmp_path / step).mkdir()
        (tmp_path / step / "adapter_model.safetensors").write_bytes(content)
    names = {identity("tuned", object(), tmp_path / step) for step in ("a", "b")}
    assert len(names) == 2 and all(name.startswith("tuned ") for name in names)
    assert identity("untouched", object(), None) == "untouched"


def is_prompt(body: dict) -> bool:
    """Whether a request is more than the probe's."""
    return len(body["messages"]) == 2


def played(run: Run) -> list:
    """The states that the games recorded under `teams/` went through."""
    loader = RLCheckpointLoader(run.folder / "teams", 0, 100, 7)
    loader.load_data()
    return loader.extract_training_samples()
