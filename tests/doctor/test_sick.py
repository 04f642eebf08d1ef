"""Ten kinds of sick set-up, each found and named in plain words, with what to do."""

from __future__ import annotations

import json
import random
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from rlkit.config import RunConfig
from rlkit.doctor import Finding, full_check, quick_check
from rlkit.doctor.data import splits
from rlkit.doctor.language import language
from rlkit.doctor.look import Look
from rlkit.doctor.needs import disk
from rlkit.doctor.setup import model as model_check
from rlkit.doctor.step import judge_step
from rlkit.library.bm25 import RankBM25Backend
from rlkit.library.corpus import Corpus, Document, Library
from rlkit.practice.task import Score
from rlkit.training.adapters import save_lora_checkpoint
from rlkit.training.fingerprint import base_fingerprint
from rlkit.training.models import byte_tokenizer
from rlkit.training.trial import try_step
from tests.rounds.recorded import write_run
from tests.training.conftest import LetterTask, tiny_base, tiny_config, tiny_trainer, with_lora

PARAMS = Path(__file__).resolve().parents[2] / "params" / "debug.yaml"


def looked(tmp_path: Path, *changes: str) -> Look:
    return Look(RunConfig.load(PARAMS, [f"output_root={tmp_path}", *changes]))


def after_a_step(tmp_path: Path, task=None, model=None, **grpo) -> dict[str, Finding]:
    """subject -> finding of a real step of the two-layer model on two states."""
    task = task or LetterTask()
    trainer = tiny_trainer(tiny_config(tmp_path, **grpo), task, model, run=False)
    found = judge_step(try_step(trainer, task.states("train")[:2]))
    return {finding.subject: finding for finding in found}


def test_a_sound_step_is_green_but_for_what_a_random_model_cannot_do(tmp_path):
    found = after_a_step(tmp_path)
    assert {s for s, finding in found.items() if finding.level != "ok"} == {"ends"}
    assert "8 (A of LoRA) have none as long as their B is 0" in found["gradients"].text
    assert found["gradients"].facts == {"ok": 8, "waits": 8}


def test_a_missing_gradient(tmp_path):
    model = with_lora(tiny_base(), spread=0.0)
    name, module = next((n, m) for n, m in model.named_modules() if n.endswith("lora_B.default"))
    cut = module.register_forward_hook(lambda module, given, out: out.detach())
    level, _, text, todo, facts = after_a_step(tmp_path, model=model)["gradients"]
    assert level == "fail" and facts == {"missing": 2, "ok": 7, "waits": 7}
    first = name.replace("lora_B", "lora_A")
    assert text == (
        f"2 of 16 tensors have no gradient, first {first}.weight; they would learn nothing"
    )
    assert "set model.load_in_4bit to false" in todo
    cut.remove()
    model.get_parameter(f"{name}.weight").requires_grad_(False)
    level, _, text, *_ = after_a_step(tmp_path, model=model)["gradients"]
    assert level == "fail" and text.startswith(f"1 of 16 tensors are frozen, first {name}.weight")


def test_gradients_are_told_by_the_likelihood_where_every_action_is_cut_and_left_out(tmp_path):
    found = after_a_step(tmp_path, mask_truncated=True)
    assert found["ends"].level == "fail"
    assert found["gradients"].level == "ok" and found["gradients"].facts == {"ok": 8, "waits": 8}


def test_no_end_token(tmp_path):
    level, _, text, todo, _ = after_a_step(tmp_path)["ends"]
    assert level == "fail" and text == (
        "no end token in most actions: 0 of 8 actions end with an end token"
    )
    assert "make a warm start" in todo and "grpo.max_new_tokens" in todo


def test_no_variance(tmp_path):
    found = after_a_step(tmp_path, LetterTask(reward=lambda k, text: 0.0))
    level, _, text, todo, _ = found["groups"]
    assert (level, text) == (
        "warn",
        "no variance: 0 of 2 groups have any variance of reward, so this step taught nothing",
    )
    assert "raise grpo.group_size (it is 4)" in todo and "warm start" in todo
    assert found["gradients"].level == "ok"  # told by the actions' likelihood instead


def chinese_library() -> Library:
    draw = random.Random(7)
    signs = [chr(code) for code in range(0x4E00, 0x4E00 + 3000)]
    texts = ["，".join("".join(draw.sample(signs, 12)) for _ in range(6)) for _ in range(60)]
    documents = [Document(f"d{i}", text[:4], text) for i, text in enumerate(texts)]
    return Library(Corpus(documents), ())


def split_at_blanks(corpus, search_config) -> RankBM25Backend:
    return RankBM25Backend(corpus, tokenizer=lambda text: text.lower().replace("，", " ").split())


def test_the_wrong_tokeniser_for_the_language(tmp_path):
    sick = looked(tmp_path, f"search.backend={__name__}:split_at_blanks")
    well = looked(tmp_path)
    sick.library = well.library = chinese_library()
    level, text, todo, _ = language(sick)
    assert level == "fail" and text.startswith("the tokeniser of search.backend ")
    assert "is wrong for Chinese text: only 0 of 40 passages" in text and "blanks" in text
    assert "bm25s" in todo
    assert language(well)[:2] == (
        "ok", "40 of 40 passages (Chinese) are found by their own rarest words"
    )  # fmt: skip


