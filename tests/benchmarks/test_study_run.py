"""The queue runs what can be run, loses nothing when it is stopped or killed, and opens the test
once a row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.study.ledger import Ledger, recipe_of
from benchmarks.study.parts import PLAN, ROOT, Part, parts
from benchmarks.study.run import Queue
from rlkit.config import RunConfig
from rlkit.errors import RunError
from rlkit.run import Run


def queue(output: Path, code: dict[str, str], after: dict[str, tuple[str, ...]] | None = None):
    """A queue whose parts are lines of Python, run in their order."""
    after = after or {}
    found = {n: Part(n, ("collect",), n, after=after.get(n, ())) for n in code}
    return Queue(found, output, output, command=lambda part: ["-c", code[part.name]])


def states(q: Queue) -> dict[str, str]:
    return {name: q.state(part) for name, part in q.parts.items()}


def test_a_part_that_fails_holds_up_only_what_needs_it(tmp_path):
    code = {"a": "print('error: no such file'); exit(2)", "b": "1", "c": "1", "d": "1"}
    q = queue(tmp_path, code, {"b": ("a",), "d": ("c",)})
    with q.alone():
        assert q.run(list(q.parts)) == 1
    assert states(q) == {"a": "failed", "b": "waiting", "c": "done", "d": "done"}
    assert q.record(q.parts["a"])["reason"] == "code 2: error: no such file"
    assert "needs a" in q.text(["b"])


def test_what_waits_for_a_part_that_was_not_chosen_is_named(tmp_path, capsys):
    q = queue(tmp_path, {"a": "1", "b": "1"}, {"b": ("a",)})
    assert q.run(["b"]) == 0
    assert q.left == ["b"]
    assert "b: left waiting, needs a" in capsys.readouterr().out


def test_an_output_of_another_recipe_is_refused(tmp_path):
    part = parts()["sft/7"]
    folder = tmp_path / part.run
    (folder / "sft" / "adapter").mkdir(parents=True)
    part.config(tmp_path, tmp_path).with_overrides("lora.rank=4").save(folder / "config.yaml")
    q = Queue({"sft/7": replace(part, after=())}, tmp_path, tmp_path)
    with pytest.raises(
        RunError, match=r"lora.rank \(4 there, 16 given\).*one of its own \(--out\)"
    ):
        q.run(["sft/7"])


def test_what_failed_is_tried_again_twice_and_then_only_when_asked(tmp_path):
    q = queue(tmp_path, {"a": f"open({str(tmp_path / 'tries')!r}, 'a').write('x'); exit(1)"})
    for _ in range(5):
        q.run(["a"])
    assert (tmp_path / "tries").read_text() == "xxx"
    assert "a" in q.left  # so that the command does not end with 0
    q.run(["a"], retry=True)
    assert (tmp_path / "tries").read_text() == "xxxx"


def test_a_run_that_somebody_else_works_at_is_passed_over(tmp_path):
    q = queue(tmp_path, {"a": "1"})
    (tmp_path / "a").mkdir()
    with Run(RunConfig(), tmp_path / "a").lock():
        assert q.run(["a"]) == 0
        assert q.text(["a"]).splitlines()[1].split()[:2] == ["a", "busy"]
    assert q.record(q.parts["a"])["tries"] == 0
    q.run(["a"])
    assert states(q) == {"a": "done"}


SLOW = """
    import signal, sys, time, pathlib
    def stop(*_):
        print("saved"); sys.exit(130)
    signal.signal(signal.SIGINT, stop)
    place = pathlib.Path({place!r})
    with place.open("a") as f: f.write("begin ")
    time.sleep({seconds})
    with place.open("a") as f: f.write("end ")
