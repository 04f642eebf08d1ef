"""Which checkpoints are compared, under which names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rlkit.config import RunConfig
from rlkit.errors import AgentError, DataError, RunError
from rlkit.results import compare, players
from rlkit.results.answer_cache import DECODING
from rlkit.results.chosen import chosen_folders
from rlkit.results.compare import _keep, _played, evaluate_run
from rlkit.results.evaluate import evaluate_policies, load_evaluation
from rlkit.results.model_content import model_content
from rlkit.results.players import build_policies
from rlkit.run import Run
from rlkit.training.adapters import save_lora_checkpoint
from rlkit.training.checkpointing import write_checkpoint
from rlkit.training.precision import Precision
from rlkit.training.stages import load_model
from tests.agents.fault_server import Answer, FaultServer


def test_checkpoints_of_the_same_step_from_other_runs_are_all_kept(tmp_path: Path) -> None:
    runs = ("first", "second", "third.again")
    folders = [tmp_path / run / "lora_checkpoints" / "checkpoint-10" for run in runs]
    run = SimpleNamespace(checkpoints_folder=tmp_path)
    assert chosen_folders(run, False, folders, print) == {
        "tuned": folders[0],
        "checkpoint-10": folders[1],
        "third_again-checkpoint-10": folders[2],
    }


def test_every_checkpoint_has_a_name_of_its_own_and_none_takes_a_baselines(tmp_path: Path) -> None:
    parents = [tmp_path / f"{n}" / "arith" / "lora_checkpoints" for n in range(4)]
    folders = [parent / "checkpoint-10" for parent in parents] + [
        Path("/untouched"),
        Path("/oracle"),
    ]
    found = chosen_folders(SimpleNamespace(checkpoints_folder=tmp_path), False, folders, print)
    assert dict(zip(found, folders, strict=True)) == found
    assert list(found) == [
        "tuned", "checkpoint-10", "arith-checkpoint-10", "arith-checkpoint-10-2",
        "-untouched", "-oracle",
    ]  # fmt: skip


def _save_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"weights")


def checkpoints_with_a_best(run: Path) -> SimpleNamespace:
    folder = run / "lora_checkpoints"
    for step in (4, 8):
        state = {"best_step": 4}
        write_checkpoint(
            folder / f"checkpoint-{step}", _save_weights, state, {}, {"x": torch.ones(1)}
        )
    return SimpleNamespace(folder=run, checkpoints_folder=folder)


def test_the_best_checkpoint_on_dev_can_be_asked_for_by_a_word_or_a_parameter(
    tmp_path: Path,
) -> None:
    run, said = checkpoints_with_a_best(tmp_path / "run"), []
    best, newest = (run.checkpoints_folder / f"checkpoint-{step}" for step in (4, 8))
    assert chosen_folders(run, False, [], print) == {"tuned": newest}
    assert chosen_folders(run, False, [], said.append, "best") == {"tuned": best}
    assert said == ["evaluation: the best checkpoint is checkpoint-4"]
    both = chosen_folders(run, False, [Path("best"), "newest"], print)
    assert both == {"tuned": best, "checkpoint-8": newest}
    sha256 = hashlib.sha256(b"weights").hexdigest()
    said = {"folder": "lora_checkpoints/checkpoint-4", "step": 4, "sha256": sha256}
    assert _played(best, run) == said
    other = SimpleNamespace(folder=tmp_path / "other", checkpoints_folder=tmp_path / "other")
    assert _played(best, other)["folder"] == "../run/lora_checkpoints/checkpoint-4"
    with pytest.raises(RunError, match="has no checkpoint yet, so none is the best"):
        chosen_folders(other, False, ["best"], print)


def test_an_evaluation_of_some_policies_joins_what_is_there_of_the_same_states(
    tmp_path: Path,
) -> None:
    def evaluated(policies: str, *changes: str) -> list[str]:
        policies = f"evaluation.policies=[{policies}]"
        changes = (f"output_root={tmp_path}", policies, "evaluation.max_states=4", *changes)
        config = RunConfig.load("params/debug.yaml", changes)
        return evaluate_run(config, baseline=True, log=said.append).policies

    said: list[str] = []
    path = tmp_path / "debug" / "evaluation.json"
    assert evaluated("raw_question, oracle") == ["raw_question", "oracle"]
    before = load_evaluation(path)
    assert evaluated("raw_question, scripted") == ["raw_question", "scripted"]
    joined = load_evaluation(path)
    assert joined.policies == ["raw_question", "scripted", "oracle"] and len(joined.frame) == 12
    for policy in before.policies:
        assert joined.question_values(policy, "reward") == before.question_values(policy, "reward")
    assert said[-1].endswith("(from before: oracle)")
    assert joined.facts["judge"] == "gold" and len(joined.facts["corpus_fingerprint"]) == 64
    # a file of before, which does not tell its judge, joins with a word; one of another does not
    data = json.loads(path.read_text())
    for judge, stays in ((None, True), ("llm toy, prompt 1", False)):
        path.write_text(json.dumps({k: v for k, v in (data | {"judge": judge}).items() if v}))
        said.clear()
        evaluated("oracle")
        assert (load_evaluation(path).policies == joined.policies) == stays
        assert any("does not record its judge; it is taken" in line for line in said) == stays
    path.with_name("evaluation-1.json").unlink()
    # other states: the file is moved aside, whole
    whole = path.read_bytes()
    evaluated("raw_question", "evaluation.max_states=3")
    assert path.with_name("evaluation-1.json").read_bytes() == whole
    assert any("is now evaluation-1.json" in line for line in said)
    assert load_evaluation(path).policies == ["raw_question"]
    path.write_text("{}")
    evaluated("oracle", "evaluation.max_states=3")
    assert json.loads(path.with_name("evaluation-2.json").read_text()) == {}
    assert load_evaluation(path).policies == ["oracle"]


def test_samples_that_do_not_hold_any_more_are_dropped_with_a_word(
    tmp_path: Path, toy_task: Any, toy_policies: Any, toy_states: Any
) -> None:
    class Sampler:
        write = staticmethod(toy_policies["tuned"].write)

        def sample_batch(self, states: Any, count: int) -> list[list[str]]:
            return [["<clue>sampled</clue>"] * count for _ in states]

    said: list[str] = []
    run = SimpleNamespace(folder=tmp_path, evaluation_path=tmp_path / "evaluation.json")

    def kept(policy: Any, samples: int = 0) -> int:
        found = evaluate_policies(toy_task, {"tuned": policy}, toy_states[:2], samples=samples)
        _keep(found, run, said.append)
        return len(load_evaluation(run.evaluation_path).samples)

    assert kept(Sampler(), samples=3) == 6 and kept(Sampler()) == 6
    assert not any("dropped" in line for line in said)
    assert kept(toy_policies["untouched"]) == 0
    assert any("samples of tuned are dropped" in line for line in said)


def test_states_whose_record_was_edited_do_not_stand_beside_those_of_before(
    tmp_path: Path, toy_task: Any, toy_policies: Any, toy_states: Any
) -> None:
    """The states' ids and what they miss stay the same; what is asked in them does not."""
    said: list[str] = []
    run = SimpleNamespace(folder=tmp_path, evaluation_path=tmp_path / "evaluation.json")

    def keep(policy: str, words: str | None) -> list[str]:
        if words is not None:
            toy_task.prompt = lambda state: [{"role": "user", "content": words}]
        elif hasattr(toy_task, "prompt"):
            del toy_task.prompt
        found = evaluate_policies(toy_task, {policy: toy_policies[policy]}, toy_states[:2])
        _keep(found, run, said.append)
        return load_evaluation(run.evaluation_path).policies

    keep("oracle", None)
    assert keep("tuned", "as it was") == ["tuned", "oracle"]  # nobody knows of the oracle's
    assert any("does not record its prompts" in line for line in said)
    keep("tuned", "as it was")
    assert keep("untouched", "as it was") == ["tuned", "untouched", "oracle"]
    assert keep("untouched", "CHANGED") == ["untouched"]
    assert "other states, prompts or rewards; it is now evaluation-1.json" in said[-2]


