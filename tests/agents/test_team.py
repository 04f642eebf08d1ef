"""Whole questions, and the collecting of many."""

import json
import math
import shutil
import threading
import time
from collections import defaultdict
from contextlib import contextmanager

import pytest

from rlkit.agents import recording, side_by_side
from rlkit.agents.checker import GoldChecker
from rlkit.agents.planner import Plan, RulePlanner
from rlkit.agents.recording import MAX_TRIES, CollectReport, collect, now_and_then
from rlkit.agents.team import Team
from rlkit.errors import (
    AgentError,
    ConfigError,
    DataError,
    ModelError,
    RunError,
    ServerAwayError,
)
from rlkit.library.bm25 import BM25sBackend
from rlkit.library.corpus import Corpus, Document, Question
from rlkit.library.orchestrator import SearchOrchestrator
from rlkit.library.tokenize import Tokenizer
from rlkit.rounds.checkpoints import RLCheckpointLoader, discovery_by_round

CORPUS = Corpus(
    [
        Document("elm", "Elm Row", "Elm Row was built by Ada Holt."),
        Document("ada", "Ada Holt", "Ada Holt comes from Trent."),
        Document("oak", "Oak End", "Oak End was built by Bo Lee."),
        Document("bo", "Bo Lee", "Bo Lee comes from Lund."),
        *(Document(f"x{i}", f"Row {i}", f"A row of {i} trees.") for i in range(12)),
    ]
)
ORCHESTRATOR = SearchOrchestrator(CORPUS, BM25sBackend(CORPUS, 0.9, 0.4, Tokenizer()), top_k=3)
QUESTIONS = [
    Question("q1", "Where does the maker of Elm Row come from?", "Trent", ("elm", "ada"), 2),
    Question("q2", "Where does the maker of Oak End come from?", "Lund", ("oak", "bo"), 2),
]


class Script:
    """Writes the given texts, round by round; an exception is raised instead."""

    def __init__(self, *texts, deep=False):
        self.texts, self.deep, self.states = texts, deep, []

    def write(self, state):
        self.states.append(state)
        text = self.texts[min(state.round, len(self.texts)) - 1]
        if isinstance(text, Exception):
            raise text
        return text


def team(*texts, deep=False, **options):
    options = {"checker": GoldChecker(CORPUS), "collector": "script", **options}
    return Team(Script(*texts, deep=deep), ORCHESTRATOR, **options)


ELM_ADA = ("<clue>Elm Row</clue><clue>Elm</clue>", "<clue>Ada Holt</clue><clue>Trent</clue>", "zzz")


def test_a_question_is_played_to_its_end():
    players = team(*ELM_ADA)
    meta, rounds = players.play(QUESTIONS[0])
    assert [(r.round, r.strategy, r.clues, r.failed) for r in meta.rounds] == [
        (1, "SEARCH", ("Elm Row", "Elm"), None),
        (2, "SEARCH", ("Ada Holt", "Trent"), None),
        (3, "SEARCH", ("zzz",), None),
    ]
    assert meta.rounds[0].subgoal == QUESTIONS[0].text
    assert meta.rounds[1].subgoal == "Find what is still missing about Ada Holt"
    assert (meta.status, meta.collector, meta.answer, meta.hops) == (
        "finished",
        "script",
        "Trent",
        2,
    )
    assert [file.round for file in rounds] == [0, 1, 2, 3]
    assert rounds[0].seen_docids == ()
    assert "elm" in rounds[1].seen_docids
    assert [d.docid for d in rounds[2].document_table] == ["elm", "ada"]
    assert rounds[3].results == ()


def test_discarded_documents_are_seen_but_not_shown():
    _, rounds = team("<clue>row of trees</clue>").play(QUESTIONS[0])
    discarded = [row.docid for row in rounds[1].results if row.verdict == "DISCARD"]
    assert discarded
    assert set(discarded) <= set(rounds[1].seen_docids)
    assert not set(discarded) & {row.docid for row in rounds[1].document_table}


def test_the_executor_never_sees_more_than_the_rounds_before():
    players = team(*ELM_ADA)
    players.play(QUESTIONS[0])
    first, second, _ = players.executor.states
    assert (first.document_table, first.seen_docids) == ((), ())
    assert [row.docid for row in second.document_table] == ["elm"]
    assert first.recorded_results == second.recorded_results == ()


