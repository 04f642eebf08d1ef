"""The certificate's prompts are those of states that the run never trained on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rlkit.config import RunConfig
from rlkit.deploy import held_out
from rlkit.deploy.held_out import held_out_prompts
from rlkit.errors import DataError
from rlkit.run import Run

EVAL = [SimpleNamespace(state_id=f"e{i}", question_id=f"q{i}") for i in range(12)]


class Toy:
    """A task whose eval split has twelve states."""

    def states(self, split: str) -> list[SimpleNamespace]:
        return EVAL if split == "eval" else []

    def prompt(self, state: SimpleNamespace) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{state.state_id} {self.count_tokens.__name__}"}]


@pytest.fixture()
def config(tmp_path: Path) -> RunConfig:
    return RunConfig.from_sections(
        run_name="tiny", output_root=str(tmp_path), checker={"kind": "llm"}
    )


def test_eight_states_of_the_eval_split_and_no_judge(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, kinds = Run.open(config), []
    monkeypatch.setattr(held_out, "build_task", lambda c, _: kinds.append(c.checker.kind) or Toy())
    assert held_out_prompts(config, run) is None and kinds == []  # no split: nothing is collected
    (run.folder / "splits.json").write_text("{}")
    found = held_out_prompts(config, run)
    assert len(found) == 8 and set(found) < {state.state_id for state in EVAL}
    assert kinds == ["gold"]  # a judge behind a server is not asked
    assert all(found[name][0]["content"].startswith(f"{name} ") for name in found)


def test_rounds_that_are_gone_are_told_and_no_error(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise DataError("the rounds are gone")

    run, said = Run.open(config), []
    (run.folder / "splits.json").write_text("{}")
    monkeypatch.setattr(held_out, "build_task", gone)
    assert held_out_prompts(config, run, log=said.append) is None
    assert "the rounds are gone" in said[0] and "built-in" in said[0]
