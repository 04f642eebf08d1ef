"""The notebooks' helper: which parameters hold, what must be there first, what is shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from rlkit import notebook
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, RunError
from rlkit.notebook import existing_run, go_to_project_root, leakage, notebook_config
from rlkit.rounds.split import Splits
from rlkit.rounds.state import State
from rlkit.run import Run

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMS = sorted((ROOT / "params").glob("*.yaml"))


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The variables of the parameters cell as committed, in a kernel at the project's root."""
    monkeypatch.chdir(ROOT)
    variables: dict[str, Any] = {}
    exec(code_cells(ROOT / "notebooks" / "train.ipynb")[0], variables)
    return {**variables, "In": ["", "params_file = ..."], "Out": {}, "pd": pd, "_i": "1"}


# ---- parameters


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_parameters_cell_has_every_section_and_the_defaults(path):
    variables: dict[str, Any] = {}
    exec(code_cells(path)[0], {}, variables)
    assert variables.pop("params_file") == notebook.BY_HAND
    defaults = RunConfig().as_dict()
    assert variables == {k: {} if isinstance(v, dict) else v for k, v in defaults.items()}
    assert all("  # " in line for line in code_cells(path)[0].splitlines())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_later_cell_takes_the_name_of_a_parameter(path):
    taken = {
        node.id
        for source in code_cells(path)[1:]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    assert not taken & {"params_file", *RunConfig.model_fields}


@pytest.mark.parametrize("path", PARAMS, ids=lambda path: path.stem)
def test_what_papermill_passes_is_exactly_what_the_run_uses(path, cell):
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert notebook_config(cell | given) == RunConfig.load(path)


def test_a_file_that_names_only_the_run_leaves_the_defaults_and_not_the_params_file(cell, capsys):
    assert notebook_config(cell | {"run_name": "big"}) == RunConfig.from_sections(run_name="big")
    assert "parameters: run_name as given, the rest are defaults" in capsys.readouterr().out


def test_by_hand_the_params_file_is_read_and_overrides_change_it(cell, capsys):
    assert notebook_config(cell) == RunConfig.load(notebook.BY_HAND)
    changes = ["grpo.group_size=4", "run_name=mine"]
    config = notebook_config(cell | {"overrides": changes, "output_root": "elsewhere"})
    assert config == RunConfig.load(notebook.BY_HAND, [*changes, "output_root=elsewhere"])
    said = capsys.readouterr().out
    assert "parameters: params/run1.yaml, changed by output_root, overrides" in said or (
        "parameters: params/run1.yaml, changed by overrides, output_root" in said
    )


def test_a_params_file_that_was_named_lies_below_what_else_was_given(cell):
    given = {"params_file": "params/debug.yaml", "seed": 8, "grpo": {"group_size": 2}}
    config = notebook_config(cell | given)
    assert config == RunConfig.load(
        "params/debug.yaml", ["seed=8", "grpo.group_size=2"]
    )  # max_new_tokens is still the file's
    assert config.grpo.max_new_tokens == 16


def test_a_section_given_as_an_object_is_merged_onto_the_params_file_too(cell):
    grpo = RunConfig.from_sections(grpo={"group_size": 2}).grpo
    kept = RunConfig.load("params/debug.yaml").grpo
    config = notebook_config(cell | {"params_file": "params/debug.yaml", "grpo": grpo})
    assert config.grpo.group_size == 2 != kept.group_size
    assert config.grpo.max_new_tokens == kept.max_new_tokens != RunConfig().grpo.max_new_tokens


def test_without_a_params_file_the_defaults_hold(cell):
    assert notebook_config(cell | {"params_file": None}) == RunConfig()


def test_a_section_that_does_not_exist_is_an_error_where_papermill_only_warns(cell):
    with pytest.raises(ConfigError, match="gropo .*grpo"):
        notebook_config(cell | {"gropo": {"group_size": 2}})
    with pytest.raises(ConfigError, match="sed "):
        notebook_config(cell | {"sed": 8, "run_name": "x"})


def test_the_set_up_cell_can_be_run_again_after_later_cells(cell):
    later = {"config": object(), "states": [1, 2], "total": 3}
    assert notebook_config(cell | later) == RunConfig.load(notebook.BY_HAND)


def test_a_mistake_is_one_sentence_in_a_notebook_too():
    assert RunError("there is no run.")._render_traceback_() == ["RunError: there is no run."]


# ---- where, and what must be there


def test_the_project_root_is_found_from_the_notebooks_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT / "notebooks")
    assert go_to_project_root() == ROOT == Path.cwd()
    monkeypatch.chdir(tmp_path)
    assert go_to_project_root() == tmp_path == Path.cwd()