def test_no_more_than_max_documents_new_ones_are_read():
    _, rounds = team("<clue>row</clue><clue>built</clue>", max_documents=2).play(QUESTIONS[0])
    assert len(rounds[1].seen_docids) == len(rounds[1].results) == 2


def test_a_deep_policy_reads_max_documents_new_ones_each_round():
    _, rounds = team("<clue>row</clue>", deep=True, max_documents=4).play(QUESTIONS[0])
    assert [len(file.seen_docids) for file in rounds] == [0, 4, 8, 12]


def test_it_ends_when_nothing_new_is_found_and_at_max_rounds():
    assert len(team("zzz").play(QUESTIONS[0]).meta.rounds) == 1
    assert len(team(*ELM_ADA, max_rounds=1).play(QUESTIONS[0]).meta.rounds) == 1


def test_a_failing_agent_ends_the_question_as_failed():
    meta, rounds = team(ELM_ADA[0], ModelError("the server is gone.")).play(QUESTIONS[0])
    assert meta.status == "failed"
    assert [r.failed for r in meta.rounds] == [None, "the server is gone."]
    assert rounds[2].seen_docids == rounds[1].seen_docids

    without_gold = Question("q3", "Where?", None, ())
    meta, _ = team(*ELM_ADA).play(without_gold)
    assert (meta.status, meta.rounds[0].clues) == ("failed", ("Elm Row", "Elm"))
    assert "no gold documents" in meta.rounds[0].failed


def test_a_bug_comes_through():
    with pytest.raises(ZeroDivisionError):
        team(ZeroDivisionError()).play(QUESTIONS[0])


def test_documents_that_could_not_be_judged_are_recorded_as_such():
    class Silent:
        def check(self, state, documents):
            return {document.docid: None for document in documents[:1]}

    _, rounds = team(*ELM_ADA, checker=Silent()).play(QUESTIONS[0])
    assert {row.verdict for row in rounds[1].results} == {None}
    assert rounds[1].document_table == ()


def test_collected_rounds_become_training_states(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "TICK", math.inf)  # nothing is told in between
    seen = []
    report = collect(team(*ELM_ADA), QUESTIONS, tmp_path, progress=lambda r: seen.append(r.played))
    assert (report.played, report.skipped, report.failed, report.rounds) == (2, 0, 0, 6)
    assert seen == [1, 2]
    states = RLCheckpointLoader(tmp_path).extract_training_samples()
    assert [s.state_id for s in states] == [f"q{q}/run_001/{r}" for q in (1, 2) for r in (1, 2)]
    assert discovery_by_round(states[:2]) == {1: (0.5, 1), 2: (1.0, 1)}


def test_a_second_run_adds_nothing_and_another_collector_does(tmp_path):
    collect(team(*ELM_ADA), QUESTIONS, tmp_path)
    report = collect(team(*ELM_ADA), QUESTIONS, tmp_path)
    assert (report.played, report.skipped) == (0, 2)
    assert collect(team(*ELM_ADA, collector="other"), QUESTIONS, tmp_path).played == 2
    assert sorted(p.name for p in (tmp_path / "q1").iterdir()) == ["run_001", "run_002"]
    metas = [json.loads((tmp_path / f"q1/run_00{n}/meta.json").read_text()) for n in (1, 2)]
    assert [meta["collector"] for meta in metas] == ["script", "other"]


def test_stopped_work_is_continued(tmp_path):
    class Stop(KeyboardInterrupt):
        pass

    def stop(report):
        raise Stop

    with pytest.raises(Stop):
        collect(team(*ELM_ADA), QUESTIONS, tmp_path, progress=stop)
    report = collect(team(*ELM_ADA), QUESTIONS, tmp_path)
    assert (report.played, report.skipped) == (1, 1)


def test_failed_questions_are_played_again(tmp_path):
    report = collect(team(ModelError("gone.")), QUESTIONS, tmp_path)
    assert (report.failed, report.first_failure) == (2, "gone.")
    assert "2 failed (first: gone.)" in str(report)
    assert collect(team(*ELM_ADA), QUESTIONS, tmp_path).played == 2


