"""The live checker against a real socket: nothing received is lost, nothing is invented, nothing
is asked twice."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlkit.agents import llm_presence, llm_probe
from rlkit.agents.checker import build_checker
from rlkit.agents.judge import LLMChecker, balanced
from rlkit.agents.llm import ChatClient
from rlkit.agents.llm_faults import RefusedError
from rlkit.agents.recording import collect
from rlkit.agents.verdict_cache import VerdictCache
from rlkit.config import RunConfig
from rlkit.errors import AgentError, DataError, ServerAwayError
from rlkit.library.corpus import Corpus, Document
from rlkit.practice.environment import SearchRoundEnv
from rlkit.rounds.state import State
from tests.agents.fault_server import Answer, FaultServer
from tests.agents.test_team import ELM_ADA, QUESTIONS, team
from tests.practice.toys import CORPUS, STATE, make_env

ROOT = Path(__file__).resolve().parents[2]
ASKED = State("q/run/1", "q", "Who built Elm Row?", 1, "SEARCH", "Find the builder")
KINDS = {"good": "IMPORTANT", "near": "LOCAL", "far": "DISCARD"}
FENCED = re.compile(r'<document id="(d\d+)">\n(.*)\n(.*)\n</document>')


def documents(*texts: str) -> list[Document]:
    return [Document(f"doc-{n}", f"Title {n}", text) for n, text in enumerate(texts)]


def truth(given: list[Document]) -> dict[str, str]:
    return {d.docid: KINDS[d.text.split()[0]] for d in given}


def fenced(body: dict) -> dict[str, str]:
    """id -> text of the documents in a request."""
    return {name: text for name, _, text in FENCED.findall(body["messages"][-1]["content"])}


def labels(body: dict) -> dict[str, str]:
    return {name: KINDS[text.split()[0]] for name, text in fenced(body).items()}


class Judge:
    """A script for the fault server: it answers probes, and documents as `answer(body, n)` says
    (default: rightly), n counting the requests with documents; `schema` says whether it enforces
    one, `thinks` whether it thinks."""

    def __init__(self, answer=None, schema: bool = True, thinks: bool = False) -> None:
        self.answer = answer or (lambda body, n: Answer(json.dumps(labels(body))))
        self.schema, self.thinks = schema, thinks
        self.asked: list[dict] = []
        self._lock = threading.Lock()

    def __call__(self, body: dict, n: int) -> Answer:
        if not fenced(body):
            enum = re.search(r'"enum": \["(\w+)"\]', json.dumps(body.get("response_format")))
            if enum and self.schema:
                return Answer(json.dumps({"rlkit_probe": enum[1]}))
            return Answer("<think>Hm.</think> Hello." if self.thinks else "Hello.")
        with self._lock:
            self.asked.append(body)
            count = len(self.asked) - 1
        return self.answer(body, count)

    @property
    def sizes(self) -> list[int]:
        return [len(fenced(body)) for body in self.asked]


@pytest.fixture
def serving():
    servers: list[FaultServer] = []

    def serve(script: Judge, **limits) -> FaultServer:
        servers.append(FaultServer(script, **limits))
        servers[-1].start()
        return servers[-1]

    yield serve
    for server in servers:
        server.stop()
        assert not server._failures, server._failures


@pytest.fixture
def checker(tmp_path):
    """A checker of a server; `said` is its log."""
    made: list[LLMChecker] = []

    def make(url: str, model: str | None = "toy", name: str = "v.sqlite", **settings) -> LLMChecker:
        said: list[str] = []
        limits = {"concurrency": 4, "timeout": 5.0, "max_retries": 2, "patience": 0.0}
        limits |= {k: settings.pop(k) for k in list(settings) if k in limits}
        client = ChatClient(url, model, log=said.append, **limits)
        cache = VerdictCache(tmp_path / name, said.append)
        made.append(
            LLMChecker(client, cache, model=model, address=url, log=said.append, **settings)
        )
        made[-1].said = said
        return made[-1]

    yield make
    for one in made:
        one.close()


NINE = documents(*("good one", "near two", "far three") * 3)


def test_verdicts_come_in_batches_and_are_matched_by_id(serving, checker):
    def backwards(body, n):
        return Answer(json.dumps(dict(reversed(labels(body).items()))))

    server = serving(judge := Judge(backwards))
    assert checker(server.url).check(ASKED, NINE) == truth(NINE)
    assert judge.sizes == [3, 3, 3]
    assert all(body["temperature"] == 0.0 for body in judge.asked)
    assert server.peak <= 4


def test_docids_and_gold_are_not_shown_and_the_schema_names_the_ids(serving, checker):
    server = serving(judge := Judge())
    state = replace(ASKED, gold_docids=("doc-1",), known_important=frozenset({"doc-1"}))
    checker(server.url, batch_size=5).check(state, NINE)
    for body in judge.asked:
        assert "doc-" not in json.dumps(body["messages"])
        form = body["response_format"]["json_schema"]["schema"]
        assert list(form["properties"]) == ["d1", "d2", "d3", "d4", "d5"]
        assert form["required"] == ["d1", "d2", "d3", "d4"]
        assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_without_a_schema_replies_are_parsed(serving, checker):
    def prose(body, n):
        return Answer("\n".join(f"{k}: {v}" for k, v in labels(body).items()))

    server = serving(judge := Judge(prose, schema=False))
    assert checker(server.url).check(ASKED, NINE) == truth(NINE)
    assert all("response_format" not in body for body in judge.asked)


def test_chinese_questions_get_chinese_prompts_and_labels(serving, checker):
    zh = {"IMPORTANT": "重要", "LOCAL": "部分相关", "DISCARD": "无关"}

    def chinese(body, n):
        assert "文档审核者" in body["messages"][0]["content"]
        text = "\n".join(f"{k}：{zh[v]}" for k, v in labels(body).items())
        return Answer(text)

    server = serving(Judge(chinese, schema=False))
    state = replace(ASKED, question="榆树街是谁建造的？", subgoal="找到建造者")
    assert checker(server.url).check(state, NINE) == truth(NINE)
    forced = checker(server.url, language="zh", name="other.sqlite")
    assert forced.check(ASKED, NINE) == truth(NINE)


# ---- the cache


def test_a_document_is_judged_once_per_question_and_subgoal_ever(serving, checker):
    server = serving(judge := Judge())
    first = checker(server.url)
    assert first.check(ASKED, NINE[:6]) == truth(NINE[:6])
    assert first.take_metrics()["verdict_cache_hit_rate"] == 0.0
    assert first.check(ASKED, NINE[::-1]) == truth(NINE)
    assert first.take_metrics()["verdict_cache_hit_rate"] == 6 / 9
    assert first.take_metrics()["verdict_cache_hit_rate"] is None
    requests = len(server.requests)
    again = checker(server.url)
    assert again.check(replace(ASKED, state_id="q/other/7", round=3), NINE) == truth(NINE)
    assert again.check(ASKED, []) == {}
    assert len(server.requests) == requests and server.models_asked == 1  # not even a probe
    assert checker(server.url, model=None, name="none.sqlite").check(ASKED, NINE) == truth(NINE)
    assert server.models_asked == 2  # a name is found by the same probe
    again.check(replace(ASKED, subgoal="Find the town"), NINE[:1])
    again.check(replace(ASKED, question="Who sold Elm Row?"), NINE[:1])
    again.check(ASKED, [replace(NINE[0], title="Another title")])
    again.check(ASKED, [replace(NINE[0], text="good but other")])
    assert judge.sizes[-4:] == [1, 1, 1, 1]
    known = len(judge.asked)
    again.check(ASKED, [replace(NINE[0], docid="a copy")])  # the same text is the same document
    assert len(judge.asked) == known
    for change in ({"max_document_chars": 500}, {"language": "zh"}, {"model": "toy2"}):
        server.models.append("toy2")
        checker(server.url, **change).check(ASKED, NINE[:1])
    assert len(judge.asked) == known + 3


def test_equal_documents_are_asked_for_once(serving, checker):
    server = serving(judge := Judge())
    copies = [replace(NINE[0], docid=name) for name in "abc"]
    assert checker(server.url).check(ASKED, copies) == dict.fromkeys("abc", "IMPORTANT")
    assert judge.sizes == [1]


def test_replaying_needs_no_server(serving, checker):
    server = serving(Judge())
    checker(server.url).check(ASKED, NINE)
    checker(server.url, model=None).check(ASKED, NINE)
    server.stop()
    for model in ("toy", None):
        replay = checker(server.url, model=model)
        assert replay.check(ASKED, NINE) == truth(NINE)
        with pytest.raises(AgentError, match="has not answered"):
            replay.check(ASKED, documents("good but new"))
    assert "Verdicts of toy, which was served last" in replay.said[0]


@pytest.mark.parametrize("model", ["toy", None])
def test_a_missing_server_is_told_at_once_with_the_wait_and_the_command(checker, model):
    one = checker("http://127.0.0.1:9/v1", model=model, patience=1.0)
    one.prepare()
    assert len(one.said) == 1
    for words in ("no server answers at http://127.0.0.1:9/v1", "rlkit serve", "up to 1 s"):
        assert words in one.said[0]
    with pytest.raises(ServerAwayError, match=r"has not answered for \d+ s"):
        one.check(ASKED, NINE)
    assert "waiting up to 1 s" in one.said[1] and len(one.said) == 2


@pytest.mark.parametrize("model", ["toy", None])
def test_a_server_that_hangs_is_told_as_soon_as_a_look_takes(checker, model, monkeypatch):
    for module in (llm_probe, llm_presence):
        monkeypatch.setattr(module, "LOOK", 0.5)  # in place of 5 s
    with socket.socket() as deaf:  # takes connections and never answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(64)
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        one = checker(url, model=model, timeout=120.0, patience=600.0)
        work = threading.Thread(target=check_until_closed, args=(one,), daemon=True)
        began = time.monotonic()
        work.start()
        while not one.said and time.monotonic() - began < 5:
            time.sleep(0.02)
        assert "no answer within 0.5 s" in one.said[0] and "up to 600 s" in one.said[0]
        one.close()
        work.join(10)
    assert not work.is_alive()


def check_until_closed(checker: LLMChecker) -> None:
    with pytest.raises((AgentError, RuntimeError)):  # whichever it is doing
        checker.check(ASKED, NINE)


REFUSALS = {
    "a wrong key": (Answer(status=401, error="no such key"), "toy", "RLKIT_API_KEY"),
    "another model": (None, "other", "does not serve 'other'"),
    "no models": (Answer(status=404, error="Not Found"), None, "name one in model.checker_model"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_judge_that_refuses_ends_it_before_the_first_question(
    serving, checker, tmp_path, refusal
):
    server = serving(judge := Judge())
    server.models_answer, model, said = REFUSALS[refusal]
    one = checker(server.url, model=model)
    with pytest.raises(RefusedError, match=said):
        one.prepare()
    players = team(*ELM_ADA, checker=one)
    with pytest.raises(RefusedError, match=said):
        collect(players, QUESTIONS, tmp_path / "rounds")
    with pytest.raises(RefusedError, match=said):  # by whatever way it is reached
        players.play_many(QUESTIONS)
    assert not judge.asked and not list((tmp_path / "rounds").glob("*/*"))


def test_a_judge_that_gives_no_sound_reply_ends_it_too(serving, checker):
    server = serving(lambda body, n: Answer(raw="<html>hello</html>"))
    with pytest.raises(AgentError, match="no JSON"):
        checker(server.url).prepare()


def test_a_cache_that_cannot_be_opened_ends_it_before_the_server_is_asked(
    serving, checker, tmp_path
):
    server = serving(Judge())
    (tmp_path / "v.sqlite").mkdir()
    with pytest.raises(DataError, match=r"v\.sqlite.*cannot be used"):
        checker(server.url).prepare()
    assert server.models_asked == 0


def test_a_judge_whose_verdicts_are_kept_is_needed_by_new_documents_only(serving, checker):
    server = serving(judge := Judge())
    checker(server.url).check(ASKED, NINE)
    server.models_answer = Answer(status=401, error="no such key")
    replay = checker(server.url)
    replay.prepare()
    assert "no such key" in replay.said[0]
    assert replay.check(ASKED, NINE) == truth(NINE)
    with pytest.raises(RefusedError, match="no such key"):
        replay.check(ASKED, documents("good but new"))
    assert len(judge.asked) == 3


def test_a_judge_is_probed_once_whether_prepared_or_not(serving, checker):
    server = serving(Judge())
    for model in ("toy", None):
        one = checker(server.url, model=model, name=f"{model}.sqlite")
        one.prepare()
        one.prepare()
        assert one.check(ASKED, NINE) == truth(NINE)
    assert server.models_asked == 2


def test_another_model_than_the_cache_was_read_for_is_refused(serving, checker):
    server = serving(Judge())
    checker(server.url, model=None).check(ASKED, NINE)
    server.stop()
    replay = checker(server.url, model=None, patience=20.0)
    assert replay.check(ASKED, NINE) == truth(NINE)
    server.models = ["other"]
    server.start()
    with pytest.raises(AgentError, match="now other is served; name the judge"):
        replay.check(ASKED, documents("good but new"))
    assert len(replay.cache) == 9


# ---- what a judge may do


def test_missing_labels_are_asked_for_again_in_a_smaller_batch_then_alone(serving, checker):
    def half(body, n):
        found = labels(body)
        return Answer(json.dumps(found if len(found) == 1 else dict(list(found.items())[:1])))

    server = serving(judge := Judge(half))
    one = checker(server.url, batch_size=6, concurrency=1)
    assert one.check(ASKED, NINE[:6]) == truth(NINE[:6])
    assert judge.sizes == [6, 2, 3, 1, 1, 1]  # 6; of the 5 left at most 3; the 3 left alone


@pytest.mark.parametrize("batch_size", [1, 4])
def test_what_is_never_labelled_is_unjudged_is_not_kept_and_is_told_once(
    serving, checker, batch_size
):
    def but_for_far(body, n):
        found = {k: v if v != "DISCARD" else "IRRELEVANT" for k, v in labels(body).items()}
        return Answer(json.dumps(found))

    server = serving(judge := Judge(but_for_far))
    one = checker(server.url, batch_size=batch_size)
    expected = {k: v if v != "DISCARD" else None for k, v in truth(NINE).items()}
    assert one.check(ASKED, NINE) == expected and len(one.cache) == 6
    asked = [text for body in judge.asked for text in fenced(body).values()]
    tries = 2 if batch_size == 1 else 3
    assert asked.count("far three") == 3 * tries and asked.count("good one") == 3
    one.check(ASKED, NINE)  # tried again, since it is not known
    assert len([line for line in one.said if "they stay unjudged" in line]) == 1


FAULTS = {
    "fewer labels": lambda found: json.dumps(dict(list(found.items())[:-1])),
    "wrong ids": lambda found: json.dumps({f"d{n + 40}": v for n, v in enumerate(found.values())}),
    "duplicate ids": lambda found: "\n".join(f"{k}: IMPORTANT\n{k}: DISCARD" for k in found),
    "truncated": lambda found: json.dumps(found)[: len(json.dumps(found)) // 2],
    "no labels": lambda found: "I am a language model.",
    "by position": lambda found: json.dumps(list(found.values())),
    "unknown labels": lambda found: json.dumps(dict.fromkeys(found, "RELEVANT")),
    "negations": lambda found: "\n".join(f"{k}: not IMPORTANT" for k in found),
    "nothing": lambda found: "",
    "all the labels": lambda found: "\n".join(f"{k}: IMPORTANT, LOCAL or DISCARD" for k in found),
}


# of nine documents asked for in threes, then in pairs, then alone; by position one is sure of one
JUDGED_ALL_THE_SAME = {"fewer labels": 6 + 1, "truncated": 3 + 3, "by position": 9}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("always", [False, True])
def test_whatever_the_judge_writes_no_verdict_is_invented(serving, checker, fault, always):
    def faulty(body, n):
        if n < 3 or always:
            return Answer(FAULTS[fault](labels(body)))
        return Answer(json.dumps(labels(body)))

    server = serving(Judge(faulty))
    one = checker(server.url, concurrency=1)
    found, right = one.check(ASKED, NINE), truth(NINE)
    assert all(verdict in (None, right[docid]) for docid, verdict in found.items())
    judged = sum(verdict is not None for verdict in found.values())
    assert judged == (JUDGED_ALL_THE_SAME.get(fault, 0) if always else 9)
    assert len(one.cache) == judged


@pytest.mark.parametrize(
    "answers",
    [
        [Answer(status=429, headers={"Retry-After": "0.1"})],
        [Answer(status=500), Answer(status=503)],
        [Answer(reset_after=0), Answer("x" * 500, reset_after=100)],
        [Answer(raw='{"choices": [{"message": {"content": "{')],
        [Answer("", reasoning="d1 is IMPORTANT, d2 is LOCAL, d3 is DISCARD")],
        [Answer("<think>d1: IMPORTANT\nd2: IMPORTANT\nd3: IMPORTANT", finish_reason="length")],
    ],
)
def test_faults_of_the_wire_end_in_the_right_verdicts(serving, checker, answers):
    def faulty(body, n):
        return answers[n] if n < len(answers) else Answer(json.dumps(labels(body)))

    server = serving(Judge(faulty))
    assert checker(server.url, patience=5.0).check(ASKED, NINE) == truth(NINE)


def test_a_judge_that_cannot_stop_thinking_gets_room_for_it(serving, checker):
    def think(body, n):
        return Answer(f"<think>d1: DISCARD, surely.</think>\n{json.dumps(labels(body))}")

    server = serving(judge := Judge(think, thinks=True))
    one = checker(server.url)
    assert one.check(ASKED, NINE) == truth(NINE)
    assert all(body["max_tokens"] > 2048 for body in judge.asked)
    assert any("still thinks, in 3 of 3 replies" in line for line in one.said)


def test_documents_that_are_too_long_for_the_context_go_in_smaller_batches(serving, checker):
    long = documents(*(f"{kind} " + "word " * 400 for kind in ("good", "near", "far", "good")))

    def narrow(body, n):
        if len(fenced(body)) > 1:
            message = "This model's maximum context length is 900 tokens. However, your request has"
            return Answer(status=400, error=f"{message} 2000 input tokens.")
        return Answer(json.dumps(labels(body)))

    server = serving(judge := Judge(narrow))
    assert checker(server.url, max_document_chars=3000).check(ASKED, long) == truth(long)
    assert judge.sizes == [4, 2, 2, 1, 1, 1, 1]
    server.context, judge.asked[:] = 1400, []
    told = checker(server.url, max_document_chars=2900)
    assert told.check(ASKED, long) == truth(long)
    assert judge.sizes == [1, 1, 1, 1]  # a server that tells its context is never asked too much


def test_a_document_that_fits_into_no_context_stays_unjudged(serving, checker):
    def tiny(body, n):
        text = "".join(fenced(body).values())
        if "near" in text:
            return Answer(status=400, error="maximum context length is 20 tokens")
        return Answer(json.dumps(labels(body)))

    server = serving(Judge(tiny))
    one = checker(server.url)
    assert one.check(ASKED, NINE[:3]) == truth(NINE[:3]) | {"doc-1": None}
    (line,) = [line for line in one.said if "context" in line and "lower" in line]
    assert "checker.max_document_chars" in line and "executor" not in line


# ---- errors and ends


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(status=401, error="wrong key sk-geheim-1234567890"), "RLKIT_API_KEY"),
        (Answer(status=429, headers={"Retry-After": "600"}), "asks to wait 600 s"),
    ],
)
def test_an_error_ends_the_work_after_all_that_came_is_kept(serving, checker, answer, said):
    def one_refused(body, n):
        return answer if "far" in str(fenced(body)) else Answer(json.dumps(labels(body)))

    server = serving(judge := Judge(one_refused))
    one = checker(server.url, batch_size=1)
    with pytest.raises(AgentError, match=said) as caught:
        one.check(ASKED, NINE)
    assert len(one.cache) == 6 and "geheim" not in str(caught.value)
    judge.answer = lambda body, n: Answer(json.dumps(labels(body)))
    judge.asked.clear()
    assert one.check(ASKED, NINE) == truth(NINE)
    assert len(judge.asked) == 3


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_document_that_is_refused_stays_unjudged_and_the_others_are_judged(
    serving, checker, batch_size, status, monkeypatch
):
    monkeypatch.setenv("RLKIT_API_KEY", "geheim-1")

    def filtered(body, n):
        if "near" in "".join(fenced(body).values()):
            return Answer(status=status, error="content filter\n\x1b[31m geheim-1")
        return Answer(json.dumps(labels(body)))

    server = serving(judge := Judge(filtered))
    one = checker(server.url, batch_size=batch_size)
    given = documents(*("good one", "far three") * 4, "near two")
    assert one.check(ASKED, given) == truth(given) | {"doc-8": None}
    alone = [body for body in judge.asked if list(fenced(body).values()) == ["near two"]]
    assert len(alone) == 1
    assert one.check(ASKED, given)["doc-8"] is None  # asked for again, and not told again
    (line,) = [line for line in one.said if "stays unjudged" in line]
    assert "doc-8 stays unjudged" in line and f"HTTP {status}: content filter" in line
    assert "geheim" not in line and "\n" not in line and "\x1b" not in line
    assert len(one.cache) == 8


def test_a_server_that_refuses_everything_ends_the_work_with_its_words(serving, checker):
    server = serving(judge := Judge(lambda body, n: Answer(status=400, error="no system role")))
    with pytest.raises(RefusedError, match="HTTP 400: no system role"):
        checker(server.url).check(ASKED, NINE)
    assert 8 <= len(judge.asked) <= 3 + 6 + 1  # threes, pairs, and something harmless


def test_a_question_all_of_whose_documents_are_refused_ends_nothing(serving, checker):
    """As where a filter dislikes the question itself; the server answers about another one."""

    def filtered(body, n):
        if "Elm Row" in body["messages"][-1]["content"]:
            return Answer(status=400, error="content filter")
        return Answer('{"d1": "DISCARD"}')

    server = serving(Judge(filtered))
    assert set(checker(server.url).check(ASKED, NINE).values()) == {None}


def test_threads_that_wait_for_a_look_at_the_server_share_its_failure(serving, checker):
    """A server that takes requests and never answers: 4 short questions, each twice, and one more
    `max_retries` + 1 times, whoever waits."""
    server = serving(lambda body, n: Answer(delay=60.0))
    one = checker(server.url, model=None, timeout=0.4, max_retries=2, patience=1.0)
    failed: list[str] = []

    def ask(number: int) -> None:
        with pytest.raises(AgentError, match="no answer within") as caught:
            one.judge_anew(replace(ASKED, subgoal=str(number)), NINE)
        failed.append(str(caught.value))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(failed) == 8 and len(set(failed)) == 1
    assert len(server.requests) <= 4 * 2 + 3
    assert len(one.said) == len(set(one.said))
    server.script = Judge()  # who asks later looks anew
    assert one.judge_anew(ASKED, NINE) == truth(NINE)


def test_past_the_cache_nobody_is_said_to_be_taken_from_it(serving, checker):
    server = serving(Judge())
    checker(server.url, model=None).check(ASKED, NINE)
    server.stop()
    one = checker(server.url, model=None)
    with pytest.raises(ServerAwayError):
        one.judge_anew(ASKED, NINE)
    assert one.said and not any("from the cache" in line for line in one.said)


def test_a_server_that_does_not_serve_the_judge_is_refused_before_it_is_asked(serving, checker):
    server = serving(judge := Judge())
    with pytest.raises(AgentError, match="does not serve 'another'"):
        checker(server.url, model="another").check(ASKED, NINE)
    assert judge.asked == []


def test_a_server_that_is_restarted_is_waited_for(serving, checker):
    killed = threading.Event()

    def dies(body, n):
        if n == 3 and not killed.is_set():
            killed.set()
            threading.Thread(target=restart).start()
        return Answer(json.dumps(labels(body)), delay=0.05)

    def restart():
        server.stop()
        time.sleep(1.2)
        server.start()

    server = serving(Judge(dies))
    many = documents(*("good one", "near two", "far three") * 10)
    one = checker(server.url, batch_size=1, patience=30.0)
    assert one.check(ASKED, many) == truth(many)
    assert any("does not answer" in line for line in one.said)


def test_a_server_that_stays_away_ends_the_work_and_what_came_is_kept(serving, checker):
    def dies(body, n):
        if n == 4:
            server.stop()
        return Answer(json.dumps(labels(body)))

    server = serving(judge := Judge(dies))
    one = checker(server.url, batch_size=1, concurrency=1, patience=0.5)
    with pytest.raises(AgentError, match="has not answered for"):
        one.check(ASKED, NINE)
    kept = len(one.cache)
    assert kept in (4, 5)  # the reset may overtake the last answer
    judge.answer = lambda body, n: Answer(json.dumps(labels(body)))
    judge.asked.clear()
    server.start()
    assert checker(server.url).check(ASKED, NINE) == truth(NINE)
    assert sum(judge.sizes) == 9 - kept


def test_a_killed_pass_goes_on_without_asking_twice(serving, tmp_path, checker):
    server = serving(judge := Judge(lambda b, n: Answer(json.dumps(labels(b)), delay=0.05)))
    many = documents(*(f"{kind} {n}" for n in range(20) for kind in KINDS))
    code = """
