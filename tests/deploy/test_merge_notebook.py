"""The merge notebook shows what there is: folders without a certificate, or one without figures,
do not stop it."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

import rlkit.deploy.merge
import rlkit.notebook
import rlkit.training.checkpointing
from rlkit.config import RunConfig
from rlkit.run import Run

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "merge.ipynb"
EXPORTED = {"schema": 1, "verdict": "All weights were trained.", "adapters": [], "dtype": "float32"}


@pytest.mark.parametrize(
    ("name", "holds", "words"),
    [
        ("merge.json", {}, "holds no certificate; move it away"),  # what it was called before
        ("certificate.json", EXPORTED, "All weights were trained."),
    ],
)
def test_a_folder_without_figures_is_told_and_does_not_stop_the_notebook(
    name: str, holds: dict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    folder = tmp_path / "merged" / "tiny-grpo-step5"
    folder.mkdir(parents=True)
    (folder / name).write_text(json.dumps(holds))
    config = RunConfig.from_sections(run_name="tiny", output_root=str(tmp_path))
    run = Run.open(config)
    monkeypatch.setattr(rlkit.deploy.merge, "merge_run", lambda *_: [folder])
    monkeypatch.setattr(rlkit.notebook, "go_to_project_root", lambda: None)
    monkeypatch.setattr(rlkit.notebook, "notebook_config", lambda _: config)
    monkeypatch.setattr(rlkit.notebook, "existing_run", lambda *_, **__: run)
    monkeypatch.setattr(rlkit.training.checkpointing, "checkpoint_steps", lambda _: [5])
    names: dict = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
    said = capsys.readouterr().out
    assert words in said and f"vllm serve {folder}" in said
