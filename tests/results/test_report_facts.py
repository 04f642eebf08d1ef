"""What a report says of time and cost, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

from rlkit.config import RunConfig
from rlkit.results.report_facts import time_and_cost
from rlkit.run import Run


def test_a_step_whose_documents_were_all_new_counts_in_the_mean(tmp_path: Path) -> None:
    rates = (0, 0.5, None, 1)  # None: no document was looked up; labelled were 100, 50 and 0 %
    rows = [{"step": n, "verdict_cache_hit_rate": rate} for n, rate in enumerate(rates, 1)]
    assert time_and_cost(Run(RunConfig(), tmp_path), [*rows, {"step": 5}]) == [
        ("Documents that the judge had to label", "50% of those looked up, mean over 3 steps")
    ]


def test_what_servers_were_asked_is_told_with_its_price(tmp_path: Path) -> None:
    config = RunConfig().with_overrides("monitoring.price_in=2", "monitoring.price_out=8")
    (tmp_path / "rounds").mkdir()
    spent = dict(seconds=70.0, requests=40, prompt_tokens=9000, completion_tokens=500, cost=0.022)
    lines = [
        {"collector": "scripted", "played": 3, **spent},
        {"collector": "served", "played": 2, **spent},
        {"collector": "scripted", "played": 1, **dict.fromkeys(spent, 0)},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"collector": "scr'  # killed in mid-line
    (tmp_path / "rounds" / "collected.jsonl").write_text(text, encoding="utf-8")
    judged = dict(judge_requests=10.0, judge_prompt_tokens=1e6, judge_completion_tokens=5e5)
    assert time_and_cost(Run(config, tmp_path), [judged, judged, {"step": 3}]) == [
        (
            "Collecting the rounds",
            "2 min for questions played: 4 by scripted, 2 by served; 80 requests, 18,000 tokens "
            "read and 1,000 written, cost 0.04",
        ),
        (  # 2 million at 2, 1 million at 8
            "The judge, in training",
            "20 requests, 2,000,000 tokens read and 1,000,000 written, cost 12.00",
        ),
    ]