import sys
from tests.agents.test_judge import ASKED, documents, KINDS
from rlkit.agents.judge import LLMChecker
from rlkit.agents.llm import ChatClient
from rlkit.agents.verdict_cache import VerdictCache
client = ChatClient(sys.argv[1], "toy", concurrency=4)
checker = LLMChecker(client, VerdictCache(sys.argv[2]), model="toy", batch_size=1)
checker.check(ASKED, documents(*(f"{kind} {n}" for n in range(20) for kind in KINDS)))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, server.url, str(tmp_path / "v.sqlite")], cwd=ROOT
    )
    deadline = time.monotonic() + 60
    while len(judge.asked) < 30 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.3)
    assert 30 <= len(judge.asked) < 60
    one = checker(server.url, batch_size=1)
    assert one.check(ASKED, many) == truth(many)
    assert len(judge.asked) <= 60 + 4  # again at most what was under way
    assert {text for body in judge.asked for text in fenced(body).values()} == {
        d.text for d in many
    }


def test_past_the_cache_it_is_neither_read_nor_written(serving, checker):
    server = serving(judge := Judge())
    one = checker(server.url)
    assert one.judge_anew(ASKED, NINE) == truth(NINE) and len(one.cache) == 0
    assert one.check(ASKED, NINE) == truth(NINE)
    assert one.judge_anew(ASKED, NINE[::-1]) == truth(NINE)
    assert sum(judge.sizes) == 27
    assert list(fenced(judge.asked[-1]).values())[-1] == NINE[0].text


