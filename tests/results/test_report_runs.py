"""Several runs in one report: what differs, what came out, and the average over seeds."""

from __future__ import annotations

import html
import json
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from rlkit.results.evaluate import Evaluation, load_evaluation
from rlkit.results.report import write_report
from rlkit.results.report_runs import _told, compare, differing, side_by_side
from rlkit.results.statistics import PairedInterval, SeedsInterval, claimed, paired_interval

NOON = datetime(2026, 1, 2, 12, 0)


@pytest.fixture(scope="module")
def report(seed_runs: list[Path]) -> str:
    return write_report(*seed_runs, now=NOON).read_text(encoding="utf-8")


def run_of(name: str, evaluation, steps=(), **parameters) -> dict:
    """As much of a run's content as stands side by side."""
    return {
        "name": name, "parameters": parameters, "lineage": None, "steps": list(steps),
        "evaluation": evaluation, "names": evaluation.names if evaluation else {},
    }  # fmt: skip


def test_one_page_has_the_table_the_seeds_and_each_run_whole(report: str, seed_runs) -> None:
    assert (seed_runs[0].parent / "report-seed7-seed8.html").exists()
    for part in (
        "2 runs: seed7, seed8", "What differs", "Over the seeds", "Curves of the runs",
        'id="run-1">seed7', 'id="run-2">seed8', "averaged over 2 seeds", "tuned Executor minus",
    ):  # fmt: skip
        assert part in report, part
    assert report.count("Wins and losses, side by side") == 2


def test_what_stands_side_by_side_is_the_same_each_time(seed_runs) -> None:
    evaluation = load_evaluation(seed_runs[0] / "evaluation.json")
    rows = [{"step": n, "reward": float(n)} for n in range(1, 9)]
    runs = [run_of("one", evaluation, rows, seed=7), run_of("two", evaluation, rows, seed=8)]
    first, second = side_by_side(runs), side_by_side(runs)
    assert first["curves"] == second["curves"] and len(first["curves"]) == 1
    assert first["seeds"] == second["seeds"] and first["seeds"][0]["picture"]["light"]


def test_what_differs_is_listed_against_defaults_and_the_rest_is_not() -> None:
    one = run_of("one", None, seed=7, **{"grpo.group_size": 8, "run_name": "one"})
    two = run_of("two", None, seed=7, **{"lora.rank": 16, "run_name": "two"})
    assert differing([one, two]) == {"grpo.group_size": [8, 4]}  # 4 and 16 are the defaults


def test_the_difference_is_averaged_over_seeds_with_each_beside_it(seed_runs) -> None:
    evaluations = [load_evaluation(folder / "evaluation.json") for folder in seed_runs]
    runs = [run_of(f"s{s}", e, seed=s) for s, e in zip((7, 8), evaluations, strict=True)]
    (found,) = side_by_side(runs)["seeds"]
    each = [e.difference("tuned", "untouched", "discovery_rate") for e in evaluations]
    assert [found["interval"].per_seed[s].mean for s in (7, 8)] == [i.mean for i in each]
    # both seeds have the same questions, so that the mean of means is the mean
    assert found["interval"].mean == pytest.approx((each[0].mean + each[1].mean) / 2)
    assert f"{each[1].mean:+.2f} with seed 8" in found["sentence"]


def test_several_averages_are_corrected_for_being_several() -> None:
    """Against two baselines p = 0.04 and 0.6 become 0.08 and 0.6: nothing is claimed of the first,
    whose interval leaves 0 out."""
    found = [PairedInterval(30, 0.2, 0.01, 0.39, 25, p) for p in (0.04, 0.6)]
    rows = [{"title": "t", "interval": SeedsInterval(i, {7: i, 8: i}), "twice": []} for i in found]
    first, second = _told(rows)
    assert (first["holm"], second["holm"]) == (0.08, 0.6)
    assert "corrected for the 2 comparisons p is 0.08 (Holm), so no difference" in first["sentence"]
    (alone,) = _told(rows[:1])
    assert alone["holm"] == 0.04 and alone["sentence"].endswith("This is a rise.")
    assert claimed(found[0], 0.08) == "no clear difference (Holm)"
    assert claimed(found[0], 0.04) == claimed(found[0]) == "higher"


