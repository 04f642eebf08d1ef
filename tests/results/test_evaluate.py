"""Averages worked out by hand, batches, deep searches, unjudged actions, and the file on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rlkit.errors import DataError
from rlkit.results.evaluate import METRICS, Evaluation, evaluate_policies, load_evaluation


def row(policy: str, state: str, reward: float | None, discovery: float | None) -> dict[str, Any]:
    """One row of a hand-made evaluation; the question is the state's first letter."""
    return {
        "policy": policy, "state_id": state, "question_id": state[0], "reward": reward,
        "reward_without_seen": reward, "important_rate": 0.5, "discovery_rate": discovery,
        "n_clues": 2, "invalid": 0,
    }  # fmt: skip


def hand_made(rows: list[dict[str, Any]]) -> Evaluation:
    frame = pd.DataFrame(rows).astype(dict.fromkeys(METRICS, "float64"))
    states = tuple(
        {"state_id": s, "question_id": s[0], "n_missing": 1} for s in dict.fromkeys(frame.state_id)
    )
    return Evaluation(frame, states)


def test_a_question_counts_once_however_many_states_it_has() -> None:
    # a: (1 + 2 + 3) / 3 = 2, b: 6; mean over questions 4, not (1 + 2 + 3 + 6) / 4 = 3
    rows = [row("p", s, r, None) for s, r in (("a1", 1), ("a2", 2), ("a3", 3), ("b1", 6))]
    evaluation = hand_made(rows)
    interval = evaluation.interval("p", "reward")
    assert (interval.n, interval.mean) == (2, 4.0)
    # s = 2√2, t(0.975, 1) = 12.7062047: half width 12.7062047 · 2√2 / √2
    assert interval.high == pytest.approx(4 + 25.4124095, abs=1e-6)
    assert evaluation.interval("p", "discovery_rate").n == 0


def test_unjudged_actions_are_counted_and_not_averaged() -> None:
    evaluation = hand_made([row("p", "a1", 1, 1.0), row("p", "b1", None, 0.0)])
    summary = evaluation.summary().set_index("metric")
    assert summary.loc["reward", ["mean", "n_questions", "unjudged_actions"]].tolist() == [1, 1, 1]
    assert summary.loc["discovery_rate", ["mean", "n_states"]].tolist() == [1.0, 1]
    assert summary.loc["n_clues", "n_states"] == 2


def test_differences_pair_states_that_count_under_both_policies() -> None:
    rows = [row("tuned", "a1", 5, 1.0), row("tuned", "a2", 7, 0.0), row("tuned", "b1", 1, 0.5)]
    rows += [row("untouched", "a1", 4, 0.5), row("untouched", "a2", None, 0.0)]
    rows += [row("untouched", "b1", 1, 0.5), row("untouched", "c1", 9, 1.0)]
    interval = hand_made(rows).difference("tuned", "untouched", "reward")
    # question a by its first state alone: 5 - 4 = 1; b: 0; c has no partner
    assert (interval.n, interval.mean, interval.non_zero) == (2, 0.5, 1)


def test_tuned_is_compared_with_each_baseline_and_checkpoints_like_it() -> None:
    names = ("raw_question", "untouched", "warm_start", "checkpoint-5", "oracle")
    evaluation = hand_made([row(name, "a1", 1, 1.0) for name in names])
    tuned = [("checkpoint-5", base) for base in ("untouched", "warm_start", "raw_question")]
    assert evaluation.pairs() == [*tuned, ("warm_start", "untouched")]
    assert len(evaluation.differences()) == 4 * len(METRICS)