def test_threads_probe_once_and_all_are_answered(serving, checker):
    server = serving(Judge())
    one = checker(server.url)
    results = []
    states = [replace(ASKED, question_id=f"q{n}", question=f"Who built {n}?") for n in range(6)]
    threads = [
        threading.Thread(target=lambda s=state: results.append(one.check(s, NINE)))
        for state in states
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [truth(NINE)] * 6 and server.models_asked == 1
    assert one.take_metrics()["verdict_cache_hit_rate"] == 0.0


def test_a_document_that_two_threads_need_at_once_is_asked_for_once(serving, checker):
    both_called = threading.Barrier(2, timeout=20)

    def answer(body, n):
        both_called.wait()  # the other thread has looked into the cache by now, or is about to
        time.sleep(0.2)
        return Answer(json.dumps(labels(body)))

    server = serving(judge := Judge(answer))
    one = checker(server.url, batch_size=9)
    one.prepare()
    results = []

    def call():
        results.append(one.check(ASKED, NINE))

    def second():
        both_called.wait()  # the first thread's request is under way
        call()

    threads = [threading.Thread(target=call), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [truth(NINE)] * 2
    assert judge.sizes == [9]


def test_what_another_thread_failed_to_get_is_asked_for_again(serving, checker):
    under_way = threading.Event()

    def answer(body, n):
        if n == 0:
            under_way.set()
            time.sleep(0.2)
            return Answer(status=403, text="no")
        return Answer(json.dumps(labels(body)))

    server = serving(Judge(answer))
    one = checker(server.url, batch_size=9)
    one.prepare()
    outcome = []

    def call():
        try:
            outcome.append(one.check(ASKED, NINE))
        except AgentError as error:
            outcome.append(type(error))

    thread = threading.Thread(target=call)
    thread.start()
    assert under_way.wait(20)
    call()
    thread.join()
    assert sorted(map(str, outcome)) == sorted(map(str, [AgentError, truth(NINE)]))


# ---- in the house


def test_the_environment_asks_it_each_time_and_counts_its_hits(serving, checker):
    def answer(body, n):
        return Answer(json.dumps({name: "LOCAL" for name in fenced(body)}))

    server = serving(judge := Judge(answer))
    env = make_env({"one": "abd", "two": "bd"})
    env = SearchRoundEnv(env.orchestrator, checker(server.url), env.calculator)
    env.reset(STATE)
    assert env.step(["one"]).reward.total == 0.9  # three new LOCAL documents
    # four requests to see what the server can do, and one that asks; (5, 7) tokens each
    counted = dict(judge_requests=5.0, judge_prompt_tokens=25.0, judge_completion_tokens=35.0)
    assert env.take_metrics() == {"verdict_cache_hit_rate": 0.0, **counted}
    assert env.step(["two"]).reward.total == 0.6
    assert env.step(["nothing"]).reward.invalid
    nothing = dict.fromkeys(counted, 0.0)
    assert env.take_metrics() == {"verdict_cache_hit_rate": 1.0, **nothing}
    assert sum(judge.sizes) == 3
    assert make_env({}).take_metrics() == {}


def test_the_parameters_make_it_and_nothing_is_opened_before_it_is_used(serving, tmp_path):
    server = serving(Judge())
    config = RunConfig.from_sections(
        output_root=str(tmp_path / "outputs"),
        checker={"kind": "llm", "batch_size": 2, "max_document_chars": 300, "language": "en"},
        model={"vllm_base_url": server.url, "checker_model": "toy"},
    )
    one = build_checker(config, Corpus(CORPUS))
    assert server.requests == [] and not (tmp_path / "outputs").exists()
    assert one.check(ASKED, NINE) == truth(NINE)
    assert (tmp_path / "outputs" / "verdicts.sqlite").exists()
    other = config.with_overrides(f"checker.cache_path={tmp_path / 'mine.sqlite'}")
    assert build_checker(other, Corpus(CORPUS)).cache.path == tmp_path / "mine.sqlite"


def test_batches_are_balanced_and_keep_the_order():
    assert [len(batch) for batch in balanced(range(10), 4)] == [3, 3, 4]
    assert sum(balanced(range(10), 4), []) == list(range(10))
