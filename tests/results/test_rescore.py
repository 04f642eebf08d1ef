"""Stored actions under other reward values. By hand: "gold" finds one new IMPORTANT document,
"locals" three new LOCAL ones, "nobody" two that nobody could judge, "chaff" one new DISCARD one,
"known" a seen LOCAL one; an empty action is invalid (4 clues x 5 documents x -0.1 - 0.1 = -2.1)."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest

from rlkit.config import RunConfig
from rlkit.errors import ConfigError, RunError
from rlkit.practice.reward import COUNT_KEYS, RewardCalculator, compute_group_advantages
from rlkit.results.rescore import rescore
from rlkit.rounds.state import VERDICTS
from rlkit.run import Run
from tests.results.stored_run import make_stored_run

MIXED = {"q1": ["gold", "locals", "nobody", ""]}
FLAT = {"q12": ["gold", "gold", "gold", "gold"]}
LOCALS = {"q12": ["locals", "chaff", "chaff", "chaff"]}


def bits(column: pd.Series) -> list[bytes]:
    return [np.float64(value).tobytes() for value in column if not np.isnan(value)]


def rewards(found) -> list[float | None]:
    return [None if np.isnan(r) else r for r in found.actions["new_reward"]]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_the_same_values_give_the_stored_bits(tmp_path, scale):
    run = make_stored_run(tmp_path, [MIXED | FLAT, {**FLAT, **MIXED}], scale_rewards=scale)
    found = rescore(run, {"important_new": 2.5, "local_new": 0.3})
    assert rewards(found) == [2.5, 0.9, None, -2.1, *[2.5] * 4, *[2.5] * 4, 2.5, 0.9, None, -2.1]
    stored = pd.concat([run.read_rollouts(1), run.read_rollouts(2)])
    assert bits(found.actions["new_reward"]) == bits(stored["reward"])
    assert bits(found.actions["new_advantage"]) == bits(stored["advantage"])
    assert (found.actions["new_advantage"] != 0).sum() == 6
    assert found.values == {} and found.summary.loc["another order", "groups"] == 0


def test_any_counts_and_values_give_the_stored_bits(tmp_path):
    """Numpy rounds halves of 1e-6 otherwise than Python: the counts must be Python's own."""
    chance = random.Random(1)
    values = {key: round(chance.uniform(-3, 3), 6) + 5e-7 for key in COUNT_KEYS}
    config = RunConfig.from_sections(output_root=str(tmp_path), reward=values)
    run, rows = Run.open(config), []
    calculator = RewardCalculator(config.reward, config.search.max_clues, config.search.top_k)
    for state in range(60):
        made = [
            calculator.compute_reward(
                [
                    {"docid": str(d), "verdict": chance.choice([*VERDICTS, None])}
                    for d in range(chance.randrange(9))
                ],
                {"0", "1", "2"},
            )
            for _ in range(8)
        ]
        advantages = compute_group_advantages([reward.total for reward in made])
        for k, (reward, advantage) in enumerate(zip(made, advantages, strict=True)):
            row = {"state_id": f"s{state}", "question_id": "q", "visit": 0, "action": k}
            row |= {"reward": reward.total, "advantage": advantage, "invalid": int(reward.invalid)}
            rows.append(row | reward.counts)
    run.write_rollouts(1, pd.DataFrame(rows))
    actions = rescore(run, values).actions
    assert bits(actions["new_reward"]) == bits(pd.DataFrame(rows)["reward"])
    assert bits(actions["new_advantage"]) == bits(actions["advantage"])


def test_another_first_choice_by_hand(tmp_path):
    found = rescore(make_stored_run(tmp_path, [MIXED]), {"local_new": 1.0})
    assert rewards(found) == [2.5, 3.0, None, -2.1]
    mean, std = 3.4 / 3, np.std([2.5, 3.0, -2.1])
    by_hand = [(r - mean) / (std + 1e-8) for r in (2.5, 3.0)]
    assert found.actions["new_advantage"].tolist()[:2] == pytest.approx(by_hand, rel=1e-12)
    assert found.actions["new_advantage"].tolist()[2] == 0
    group = found.groups.iloc[0]
    assert (group["step"], group["question_id"], group["n"]) == (1, "q1", 3)
    assert group["first_changed"] and group["order_changed"]
    assert found.values == {"local_new": (0.3, 1.0)}


def test_another_order_behind_the_same_first(tmp_path):
    """0.9, 0.0 and 0.1 behind 2.5 become -0.3, 0.0 and 0.1."""
    run = make_stored_run(tmp_path, [{"q1": ["gold", "locals", "chaff", "known"]}])
    group = rescore(run, {"local_new": -0.1}).groups.iloc[0]
    assert not group["first_changed"] and group["order_changed"]


def test_a_tie_at_the_top_is_another_first_choice(tmp_path):
    run = make_stored_run(tmp_path, [{"q1": ["gold", "locals", "chaff", "chaff"]}])
    group = rescore(run, {"important_new": 0.9}).groups.iloc[0]
    assert group["first_changed"] and group["order_changed"]


