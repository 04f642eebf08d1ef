"""Judgements of memory, disk, prompts, time and steps, on small cases worked out by hand."""

from __future__ import annotations

import pytest

from rlkit.doctor import Finding, line_of
from rlkit.doctor.needs import judge_disk, judge_memory, judge_peak, still_to_come
from rlkit.doctor.step import judge_prompts, judge_step, judge_time
from rlkit.training.trial import Trial

GIB = 2**30
SOUND = [
    {"state_id": s, "ended": True, "reward": r, "text": f"{s}{r}", "invalid": 0}
    for s in "ab" for r in (0.0, 1.0)
]  # fmt: skip


def judged(warmed: bool = True, temperature: float = 1.0, **changes) -> dict[str, Finding]:
    values = {
        "rows": SOUND, "gradients": {"x.lora_B": "ok"}, "off_ratio": 0.0, "off_reference": 0.0,
        "moved": True, "seconds": 1.0,
    }  # fmt: skip
    return {f.subject: f for f in judge_step(Trial(**values | changes), warmed=warmed,
                                           temperature=temperature)}  # fmt: skip


def test_a_sound_step_is_green_throughout():
    assert {finding.level for finding in judged().values()} == {"ok"}
    assert judged(off_reference=None)["KL"].text == "no reference (grpo.kl_penalty is 0)"


@pytest.mark.parametrize(
    ("subject", "change", "level", "said"),
    [
        ("ratio", {"off_ratio": 1e-5}, "warn", "does not repeat itself to the last bit"),
        ("ratio", {"off_ratio": 0.3}, "fail", "has ratios up to 0.3 from 1"),
        ("KL", {"off_reference": 0.02}, "fail", "differ by up to 0.02 nat before any training"),
        ("gradients", {"gradients": {"x": "not finite"}}, "fail", "1 of 1 tensors have a gradient"),
        ("gradients", {"gradients": {"x": "ok", "y": "zero"}}, "fail", "gradient of exactly 0"),
        ("gradients", {"gradients": {"x": "waits"}}, "fail", "no tensor of the adapter"),
        ("gradients", {"moved": False}, "fail", "the optimiser moved nothing"),
    ],
)
def test_what_is_not_exact_or_does_not_learn_is_told(subject, change, level, said):
    found = judged(**change)[subject]
    assert found.level == level and said in found.text


def test_gradients_of_a_saturated_softmax_are_laid_to_the_temperature():
    trial = {"gradients": {"x.lora_B": "zero"}}
    assert "lora.target_modules" in judged(**trial)["gradients"].todo
    found = judged(temperature=1e-4, **trial)["gradients"]
    assert found.level == "fail" and found.todo.startswith("raise grpo.temperature: at 0.0001 all")
    assert judged(temperature=1e-4)["gradients"].todo == ""


def test_actions_that_cannot_end_are_red_whatever_a_warm_start_teaches():
    level, text, todo = judge_prompts([10], 1, 100, least=6)
    assert (level, "shortest action with its end token has 6 tokens" in text) == ("fail", True)
    assert todo == "raise grpo.max_new_tokens: no warm start can mend that"
    assert judge_prompts([10], 6, 100, least=6)[0] == "ok"


def test_what_a_warm_start_may_put_right_is_amber_until_it_is_there():
    cut = [row | {"ended": False} for row in SOUND]
    assert judged(rows=cut)["ends"].level == "fail"
    found = judged(warmed=False, rows=cut)["ends"]
    assert found.level == "warn" and found.text.endswith(", without the warm start")
    assert found.todo.startswith("the run makes a warm start first: check again")


def test_one_reward_everywhere_is_told_where_no_component_says_whether_it_is_the_best():
    found = judged(rows=[row | {"reward": 0.5} for row in SOUND])
    assert (found["reward"].level, found["reward"].text) == (
        "warn", "every action has the reward 0.5"
    )  # fmt: skip
    assert "0 of 2 groups" in found["groups"].text


