"""A merge holds about one float32 copy of the model in memory, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.tiny import make_adapter, make_base

ROOT = Path(__file__).resolve().parents[2]
# 51 million weights, 205 MB in float32, of which the adapter moves a fifth
SIZES = dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=13, head_dim=64,
             num_attention_heads=8, num_key_value_heads=4)  # fmt: skip
# Anonymous memory is the process's own; pages of the weights' files can be dropped at any time.
MEASURE = """
import json, sys, threading, time
import rlkit.deploy.merge as merge

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

base, adapter, output, dtype, warm = sys.argv[1:]
merge.merge_lora_to_base(base + "-warm", adapter + "-warm", warm, dtype)  # what libraries need
before, peak, done = anonymous(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
merge.merge_lora_to_base(base, adapter, output, dtype)
done = True
watcher.join()
print(json.dumps({"bytes": peak - before}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_merge_takes_about_one_copy_of_the_model(tmp_path: Path, dtype: str) -> None:
    base = make_base(tmp_path / "base", **SIZES)
    adapter = make_adapter(base, tmp_path / "adapter")
    tiny = make_base(tmp_path / "base-warm")
    make_adapter(tiny, tmp_path / "adapter-warm")
    copy = (base / "model.safetensors").stat().st_size  # float32
    assert copy > 200e6
    paths = [base, adapter, tmp_path / "merged", dtype, tmp_path / "warm"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, paths)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    measured = json.loads(done.stdout.splitlines()[-1])["bytes"]
    print(f"{dtype}: {measured / copy:.2f} copies of {copy / 1e6:.0f} MB")
    assert 0.1 < measured / copy < 1.25