def test_variance_is_gained_and_lost_and_counted(tmp_path):
    """Rewards by hand, before and after important_new 0, local_new 0, discard_new 0.1: flat stays
    flat; "locals" 0.9 and "chaff" 0.0 become 0.0 and 0.1; "gold" and "locals" become equal."""
    lost = {"q1": ["gold", "locals", "gold", "locals"]}
    run = make_stored_run(tmp_path, [FLAT, LOCALS, lost])
    found = rescore(run, {"important_new": 0, "local_new": 0, "discard_new": 0.1})
    assert found.summary.to_dict("index") == {
        "rewards differ": {"groups": 2, "n": 3},
        "rewards would differ": {"groups": 1, "n": 3},
        "gain variance": {"groups": 0, "n": 3},
        "lose variance": {"groups": 1, "n": 3},
        "another first choice": {"groups": 1, "n": 1},
        "another order": {"groups": 1, "n": 1},
    }
    assert "of 3 groups (12 actions, 0 without a reward) 0 would gain variance" in str(found)
    equal = make_stored_run(tmp_path / "equal", [{"q1": ["chaff", "chaff", "nobody", "dead"]}])
    assert rescore(equal, {}).summary.loc["rewards differ", "groups"] == 1  # "dead" is invalid


def test_equal_rewards_of_other_documents_gain_variance(tmp_path):
    """With local_seen 0 as the run's own value, "known" and "chaff" are both worth 0."""
    run = make_stored_run(tmp_path, [{"q1": ["known", "chaff", "known", "nobody"]}])
    run.config = run.config.with_overrides("reward.local_seen=0")
    rows = run.read_rollouts(1).drop(columns="step")
    run.write_rollouts(1, rows.assign(reward=rows["reward"] * 0, advantage=0.0))
    found = rescore(run, {"local_seen": 0.2})
    assert rewards(found) == [0.2, 0.0, 0.2, None]
    assert found.summary.loc["gain variance"].tolist() == [1, 1]


def test_where_nothing_could_be_judged_nothing_has_a_reward(tmp_path):
    found = rescore(make_stored_run(tmp_path, [{"q1": ["nobody"] * 4}]), {"local_new": 1})
    assert rewards(found) == [None] * 4 and found.groups["n"].tolist() == [0]
    assert found.summary["groups"].sum() == 0 and "4 without a reward" in str(found)


def test_the_invalid_reward_follows_the_values(tmp_path):
    run = make_stored_run(tmp_path, [MIXED])
    found = rescore(run, {"discard_seen": -0.5})
    assert rewards(found)[-1] == -10.1 and found.values["invalid"] == (-2.1, -10.1)
    assert rewards(rescore(run, {"invalid": -7}))[-1] == -7
    with pytest.raises(ConfigError, match=r"reward.invalid is -0.5.*at most -2.1"):
        rescore(run, {"invalid": -0.5})


def test_an_own_invalid_reward_stays_while_it_is_low_enough(tmp_path):
    run = make_stored_run(tmp_path, [{"q1": ["gold", "chaff"]}])
    run.config = run.config.with_overrides("reward.invalid=-5")
    assert "invalid" not in rescore(run, {"local_new": 1}).values
    assert rescore(run, {"discard_seen": -0.5}).values["invalid"] == (-5, -10.1)


def test_with_credit_by_clue_the_actions_own_advantages_are_compared(tmp_path):
    run = make_stored_run(tmp_path, [MIXED], credit="clue")
    run.write_rollouts(1, run.read_rollouts(1).assign(advantage=99.0).drop(columns="step"))
    actions = rescore(run, {}).actions
    assert bits(actions["advantage"]) == bits(actions["new_advantage"])
    assert actions["advantage"].tolist() == list(compute_group_advantages([2.5, 0.9, None, -2.1]))


def test_what_cannot_be_rescored_is_one_sentence(tmp_path):
    run = make_stored_run(tmp_path, [MIXED])
    with pytest.raises(ConfigError, match="important_new"):
        rescore(run, {"importnat_new": 3})
    with pytest.raises(RunError, match="no actions of step 9; it has 1 steps, 1 to 1"):
        rescore(run, {}, steps=[9])
    run.config = run.config.with_overrides("reward.important_new=2.4")
    with pytest.raises(RunError, match=r"1 of 4 stored rewards are not .* \(first 2.5 for q1/run"):
        rescore(run, {})


def test_answers_have_no_documents_to_score_anew(tmp_path):
    config = RunConfig.from_sections(task="answers", output_root=str(tmp_path))
    run = Run.open(config)
    rows = [{"state_id": "a", "question_id": "a", "visit": 0, "action": 0, "reward": 1.0}]
    run.write_rollouts(1, pd.DataFrame(rows))
    with pytest.raises(RunError, match="task answers have none; only actions of task search"):
        rescore(run, {"important_new": 3})
