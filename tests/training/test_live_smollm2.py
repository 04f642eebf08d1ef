"""`params/live.yaml` as it stands: SmolLM2 trains, and SmolLM2 behind llama.cpp is the judge.

Slow: minutes. A poor judge, so nothing is claimed of what is learnt, only that all parts work, and
that a server that is killed in mid-run and started again is waited for."""

from __future__ import annotations

import re
import socket
import threading
import time

import numpy as np
import pandas as pd
import pytest

from rlkit.config import RunConfig
from rlkit.deploy.llama_server import LocalServer
from rlkit.training.loop import train_run

pytest.importorskip("xllamacpp", reason="the extra serve is not installed")
pytestmark = pytest.mark.slow


def start_when_missed(server: LocalServer) -> None:
    """Start the server again two seconds after somebody has asked for it in vain."""
    with socket.create_server(("127.0.0.1", server.port)) as door:
        door.settimeout(300)
        door.accept()[0].close()
    time.sleep(2)
    server.start()


def test_grpo_with_a_live_judge_from_the_params_file_outlives_its_server(root, tmp_path, capsys):
    with LocalServer() as server:

        def after_step(metrics: dict) -> None:
            if metrics["step"] == 2:  # a later step finds nobody
                server.stop()
                back.start()

        back = threading.Thread(target=start_when_missed, args=(server,))
        changes = [f"output_root={tmp_path}", f"model.vllm_base_url={server.url}"]
        config = RunConfig.load(root / "params" / "live.yaml", changes)
        run = train_run(config, progress=after_step)
        back.join()
    said = capsys.readouterr().out
    assert re.search(r"does not answer .*; waiting up to 600 s", said), said
    assert re.search(r"is back after \d+ s; going on", said), said
    steps = [row for row in run.read_metrics() if row["step"]]
    assert run.status()["state"] == "finished" and len(steps) >= 5
    norms = [row["grad_norm"] for row in steps if row.get("grad_norm") is not None]
    assert max(norms) > 0 and np.isfinite(norms).all()
    files = sorted(run.rollouts_folder.glob("step-*.parquet"))
    rows = pd.concat([pd.read_parquet(file) for file in files])
    verdicts = {d["verdict"] for documents in rows["documents"] for d in documents}
    assert verdicts & {"IMPORTANT", "LOCAL", "DISCARD"}
    for row in rows.itertuples():
        unjudged = sum(d["verdict"] is None for d in row.documents)
        assert row.unjudged == unjudged
        assert np.isnan(row.reward) == (unjudged == len(row.documents) > 0)
    assert (tmp_path / "verdicts.sqlite").exists()
