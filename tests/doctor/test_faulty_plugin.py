"""What a user's own code raises is a finding that names it; rlkit's own faults are not hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlkit import doctor
from rlkit.config import RunConfig
from rlkit.doctor import Finding, practice, quick_check
from rlkit.doctor.look import Look, plugin_fault
from rlkit.doctor.setup import plugins
from rlkit.errors import ConfigError

PARAMS = Path(__file__).resolve().parents[2] / "params" / "debug.yaml"
BACKEND = """
class Backend:
    def __init__(self, corpus, search):
        pass

    def search(self, queries, top_k):
        return self.nothing
"""


def checked(tmp_path: Path, *changes: str) -> dict[str, Finding]:
    config = RunConfig.load(PARAMS, [f"output_root={tmp_path / 'outputs'}", *changes])
    return {finding.subject: finding for finding in quick_check(config)}


@pytest.mark.parametrize(
    ("name", "code", "subject", "said"),
    [
        ("its_search", BACKEND, "language", "raised AttributeError: 'Backend' object has no"),
        ("its_import", "import math\nmath.nothing()", "plug-ins", "raised AttributeError: module"),
        ("its_syntax", "def half(:", "plug-ins", "raised SyntaxError: invalid syntax"),
    ],
)
def test_a_plug_in_that_raises_is_red_with_its_path_and_the_line(
    tmp_path, monkeypatch, name, code, subject, said
):
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = checked(tmp_path, f"search.backend={name}:Backend")[subject]
    assert found.level == "fail" and f"{name}:Backend {said}" in found.text
    line = {"its_search": 7, "its_import": 2, "its_syntax": 1}[name]
    assert f"({tmp_path / name}.py, line {line})" in found.text
    assert found.todo == "mend the plug-in, or name another one"


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("search", ["search.backend={}"]),
        ("search", ["checker.kind={}"]),
        ("search", ["executor.prompt={}"]),
        ("search", ["data.planner={}"]),
        ("search", ["data.entities={}"]),
        ("search", ["data.collectors=[scripted, '{}']"]),
        ("search", ["evaluation.policies=[untouched, '{}']"]),
        ("search", ["reward.function={}", "reward.invalid=-9"]),
        ("answers", ["answers.prompt={}"]),
        ("answers", ["answers.rewards=[accuracy, '{}']"]),
        ("answers", ["answers.dataset={}"]),
        ("its_parts:task", []),
    ],
)
def test_every_plug_in_that_the_parameters_name_is_looked_for(tmp_path, monkeypatch, task, changes):
    (tmp_path / "its_parts.py").write_text(
        "def mine(*given):\n    raise AssertionError\n\n\ntask = mine\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = [change.format("its_parts:mine") for change in changes]
    config = RunConfig.load(PARAMS, [f"task={task}", *given])
    assert plugins(Look(config)) == ("ok", "its_parts:mine" if changes else "its_parts:task")
    lost = [change.format("its_parts:gone") for change in changes] or ["task=its_parts:gone"]
    config = RunConfig.load(PARAMS, [f"task={task}", *lost])
    with pytest.raises(ConfigError, match="its_parts has no gone"):
        plugins(Look(config))


def test_a_served_models_name_and_a_file_are_no_plug_ins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "its:rows").mkdir()
    config = RunConfig.load(PARAMS, ["executor.served_model=qwen:latest", "task=answers",
                                     "answers.dataset=its:rows"])  # fmt: skip
    assert plugins(Look(config)) == ("ok", "none of your own")


def test_a_fault_of_rlkit_itself_is_not_laid_to_a_plug_in(tmp_path, monkeypatch):
    (tmp_path / "innocent.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(doctor.CHECKS, "device", lambda look: look.no_such_thing)
    with pytest.raises(AttributeError, match="no_such_thing"):
        checked(tmp_path, "search.backend=innocent:Backend")


def test_a_plug_in_that_raises_in_the_step_is_named_there(tmp_path, monkeypatch):
    (tmp_path / "in_step.py").write_text("def prompt(state):\n    return state['no such thing']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = RunConfig.load(PARAMS, [f"output_root={tmp_path}", "executor.prompt=in_step:prompt"])

    def step(look, place):
        from in_step import prompt

        yield prompt({})

    monkeypatch.setattr(practice, "_practice", step)
    (found,) = practice.practice(Look(config))
    assert (found.level, found.subject) == ("fail", "step")
    assert "in_step:prompt raised KeyError: 'no such thing'" in found.text
    assert plugin_fault(config, ValueError("raised nowhere")) is None


def test_a_folder_that_nothing_can_be_written_in_is_red(tmp_path, monkeypatch):
    refuse = OSError(30, "Read-only file system")
    assert checked(tmp_path)["folder"].level == "ok"

    def temporary(dir):
        assert dir == tmp_path  # the nearest folder that is there
        raise refuse

    monkeypatch.setattr("tempfile.TemporaryFile", temporary)
    found = checked(tmp_path)["folder"]
    assert found.level == "fail"
    assert found.text == f"nothing can be written in {tmp_path} (Read-only file system)"
