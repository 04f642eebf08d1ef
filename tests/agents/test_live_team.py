"""Whole questions that three live agents play, one by one and many at once."""

from __future__ import annotations

import json
import threading
import time
from itertools import groupby
from pathlib import Path

import pytest

from rlkit.agents.judge import LLMChecker
from rlkit.agents.live_entities import LLMEntityManager
from rlkit.agents.live_planner import LLMPlanner
from rlkit.agents.recording import collect
from rlkit.agents.team import Team
from rlkit.agents.verdict_cache import VerdictCache
from rlkit.errors import AgentError, ServerAwayError
from rlkit.rounds.checkpoints import RLCheckpointLoader
from tests.agents.fault_server import Answer
from tests.agents.live_toys import (
    CHINESE,
    GOOD,
    ORCHESTRATOR,
    QUESTIONS,
    client_of,
    good_checker,
    good_planner,
    playing,
    role_of,
    user_of,
)


class Subgoal:
    """Searches for what the subgoal names."""

    concurrent = True

    def write(self, state):
        name = state.subgoal.removeprefix("Find ")
        return f"<clue>{name}</clue><clue>{name} built row</clue>"


def live_team(server, folder, client=None, **options):
    """Planner, entity manager and checker share a client, as `build_team` has it."""
    client = client or client_of(server)
    checker = LLMChecker(
        client, VerdictCache(folder / "verdicts.sqlite"), model="toy", log=lambda _: None
    )
    options = {"collector": "subgoal", **options}
    return Team(
        options.pop("executor", Subgoal()),
        ORCHESTRATOR,
        checker,
        LLMPlanner(client, log=lambda _: None),
        LLMEntityManager(client, log=lambda _: None),
        **options,
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.json")}


# ---- one question


@pytest.mark.parametrize(
    ("question", "first", "second", "maker"),
    [
        (QUESTIONS[0], "Find Elm0 Row", "Find Ada0 Holt", "Ada0 Holt"),
        (CHINESE, "Find 《榆树街》", "Find 何达", "何达"),
    ],
    ids=["en", "zh"],
)
def test_three_agents_play_a_question_to_its_answer(question, first, second, maker, tmp_path):
    with playing() as server:
        meta, rounds = live_team(server, tmp_path).play(question)
    assert (meta.status, meta.final_answer) == ("finished", question.answer)
    assert [(r.strategy, r.subgoal, r.failed) for r in meta.rounds] == [
        ("SEARCH", first, None),
        ("SEARCH", second, None),
    ]
    house, person = question.gold_docids
    assert [row.docid for row in rounds[1].document_table] == [house]
    assert [row.docid for row in rounds[2].document_table] == [house, person]
    assert {row.docid: row.verdict for row in rounds[2].results}[person] == "IMPORTANT"
    row = next(row for row in rounds[1].entity_table if row.name == maker)
    assert (row.type, row.docids) == ("person", (house,))
    assert meta.agents == {
        "planner": "llm toy, prompt 2",
        "entities": "llm toy, prompt 2",
        "checker": "llm toy, prompt 2",
    }
    asked = [role for role, _ in groupby(map(role_of, server.requests)) if role != "probe"]
    assert asked == ["planner", "checker", "entities", "planner", "checker", "entities", "planner"]


def test_the_answer_is_asked_for_when_the_rounds_are_used_up(tmp_path):
    def eager(body):
        if "No rounds are left" in user_of(body):
            return {"strategy": "ANSWER", "subgoal": "", "answer": "perhaps"}
        return {"strategy": "SEARCH", "subgoal": "Find Elm0 Row", "answer": ""}

    with playing(planner=eager) as server:
        meta, _ = live_team(server, tmp_path, max_rounds=2).play(QUESTIONS[0])
    assert (len(meta.rounds), meta.status, meta.final_answer) == (2, "finished", "perhaps")


@pytest.mark.parametrize("end", ["search", "nonsense", "500"])
def test_a_question_whose_rounds_are_used_up_is_finished_whatever_the_planner_says(end, tmp_path):
    search = {"strategy": "SEARCH", "subgoal": "Find Elm0 Row", "answer": ""}
    last = {"search": search, "nonsense": "I am a model.", "500": Answer(status=500)}[end]

    def planner(body):
        return last if "No rounds are left" in user_of(body) else search

    with playing(planner=planner) as server:
        team = live_team(server, tmp_path, max_rounds=2)
        report = collect(team, QUESTIONS[:1], tmp_path / "rounds")
        again = collect(team, QUESTIONS[:1], tmp_path / "rounds")
    assert (report.failed, report.failed_rounds, again.skipped) == (0, 0, 1)
    meta = json.loads((tmp_path / "rounds/q00/run_001/meta.json").read_text())
    assert (meta["status"], meta.get("final_answer"), len(meta["rounds"])) == ("finished", None, 2)
    assert meta["unanswered"]


def test_a_planner_may_answer_before_any_round(tmp_path):
    with playing(planner=lambda body: '{"strategy": "ANSWER", "answer": "x"}') as server:
        collect(live_team(server, tmp_path), QUESTIONS[:1], tmp_path / "rounds")
    meta = json.loads((tmp_path / "rounds/q00/run_001/meta.json").read_text())
    assert (meta["rounds"], meta["status"], meta["final_answer"]) == ([], "finished", "x")


# ---- agents that fail


@pytest.mark.parametrize("role", ["planner", "checker", "entities"])
@pytest.mark.parametrize(
    "fault",
    [Answer(status=500), Answer(raw="{"), Answer(reset_after=9)],
    ids=["500", "cut", "reset"],
)
def test_a_failed_round_is_recorded_and_the_next_one_begins_where_it_began(role, fault, tmp_path):
    faults = iter([fault, fault])  # max_retries is 1

    def play(body):
        in_second_round = "Ada0" in user_of(body) and role in ("planner", "entities")
        in_second_round |= role == "checker" and "Find Ada0 Holt" in user_of(body)
        return (next(faults, None) if in_second_round else None) or GOOD[role](body)

    with playing(**{role: play}) as server:
        meta, rounds = live_team(server, tmp_path).play(QUESTIONS[0])
    (bad,) = [ref for ref in meta.rounds if ref.failed]
    assert f"{server.url} gave no reply in 2 attempts" in bad.failed
    assert (meta.status, meta.final_answer, len(meta.rounds)) == ("finished", "Trent0", 3)
    before, failed = rounds[bad.round - 1], rounds[bad.round]
    for table in ("entity_table", "target_table", "document_table", "context_table"):
        assert getattr(failed, table) == getattr(before, table)
    assert (failed.seen_docids, failed.results) == (before.seen_docids, ())
    assert bad.strategy == ("" if role == "planner" else "SEARCH")
    assert [row.docid for row in rounds[3].document_table] == ["h0", "p0"]


@pytest.mark.parametrize(
    "reply",
    [
        "no JSON",
        '{"strategy": "LOOK", "subgoal": "x"}',
        '{"strategy": "SEARCH", "subgoal": ""}',
        json.dumps({"strategy": "SEARCH", "subgoal": "x" * 10_000}),
        '{"strategy": "SEARCH", "subgoal": "Find it"',
    ],
)
def test_a_planner_that_never_makes_sense_ends_the_question_as_failed(reply, tmp_path):
    with playing(planner=lambda body: reply) as server:
        meta, rounds = live_team(server, tmp_path).play(QUESTIONS[0])
    assert (meta.status, meta.final_answer) == ("failed", None)
    assert [ref.strategy for ref in meta.rounds] == [""] * 3
    assert all("asked twice" in ref.failed for ref in meta.rounds)
    assert len(server.requests) == 6


def test_an_unreadable_entity_manager_leaves_rules_in_its_place_and_says_so(tmp_path):
    with playing(entities=lambda body: "I cannot.") as server:
        meta, rounds = live_team(server, tmp_path).play(QUESTIONS[0])
    assert (meta.status, meta.final_answer) == ("finished", "Trent0")
    assert [getattr(file, "tables_by_rules", False) for file in rounds] == [False, True, True]


def test_documents_without_a_verdict_stay_out_of_the_tables(tmp_path):
    def silent(body):
        verdicts = good_checker(body)
        return {name: label for name, label in verdicts.items() if label != "IMPORTANT"}

    with playing(checker=silent) as server:
        _, rounds = live_team(server, tmp_path, max_rounds=1).play(QUESTIONS[0])
    verdicts = {row.docid: row.verdict for row in rounds[1].results}
    assert verdicts["h0"] is None and set(verdicts.values()) == {None, "DISCARD"}
    assert rounds[1].document_table == rounds[1].context_table == ()
    assert "h0" in rounds[1].seen_docids


# ---- many questions


def test_twenty_questions_keep_the_server_busy_but_never_more_than_allowed(tmp_path):
    def slow(player):
        return lambda body: Answer(json.dumps(player(body)), delay=0.2)

    with playing(planner=slow(good_planner), checker=slow(good_checker)) as server:
        client = client_of(server, concurrency=6)
        report = collect(
            live_team(server, tmp_path, client, concurrency=6), QUESTIONS, tmp_path / "rounds"
        )
    assert server.peak == 6
    assert (report.played, report.failed, report.rounds) == (20, 0, 40)
    assert report.requests == len(server.requests)
    assert report.prompt_tokens == 5 * report.requests
    assert len(RLCheckpointLoader(tmp_path / "rounds").extract_training_samples()) == 40


def test_what_is_recorded_does_not_depend_on_who_was_faster(tmp_path):
    for name, seed, concurrency in (("a", 1, 16), ("b", 2, 5), ("c", 3, 1)):
        with playing(delays=0.01, seed=seed) as server:
            team = live_team(server, tmp_path / name, concurrency=concurrency)
            collect(team, QUESTIONS, tmp_path / name / "rounds")
    first, second, third = (files_of(tmp_path / name / "rounds") for name in "abc")
    assert len(first) == 20 * 4
    assert first == second == third


def test_a_model_in_this_process_writes_for_all_at_once_in_one_thread(tmp_path):
    class Model(Subgoal):
        concurrent = False
        sizes, threads = [], set()

        def write_batch(self, states):
            self.sizes.append(len(states))
            self.threads.add(threading.current_thread())
            return [self.write(state) for state in states]

    sizes = []
    for name, seed in (("a", 1), ("b", 2)):
        with playing(delays=0.02, seed=seed) as server:
            team = live_team(server, tmp_path / name, executor=Model())
            collect(team, QUESTIONS[:10], tmp_path / name / "rounds", batch_size=4)
        assert server.peak > 1
        sizes.append(Model.sizes[:])
        Model.sizes.clear()
    assert sizes == [[4, 4, 4, 4, 2, 2]] * 2
    assert Model.threads == {threading.main_thread()}
    assert files_of(tmp_path / "a" / "rounds") == files_of(tmp_path / "b" / "rounds")


def test_a_stop_in_the_middle_keeps_whole_questions_and_the_rest_follows(tmp_path):
    def stop_after_three(report):
        if report.played == 3:
            raise KeyboardInterrupt

    with playing(delays=0.02) as server:
        with pytest.raises(KeyboardInterrupt):
            collect(
                live_team(server, tmp_path), QUESTIONS[:10], tmp_path / "rounds", stop_after_three
            )
        there = files_of(tmp_path / "rounds")
        assert len(there) == 3 * 4
        assert not [p for p in (tmp_path / "rounds").rglob(".*")]
        time.sleep(0.3)  # questions that were in play are written by nobody
        assert files_of(tmp_path / "rounds") == there
        asked = len(server.requests)
        report = collect(live_team(server, tmp_path), QUESTIONS[:10], tmp_path / "rounds")
        assert (report.played, report.skipped) == (7, 3)
        assert len(server.requests) > asked
        asked = len(server.requests)
        assert (
            collect(live_team(server, tmp_path), QUESTIONS[:10], tmp_path / "rounds").skipped == 10
        )
        assert len(server.requests) == asked  # not even a probe
    with playing() as server:
        collect(live_team(server, tmp_path / "b"), QUESTIONS[:10], tmp_path / "b" / "rounds")
    assert files_of(tmp_path / "rounds") == files_of(tmp_path / "b" / "rounds")


def test_a_server_that_dies_ends_the_collection_and_a_new_one_goes_on(tmp_path):
    played = []

    def die(report):
        if report.played and not played:
            played.append(report.played)
            server.stop()

    with playing(delays=0.02) as server:
        client = client_of(server, patience=0.2, max_retries=0)
        with pytest.raises(ServerAwayError, match="has not answered"):
            collect(live_team(server, tmp_path, client), QUESTIONS, tmp_path / "rounds", die)
        kept = sorted(path.name for path in (tmp_path / "rounds").iterdir() if path.is_dir())
        metas = [json.loads(p.read_text()) for p in (tmp_path / "rounds").rglob("meta.json")]
        assert 1 <= len(kept) < 20
        assert {meta["status"] for meta in metas} == {"finished"}
        server.start()
        report = collect(live_team(server, tmp_path), QUESTIONS, tmp_path / "rounds")
        assert (report.played, report.skipped) == (20 - len(kept), len(kept))


def test_a_server_that_is_not_there_is_said_before_anything_is_played(tmp_path):
    with playing() as server:
        pass
    with pytest.raises(AgentError, match="vllm serve"):
        collect(live_team(server, tmp_path), QUESTIONS, tmp_path / "rounds")
    assert not (tmp_path / "rounds").exists()


def test_a_bug_of_an_agent_comes_through_and_keeps_what_is_finished(tmp_path):
    class Buggy(Subgoal):
        def write(self, state):
            return [] + super().write(state) if state.question_id == "q07" else super().write(state)

    with playing() as server, pytest.raises(TypeError):
        team = live_team(server, tmp_path, executor=Buggy(), concurrency=3)
        collect(team, QUESTIONS, tmp_path / "rounds")
    recorded = [path.parent.parent.name for path in (tmp_path / "rounds").rglob("meta.json")]
    assert recorded and "q07" not in recorded