def test_runs_with_other_parameters_are_not_averaged(seed_runs) -> None:
    evaluation = load_evaluation(seed_runs[0] / "evaluation.json")
    one = run_of("one", evaluation, seed=7, **{"grpo.beta": 1})
    two = run_of("two", evaluation, seed=8, **{"grpo.beta": 2})
    assert side_by_side([one, two])["seeds"] == []
    assert side_by_side([one])["seeds"] == []  # one seed is no average


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("training.max_steps", 40, False), ("training.num_epochs", 9, False),
        ("evaluation.checkpoint", "best", False), ("evaluation.split", "dev", False),
        ("evaluation.max_states", 8, False), ("evaluation.batch_size", 1, True),
        ("evaluation.cache", False, True), ("training.resume", False, True),
        ("model.vllm_base_url", "http://127.0.0.1:9/v1", True),
        ("monitoring.use_wandb", True, True), ("merge.dtype", "float32", True),
    ],
)  # fmt: skip
def test_seeds_alone_differ_where_numbers_cannot(seed_runs, key, value, same) -> None:
    evaluation = load_evaluation(seed_runs[0] / "evaluation.json")
    runs = [run_of("one", evaluation, seed=7), run_of("two", evaluation, seed=8, **{key: value})]
    assert bool(side_by_side(runs)["seeds"]) == same


def test_runs_that_were_evaluated_on_other_splits_are_not_averaged(seed_runs) -> None:
    evaluation = load_evaluation(seed_runs[0] / "evaluation.json")
    dev = replace(evaluation, facts=evaluation.facts | {"split": "dev"})
    assert side_by_side([run_of("a", evaluation, seed=7), run_of("b", dev, seed=8)])["seeds"] == []


def test_a_seed_that_comes_twice_is_said_and_not_averaged(seed_runs) -> None:
    one, two = (load_evaluation(folder / "evaluation.json") for folder in seed_runs)
    runs = [run_of("c", one, seed=8), run_of("a", one, seed=7), run_of("b", two, seed=7)]
    (found,) = side_by_side(runs)["seeds"]
    assert found["interval"].averaged.mean is None and found["runs"] == ["a", "b", "c"]
    assert "not averaged over the seeds, since seed 7 comes more than once" in found["sentence"]
    assert "(7 (a), 7 (b), 8 (c))" in found["sentence"]
    assert found["interval"].per_seed["7 (b)"] == two.difference(
        "tuned", "untouched", "discovery_rate"
    )


def test_runs_are_compared_on_the_same_states_only(seed_runs) -> None:
    first, second = (load_evaluation(folder / "evaluation.json") for folder in seed_runs)
    values = [e.question_values("tuned", "discovery_rate") for e in (second, first)]
    assert compare(second, first) == paired_interval(*values)
    assert compare(replace(second, states=second.states[:-1]), first) is None
    (row,) = side_by_side([run_of("one", first), run_of("two", second)])["between"]
    assert row["interval"].mean < 0 and row["holm"] == row["interval"].p


def test_states_pair_by_what_they_showed_and_not_by_their_names(seed_runs) -> None:
    one, two = (load_evaluation(folder / "evaluation.json") for folder in seed_runs)
    seen = one.states[0]["n_seen"]
    other = replace(one, states=({**one.states[0], "n_seen": seen + 1}, *one.states[1:]))
    assert compare(two, other) is None
    for fact in ({"known": "recorded"}, {"split": "dev"}):
        assert compare(two, replace(one, facts=one.facts | fact)) is None
    turned = replace(one, states=one.states[::-1])
    assert compare(two, turned) == compare(two, one) is not None
    runs = [run_of("first", one), run_of("second", two), run_of("third", other)]
    beside = side_by_side(runs)
    (paired,) = beside["between"]
    assert paired["run"]["name"] == "second" and paired["interval"].n == 32
    assert beside["unlike"] == [
        f"third cannot be compared with first: other states: 1 of 72 showed something else; in "
        f"{one.states[0]['state_id']!r} n_seen is {seen + 1}, not {seen}."
    ]
    assert side_by_side(runs[::2])["between"] == []