def test_a_missing_run_says_what_to_run_first(tmp_path):
    config = RunConfig.from_sections(run_name="r", output_root=str(tmp_path))
    with pytest.raises(RunError, match=r"rounds is not there yet.*notebooks/collect\.ipynb"):
        existing_run(config, part="rounds", first="collect")
    assert not (tmp_path / "r").exists(), "looking leaves nothing behind"
    Run.open(config)
    with pytest.raises(RunError, match=r"lora_checkpoints.*train"):
        existing_run(config, part="lora_checkpoints", first="train")
    assert existing_run(config, first="train").folder == tmp_path / "r"


def test_rounds_given_by_path_need_no_collecting(tmp_path):
    data = {"source": "rounds", "rounds_path": str(tmp_path)}
    config = RunConfig.from_sections(run_name="r", output_root=str(tmp_path / "out"), data=data)
    assert existing_run(config, part="rounds", first="collect").config_path.exists()


# ---- what is shown


class Screen:
    """Stands in for IPython's display: keeps what each output shows."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.updates = 0

    def __call__(self, thing: Any, display_id: bool) -> Screen:
        self.shown.append(thing)
        return self

    def update(self, thing: Any) -> None:
        self.shown[-1], self.updates = thing, self.updates + 1


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    stand_in = Screen()
    monkeypatch.setattr(notebook, "display", stand_in)
    return stand_in


def test_a_live_line_is_replaced_in_place_and_printed_now_and_then(screen, capsys):
    quiet = notebook.LiveLine(seconds=60)
    for number in range(3):
        quiet(number)
    assert len(screen.shown) == 1 and screen.updates == 2 and screen.shown[0].data == "2"
    assert capsys.readouterr().out == ""
    notebook.LiveLine(seconds=0)("printed")
    assert capsys.readouterr().out == "printed\n"


def test_live_curves_forget_what_a_resumed_run_repeats(screen):
    live = notebook.LiveCurves(
        [{"step": n, "reward": 1.0} for n in (1, 2, 3)], say=lambda row: f"step {row['step']}"
    )
    live({"step": 2, "reward": 5.0})
    assert live.rows == [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 5.0}]
    live.draw()
    line, figure = screen.shown
    assert line.data == "step 2" and figure.data.startswith(b"\x89PNG")
    assert figure._data_and_metadata()[1]["alt"] == "Reward (n = 2 steps)"


def state(question: str, known: set[str]) -> State:
    return State(
        f"{question}/a/1", question, question, 1, "SEARCH", "", known_important=frozenset(known)
    )


def test_leakage_counts_shared_questions_and_documents():
    splits = Splits(
        train=[state("A?", {"d1", "d2"}), state("B?", {"d3"})],
        dev=[state("C?", {"d2"})],
        eval=[state("b?", {"d1", "d2", "d3"})],
        how="random",
        shared_gold=3,
    )
    table = leakage(splits)
    assert table.loc["train and dev"].tolist() == [0, 1]
    assert table.loc["train and eval"].tolist() == [1, 3]  # case does not tell questions apart
    assert table.loc["dev and eval"].tolist() == [0, 1]
