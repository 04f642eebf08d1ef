"""The SFT benchmark gives all sides the same work, and its ratios say what they claim."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import sft, sft_sides

JOB = {"seed": 7, "batch_size": 2, "warm_up": 1, "updates": 2, "lengths": [110, 50]}


def options(**changes):
    values = dict(
        models=["tiny"], lengths=[20, 8], batch_size=4, micro_batches=[4, 2], updates=1, warm_up=1,
        rounds=2, seed=7, output=None,
    )  # fmt: skip
    return argparse.Namespace(**{**values, **changes})


def test_rows_are_the_same_for_every_side_and_their_lengths_as_stated():
    made = sft_sides.rows(JOB, vocabulary=100)
    assert made == sft_sides.rows({**JOB, "side": "trl"}, vocabulary=100) and len(made) == 6
    assert all(77 <= len(p) <= 143 and 35 <= len(c) <= 65 for p, c in made)
    assert made != sft_sides.rows({**JOB, "seed": 8}, vocabulary=100)


def test_ratios_are_of_processor_time_against_the_fastest_settings_of_trl(monkeypatch, tmp_path):
    """Medians of processor time over both rounds: ours 6 and 2, TRL's 4 and 8."""
    seconds = {("ours one by one", 0): 6, ("ours packed", 0): 2, ("trl", 4): 4, ("trl", 2): 8}
    asked = []

    def child(module, job, threads):
        asked.append((job["side"], job["micro_batch"], job["seed"], threads))
        s = seconds[job["side"], job["micro_batch"]]
        return {"steps": [s + 1.0], "steps_cpu": [s], "peak_mib": 10.0, "first_loss": 5.0}

    monkeypatch.setattr(sft, "run_child", child)
    monkeypatch.setattr(sft, "_folder_of", lambda name, folder: folder)
    sides = sft.compare("tiny", tmp_path, options())
    ratios = {side: figures["times_faster_than_trl"] for side, figures in sides.items()}
    assert ratios == {
        "ours one by one": pytest.approx(4 / 6),
        "ours packed": 2.0,
        "TRL, micro-batches of 4": 1.0,
        "TRL, micro-batches of 2": 0.5,
    }
    assert [seed for _, _, seed, _ in asked] == [7] * 4 + [8] * 4  # taking turns
    assert "| ours packed | 3 (n 2) | 3 to 3 | 2 | 2.00 |" in sft.text("tiny", sides)


@pytest.mark.slow
def test_all_sides_learn_the_same_rows(capsys, tmp_path):
    output = tmp_path / "sft.json"
    arguments = "--models tiny --lengths 20 8 --batch-size 4 --micro-batches 2 --updates 1"
    sft.main([*arguments.split(), "--rounds", "1", "--output", str(output)])
    found = json.loads(output.read_text())["models"]["tiny"]
    losses = [figures["first_losses"][0] for figures in found.values()]
    assert len(losses) == 3 and losses == pytest.approx([losses[0]] * 3, abs=1e-5)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["benchmark"] == "sft"
    assert Path(output).is_file()