def test_each_reason_against_a_comparison_is_said_with_its_values(seed_runs) -> None:
    one, two = (load_evaluation(folder / "evaluation.json") for folder in seed_runs)

    def said(other: Evaluation) -> str:
        (text,) = side_by_side([run_of("a", one), run_of("b", other)])["unlike"]
        return text.removeprefix("b cannot be compared with a: ")

    untuned = replace(two, frame=two.frame[two.frame["policy"] == "untouched"])
    assert said(untuned) == "it has no tuned policy, only untouched."
    dev = replace(two, facts=two.facts | {"split": "dev", "known": "recorded"})
    assert said(dev) == "split is 'dev', not 'eval'; known is 'recorded', not 'gold'."
    assert said(replace(two, facts=two.facts | {"primary": "reward"})).startswith(
        "the metric is 'reward', not 'discovery_rate'; "
    )
    fewer = replace(two, states=two.states[1:])
    assert said(fewer) == (
        "other states: it has 71 and the first run 72, of which 71 are the same; "
        f"{two.states[0]['state_id']!r} is in one alone."
    )


def test_each_reason_against_an_average_is_said_with_its_values(seed_runs) -> None:
    one, two = (load_evaluation(folder / "evaluation.json") for folder in seed_runs)

    def said(other: Evaluation, **parameters) -> list[str]:
        runs = [run_of("a", one, seed=7), run_of("b", other, seed=8, **parameters)]
        return side_by_side(runs)["not_averaged"]

    assert said(two) == []
    assert said(two, **{"grpo.group_size": 8, "lora.rank": 4}) == [
        "b is not averaged with a: lora.rank is 4, not 16; grpo.group_size is 8, not 4."
    ]
    dev = replace(two, facts=two.facts | {"split": "dev"})
    assert said(dev) == ["b is not averaged with a: split (as evaluated) is 'dev', not 'eval'."]
    untuned = replace(two, frame=two.frame[two.frame["policy"] == "untouched"])
    (text,) = said(untuned)
    assert text.endswith("; b has untouched.") and text.startswith("No tuned policy and baseline")


def test_the_page_says_why_runs_stand_alone(seed_runs, tmp_path: Path) -> None:
    for folder in seed_runs:
        shutil.copytree(folder, tmp_path / folder.name)
    path = tmp_path / seed_runs[1].name / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"split": "dev<b>"}))
    page = write_report(*(tmp_path / folder.name for folder in seed_runs), now=NOON)
    text = html.unescape(page.read_text(encoding="utf-8"))
    for verb in ("cannot be compared with seed7: split", "is not averaged with seed7: split"):
        assert f"seed8 {verb}" in text
    assert "is 'dev<b>', not 'eval'" in text and "dev<b>" not in page.read_text(encoding="utf-8")


def test_reward_values_must_agree_only_where_rewards_are_compared(seed_runs) -> None:
    one, two = (load_evaluation(folder / "evaluation.json") for folder in seed_runs)
    dearer = {"reward_values": one.facts["reward_values"] | {"local_new": 0.5}}
    assert compare(two, replace(one, facts=one.facts | dearer)) == compare(two, one)
    reward = {"primary": "reward"}
    two = replace(two, facts=two.facts | reward)
    assert compare(two, replace(one, facts=one.facts | reward)).n == 36
    assert compare(two, replace(one, facts=one.facts | reward | dearer)) is None


def test_the_difference_between_runs_is_that_of_their_questions() -> None:
    """q1: 1 - 0.5; q2: (1 + 0) / 2 - (0 + 1) / 2; q3 was judged under one of them only."""
    states = [{"state_id": s, "question_id": s[:2]} for s in ("q1a", "q2a", "q2b", "q3a")]
    facts = {"metrics": {"score": ["Score", "per state", True]}, "primary": "score"}

    def evaluation(policy: str, *scores: float | None) -> Evaluation:
        rows = [
            s | {"policy": policy, "score": v, "reward": v, "completion": ""}
            for s, v in zip(states, scores, strict=True)
        ]
        return Evaluation.of(rows, states, facts)

    found = compare(evaluation("tuned", 1, 1, 0, 1), evaluation("best", 0.5, 0, 1, None))
    assert (found.n, found.mean, found.non_zero) == (2, 0.25, 1)


def test_runs_without_evaluation_or_steps_have_a_page_that_says_so(tmp_path: Path) -> None:
    for name in ("a/new", "b/new"):
        (tmp_path / name).mkdir(parents=True)
    page = write_report(tmp_path / "a" / "new", tmp_path / "b" / "new", path=tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert "2 runs: a/new, b/new" in text and "None of the runs has been evaluated yet" in text
