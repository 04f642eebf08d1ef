"""The report's notebook runs headless on a finished run and opens offline as HTML."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import papermill
import pytest
from nbconvert import HTMLExporter

ROOT = Path(__file__).resolve().parents[2]


def execute(folder: Path, **parameters) -> nbformat.NotebookNode:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
        patch.setenv("PYTHONPATH", str(ROOT))
        return papermill.execute_notebook(
            ROOT / "notebooks" / "report.ipynb", folder / "out.ipynb", cwd=ROOT,
            parameters=parameters, kernel_name="python3", progress_bar=False,
        )  # fmt: skip


def test_it_shows_the_figures_and_writes_the_report(finished_run: Path, tmp_path: Path) -> None:
    root = str(finished_run.parent)
    notebook = execute(tmp_path, run_name="made-up", output_root=root)
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert not [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"]
    assert sum("image/png" in out.get("data", {}) for out in outputs) >= 5
    assert str(finished_run / "report.html") in outputs[-1]["text"]
    html, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    assert not re.search(r"""(src|data)=["']?(https?:)?//|<link|<script|@import""", html)
    assert "difference of +0.44" in html


def test_a_run_without_an_evaluation_has_its_report_too(toy_run: Path, tmp_path: Path) -> None:
    (toy_run / "evaluation.json").unlink()
    notebook = execute(tmp_path, run_name="made-up", output_root=str(toy_run.parent))
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    texts = "".join(out.get("text", "") for out in outputs)
    assert "has no evaluation.json; notebooks/evaluate.ipynb makes it" in texts
    assert "No tuned policy has been evaluated yet" in texts
    assert (toy_run / "report.html").exists()
