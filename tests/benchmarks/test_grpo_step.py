"""benchmarks/grpo_step.py: the limit's formulas by hand, equal work for both, and a whole run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks import ours, peer_trl
from benchmarks.grpo_step import build_parser, chosen_workload, keep, main, schedule
from benchmarks.limit import (
    Rates,
    Shape,
    action_pairs,
    limit,
    phases,
    prompt_pairs,
    rows_used,
    total,
)
from benchmarks.machine import faster, machine, rates_from
from benchmarks.measure import Phases
from benchmarks.report import added_text, profile, result, side, text
from benchmarks.workload import (
    MODELS,
    PRESETS,
    Workload,
    load_tokenizer,
    make_prompts,
    prepare_model,
    reward,
)

ROOT = Path(__file__).resolve().parents[2]
# hidden 4, one layer, 2 heads on 1 key head of size 3, FFN 5, vocabulary 7; rank 1
SHAPE = Shape(hidden=4, layers=1, heads=2, key_heads=1, head_size=3, ffn=5, vocabulary=7)
WORK = Workload("tiny", prompt_tokens=3, action_tokens=2, actions=2, rank=1)
# q 4*6, k 4*3, v 4*3, o 6*4 = 72; gate, up, down 3 * 4*5 = 60; head 4*7
LAYER, HEAD = 132, 28
ADAPTER = 10 + 7 + 7 + 10  # rank 1: inputs + outputs of q, k, v, o
PAIR = 4 * 2 * 3  # two products of 2 operations, for 2 heads of size 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return prepare_model("tiny", tmp_path_factory.mktemp("model"))


def by_name(passes):
    return {phase.name: phase for phase in passes}


# ---- the limit


def test_parameters_of_a_small_shape_are_those_counted_by_hand():
    assert SHAPE.layer_parameters == LAYER
    assert SHAPE.head_parameters == HEAD
    assert SHAPE.adapter_parameters(1) == ADAPTER


def test_pairs_are_those_that_a_mask_lets_through():
    p, k, tokens = 5, 3, 4
    assert prompt_pairs(p) == int(torch.ones(p, p).tril().sum())
    own = sum(p + 1 + t for _ in range(k) for t in range(tokens))
    assert action_pairs(p, k, tokens) == own


def test_operations_of_every_phase_by_hand():
    """P 3, K 2, C 2: one token an action goes through the layers, so 5 rows and 6 + 2 * 4 pairs."""
    found = by_name(phases(SHAPE, WORK))
    assert found["prefill"].operations == 2 * (LAYER + ADAPTER) * 3 + PAIR * 6 + 2 * HEAD
    assert found["decoding"].operations == 2 * (LAYER + ADAPTER + HEAD) * 2 + PAIR * 8
    assert found["reference"].operations == 2 * LAYER * 5 + PAIR * 14 + 2 * HEAD * 4
    forward = 2 * (LAYER + ADAPTER) * 5 + PAIR * 14 + 2 * HEAD * 4
    assert found["policy forward"].operations == forward
    backward = 2 * LAYER * 5 + 4 * ADAPTER * 5 + 2 * PAIR * 14 + 2 * HEAD * 4
    assert found["backward"].operations == backward
    assert found["update"].operations == 0


def test_bytes_of_every_phase_by_hand():
    """float32: 4 bytes; a token's keys and values are 2 * 3 floats."""
    found = by_name(phases(SHAPE, WORK))
    weights = 4 * (LAYER + HEAD + ADAPTER)
    assert found["prefill"].moved == weights + 4 * 6 * 3
    assert found["decoding"].moved == weights + 4 * 6 * (3 + 2)
    assert found["reference"].moved == weights - 4 * ADAPTER
    assert found["policy forward"].moved == weights
    assert found["backward"].moved == weights + 4 * ADAPTER
    assert found["update"].moved == 7 * 4 * ADAPTER


def test_in_bfloat16_the_base_is_half_as_large_and_the_adapter_is_not():
    found = by_name(phases(SHAPE, replace(WORK, dtype="bfloat16")))
    assert found["policy forward"].moved == 2 * (LAYER + HEAD) + 4 * ADAPTER


def test_the_prompt_is_counted_once_a_pass_whatever_k_is():
    """A pass over K actions costs what the first one does and K - 1 times what one action adds."""
    costs = [
        by_name(phases(SHAPE, replace(WORK, actions=k)))["reference"].operations for k in (1, 2, 3)
    ]
    assert costs[2] - costs[1] == costs[1] - costs[0]
    added = 2 * LAYER + PAIR * 4 + 2 * HEAD * 2
    assert costs[1] - costs[0] == added < costs[0]


def test_decoding_is_one_pass_a_token_behind_the_first():
    passes = [p for p in phases(SHAPE, replace(WORK, action_tokens=5)) if p.name == "decoding"]
    assert len(passes) == 4
    assert passes[3].moved - passes[0].moved == 4 * 6 * 2 * 3  # three more tokens of two actions