def test_two_cannot_record_the_same_at_once_and_then_nothing_is_there_twice(tmp_path):
    root, begun, go_on = tmp_path / "rounds", threading.Event(), threading.Event()

    class Waiting(Script):
        def write(self, state):
            begun.set()
            go_on.wait(30)
            return super().write(state)

    first = Team(Waiting(*ELM_ADA), ORCHESTRATOR, checker=GoldChecker(CORPUS), collector="script")
    playing = threading.Thread(target=collect, args=(first, QUESTIONS, root))
    playing.start()
    try:
        assert begun.wait(30)
        with pytest.raises(RunError, match="another process records rounds of script in .*rounds"):
            collect(team(*ELM_ADA), QUESTIONS, root)
        assert collect(team(*ELM_ADA, collector="other"), QUESTIONS, root).played == 2
    finally:
        go_on.set()
        playing.join()
    again = collect(team(*ELM_ADA), QUESTIONS, root)
    assert (again.played, again.skipped) == (0, 2)
    assert len(list(root.glob("*/run_*"))) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["rounds"]


def test_what_another_process_finished_while_it_was_waited_for_is_not_played(tmp_path, monkeypatch):
    @contextmanager
    def late(root, collector):
        monkeypatch.undo()
        assert collect(team(*ELM_ADA), QUESTIONS[:1], root).played == 1
        yield

    monkeypatch.setattr(recording, "_alone", late)
    report = collect(team(*ELM_ADA), QUESTIONS, tmp_path)
    assert (report.played, report.skipped) == (1, 1)


def test_a_failed_run_gives_way_to_the_next_try_so_that_no_round_counts_twice(tmp_path):
    refused = team(ELM_ADA[0], ModelError("gone."))
    for tries in (1, 2):
        assert collect(refused, QUESTIONS[:1], tmp_path).failed == 1
        loader = RLCheckpointLoader(tmp_path)
        assert [s.state_id for s in loader.extract_training_samples()] == [f"q1/run_00{tries}/1"]
    collect(team(*ELM_ADA), QUESTIONS[:1], tmp_path)
    loader = RLCheckpointLoader(tmp_path)
    report = loader.load_data()
    assert (report.runs, report.superseded_runs, report.rounds) == (1, 2, 3)
    assert [s.state_id for s in loader.extract_training_samples()] == [
        "q1/run_003/1", "q1/run_003/2",
    ]  # fmt: skip
    assert [s.state_id for s in loader.all_states()] == [
        "q1/run_001/1", "q1/run_002/1", "q1/run_003/1", "q1/run_003/2",
    ]  # fmt: skip
    assert "2 failed runs that were played again" in str(report)


def test_after_three_failed_tries_a_question_is_left_out_and_named(tmp_path):
    refused = team(ELM_ADA[0], ModelError("its text is refused."))
    tried = [collect(refused, QUESTIONS[:1], tmp_path).played for _ in range(MAX_TRIES + 2)]
    assert tried == [1, 1, 1, 0, 0]
    lines = []
    report = collect(
        team(*ELM_ADA), QUESTIONS, tmp_path, progress=now_and_then(lines.append, math.inf)
    )
    assert (report.played, report.skipped, report.failed, report.left) == (1, 0, 1, 0)
    assert report.seconds_left == 0.0
    (line,) = lines  # the last one comes, however soon it is
    assert line.endswith(
        "\n  not tried again: q1 failed 3 times, last: its text is refused. (to try it once more, "
        f"delete {tmp_path / 'q1' / 'run_003'})"
    )
    assert "1 failed (first: its text is refused.)" in line
    assert collect(team(*ELM_ADA), QUESTIONS, tmp_path, now_and_then(lines.append)).played == 0
    assert "not tried again: q1" in lines[1]  # also where nothing is left to play
    assert collect(team(*ELM_ADA, collector="other"), QUESTIONS[:1], tmp_path).played == 1
    shutil.rmtree(tmp_path / "q1" / "run_003")
    assert collect(team(*ELM_ADA), QUESTIONS, tmp_path).failed == 0


