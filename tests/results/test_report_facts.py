"""What a report says of time and cost, worked out by hand."""

from __future__ import annotations

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
