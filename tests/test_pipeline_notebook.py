"""The pipeline's notebook runs headless with a params file, and by hand from its own folder."""

from __future__ import annotations

import nbclient
import nbformat
import papermill
import pytest
import yaml

from rlkit.files import read_json
from tests.test_notebooks import ROOT, own_kernel, run_notebook, texts  # noqa: F401 - a fixture


def parameters(output_root) -> dict:
    given = yaml.safe_load((ROOT / "params" / "debug-answers.yaml").read_text(encoding="utf-8"))
    return given | {"output_root": str(output_root)}


@pytest.fixture(scope="module")
def headless(own_kernel, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("pipeline")
    return folder / "debug-answers", run_notebook("pipeline", folder, parameters(folder))


def test_it_runs_headless_and_leaves_its_files(headless):
    folder, notebook = headless
    for file in ("training_results.json", "evaluation.json", "report.html", "sft/adapter"):
        assert (folder / file).exists(), file
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert not [out for out in outputs if out.output_type == "error"]
    assert not [out.text for out in outputs if out.get("name") == "stderr"]
    assert sum("image/png" in out.get("data", {}) for out in outputs) == 4
    assert all(
        s["status"] == "finished" for s in read_json(folder / "training_results.json").values()
    )


@pytest.mark.parametrize("name", ["inspect", "sft", "train", "evaluate", "merge"])
def test_the_notebooks_of_the_search_task_serve_this_one_too(name, headless):
    folder, _ = headless  # all read the run that the pipeline made
    notebook = run_notebook(name, folder.parent, parameters(folder.parent))
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert not [out.text for out in outputs if out.get("name") == "stderr"]
    assert any("image/png" in out.get("data", {}) for out in outputs), "one figure to look at"


def test_below_the_threshold_its_later_cells_run_all_the_same(own_kernel, tmp_path):  # noqa: F811
    given = parameters(tmp_path)
    given["answers"] = given["answers"] | {"sft_accuracy_threshold": 0.9}
    shown = texts(run_notebook("pipeline", tmp_path, given))
    assert "below answers.sft_accuracy_threshold 0.9" in shown
    assert "No tuned policy has been evaluated yet" in shown


def test_a_params_file_of_the_search_task_stops_papermill(own_kernel, tmp_path):  # noqa: F811
    given = yaml.safe_load((ROOT / "params" / "debug.yaml").read_text(encoding="utf-8"))
    given |= {"params_file": "params/debug.yaml", "output_root": str(tmp_path)}
    with pytest.raises(papermill.PapermillExecutionError, match="set task: answers"):
        run_notebook("pipeline", tmp_path, given)


@pytest.mark.slow
def test_by_hand_it_reads_the_arithmetic_params(own_kernel, tmp_path):  # noqa: F811
    notebook = nbformat.read(ROOT / "notebooks" / "pipeline.ipynb", as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    small = [
        "model.base_model_path=debug", "answers.max_samples=8", "sft.max_samples=4",
        "answers.sft_accuracy_threshold=0", "training.max_steps=1", "grpo.max_new_tokens=4",
        "evaluation.max_states=2", "evaluation.epoch_states=0",
    ]  # fmt: skip
    first.source += f"\noverrides = {small!r}\noutput_root = {str(tmp_path)!r}"
    nbclient.NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": str(ROOT / "notebooks")}}
    ).execute()
    assert "params/arithmetic.yaml, since" in texts(notebook)
    kept = read_json(tmp_path / "arithmetic" / "training_results.json")
    assert kept["grpo_training"]["num_steps"] == 1