def test_many_questions_that_were_given_up_are_named_in_part():
    report = CollectReport("me", 9, failed=9, given_up=[f"q{i} failed" for i in range(9)])
    assert str(report).count("\n") == 6
    assert str(report).endswith(
        "q4 failed\n  not tried again: and 4 more questions in the same way"
    )
    report.given_up.pop()  # one is in play: the names wait for the end
    assert "not tried again" not in str(report)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("batches", [False, True])
def test_while_a_question_is_played_its_round_is_told(batches, waits, tmp_path, monkeypatch):
    class Waiting(GoldChecker):
        concurrent = waits

        def check(self, state, documents):
            rounds[0] += 1
            if waits:  # the caller is told meanwhile, by another thread
                told[rounds[0]].wait(30)
            else:
                time.sleep(0.1)
            return super().check(state, documents)

    class Batch(Script):
        def write_batch(self, states):
            return [self.write(state) for state in states]

    texts = (*ELM_ADA[:2], "<clue>row of trees</clue>")
    players = team(*texts, checker=Waiting(CORPUS), concurrency=1)
    if batches:
        players.executor = Batch(*texts)
    monkeypatch.setattr(side_by_side, "TICK", 0.02)
    in_play, lines, rounds = [], [], [0]
    told = defaultdict(threading.Event)

    def progress(report):
        in_play.append(dict(report.in_play))
        lines.append(str(report))
        for number in report.in_play:
            told[number].set()

    collect(players, QUESTIONS[:1], tmp_path, progress)
    assert {2: 1} in in_play and {3: 1} in in_play
    assert in_play[-1] == {} and "in play" not in lines[-1]  # nothing is, at the end
    assert any("; in play: 1 at round 2" in line for line in lines)


def test_reports_are_logged_now_and_then_and_at_the_end():
    lines = []
    say = now_and_then(lines.append, seconds=3600)
    report = CollectReport("me", questions=2, played=1)
    say(report)
    assert lines == []
    report.played = 2
    say(report)
    assert len(lines) == 1
    eager = now_and_then(lines.append, seconds=0)
    eager(CollectReport("me", questions=2))
    assert len(lines) == 2


def test_unsafe_question_ids_are_refused_before_anything_is_played(tmp_path):
    questions = [*QUESTIONS, Question("../q", "Where?", None, ("elm",))]
    with pytest.raises(DataError, match="cannot be used as a folder name"):
        collect(team(*ELM_ADA), questions, tmp_path / "rounds")
    assert not (tmp_path / "rounds").exists()


