"""`collect` from the parameters: who plays, what it prints, and an interrupt of the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlkit.agents.checker import GoldChecker
from rlkit.agents.executor import RawQuestionPolicy
from rlkit.config import RunConfig
from rlkit.errors import AgentError
from rlkit.practice.collect_run import build_team, collect_run
from tests.agents.fault_server import Answer, FaultServer
from tests.agents.live_toys import CORPUS, ORCHESTRATOR, playing, user_of

ROOT = Path(__file__).resolve().parents[2]


def eager(body: dict[str, Any]) -> Any:
    """Searches for the question until it must answer."""
    text = user_of(body)
    if "No rounds are left" in text:
        return {"strategy": "ANSWER", "subgoal": "", "answer": "nobody knows"}
    question = re.search(r"Question: (.*)", text)[1]
    return {"strategy": "SEARCH", "subgoal": f"Find out: {question}"[:300], "answer": ""}


def approving(body: dict[str, Any]) -> Any:
    return dict.fromkeys(re.findall(r'<document id="(d\d+)">', user_of(body)), "IMPORTANT")


def live_config(server: FaultServer, folder: Path, **sections: Any) -> RunConfig:
    """Three live agents over the demo, six questions of one round each."""
    given: dict[str, Any] = {
        "data": {"planner": "llm", "entities": "llm", "max_questions": 6, "max_rounds": 1},
        "checker": {"kind": "llm", "concurrency": 4, "patience": 0, "max_retries": 0},
        "model": {"vllm_base_url": server.url},
        "monitoring": {"price_in": 1000.0, "price_out": 2000.0},
    }
    for name, section in sections.items():
        given[name] = {**given.get(name, {}), **section}
    return RunConfig.from_sections(run_name="live", output_root=str(folder), **given)


def test_three_live_agents_of_the_parameters_share_one_client(tmp_path):
    lines: list[str] = []
    with playing(planner=eager, checker=approving) as server:
        config = live_config(server, tmp_path)
        (report,) = collect_run(
            config, tmp_path / "rounds", progress=lambda r: lines.append(str(r))
        )
    assert (report.played, report.failed, report.rounds) == (6, 0, 6)
    assert server.peak <= 4
    metas = [json.loads(path.read_text()) for path in (tmp_path / "rounds").rglob("meta.json")]
    assert {meta["final_answer"] for meta in metas} == {"nobody knows"}
    assert {meta["agents"]["planner"] for meta in metas} == {"llm toy, prompt 2"}
    assert report.cost == pytest.approx(report.requests * (5 * 1000 + 7 * 2000) / 1e6)
    first = next(line for line in lines if line.startswith("scripted: 1 of 6"))
    assert re.search(
        r"questions played in .* tokens, cost \S+; in play: \d at round 1; about \S+ s left$", first
    )
    assert re.search(r"\d+ requests, \d[\d,]* \+ \d[\d,]* tokens, cost \d+\.\d\d$", str(report))


def test_rules_play_without_a_server_and_what_is_recorded_needs_none(tmp_path):
    with playing(planner=eager, checker=approving) as server:
        config = live_config(server, tmp_path)
        collect_run(config, tmp_path / "rounds")
    (report,) = collect_run(config, tmp_path / "rounds")
    assert (report.played, report.skipped) == (0, 6)
    with pytest.raises(AgentError, match="start one with"):
        collect_run(config, tmp_path / "others")
    rules = RunConfig.from_sections(data={"max_questions": 3}, output_root=str(tmp_path))
    (report,) = collect_run(rules, tmp_path / "rules")
    assert (report.played, report.requests) == (3, 0)


def test_a_team_of_the_parameters(tmp_path):
    with FaultServer() as server:
        config = live_config(server, tmp_path, checker={"kind": "gold"})
        team = build_team(config, RawQuestionPolicy(), ORCHESTRATOR, GoldChecker(CORPUS), "me")
        assert team.planner.client is team.entities.client
        assert (team.collector, team.concurrency, team.threads) == ("me", 4, 4)
        assert team.prices == (1000.0, 2000.0)
        team.planner.client.close()
    config = RunConfig.from_sections()
    rules = build_team(config, RawQuestionPolicy(), ORCHESTRATOR, GoldChecker(CORPUS))
    assert (rules.threads, rules.clients) == (1, [])


def test_an_interrupt_of_the_command_is_clean_and_the_same_command_goes_on(tmp_path):
    slow = False

    def late(body: dict[str, Any]) -> Any:
        reply = json.dumps(eager(body))
        return Answer(reply, delay=60.0 if slow else 0.1)

    rounds = tmp_path / "rounds"
    with playing(planner=late, checker=approving) as server:
        config = live_config(
            server, tmp_path, checker={"concurrency": 2}, data={"max_questions": 12}
        )
        params = tmp_path / "params.yaml"
        params.write_text(json.dumps(config.model_dump(exclude_defaults=True)))
        command = [sys.executable, "-m", "rlkit", "collect", "--params", str(params)]
        options: dict[str, Any] = {
            "cwd": ROOT, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
            "env": {**os.environ, "PYTHONUNBUFFERED": "1"},
        }  # fmt: skip
        process = subprocess.Popen([*command, "--output", str(rounds)], **options)
        wait_until(lambda: any(rounds.rglob("run_001/meta.json")))
        slow = True
        wait_until(lambda: server._under_way >= 2)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        _, err = process.communicate(timeout=50)
        assert time.monotonic() - start < 40  # not the 60 s of a reply
        assert process.returncode == 130
        assert err.strip().endswith("what is finished is kept, and the same command goes on.")
        assert "Traceback" not in err
        recorded = [json.loads(p.read_text()) for p in rounds.rglob("run_001/meta.json")]
        assert 0 < len(recorded) < 12
        assert all(meta["status"] == "finished" for meta in recorded)
        assert not list(rounds.rglob(".*"))
        slow = False
        done = subprocess.run([*command, "--output", str(rounds)], timeout=60, **options)
        assert done.returncode == 0, done.stderr
        assert f"{12 - len(recorded)} of 12 questions played" in done.stdout
        assert f"{len(recorded)} were recorded already" in done.stdout


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.02)