def test_a_whole_model_is_held_to_the_adapter_that_it_was_merged_from() -> None:
    """a: 1 - 1; b: 2 - 3, so that merging lost 0.5 on average."""
    rewards = {"untouched": (0, 0), "tuned": (1, 3), "merged": (1, 2)}
    rows = [row(p, s, r, 1.0) for p, rs in rewards.items() for s, r in zip("ab", rs, strict=True)]
    evaluation = replace(hand_made(rows), facts={"adapters": {"merged": {"whole": True}}})
    pairs = [("tuned", "untouched"), ("merged", "untouched"), ("merged", "tuned")]
    assert evaluation.pairs() == pairs
    found = evaluation.differences().set_index(["policy", "baseline", "metric"])
    assert found.loc[("merged", "tuned", "reward"), ["n", "mean", "non_zero"]].tolist() == [
        2, -0.5, 1,
    ]  # fmt: skip


def test_precisions_of_before_stay_where_a_policy_is_not_played_anew() -> None:
    """They are facts of a policy, so that others need not be the same."""

    def of(policy: str, **precisions: str) -> Evaluation:
        made = hand_made([row(policy, "a1", 1, 1.0)])
        states = tuple(s | {"question": "", "n_seen": 0} for s in made.states)
        return replace(made, states=states, facts={"precisions": precisions})

    joined = of("tuned", tuned="float32").joined(of("untouched", untouched="4-bit", tuned="old"))
    assert joined.facts["precisions"] == {"untouched": "4-bit", "tuned": "float32"}


def test_policies_write_in_batches_and_deep_ones_are_searched_deeply(
    toy_task: Any, toy_policies: Any, toy_states: Any
) -> None:
    seen: list[tuple[int, int, str]] = []
    policies = {name: toy_policies[name] for name in ("tuned", "raw_question")}
    evaluation = evaluate_policies(
        toy_task, policies, toy_states[:10], batch_size=4, progress=lambda *a: seen.append(a)
    )
    assert policies["tuned"].sizes == [4, 4, 2]
    assert toy_task.depths[:10] == [None] * 10
    assert toy_task.depths[10:] == [len(state.seen_docids) + 8 for state in toy_states[:10]]
    assert [done for done, _, _ in seen] == [4, 8, 10, 14, 18, 20]
    assert evaluation.policies == ["tuned", "raw_question"]


def test_states_with_nothing_missing_are_left_out_and_counted(toy_evaluation: Evaluation) -> None:
    # questions 9, 18, 27, 36 start with everything seen; questions with 2 gold documents have
    # none missing in round 2: those are the multiples of 3, of which 8 are not multiples of 9
    assert toy_evaluation.nothing_missing == 4 * 2 + 8
    summary = toy_evaluation.summary().set_index(["policy", "metric"])
    assert summary.loc[("oracle", "discovery_rate"), "mean"] == 1.0
    assert summary.loc[("oracle", "discovery_rate"), "n_states"] == 72 - 16
    assert summary.loc[("oracle", "reward"), "n_states"] == 72


def test_states_that_the_task_left_out_are_counted_too(toy_task: Any, toy_states: Any) -> None:
    toy_task.left_out = {"eval": 5, "train": 9}
    evaluation = evaluate_policies(toy_task, {}, [s for s in toy_states if s.missing])
    assert evaluation.nothing_missing == 5


def test_facts_name_the_split_its_sizes_and_what_known_means(toy_evaluation: Evaluation) -> None:
    facts = toy_evaluation.facts
    assert (facts["split"], facts["known"]) == ("eval", "gold")
    assert facts["split_sizes"]["eval"] == {"states": 72, "questions": 36}
    assert facts["reward_values"]["important_new"] == 2.5


def test_the_file_brings_back_the_same_evaluation(
    toy_evaluation: Evaluation, tmp_path: Path
) -> None:
    path = toy_evaluation.save(tmp_path / "evaluation.json")
    text = path.read_text()
    data = json.loads(text, parse_constant=pytest.fail)  # no NaN, no Infinity
    assert data["schema"] == 1 and data["n_states"] == 72 and data["nothing_missing"] == 16
    again = load_evaluation(path)
    pd.testing.assert_frame_equal(again.summary(), toy_evaluation.summary())
    assert again.save(tmp_path / "again.json").read_text() == text