def test_the_limit_of_a_phase_is_the_longer_of_computing_and_moving():
    passes, rows = phases(SHAPE, WORK), rows_used(WORK)
    matrix = {(kind, n): 1e3 for kind, counts in rows.items() for n in counts}
    operations = sum(phase.operations for phase in passes)
    moved = sum(phase.moved for phase in passes)
    update = 7 * 4 * ADAPTER
    computing = limit(passes, Rates(matrix, 1e12))
    assert total(computing) == pytest.approx(operations / 1e3 + update / 1e12)
    assert computing["prefill"]["moving_s"] == 0
    moving = limit(passes, Rates({key: 1e12 for key in matrix}, 1e3))
    assert total(moving) == pytest.approx(moved / 1e3)
    assert moving["decoding"]["moving_s"] == moving["decoding"]["seconds"]


def test_each_part_is_divided_by_the_rate_at_its_own_rows():
    passes = [p for p in phases(SHAPE, WORK) if p.name == "reference"]
    table = limit(passes, Rates({("layer", 5): 100.0, ("head", 4): 10.0}, 1e12))
    expected = (2 * LAYER * 5 + PAIR * 14) / 100 + 2 * HEAD * 4 / 10
    assert table["reference"]["seconds"] == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(path.stem for path in MODELS.glob("*.json")))
def test_a_shape_has_as_many_parameters_as_the_models_own_linears(name, tmp_path):
    config = Qwen3Config.from_json_file(str(MODELS / f"{name}.json"))
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape, head = Shape.of(tmp_path), model.get_output_embeddings()
    inner = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    assert shape.layer_parameters == sum(m.weight.numel() for m in inner)
    assert shape.head_parameters == head.weight.numel()


def test_the_small_model_is_the_one_that_the_targets_are_set_for():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            Qwen3Config.from_json_file(str(MODELS / "qwen3-16m.json"))
        )
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(15.3e6, rel=0.01)
    figures = {k: (w.prompt_tokens, w.action_tokens, w.actions) for k, w in PRESETS.items()}
    assert figures["small-1024"] == (1024, 64, 8)
    assert figures["small-2048"] == (2048, 64, 16)
    assert figures["smollm2"] == (512, 48, 8)
    assert PRESETS["smollm2"].dtype == "bfloat16"


# ---- equal work for both


def test_prompts_have_exactly_p_tokens_are_new_every_step_and_the_same_for_both(tiny):
    tokenizer = load_tokenizer(tiny)
    prompts = make_prompts(tokenizer, 20, seed=3, count=4)
    again = make_prompts(tokenizer, 20, seed=3, count=2)
    assert {len(tokenizer(text)["input_ids"]) for text in prompts} == {20}
    assert len(set(prompts)) == 4 and prompts[:2] == again
    assert not set(prompts) & set(make_prompts(tokenizer, 20, seed=4, count=4))


def test_the_reward_tells_texts_apart():
    assert len({reward(f"w{i} w{i + 1}") for i in range(20)}) > 10


def job(tiny, **changes):
    return {
        "workload": asdict(PRESETS["tiny"]),
        "model": str(tiny),
        "seed": 7,
        "warm_up": 1,
        "steps": 2,
        "profile": False,
    } | changes


def test_our_steps_are_timed_without_the_warm_up(tiny):
    answer = ours.measure(job(tiny))
    assert len(answer["steps"]) == len(answer["shares"]) == 2
    assert all(seconds > 0 for seconds in answer["steps"] + answer["steps_cpu"])
    assert answer["peak_mib"] >= answer["before_mib"] > 0
    assert answer["phases"] == [{}, {}]


def test_a_profiled_step_is_parted_into_the_limits_phases(tiny, monkeypatch):
    from rlkit.training import engines, gradients, grouping, sampling, trainer

    monkeypatch.setattr(gradients, "clip_gradients", gradients.clip_gradients)
    monkeypatch.setattr(trainer, "group_log_probs", trainer.group_log_probs)  # put back afterwards
    monkeypatch.setattr(grouping, "read_prompts", grouping.read_prompts)
    monkeypatch.setattr(engines, "sample_actions", engines.sample_actions)
    monkeypatch.setattr(sampling, "read_prompts", sampling.read_prompts)
    backward = torch.Tensor.backward
    answer = ours.measure(job(tiny, profile=True))
    names = set(by_name(phases(SHAPE, WORK)))
    for seconds, row in zip(answer["steps"], answer["phases"], strict=True):
        assert set(row) == names
        assert 0.5 * seconds < sum(row.values()) <= seconds
    assert torch.Tensor.backward is backward


def test_the_comparison_runs_with_the_best_of_trls_variants():
    assert build_parser().parse_args([]).variant == peer_trl.BEST in peer_trl.VARIANTS