def test_samples_of_a_checkpoint_that_was_moved_stay(toy_evaluation: Any) -> None:
    def played(folder: str, sha256: str | None, samples: bool = False) -> Any:
        told = {"folder": folder, "step": 5, "precision": "float32"}
        told |= {"sha256": sha256} if sha256 else {}
        facts = toy_evaluation.facts | {"adapters": {"tuned": told}}
        drawn = toy_evaluation.frame[toy_evaluation.frame["policy"] == "tuned"].head(3)
        drawn = drawn.assign(sample=0)[toy_evaluation.samples.columns]
        return replace(toy_evaluation, facts=facts, samples=drawn if samples else drawn.head(0))

    for before, now, kept in (
        (("a", "0"), ("b", "0"), 3),
        (("a", "0"), ("a", "1"), 0),
        (("a", None), ("a", "0"), 3),
        (("a", None), ("b", "0"), 0),
    ):
        joined = played(*now).joined(played(*before, samples=True))
        assert len(joined.samples) == kept, (before, now)


def test_a_checkpoint_that_is_named_and_damaged_is_not_compared(tmp_path: Path) -> None:
    run = checkpoints_with_a_best(tmp_path)
    named = run.checkpoints_folder / "checkpoint-4"
    assert chosen_folders(run, False, [named], print) == {"tuned": named}
    (named / "pending.safetensors").write_bytes(b"changed")
    with pytest.raises(DataError, match="pending.safetensors is missing or damaged"):
        chosen_folders(run, False, [named], print)