"""


def slow(place: Path, seconds: float) -> str:
    return textwrap.dedent(SLOW).format(place=str(place), seconds=seconds)


def test_at_the_deadline_the_part_saves_and_the_next_call_goes_on(tmp_path):
    q = queue(tmp_path, {"a": slow(tmp_path / "log", 60), "b": "1"})
    q.stop_at = time.time() + 2
    with q.alone():
        assert q.run(["a", "b"]) == 0
    record = q.record(q.parts["a"])
    assert (record["state"], record["tries"]) == ("stopped", 0)
    assert states(q)["b"] == "ready"
    again = queue(tmp_path, {"a": "1", "b": "1"})
    again.run(["a", "b"])
    assert states(again) == {"a": "done", "b": "done"}


RUNNER = """
    import sys
    sys.path.insert(0, {root!r})
    from pathlib import Path
    from tests.benchmarks.test_study_run import queue
    q = queue(Path({output!r}), {{"a": {code!r}}})
    with q.alone():
        q.run(["a"])
"""


def test_a_killed_runners_part_ends_before_the_next_runner_begins(tmp_path):
    code = slow(tmp_path / "log", 3)
    script = textwrap.dedent(RUNNER).format(root=str(ROOT), output=str(tmp_path), code=code)
    runner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
    until(lambda: (tmp_path / "log").exists())
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    q = queue(tmp_path, {"a": code})
    assert states(q) == {"a": "begun"}
    with q.alone():
        assert q.run(["a"]) == 0
    assert (tmp_path / "log").read_text() == "begin end begin end "
    assert states(q) == {"a": "done"}


def until(true) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it never came")


# ---- several workers


def test_two_workers_run_two_parts_at_a_time_and_wait_for_what_a_part_needs(tmp_path):
    meet = textwrap.dedent("""
        import pathlib, time
        place = pathlib.Path({place!r})
        (place / {own!r}).touch()
        end = time.time() + 60
        while not (place / {other!r}).exists() and time.time() < end: time.sleep(0.05)
        exit(not (place / {other!r}).exists())
    """)
    place = str(tmp_path)
    code = {
        "a": meet.format(place=place, own="a-there", other="b-there"),
        "b": meet.format(place=place, own="b-there", other="a-there"),
        "c": "1",
    }
    q = queue(tmp_path, code, {"c": ("a", "b")})
    with q.alone():
        assert q.run(list(q.parts), workers=2) == 0
    assert states(q) == {"a": "done", "b": "done", "c": "done"}


def test_two_parts_of_one_folder_never_run_at_once(tmp_path):
    code = {name: slow(tmp_path / "log", 1) for name in ("a", "b")}
    q = queue(tmp_path, code)
    q.parts = {name: replace(part, run="one") for name, part in q.parts.items()}
    q.run(["a", "b"], workers=2)
    assert (tmp_path / "log").read_text() == "begin end begin end "


def test_a_bug_in_one_worker_stops_the_others_so_that_they_save(tmp_path, monkeypatch):
    q = queue(tmp_path, {"a": slow(tmp_path / "log", 60), "b": "1"})
    process = Queue._process

    def broken(self, part, record):
        if part.name == "a":
            return process(self, part, record)
        until(lambda: (tmp_path / "log").exists())
        raise ValueError("a bug")

    monkeypatch.setattr(Queue, "_process", broken)
    with pytest.raises(ValueError, match="a bug"):
        q.run(["a", "b"], workers=2)
    assert states(q)["a"] == "stopped" and (tmp_path / "log").read_text() == "begin "


# ---- the test set


def a_test(output: Path, policies=("tuned",), rows=None, split="eval") -> Part:
    """A part that opens the test, whose run's folder holds an evaluation of these rows."""
    part = Part("test/grpo-7", ("eval",), "run", {"evaluation.policies": list(policies)}, test=True)
    folder = output / "run"
    folder.mkdir(exist_ok=True)
    if rows is not None:
        found = {"split": split, "rows": [{"policy": name} for name in rows]}
        (folder / "evaluation.json").write_text(json.dumps(found))
    return part


