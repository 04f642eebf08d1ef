"""benchmarks/cuda_check.py on a CPU: its checks run, and one that breaks is not ok."""

from __future__ import annotations

import json

from benchmarks import cuda_check

ARGUMENTS = ["--device", "cpu", "--small", "--only", "sliding"]


def test_a_check_that_holds_is_ok_and_its_figures_are_kept(tmp_path, capsys):
    output = tmp_path / "cuda.json"
    assert cuda_check.main([*ARGUMENTS, "--output", str(output)]) == 0
    (figures,) = json.loads(output.read_text(encoding="utf-8"))["checks"].values()
    assert figures["ok"] and 0 < figures["logp_max"] <= cuda_check.EXACT
    assert "ok     exact in float32, sliding window" in capsys.readouterr().out


def test_a_check_that_breaks_is_not_ok_and_says_why(monkeypatch, capsys):
    def broken(*given):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(cuda_check, "sliding", broken)
    assert cuda_check.main(ARGUMENTS) == 1
    assert "NOT OK exact in float32, sliding window: error RuntimeError: no kernel image" in (
        capsys.readouterr().out
    )