def test_policies_that_write_in_batches_play_side_by_side(tmp_path):
    class Batch(Script):
        sizes = []

        def write_batch(self, states):
            self.sizes.append(len(states))
            return [self.write(state) for state in states]

    side_by_side, one_by_one = team(*ELM_ADA), team(*ELM_ADA)
    side_by_side.executor = Batch(*ELM_ADA)
    collect(side_by_side, QUESTIONS, tmp_path / "a")
    collect(one_by_one, QUESTIONS, tmp_path / "b")
    assert Batch.sizes == [2, 2, 2]
    for path in (tmp_path / "a").rglob("*.json"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    with pytest.raises(ConfigError, match="batch_size is 0"):
        collect(team("x", collector="new"), QUESTIONS, tmp_path, batch_size=0)


# ---- rounds that fail, and agents that may not be called at once


class Planned:
    """Plans one search after the other; an exception in the list is raised instead."""

    def __init__(self, *plans):
        self.plans, self.seen = list(plans), []

    def plan(self, question, history):
        self.seen.append([file.round for file in history])
        plan = self.plans.pop(0) if self.plans else Plan("ANSWER", "", "Trent")
        if isinstance(plan, Exception):
            raise plan
        return plan


def test_after_a_failed_round_the_planner_sees_only_what_was_played():
    find = Plan("SEARCH", "Find it")
    planner = Planned(find, AgentError("no plan."), find, find)
    players = team(*ELM_ADA, planner=planner)
    meta, rounds = players.play(QUESTIONS[0])
    assert planner.seen == [[0], [0, 1], [0, 1], [0, 1, 3]]
    assert [(r.round, r.strategy, r.failed) for r in meta.rounds] == [
        (1, "SEARCH", None),
        (2, "", "no plan."),
        (3, "SEARCH", None),
        (4, "SEARCH", None),
    ]
    assert (meta.status, meta.final_answer) == ("finished", None)  # no answer(), rounds used up
    assert [state.round for state in players.executor.states] == [1, 3, 4]
    assert {row.round for row in rounds[4].document_table} <= {1, 3, 4}


def test_failed_rounds_use_up_no_rounds_but_a_third_one_ends_the_question():
    away = AgentError("try later.")
    meta, _ = team(away, away, *ELM_ADA).play(QUESTIONS[0])
    assert [r.failed for r in meta.rounds] == ["try later.", "try later.", None, None, None]
    assert meta.status == "finished"
    meta, _ = team(away, away, away).play(QUESTIONS[0])
    assert ([bool(r.failed) for r in meta.rounds], meta.status) == ([True] * 3, "failed")
    meta, _ = team(away, *ELM_ADA, max_failed_rounds=0).play(QUESTIONS[0])
    assert ([bool(r.failed) for r in meta.rounds], meta.status) == ([True], "failed")


def test_tables_that_cannot_be_begun_end_the_question_as_failed():
    class Lost:
        def begin(self, question):
            raise AgentError("no\x00 tables.\n" + "x" * 2000)

    meta, rounds = team(*ELM_ADA, entities=Lost()).play(QUESTIONS[0])
    assert (meta.status, [r.round for r in meta.rounds]) == ("failed", [1])
    assert meta.rounds[0].failed.startswith("no tables. xxx") and len(meta.rounds[0].failed) < 700
    assert rounds[0].entity_table == ()


def test_a_server_that_is_away_is_no_failure_of_a_question(tmp_path):
    with pytest.raises(ServerAwayError):
        collect(team(ELM_ADA[0], ServerAwayError("gone.")), QUESTIONS, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_answer_of_the_planner_is_recorded():
    meta, _ = team(*ELM_ADA, planner=Planned(Plan("SEARCH", "Find it"))).play(QUESTIONS[0])
    assert (meta.final_answer, meta.answer, len(meta.rounds)) == ("Trent", "Trent", 1)
    assert team(*ELM_ADA).play(QUESTIONS[0]).meta.final_answer is None


def test_only_agents_that_say_so_are_called_from_several_threads_at_once():
    inside, peaks, lock = defaultdict(int), defaultdict(int), threading.Lock()

    class Counting(GoldChecker):
        concurrent = True

        def check(self, state, documents):
            with counted("checker"):
                return super().check(state, documents)

    class Alone(RulePlanner):
        def plan(self, question, history):
            with counted("planner"):
                return super().plan(question, history)

    @contextmanager
    def counted(role):
        with lock:
            inside[role] += 1
            peaks[role] = max(peaks[role], inside[role])
        time.sleep(0.01)
        yield
        with lock:
            inside[role] -= 1

    questions = [Question(f"q{i}", "Where is Elm Row?", None, ("elm",)) for i in range(8)]
    players = team(*ELM_ADA, checker=Counting(CORPUS), planner=Alone(), concurrency=8)
    assert [r.meta.question_id for r in players.play_many(questions)] == [f"q{i}" for i in range(8)]
    assert peaks["planner"] == 1 and peaks["checker"] > 1
    assert team(*ELM_ADA).threads == 1


def test_the_report_says_what_is_left_and_what_it_cost():
    report = CollectReport("me", questions=10, played=2, skipped=4, rounds=6, seconds=60.0)
    assert report.seconds_left == 120.0
    assert str(report) == (
        "me: 2 of 10 questions played in 60.0 s, 4 were recorded already; 6 rounds, "
        "0 documents read; about 2 min left"
    )
    report.failed_rounds, report.requests, report.prompt_tokens, report.cost = 1, 12, 3400, 1.5
    assert "6 rounds (1 of them failed)" in str(report)
    assert "; 12 requests, 3,400 + 0 tokens, cost 1.50; about 2 min left" in str(report)
    done = CollectReport("me", questions=3, skipped=3)
    assert done.seconds_left is None and "left" not in str(done)