def test_a_row_opens_the_test_once_and_the_ledger_says_when(tmp_path):
    part, ledger = a_test(tmp_path, rows=["tuned"]), Ledger(tmp_path, "recipe")
    ledger.open(part)
    ledger.keep(part)
    first, second = ledger.lines("test/grpo-7")
    assert (first["what"], first["recipe"], second["what"]) == ("opened", "recipe", "kept")
    assert first["time"].startswith("20")
    assert part.is_there(tmp_path)
    with pytest.raises(RunError, match="opened once"):
        ledger.open(part)


def test_the_test_is_not_opened_again_with_another_adapter(tmp_path):
    part, ledger = a_test(tmp_path), Ledger(tmp_path)
    adapter = tmp_path / "run" / "reference_adapter" / "adapter_model.safetensors"
    adapter.parent.mkdir()
    adapter.write_bytes(b"one")
    ledger.open(part)
    ledger.open(part)  # after a stop: goes on
    adapter.write_bytes(b"another")
    with pytest.raises(RunError, match="with other adapters"):
        ledger.open(part)
    ledger.broke_off(part)  # measured nothing, so that there was nothing to choose by
    ledger.open(part)


def test_a_test_that_was_opened_by_hand_is_the_row(tmp_path):
    part, ledger = a_test(tmp_path, rows=["raw_question", "tuned"]), Ledger(tmp_path)
    assert ledger.found(part)
    assert ledger.lines()[0]["what"] == "found, opened by hand"
    assert json.loads(part.row_path(tmp_path).read_text())["split"] == "eval"


def test_a_part_of_a_row_that_was_opened_by_hand_is_an_error(tmp_path):
    part = a_test(tmp_path, ("untouched", "tuned"), rows=["tuned"])
    with pytest.raises(RunError, match="for tuned and not for untouched"):
        Ledger(tmp_path).found(part)


def test_the_recipe_is_the_same_where_only_hours_and_ablations_differ(tmp_path):
    text = PLAN.read_text().replace("base: ../../params", f"base: {ROOT}/params")
    changed = {
        "hours": text.replace("  grpo: 2.2", "  grpo: 4"),
        "ablations": text.replace("  kl-0: {grpo.kl_penalty: 0}\n", ""),
        "grpo": text.replace("groups_at_once: 4", "groups_at_once: 2"),
    }
    hashes = {}
    for name, content in {"as it is": text, **changed}.items():
        assert name == "as it is" or content != text
        (tmp_path / f"{name}.yaml").write_text(content)
        hashes[name] = recipe_of(tmp_path / f"{name}.yaml")
    assert hashes["as it is"] == hashes["hours"] == hashes["ablations"] != hashes["grpo"]


def test_teams_that_played_in_another_way_are_no_row(tmp_path):
    part = replace(parts()["teams/7"], run="run")
    policies = part.changes["evaluation.policies"]
    rows = [{"team": name} for name in policies]
    for asked, found in ((5, False), (100, True)):
        games = {"split": "eval", "questions": asked, "question_first": True, "rows": rows}
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "teams.json").write_text(json.dumps(games))
        assert Ledger(tmp_path).found(part) is found


def test_an_evaluation_on_dev_opens_no_test(tmp_path):
    assert not Ledger(tmp_path).found(a_test(tmp_path, rows=["tuned"], split="dev"))


def test_the_queue_keeps_what_a_test_measured_and_runs_it_once(tmp_path):
    part = a_test(tmp_path)
    text = json.dumps({"split": "eval", "rows": [{"policy": "tuned"}]})
    code = f"open({str(tmp_path / 'run' / 'evaluation.json')!r}, 'w').write({text!r})"
    q = Queue({part.name: part}, tmp_path, tmp_path, command=lambda part: ["-c", code])
    q.run([part.name])
    assert q.state(part) == "done" and part.row_path(tmp_path).exists()
    assert [line["what"] for line in q.ledger.lines()] == ["opened", "kept"]
    (tmp_path / "run" / "evaluation.json").unlink()
    q.run([part.name])
    assert not (tmp_path / "run" / "evaluation.json").exists()