def test_trainers_take_turns():
    assert schedule("trl", 2) == [("ours", 0), ("trl", 0), ("ours", 1), ("trl", 1)]
    assert schedule("none", 2) == [("ours", 0), ("ours", 1)]


# ---- what is handed on


def test_time_in_an_inner_phase_is_not_counted_to_the_outer_one(monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 5.0])
    monkeypatch.setattr("benchmarks.measure.time.perf_counter", lambda: next(clock))
    counted = Phases()
    counted.begin("decoding")
    counted.begin("prefill")
    counted.end()
    counted.end()
    assert counted.take() == {"decoding": 2.0, "prefill": 3.0}
    assert counted.take() == {}


def test_steps_of_all_processes_are_pooled_into_one_median():
    found = [
        {"steps": [1.0, 9.0], "steps_cpu": [1, 2], "peak_mib": 10.0, "before_mib": 5.0},
        {"steps": [2.0, 3.0, 4.0], "steps_cpu": [2], "peak_mib": 12.0, "before_mib": 6.0},
    ]
    made = side(found, WORK)
    assert (made["n"], made["median_s"], made["peak_mib"]) == (5, 3.0, 12.0)
    assert made["median_cpu_s"] == 2
    assert made["tokens_per_second"] == pytest.approx(2 * 2 / 3.0)


def test_a_profile_names_what_is_in_no_phase():
    answer = {"steps": [3.0, 5.0, 4.0], "phases": [{"a": 1.0}, {"a": 3.0}, {"a": 2.0}]}
    assert profile(answer) == {"a": 2.0, "other": 2.0}


def test_noise_only_slows_so_the_higher_rate_counts():
    rows = [{"matrices": "layer", "rows": 2, "gflops": g} for g in (3.0, 5.0)]
    a, b = ({"matrix": [row], "bandwidth_gbs": w} for row, w in zip(rows, (9.0, 8.0), strict=True))
    rates = rates_from(faster(a, b))
    assert rates.matrix == {("layer", 2): 5e9} and rates.bandwidth == 9e9


def example_result(median_s=2.0, actions=2, least=1.0):
    options = build_parser().parse_args(["--preset", "tiny", "--rounds", "1", "--steps", "1"])
    work = replace(WORK, actions=actions)
    row = {"seconds": least, "operations": 1, "bytes": 1, "moving_s": 0.0}
    fixed = {"steps_cpu": [1.0], "before_mib": 5.0, "settings": {}}
    answers = {
        "ours": [{"steps": [median_s], "peak_mib": 10.0, **fixed}],
        "trl": [{"steps": [3 * median_s], "peak_mib": 40.0, **fixed}],
    }
    return result(options, work, answers, {}, {"prefill": row})


def test_the_result_states_ratio_memory_and_distance():
    made = example_result()
    assert (made["times_faster"], made["memory_share"], made["distance"]) == (3.0, 0.25, 2.0)
    shown = text(made)
    assert "3.00 x faster" in shown and "0.25 of it" in shown and "2.00 times as long" in shown


def test_a_result_names_no_folder_and_no_host():
    assert set(machine()) == {"cpu", "cores", "flags"}
    assert str(ROOT) not in json.dumps(example_result())


def test_more_actions_are_held_against_what_the_limit_adds():
    assert "2.50 times what it must" in added_text(
        example_result(2.0, 2, least=1.0), example_result(7.0, 4, least=3.0)
    )


@pytest.mark.parametrize(
    "flags",
    [
        ["--actions", "4"],
        ["--steps", "2", "--rounds", "2"],
        ["--threads", "2"],
        ["--peer", "none"],
        ["--variant", "static cache"],
        ["--preset", "tiny"],
    ],
)
def test_a_quick_look_or_another_workload_overwrites_no_kept_result(flags, monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.grpo_step.RESULTS", tmp_path)
    options = build_parser().parse_args(flags)
    assert keep({}, "small-1024", options, chosen_workload(options)) is None
    plain = build_parser().parse_args([])
    assert keep({}, "small-1024", plain, chosen_workload(plain)).is_file()


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--actions", "1"], "no whole number of at least 2"),
        (["--preset", "large"], "invalid choice: 'large'"),
        (["--added", "nothing", "small-1024"], "there is no result 'nothing'"),
    ],
)
def test_bad_flags_are_said_in_words(flags, words, capsys):
    with pytest.raises(SystemExit):
        main(flags)
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_compares_both_trainers_in_processes_of_their_own(tmp_path):
    output = tmp_path / "result.json"
    flags = "--peer trl --preset tiny --rounds 1 --steps 1 --warm-up 0 --tries 2".split()
    done = subprocess.run(
        [sys.executable, "benchmarks/grpo_step.py", *flags, "--output", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(output.read_text(encoding="utf-8"))
    assert made == json.loads(done.stdout.splitlines()[-1])
    assert made["ours"]["n"] == made["trl"]["n"] == 1
    assert made["times_faster"] > 0 and made["limit"]["seconds"] > 0
    assert "step, median s" in done.stdout
