"""The benchmark of groups sampled in one batch, small."""

from __future__ import annotations

import json

from benchmarks import groups_at_once


def test_every_setting_takes_the_same_steps_and_has_a_row(tmp_path):
    path = tmp_path / "found.json"
    flags = "--model tiny --prompt-tokens 8 --action-tokens 4 --actions 2 --steps 2"
    result = groups_at_once.main([*flags.split(), "--output", str(path)])
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(result))
    assert [(case["together"], case["n"]) for case in result["cases"]] == [(1, 2), (2, 2), (4, 2)]
    assert result["cases"][0]["faster"] == {"step": 1, "cpu": 1, "sampling": 1}
    assert all(len(found) == groups_at_once.GROUPS for found in result["same_tokens"].values())
    for case in result["cases"]:
        assert 0 < case["median_s"]["sampling"] < case["median_s"]["step"]
    table = groups_at_once.as_text(result).splitlines()
    assert [line.split()[0] for line in table[3:6]] == ["1", "2", "4"]