def test_prompts_are_counted_with_the_action_behind_them():
    assert judge_prompts([50, 54], 10, 64)[0] == "ok"
    assert judge_prompts([50, 9999], 10, None)[0] == "ok"
    level, text, _ = judge_prompts([50, 55, 60], 10, 64)
    assert level == "fail" and text == (
        "2 of 3 prompts are longer than the model can read: the longest has 60 tokens, with 10 "
        "for the action, and the model reads 64"
    )


def test_no_prompt_is_a_failure_in_words():
    assert judge_prompts([], 10, 64)[0] == "fail"


def test_hours_are_seconds_a_group_times_batch_times_steps():
    level, text, _, facts = judge_time(9.0, 1000, 2)
    assert (level, facts) == ("ok", {"seconds_per_step": 18.0, "steps": 1000, "hours": 5.0})
    assert text == (
        "18 s a step, so about 5.0 hours for 1000 steps, evaluations and saving apart; a first "
        "step is a cold one, so that later ones may be faster"
    )
    assert judge_time(90.0, 1000, 1)[0] == "warn"  # 25 hours


def test_memory_and_disk_are_red_where_the_estimate_is_above_what_is_free():
    terms = {"weights": 6 * GIB, "activations": 2 * GIB}
    assert judge_memory(terms, 11 * GIB, "cpu")[:2] == (
        "ok", "about 8.0 GiB of cpu memory (weights 6.0 GiB, activations 2.0 GiB); free: 11.0 GiB"
    )  # fmt: skip
    assert judge_memory(terms, 9 * GIB, "cpu")[0] == "warn"
    level, text, todo, facts = judge_memory(terms, 7 * GIB, "cpu")
    assert level == "fail" and text.startswith("too little memory: ") and "load_in_4bit" in todo
    assert facts == {"terms": terms, "free": 7 * GIB}
    assert judge_disk({"checkpoints": GIB}, 10 * GIB)[0] == "ok"
    assert judge_disk({"checkpoints": 9 * GIB}, 10 * GIB)[0] == "warn"
    assert judge_disk({"checkpoints": 11 * GIB}, 10 * GIB)[0] == "fail"
    assert judge_disk({}, 2**20)[0] == "fail"  # full, whatever the run leaves


def test_a_model_that_is_not_here_needs_room_for_its_download():
    level, text, *_ = judge_disk({}, GIB, here=False)
    assert (level, text) == (
        "warn", "1.0 GiB free; no estimate; the model's download needs room, too"
    )  # fmt: skip
    level, text, *_ = judge_disk({"rollouts": GIB}, 10 * GIB, here=False)
    assert level == "warn" and text.endswith("10.0 GiB free; the model's download needs room, too")


def test_a_half_done_run_is_charged_for_what_it_has_still_to_write(tmp_path):
    for name, count in {"lora_checkpoints/checkpoint-1/a": 300, "sft/adapter/b": 70}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x" * count)
    terms = {"checkpoints": 1000, "warm start": 50, "rollouts": 20}
    assert still_to_come(terms, tmp_path) == {"checkpoints": 700, "warm start": 0, "rollouts": 20}
    assert still_to_come(terms, tmp_path / "new") == terms


def test_what_a_step_took_stands_beside_the_estimate_without_what_torch_does_not_count():
    terms = {"weights": 6 * GIB, "logits": 2 * GIB, "libraries": GIB}
    level, text, _, facts = judge_peak(5 * GIB, terms)
    assert level == "ok" and facts == {"peak": 5 * GIB, "estimate": 8 * GIB}
    assert text == "the step took 5.0 GiB at its largest; the estimate for long prompts: 8.0 GiB"
    assert judge_peak(11 * GIB, terms)[0] == "warn"


def test_a_line_is_coloured_only_where_asked_for(monkeypatch):
    one = Finding("fail", "disk", "the disk is full", "free space")
    plain = "fail  disk        the disk is full -> free space"
    assert line_of(one) == plain
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert line_of(one, colour=True) == plain.replace("fail ", "\x1b[31mfail \x1b[0m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert line_of(one, colour=True) == plain