def test_a_run_without_a_checkpoint_says_that_no_tuned_executor_is_compared(tmp_path: Path) -> None:
    changes = [f"output_root={tmp_path}", "evaluation.policies=[raw_question, tuned, oracle]"]
    said: list[str] = []
    config = RunConfig.load("params/debug.yaml", changes)
    assert evaluate_run(config, log=said.append).policies == ["raw_question", "oracle"]
    assert any("no checkpoint yet" in line for line in said)


def test_all_checkpoints_of_a_run_can_be_compared_and_none_counts_twice(tmp_path: Path) -> None:
    run, said = checkpoints_with_a_best(tmp_path / "run"), []
    best, newest = (run.checkpoints_folder / f"checkpoint-{step}" for step in (4, 8))
    assert chosen_folders(run, False, ["all"], print) == {"tuned": newest, "checkpoint-4": best}
    assert chosen_folders(run, False, ["best", "all", best], print) == {
        "tuned": best,
        "checkpoint-8": newest,
    }
    (best / "trainer_state.json").write_text("{}")
    assert chosen_folders(run, False, ["all"], said.append) == {"tuned": newest}
    assert said[0].startswith("evaluation: checkpoint-4 is passed over: ")
    other = SimpleNamespace(folder=tmp_path / "other", checkpoints_folder=tmp_path / "other")
    with pytest.raises(RunError, match="none is the all"):
        chosen_folders(other, False, ["all"], print)


def test_a_whole_model_keeps_its_name_and_models_of_the_parameters_come_after_the_newest(
    tmp_path: Path,
) -> None:
    run = checkpoints_with_a_best(tmp_path / "run")
    merged = tmp_path / "debug-grpo-step4"
    merged.mkdir()
    (merged / "config.json").write_text("{}")
    best, newest = (run.checkpoints_folder / f"checkpoint-{step}" for step in (4, 8))
    assert chosen_folders(run, False, [merged, best], print) == {
        "debug-grpo-step4": merged,
        "tuned": best,
    }
    models = [str(merged), "all"]
    found = chosen_folders(run, False, [], print, "newest", models)
    assert list(found) == ["tuned", "debug-grpo-step4", "checkpoint-4"]
    assert chosen_folders(run, True, [], print, "newest", models) == {}
    assert list(chosen_folders(run, False, [], print, None, models[:1])) == ["debug-grpo-step4"]


def test_without_tuned_among_the_policies_no_listed_checkpoint_takes_its_name(
    tmp_path: Path,
) -> None:
    run = checkpoints_with_a_best(tmp_path / "run")
    best = run.checkpoints_folder / "checkpoint-4"
    assert chosen_folders(run, False, [], print, None, ["best"]) == {"checkpoint-4": best}
    assert chosen_folders(run, False, [best], print, None) == {"tuned": best}  # asked for by hand


@pytest.fixture()
def with_models(tmp_path: Path) -> tuple[RunConfig, Path, Path, Path]:
    """A run's config, two adapters of one base that write differently, and one of them merged."""
    changes = [f"output_root={tmp_path}", "evaluation.policies=[untouched, tuned, oracle]"]
    config = RunConfig.load("params/debug.yaml", changes)
    model, tokenizer = load_model(config, log=lambda line: None)
    folders = [tmp_path / "adapters" / name for name in ("checkpoint-1", "checkpoint-2")]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(weight, std=2.0)
        save_lora_checkpoint(model, folder)
    merged = tmp_path / "merged-2"
    model.merge_and_unload().save_pretrained(merged)
    tokenizer.save_pretrained(merged)
    return config, *folders, merged