def test_leakage(tmp_path):
    """A new split keeps equal texts together; one that is there may not have."""
    write_run(tmp_path / "rounds", "q1", question="Who wrote Emma?")
    write_run(tmp_path / "rounds", "q2", question="Who  wrote emma?")
    look = looked(tmp_path, f"data.rounds_path={tmp_path}/rounds")
    ids = {part: [] for part in ("train", "dev", "eval")}
    for state in look.recorded.states:
        ids["train" if state.question_id == "q1" else "eval"].append(state.state_id)
    look.folder.mkdir()
    (look.folder / "splits.json").write_text(json.dumps({"schema": 1, "states": ids}))
    level, text, todo = splits(look)
    assert level == "fail"
    assert "leakage: 1 questions stand in train and in eval, such as 'Who wrote " in text
    assert "keep one of each" in todo


def test_a_full_disk(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(2**40, 2**40 - 2**20, 2**20))
    level, text, todo, facts = disk(looked(tmp_path))
    assert (level, facts["free"]) == ("fail", 2**20)
    assert text.startswith("the disk is full: ") and "1 MiB free" in text and "free space" in todo


def test_an_unreachable_checker(tmp_path):
    look = looked(tmp_path, "checker.kind=llm", "model.vllm_base_url=http://127.0.0.1:9/v1")
    found = {finding.subject: finding for finding in quick_check(look.config)}
    assert found["live agents"].level == "warn"
    assert "http://127.0.0.1:9/v1" in found["live agents"].text
    assert "python -m rlkit serve" in found["live agents"].text


def test_another_base(tmp_path):
    save_lora_checkpoint(with_lora(tiny_base(hidden_size=48)), tmp_path / "other")
    level, text, *_ = model_check(looked(tmp_path, f"model.init_adapter={tmp_path}/other"))
    assert level == "fail" and text.startswith("base mismatch: the adapter at ")
    assert "does not fit 'debug'" in text and "48 against 32" in text
    save_lora_checkpoint(with_lora(tiny_base()), tmp_path / "like")
    settings = tmp_path / "like" / "adapter_config.json"

    def found(name: object) -> tuple:
        said = json.loads(settings.read_text()) | {"base_model_name_or_path": name}
        settings.write_text(json.dumps(said))
        return model_check(looked(tmp_path, f"model.init_adapter={tmp_path}/like"))

    assert found(None)[0] == "ok"  # nothing is said, so nothing contradicts
    level, text, todo = found("\x1b[2J" + "x" * 200)
    assert level == "warn" and "\x1b" not in text + todo and "x" * 60 not in text + todo
    level, text, todo = found("someone/else")
    assert level == "warn" and "was trained on 'someone/else', and the base is 'debug'" in text
    assert "set model.base_model_path to 'someone/else'" in todo
    proof = {"schema": 2, "name": "debug", **base_fingerprint("debug")}
    (tmp_path / "like" / "base.json").write_text(json.dumps(proof))
    assert found("someone/else")[0] == "ok"  # proved by hash, whatever the name
    proof["weights"] = "0" * 64
    (tmp_path / "like" / "base.json").write_text(json.dumps(proof))
    level, text, _ = found("debug")
    assert level == "fail" and text.startswith("base mismatch: ") and "its weights differ" in text
    (tmp_path / "like" / "adapter_model.safetensors").write_bytes(b"no weights")
    level, text, _ = found("debug")
    assert level == "fail" and " is damaged (" in text and "mismatch" not in text


def test_prompts_longer_than_the_model(tmp_path):
    tiny_base(max_position_embeddings=64).save_pretrained(tmp_path / "short")
    byte_tokenizer().save_pretrained(tmp_path / "short")
    look = looked(tmp_path, f"model.base_model_path={tmp_path}/short", "data.max_questions=8")
    found = {finding.subject: finding for finding in full_check(look.config)}
    assert found["model"].level == "warn" and "the model reads 64 in all" in found["model"].text
    level, _, text, todo, _ = found["prompts"]
    assert level == "fail" and "prompts are longer than the model can read" in text
    assert "the model reads 64" in text and "executor.max_prompt_tokens" in todo
    assert "ratio" not in found  # there was nothing to take a step on


class SolvedTask(LetterTask):
    """All that there is to reach is reached by whatever is written."""

    def score(self, state, completions) -> list[Score]:
        return [Score(1.0, {"accuracy": 1.0}) for _ in completions]


def test_a_reward_that_saturates(tmp_path):
    found = after_a_step(tmp_path, SolvedTask())
    level, _, text, todo, _ = found["reward"]
    assert level == "warn"
    assert text.startswith("the reward saturates: all 8 actions are at the maximum")
    assert "harder questions" in todo
    assert found["groups"].todo == "all is reached already: take harder questions"


@pytest.mark.parametrize("how", ["invalid", "unjudged", "same"])
def test_why_nothing_varies_is_told_by_the_actions(tmp_path, how):
    class Sick(LetterTask):
        def score(self, state, completions):
            reward = None if how == "unjudged" else -2.1
            return [Score(reward, {"invalid": int(how == "invalid")}) for _ in completions]

    found = after_a_step(tmp_path, Sick(), temperature=1e-3 if how == "same" else 1.0)
    said = {
        "invalid": "most actions are invalid: make a warm start",
        "unjudged": "most actions could not be judged",
        "same": "all actions of a group are the same: raise grpo.temperature",
    }
    assert said[how] in found["groups"].todo
