"""The notebooks of the search task run headless, one after the other, as papermill runs them from
the project's root; an interrupted one leaves a checkpoint and a usable kernel."""

from __future__ import annotations

import re
from pathlib import Path

import nbclient
import nbformat
import pandas as pd
import papermill
import pytest
import yaml
from nbconvert import HTMLExporter

from rlkit.files import read_json

ROOT = Path(__file__).resolve().parents[1]
# in the order in which each finds what it needs
WRITES = {
    "collect": ["config.yaml", "rounds"],
    "inspect": ["splits.json"],
    "sft": ["sft/adapter/adapter_model.safetensors", "sft/adapter/sft_metrics.json"],
    "train": ["metrics.jsonl", "rollouts/step-4.parquet", "lora_checkpoints/checkpoint-4"],
    "evaluate": ["evaluation.json", "report.html"],
    "merge": ["merged/debug-grpo-step4/certificate.json"],
    "report": ["report.html"],
}


def parameters(output_root: Path) -> dict:
    given = yaml.safe_load((ROOT / "params" / "debug.yaml").read_text(encoding="utf-8"))
    return given | {"output_root": str(output_root)}


def run_notebook(name: str, folder: Path, given: dict) -> nbformat.NotebookNode:
    return papermill.execute_notebook(
        ROOT / "notebooks" / f"{name}.ipynb",
        folder / f"{name}.ipynb",
        parameters=given,
        kernel_name="python3",
        progress_bar=False,
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def own_kernel():
    """`python3` is this environment's kernel, not one of the same name in the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
        patch.setenv("PYTHONPATH", str(ROOT))  # as pytest's own `pythonpath`, if not installed
        patch.setenv("OMP_NUM_THREADS", "1")  # a model of two layers gains nothing from more
        yield


@pytest.fixture(scope="module")
def executed(own_kernel, tmp_path_factory) -> tuple[Path, dict[str, nbformat.NotebookNode]]:
    folder = tmp_path_factory.mktemp("notebooks")
    given = parameters(folder)
    return folder / "debug", {name: run_notebook(name, folder, given) for name in WRITES}


def texts(notebook: nbformat.NotebookNode) -> str:
    """All that the outputs show as text."""
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    shown = [out.get("text") or out.get("data", {}).get("text/plain", "") for out in outputs]
    return "\n".join(shown)


def html_of(notebook: nbformat.NotebookNode, source: str) -> str:
    """The table that the cell with that source shows."""
    cell = next(cell for cell in notebook.cells if source in cell.source)
    return next(out.data["text/html"] for out in cell.outputs if "text/html" in out.get("data", {}))


@pytest.mark.parametrize("name", WRITES)
def test_a_notebook_runs_headless_and_leaves_its_files(name, executed):
    folder, notebooks = executed
    for file in WRITES[name]:
        assert (folder / file).exists(), file
    outputs = [out for cell in notebooks[name].cells for out in cell.get("outputs", [])]
    assert not [out for out in outputs if out.output_type == "error"]
    assert not [out.text for out in outputs if out.get("name") == "stderr"]
    assert any("image/png" in out.get("data", {}) for out in outputs), "one figure to look at"


@pytest.mark.parametrize("name", WRITES)
def test_a_notebook_as_html_asks_nothing_from_outside(name, executed):
    html, _ = HTMLExporter(template_name="basic").from_notebook_node(executed[1][name])
    assert not re.search(r"""(src|data)=["']?(https?:)?//|<link|<script|@import""", html)


def test_what_is_predicted_in_prose_comes_out(executed):
    """The empty answer has reward.invalid, and a repeated clue is worth what it is worth once."""
    folder, notebooks = executed
    invalid = yaml.safe_load((folder / "config.yaml").read_text())["reward"]["invalid"]
    shown = html_of(notebooks["inspect"], "task.score(state")
    reward = {
        name: float(re.search(rf"<th>{name}</th>\s*<td>(-?[\d.]+)</td>", shown)[1])
        for name in ("good", "empty", "one clue", "repeated")
    }
    assert reward["empty"] == invalid < reward["one clue"] == reward["repeated"] <= reward["good"]


def test_the_group_that_train_shows_is_the_one_that_it_then_trains_on(executed):
    folder, notebooks = executed
    rollouts = pd.read_parquet(folder / "rollouts" / "step-1.parquet")
    assert rollouts["visit"].tolist() == [0] * 4
    shown = html_of(notebooks["train"], "trainer.preview")
    cells = re.findall(r"<td>(-?\d+\.\d+)</td>\s*<td>(-?\d+\.\d+)</td>", shown)
    assert [(float(r), round(float(a), 5)) for r, a in cells] == [
        (round(r, 6), round(a, 5))
        for r, a in zip(rollouts["reward"], rollouts["advantage"], strict=True)
    ]


def test_a_finished_run_shows_its_results_again(executed):
    folder, _ = executed
    before = (folder / "metrics.jsonl").read_bytes()
    again = texts(run_notebook("train", folder.parent, parameters(folder.parent)))
    assert "is finished (4 steps)" in again and "finished after step 4 of 4" in again
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_an_unknown_section_stops_papermill_with_one_sentence(own_kernel, tmp_path):
    """papermill itself only warns."""
    with pytest.raises(papermill.PapermillExecutionError) as error:
        run_notebook("collect", tmp_path, parameters(tmp_path) | {"gropo": {"group_size": 2}})
    assert "gropo" in error.value.evalue and "grpo" in error.value.evalue
    assert error.value.traceback == [f"ConfigError: {error.value.evalue}"]
    assert not (tmp_path / "debug").exists()


def test_an_interrupted_kernel_leaves_a_checkpoint_and_goes_on(own_kernel, tmp_path):
    notebook = nbformat.read(ROOT / "notebooks" / "train.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # by hand: the parameters cell is edited, and the kernel starts in the notebook's folder
    code[0].source += f"""
params_file = "params/debug.yaml"
output_root = {str(tmp_path)!r}
overrides = ["training.num_epochs=400"]"""
    loop = next(i for i, cell in enumerate(notebook.cells) if "train(trainer" in cell.source)
    # a second thread of the kernel interrupts it as Jupyter does, once the third step is written
    notebook.cells[loop].source = (
        "import os, signal, threading, time\n\n\n"
        "def interrupt():\n"
        "    while not (run.rollouts_folder / 'step-3.parquet').exists():\n"
        "        time.sleep(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n\n\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n" + notebook.cells[loop].source
    )
    nbclient.NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": str(ROOT / "notebooks")}}
    ).execute()
    status = read_json(tmp_path / "debug" / "status.json")
    step = status["step"]
    assert status["state"] == "stopped" and 3 <= step < 800
    assert f"stopped after step {step} of 800" in texts(notebook)
    assert (tmp_path / "debug" / "lora_checkpoints" / f"checkpoint-{step}").is_dir()
    assert notebook.cells[-1].outputs, "the cells after it have run"
