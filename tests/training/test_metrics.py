"""A search run's metrics.jsonl has every name that is promised, with values in their range."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlkit.config import RunConfig
from rlkit.training.loop import train_run
from rlkit.training.metrics import over_ranks

SHARES = (
    "important_rate", "discovery_rate", "distinct_clue_ratio", "grounded_clue_ratio",
    "invalid_share", "unjudged_share", "frac_reward_zero_std", "completions/clipped_ratio",
    "clip_ratio/low_mean", "clip_ratio/high_mean",
)  # fmt: skip
OTHERS = (
    "reward", "reward_std", "kl", "entropy", "loss", "grad_norm", "learning_rate",
    "completions/mean_length", "clues_per_action", "sampling_logp_difference",
    "tokens_per_second", "step_time",
)  # fmt: skip
TIMES = ("time/sampling", "time/environment", "time/training")


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    """Two steps of the demo, without a warm start: a random model of two layers."""
    given = RunConfig.load(root / "params" / "debug.yaml").model_dump(exclude_unset=True)
    config = RunConfig.from_sections(
        **given | {"output_root": str(tmp_path_factory.mktemp("metrics"))}
    ).with_overrides(
        "model.init_adapter=null",
        "executor.plain_lines=true",
        "training.num_epochs=1",
        "monitoring.use_tensorboard=true",
    )
    return train_run(config, log=lambda line: None)


def test_every_promised_name_is_in_the_metrics_of_a_search_run(run):
    zero, first, second = run.read_metrics()
    for name in (*SHARES, *OTHERS, *TIMES):
        assert name in first and name in second, name
    assert zero["step"] == 0 and {"eval/reward", "eval/kl", "eval/discovery_rate"} <= set(zero)


def test_shares_are_shares_and_the_times_are_those_of_the_step(run):
    for row in run.read_metrics()[1:]:
        for name in SHARES:
            assert row[name] is None or 0 <= row[name] <= 1, name
        assert 0.8 < sum(row[name] for name in TIMES) <= 1.000001
        assert row["tokens_per_second"] * row["step_time"] == pytest.approx(
            4 * row["completions/mean_length"]
        )


def test_what_the_rollouts_hold_is_what_the_metrics_average(run):
    (row,) = [r for r in run.read_metrics() if r["step"] == 2]
    actions = run.read_rollouts(2)
    columns = {"important_rate": "important_rate", "n_clues": "clues_per_action",
               "distinct_clue_ratio": "distinct_clue_ratio", "invalid": "invalid_share",
               "grounded_clue_ratio": "grounded_clue_ratio", "reward": "reward"}  # fmt: skip
    for column, name in columns.items():
        found = actions[column].mean()
        assert row[name] == (pytest.approx(found) if found == found else None), name
    assert row["unjudged_share"] == actions["reward"].isna().mean()


def test_what_ranks_asked_a_judge_is_summed_and_their_rates_are_averaged():
    told = [
        {"judge_requests": 10.0, "verdict_cache_hit_rate": 0.5, "own": 1.0},
        {"judge_requests": 4.0, "verdict_cache_hit_rate": None, "own": 4.0},
    ]
    assert over_ranks(told) == {
        "judge_requests": 14.0, "verdict_cache_hit_rate": 0.5, "own": 2.5,
    }  # fmt: skip
    assert over_ranks([{}, {}]) == {}


def test_the_first_steps_of_a_run_raise_no_alarm(run):
    assert not any("alarms" in row for row in run.read_metrics())


def test_tensorboard_is_written_beside_them(run):
    board = EventAccumulator(str(run.tensorboard_folder)).Reload()
    assert {"discovery_rate", "invalid_share", *TIMES} <= set(board.Tags()["scalars"])
    told = {row["step"]: row["reward"] for row in run.read_metrics() if "reward" in row}
    assert {e.step: pytest.approx(e.value) for e in board.Scalars("reward")} == told