@pytest.fixture()
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was loaded: `base`, or the folder of a whole model."""
    seen: list[str] = []
    load, whole = players.load_model, players.load_base_model

    def counted(config: RunConfig, *rest: object) -> object:
        seen.append("base")
        return load(config, *rest)

    def counted_whole(folder: Path, *rest: object, **options: object) -> object:
        seen.append(folder.name)
        return whole(folder, *rest, **options)

    monkeypatch.setattr(players, "load_model", counted)
    monkeypatch.setattr(players, "load_base_model", counted_whole)
    return seen


def test_a_tuned_collector_is_another_one_after_more_training(
    with_models: tuple[RunConfig, Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, first, second, _ = with_models
    called = []
    for folder in (first, second, first):
        monkeypatch.setattr(compare, "chosen_folders", lambda *_, f=folder: {"tuned": f})
        wanted = ["untouched", "tuned"]
        called.append([*compare.collecting_policies(config, Run.open(config), wanted)])
    assert called[0] == called[2] and [names[0] for names in called] == ["untouched"] * 3
    assert [names[1].split()[:2] for names in called[:2]] == [
        ["tuned", "checkpoint-1"],
        ["tuned", "checkpoint-2"],
    ]


def test_a_checkpoint_of_all_weights_is_known_by_its_content(tmp_path: Path) -> None:
    folder, known = tmp_path / "checkpoint-1", set()
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for value in (1.0, 2.0):
        save_file({"weight": torch.full((4,), value)}, folder / "model.safetensors")
        known.add(players.identity("tuned", object(), folder))
    assert len(known) == 2 and all(name.startswith("tuned checkpoint-1 ") for name in known)


def test_a_second_evaluation_loads_no_model_and_a_new_checkpoint_costs_only_itself(
    with_models: tuple[RunConfig, Path, Path, Path], loads: list[str]
) -> None:
    config, first, second, _ = with_models
    one = evaluate_run(config, baseline=True, checkpoints=[first], log=print)
    assert loads == ["base"] and one.policies == ["untouched", "tuned", "oracle"]
    said: list[str] = []
    again = evaluate_run(config, baseline=True, checkpoints=[first], log=said.append)
    assert loads == ["base"]
    assert again.frame.to_json() == one.frame.to_json()
    assert "evaluation: answers kept from before: untouched 4 of 4, tuned 4 of 4" in said
    both = evaluate_run(config, baseline=True, checkpoints=[first, second], log=said.append)
    assert loads == ["base", "base"]
    assert "evaluation: answers kept from before: untouched 4 of 4, tuned 4 of 4" in said
    new = both.frame.set_index("policy")["completion"]
    assert new["tuned"].tolist() != new["checkpoint-2"].tolist()
    off = config.with_overrides("evaluation.cache=false")
    fresh = evaluate_run(off, baseline=True, checkpoints=[first, second], log=said.append)
    assert len(loads) == 3 and fresh.frame.to_json() == both.frame.to_json()


def test_a_merged_model_is_compared_beside_its_adapter_and_writes_the_same(
    with_models: tuple[RunConfig, Path, Path, Path], loads: list[str]
) -> None:
    config, _, second, merged = with_models
    found = evaluate_run(config, checkpoints=[second, merged], log=print)
    assert found.policies == ["tuned", "merged-2"] and loads == ["base", "merged-2"]
    written = found.frame.set_index("policy")["completion"]
    assert written["tuned"].tolist() == written["merged-2"].tolist()
    precision = found.facts["adapters"]["tuned"]["precision"]  # the debug model is not quantised
    said = {"folder": "../merged-2", "step": None, "precision": precision, "whole": True}
    said["sha256"] = model_content(merged)
    assert found.facts["precisions"] == {"tuned": precision, "merged-2": precision}
    assert found.pairs()[-1] == ("merged-2", "tuned")
    assert found.facts["adapters"]["merged-2"] == said
    evaluate_run(config, checkpoints=[merged], log=print)
    assert loads == ["base", "merged-2"]


def test_samples_are_reproducible_and_more_of_them_go_on_from_those_that_are_kept(
    with_models: tuple[RunConfig, Path, Path, Path], loads: list[str]
) -> None:
    config, first, _, _ = with_models

    def samples(count: int, *changes: str) -> list[list[str]]:
        changed = config.with_overrides(f"evaluation.samples={count}", *changes)
        found = evaluate_run(changed, checkpoints=[first], log=print).samples
        return [list(rows) for _, rows in found.groupby("state_id")["completion"]]

    two, four = samples(2), samples(4)
    assert loads == ["base", "base"] and [row[:2] for row in four] == two
    assert len({text for row in four for text in row}) > 4  # sampled, not greedy
    assert samples(4) == four and len(loads) == 2
    assert samples(4, "evaluation.cache=false", "evaluation.batch_size=3") == four


def test_answers_that_end_where_they_are_complete_are_others_than_those_that_go_on(
    with_models: tuple[RunConfig, Path, Path, Path],
    loads: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, first, _, _ = with_models

    def answers(complete: Callable[[str], bool] | None) -> list[str]:
        monkeypatch.setattr("rlkit.practice.task.completeness", lambda config: complete)
        changed = config.with_overrides("evaluation.samples=2")
        found = evaluate_run(changed, checkpoints=[first], log=print)
        return list(found.samples["completion"])

    whole, short = answers(None), answers(lambda text: len(text) >= 3)
    assert loads == ["base", "base"] and short != whole
    assert all(
        len(one) <= len(other) and (len(one) >= 3 or one == other)
        for one, other in zip(short, whole, strict=True)
    )
    assert answers(None) == whole and loads == ["base", "base"]


def test_a_whole_model_plays_as_it_is_shipped_beside_a_base_in_4_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(device: str, dtype: str, four_bit: bool) -> Precision:
        return Precision("cpu", torch.float32, four_bit, "as was asked for")

    monkeypatch.setattr(players, "choose_precision", chosen)
    monkeypatch.setattr(players, "load_base_model", lambda _, precision, **options: (precision, 0))
    monkeypatch.setattr(players.metadata, "version", lambda name: f"{name} 1")
    merged, adapter, base = (tmp_path / name for name in ("merged", "checkpoint-1", "base"))
    for folder, names in {
        merged: ["config.json"],
        base: ["config.json"],
        adapter: ["adapter_config.json", "adapter_model.safetensors"],
    }.items():
        folder.mkdir()
        for name in names:
            (folder / name).write_text("{}")
    changes = [f"output_root={tmp_path}", "model.load_in_4bit=true"]
    config = RunConfig.load("params/debug.yaml", changes)
    monkeypatch.setattr(players, "resolve_base_model", lambda path: base)
    folders = {"tuned": adapter, "merged": merged}
    run = Run.open(config)
    found = build_policies(config, run, [*folders], folders, None, None, print, tmp_path / "kept")
    assert found["merged"].policy.loaded()[0].four_bit is False
    said = {name: policy.policy.precision for name, policy in found.items()}
    assert said == {"tuned": "float32, 4-bit weights", "merged": "float32"}
    authors = {name: policy.answers.author for name, policy in found.items()}
    assert authors["tuned"]["versions"]["bitsandbytes"] == "bitsandbytes 1"
    assert "bitsandbytes" not in authors["merged"]["versions"]
    assert {author["decoding"] for author in authors.values()} == {DECODING}


def test_what_a_server_answered_is_not_kept_since_nobody_can_tell_its_weights(
    tmp_path: Path,
) -> None:
    def evaluated(url: str, model: str) -> list[str]:
        changes = [f"output_root={tmp_path}", "evaluation.policies=[served]"]
        changes += [f"model.vllm_base_url={url}", f"executor.served_model={model}"]
        changes += ["checker.max_retries=0", "checker.patience=0"]
        found = evaluate_run(RunConfig.load("params/debug.yaml", changes), baseline=True, log=print)
        return found.frame["completion"].tolist()

    for text in ("<clue>Ada Holt</clue>", "<clue>another model now</clue>"):
        with FaultServer([Answer(text)]) as server:
            assert evaluated(server.url, "toy") == [text] * 4
            url = server.url
    with pytest.raises(AgentError):
        evaluated(url, "toy")
    assert not (tmp_path / "debug" / "answers_cache").exists()