def test_files_of_another_schema_or_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    for content, reason in (
        ('{"schema": 2}', "schema 2"),
        ("[]", "list"),
        ('{"schema": 1}', "rows"),
        ('{"schema": 1, "states": [], "rows": [5]}', r"rows\[0\] lacks 'policy'"),
        ('{"schema": 1, "states": [{}], "rows": []}', r"states\[0\] lacks 'state_id'"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=reason):
            load_evaluation(path)


def test_no_states_give_an_empty_evaluation_that_can_be_written(
    toy_task: Any, toy_policies: Any, tmp_path: Path
) -> None:
    empty = evaluate_policies(toy_task, toy_policies, [])
    assert load_evaluation(empty.save(tmp_path / "evaluation.json")).policies == []


def test_a_policy_that_is_evaluated_again_replaces_its_rows_and_what_played_it() -> None:
    def of(facts: dict[str, Any], *rows: dict[str, Any]) -> Evaluation:
        made = hand_made(list(rows))
        return Evaluation(made.frame, made.states, facts)

    earlier = of(
        {"adapters": {"tuned": {"step": 4}, "checkpoint-2": {"step": 2}}},
        *(row(name, "a1", 1, 0.5) for name in ("oracle", "tuned", "checkpoint-2")),
    )
    now = of({"adapters": {"tuned": {"step": 8}}}, row("tuned", "a1", 7, 1.0))
    joined = now.joined(earlier)
    assert joined.policies == ["tuned", "checkpoint-2", "oracle"]
    assert joined.question_values("tuned", "reward") == {"a": 7.0}
    assert joined.facts["adapters"] == {"checkpoint-2": {"step": 2}, "tuned": {"step": 8}}
    assert "precisions" not in joined.facts
    assert now.joined(of({"split": "dev"}, row("oracle", "a1", 1, 0.5))) is None
    assert now.joined(of({}, row("oracle", "b1", 1, 0.5))) is None


def test_evaluations_of_another_corpus_or_judge_do_not_join_and_unrecorded_ones_do(
    toy_task: Any, toy_policies: Any, toy_states: Any
) -> None:
    def of(policy: str, corpus: str, judge: str | None) -> Evaluation:
        toy_task.lineage = lambda: {"corpus_fingerprint": corpus, "documents": 3}
        toy_task.env.checker = SimpleNamespace(label=judge)
        return evaluate_policies(toy_task, {policy: toy_policies[policy]}, toy_states[:4])

    now = of("tuned", "ab", "llm one, prompt 2")
    assert now.facts["corpus_fingerprint"] == "ab" and now.facts["judge"] == "llm one, prompt 2"
    assert now.joined(of("oracle", "ab", "llm one, prompt 2")).policies == ["tuned", "oracle"]
    assert now.joined(of("oracle", "cd", "llm one, prompt 2")) is None
    assert now.joined(of("oracle", "ab", "llm two, prompt 2")) is None
    unknown = of("oracle", "ab", None)  # a judge that nobody asked, and files of before
    assert "judge" not in unknown.facts
    assert now.joined(unknown).facts["judge"] == "llm one, prompt 2"
    assert of("tuned", "cd", "llm one, prompt 2").joined(unknown) is None


def test_p_is_adjusted_for_all_pairs_and_metrics_that_were_compared(
    toy_evaluation: Evaluation,
) -> None:
    table = toy_evaluation.differences()
    known = table[table["p"].notna()].sort_values("p")
    # Holm's smallest is the smallest p times the number of tests; none falls below its p
    assert known["p_holm"].iloc[0] == min(1.0, known["p"].iloc[0] * len(known))
    assert (known["p_holm"] >= known["p"]).all() and known["p_holm"].is_monotonic_increasing
    row = table.set_index(["policy", "baseline", "metric"]).loc[("tuned", "untouched", "reward")]
    found = toy_evaluation.difference("tuned", "untouched", "reward")
    assert (row["p"], row["smallest_effect"]) == (found.p, found.smallest_effect)
    assert (row["verdict"], row["caution"]) == (found.verdict, found.caution)


class Sampler:
    """Names the missing documents in the samples of odd numbers only."""

    def write(self, state: Any) -> str:
        return "<clue>nothing</clue>"

    def sample_batch(self, states: Any, count: int) -> list[list[str]]:
        found = [" ".join(sorted(state.missing)) for state in states]
        return [[f"<clue>{one if i % 2 else 'no'}</clue>" for i in range(count)] for one in found]


def test_samples_are_scored_beside_the_greedy_action_and_kept(
    toy_task: Any, toy_policies: Any, toy_states: Any, tmp_path: Path
) -> None:
    said: list[int] = []
    policies = {"tuned": Sampler(), "oracle": toy_policies["oracle"]}
    evaluation = evaluate_policies(
        toy_task, policies, toy_states, samples=4, progress=lambda done, total, _: said.append(done)
    )
    assert said[-1] == 72 * (1 + 4 + 1) and len(evaluation.frame) == 2 * 72
    assert evaluation.samples["sample"].tolist() == [0, 1, 2, 3] * 72
    table = evaluation.summary().set_index(["policy", "metric"])["mean"]
    assert table["tuned", "discovery_rate (best of 4)"] == 1.0
    assert table["tuned", "discovery_rate (mean of 4)"] == 0.5
    assert table["tuned", "discovery_rate"] == 0.0  # the headline is of the greedy action
    assert ("oracle", "reward (best of 4)") not in table.index
    again = load_evaluation(evaluation.save(tmp_path / "evaluation.json"))
    pd.testing.assert_frame_equal(again.summary(), evaluation.summary())
    found = again.samples.groupby(again.samples["sample"] % 2)["important_new"].max()
    assert found[0] == 0 < found[1]  # counts are kept, so that they can be scored anew
    other = evaluate_policies(toy_task, {"untouched": toy_policies["untouched"]}, toy_states)
    joined = other.joined(again)
    assert joined.policies == ["tuned", "untouched", "oracle"]
    assert len(joined.samples) == 4 * 72
    # evaluated anew without samples: they stay as long as the policy writes the same
    plain = evaluate_policies(toy_task, policies, toy_states)
    assert len(plain.joined(again).samples) == 4 * 72
    other = evaluate_policies(toy_task, {"tuned": toy_policies["tuned"]}, toy_states)
    assert len(other.joined(again).samples) == 0
    for evaluation, step in ((plain, 8), (again, 4)):
        evaluation.facts["adapters"] = {"tuned": {"folder": "a", "step": step}}
    assert len(plain.joined(again).samples) == 0  # another checkpoint that happens to write it


def test_a_policy_is_told_when_it_has_written_all(toy_task: Any, toy_states: Any) -> None:
    told: list[str] = []

    class Model(Sampler):
        def release(self) -> None:
            told.append("released")

    evaluate_policies(
        toy_task, {"a": Model()}, toy_states[:3], progress=lambda *_: told.append("wrote")
    )
    assert told == ["wrote", "released"]


def test_breakdowns_stand_in_the_file_and_a_file_without_them_joins_all_the_same(
    toy_evaluation: Evaluation, tmp_path: Path
) -> None:
    path = toy_evaluation.save(tmp_path / "evaluation.json")
    data = json.loads(path.read_text())
    by_hops = {(r["policy"], r["metric"], r["hops"]): r for r in data["breakdowns"]["hops"]}
    assert by_hops["oracle", "discovery_rate", 4]["mean"] == 1.0
    assert by_hops["oracle", "discovery_rate", 4]["n_questions"] == 12
    assert {row["round"] for row in data["breakdowns"]["round"]} == {1, 2}
    for state in data["states"]:
        del state["recorded_discovery"]
    path.write_text(
        json.dumps({k: v for k, v in data.items() if k not in ("breakdowns", "samples")})
    )
    before = load_evaluation(path)
    assert before.by("difficulty").empty
    assert toy_evaluation.joined(before).policies == toy_evaluation.policies
