"""The comparison of rollout engines: what a row says of its steps."""

from __future__ import annotations

import pytest

from benchmarks.rollouts import RATIO, row_of

STEP = {
    "sampling_logp_difference": 0.02,
    "sampling_logp_difference_max": 0.3,
    "time/sampling": 0.5,
    "step_time": 4.0,
}
WEIGHTED = {
    f"{RATIO}/min": 0.8,
    f"{RATIO}/mean": 1.01,
    f"{RATIO}/max": 1.2,
    f"{RATIO}/truncated": 0.0,
    "sampling/effective_sample_size": 0.99,
}


def test_means_are_over_steps_and_extremes_over_all_of_them():
    later = {
        name: value + 0.02 if "time" not in name else value
        for name, value in (STEP | WEIGHTED).items()
    }
    row = row_of("vllm_server, bfloat16", 64, [STEP | WEIGHTED, later])
    assert (row["mean"], row["largest"], row["tokens"]) == (0.03, 0.32, 64)
    assert (row["ess"], row["truncated"]) == (pytest.approx(1.0), pytest.approx(0.01))
    assert row["weights"] == [0.8, pytest.approx(1.02), 1.22] and row["sampling_s"] == 2.0


def test_the_trainer_s_own_sampling_has_no_weights():
    row = row_of("transformers", 64, [STEP])
    assert row["ess"] is None and row["weights"] == [None, None, None]
