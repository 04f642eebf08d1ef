"""The pipeline: its stages, where it goes on, what gates GRPO, and the course's config.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import rlkit
from rlkit.answers import pipeline as pipeline_module
from rlkit.answers.course_config import course_table, read_course_config, run_name_of
from rlkit.answers.pipeline import STAGES, AgenticRLPipeline
from rlkit.cli import main
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError, RunError
from rlkit.files import read_json
from rlkit.results.evaluate import load_evaluation

COURSE = {  # as the course writes it
    "model": {"base_model": "Qwen/Qwen3-0.6B"},
    "data": {"max_samples": 1000},
    "sft": {"output_dir": "./models/sft_model", "num_epochs": 3, "batch_size": 8},
    "grpo": {"output_dir": "./models/grpo_model", "num_epochs": 3, "batch_size": 4},
    "eval": {"max_samples": 200, "sft_accuracy_threshold": 0.40},
    "monitoring": {
        "use_wandb": False,
        "use_tensorboard": True,
        "wandb_project": "agentic-rl-pipeline",
    },
}
LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> AgenticRLPipeline:
    made = pipeline_in(tmp_path_factory.mktemp("pipeline"))
    made.run()
    assert "Accuracy" in (made.folder / "report.html").read_text(encoding="utf-8")
    return made


def pipeline_in(folder, *overrides: str) -> AgenticRLPipeline:
    root = Path(__file__).resolve().parents[2]
    return AgenticRLPipeline(
        root / "params" / "debug-answers.yaml", [f"output_root={folder}", *overrides]
    )


@pytest.fixture(autouse=True)
def short_report(monkeypatch, finished):
    """One report is drawn, by `finished`, which is there before this; drawing takes seconds."""

    def write(folder: Path) -> Path:
        (folder / "report.html").write_text("drawn elsewhere", encoding="utf-8")
        return folder / "report.html"

    monkeypatch.setattr(pipeline_module, "write_report", write)


def never(*args, **kwargs):
    raise AssertionError("this was done before, and must not be done again")


# ---- all stages


def test_results_have_the_courses_keys_and_a_report_goes_with_them(finished):
    kept = read_json(finished.folder / "training_results.json")
    assert tuple(kept) == STAGES and kept == finished.results
    assert all(stage["status"] == "finished" for stage in kept.values())
    assert kept["data"]["num_samples"]["train"] == 24
    assert kept["sft_training"]["final_loss"] > 0 and kept["grpo_training"]["num_steps"] == 4
    assert 0 <= kept["grpo_evaluation"]["accuracy"] <= 1


def test_every_line_of_the_log_begins_with_its_time(finished):
    lines = (finished.folder / "pipeline.log").read_text(encoding="utf-8").splitlines()
    assert all(LINE.match(line) for line in lines)
    told = "\n".join(lines)
    assert "data quality: " in told and "tuned model: accuracy" in told


def test_the_last_evaluation_holds_the_answers_of_stage_3_unchanged(finished):
    before = load_evaluation(finished.folder / "evaluation-sft.json")
    after = load_evaluation(finished.folder / "evaluation.json")
    assert after.policies == ["untouched", "warm_start", "tuned"]
    kept = after.frame[after.frame["policy"] != "tuned"]
    assert kept["completion"].tolist() == before.frame["completion"].tolist()
    differences = finished.results["grpo_evaluation"]["differences"]
    assert [(d["policy"], d["baseline"]) for d in differences] == [
        ("tuned", "untouched"), ("tuned", "warm_start"), ("warm_start", "untouched"),
    ]  # fmt: skip


def test_what_is_finished_is_not_done_again(finished, monkeypatch):
    again = pipeline_in(finished.folder.parent)
    assert again.results == finished.results
    for name in ("_prepare", "_sft", "_evaluate_sft", "_grpo", "_evaluate_grpo"):
        monkeypatch.setattr(AgenticRLPipeline, name, never)
    assert again.run() == finished.results


def test_the_tuned_model_alone_is_evaluated_in_stage_5(finished, monkeypatch):
    import rlkit.results.compare as compare

    asked = []
    real = compare.evaluate_policies

    def watched(task, policies, states, **more):
        asked.append(list(policies))
        return real(task, policies, states, **more)

    monkeypatch.setattr(compare, "evaluate_policies", watched)
    again = pipeline_in(finished.folder.parent)
    del again.results["grpo_evaluation"]
    again.run()
    assert asked == [["tuned"]]


def test_more_epochs_go_on_with_grpo_and_evaluate_anew(tmp_path):
    first = pipeline_in(tmp_path)
    first.run()
    more = pipeline_in(tmp_path, "training.num_epochs=3")
    more.run()
    assert more.results["grpo_training"]["num_steps"] == 6
    assert more.results["grpo_training"]["model_path"].endswith("checkpoint-6")
    assert more.results["sft_evaluation"] == first.results["sft_evaluation"]
    assert more.results["grpo_evaluation"]["inputs"] != first.results["grpo_evaluation"]["inputs"]


def test_all_weights_go_the_same_way(tmp_path):
    full = pipeline_in(tmp_path, "lora.enabled=false", "training.max_steps=1")
    full.run()
    assert all(stage["status"] == "finished" for stage in full.results.values())
    assert (Path(full.results["sft_training"]["model_path"]) / "config.json").is_file()
    assert load_evaluation(full.folder / "evaluation.json").policies[-1] == "tuned"


# ---- the gate


def test_below_the_threshold_grpo_does_not_begin_and_the_way_on_is_told(tmp_path, capsys):
    stopped = pipeline_in(tmp_path, "answers.sft_accuracy_threshold=0.9")
    stopped.run()
    held = stopped.results["grpo_training"]
    assert held["status"] == "not_started" and "0.9" in held["reason"]
    assert "--force" in held["reason"] and "below_threshold" in held["reason"]
    assert not (stopped.folder / "metrics.jsonl").exists()
    assert (stopped.folder / "report.html").exists()
    assert read_json(stopped.folder / "training_results.json")["grpo_evaluation"] is None
    with pytest.raises(RunError, match="stage 4 of .* is not finished"):
        stopped.stage5_grpo_evaluation()
    # the gate may change, although nothing else may
    gone_on = pipeline_in(
        tmp_path, "answers.sft_accuracy_threshold=0.9", "answers.below_threshold=continue"
    )
    gone_on.run()
    assert gone_on.results["grpo_evaluation"]["status"] == "finished"
    assert "goes on, although" in capsys.readouterr().out


@pytest.mark.parametrize(("on_dev", "on_eval", "begins"), [(0.6, 0.1, True), (0.1, 0.6, False)])
def test_the_gate_is_decided_on_dev_and_both_accuracies_are_told(
    tmp_path, monkeypatch, capsys, on_dev, on_eval, begins
):
    made = pipeline_in(tmp_path, "answers.sft_accuracy_threshold=0.5")
    real, asked = pipeline_module.figures, []

    def told(found, policy):
        share = {"dev": on_dev, "eval": on_eval}[found.facts["split"]]
        asked.append((found.facts["split"], policy, len(found.states)))
        return real(found, policy) | {"accuracy": share}

    monkeypatch.setattr(pipeline_module, "figures", told)
    made.stage1_prepare_data()
    made.stage2_sft_training()
    kept = made.stage3_sft_evaluation()
    n_dev = made.results["data"]["num_samples"]["dev"]
    assert n_dev > 6 == made.config.evaluation.max_states, "all of dev, and no choice of it"
    assert asked[0] == ("dev", "warm_start", n_dev)
    assert (kept["accuracy"], kept["num_samples"]) == (on_eval, 6)
    assert (kept["gate"]["split"], kept["gate"]["accuracy"]) == ("dev", on_dev)
    assert (kept["gate"]["num_samples"], kept["gate"]["passed"]) == (n_dev, begins)
    assert kept["threshold"] == 0.5
    said = capsys.readouterr().out
    assert f"on dev, which decides on GRPO: accuracy {on_dev:.3f}" in said
    word = "reaches" if begins else "is below"
    assert f"the accuracy on dev {word} answers.sft_accuracy_threshold 0.5" in said
    assert f", n = {n_dev};" in said and ", n = 6;" in said
    assert load_evaluation(made.folder / "evaluation.json").facts["split"] == "eval"
    reason = made._held_back()
    assert begins == (reason is None)
    assert begins or f"on dev is 0.100 (n = {n_dev})" in reason


@pytest.mark.parametrize("split", ["dev", "eval"])
def test_answers_that_cannot_be_read_decide_no_gate(tmp_path, monkeypatch, split):
    unread = {"accuracy": None, "num_samples": 6, "num_judged": 0}
    made = pipeline_in(tmp_path)
    found = SimpleNamespace(save=lambda path: None, facts={"split": "eval"})
    monkeypatch.setattr("rlkit.results.compare.evaluate_run", lambda *_, **__: found)
    monkeypatch.setattr(made, "_told", lambda *_: {**unread, "policies": {"warm_start": unread}})
    monkeypatch.setattr(
        made, "_gate", lambda: {"split": "dev", **unread} if split == "dev" else None
    )
    with pytest.raises(DataError, match=f"none of the 6 {split} answers can be read"):
        made._evaluate_sft()


def test_without_dev_questions_the_gate_says_that_it_is_decided_on_the_evaluation(tmp_path, capsys):
    made = pipeline_in(tmp_path, "data.dev_ratio=0", "answers.sft_accuracy_threshold=0.9")
    made.run()
    gate = made.results["sft_evaluation"]["gate"]
    assert (gate["split"], gate["num_samples"]) == ("eval", 6)
    assert "no dev states, so the gate is decided on eval" in capsys.readouterr().out
    assert "on eval is 0.000 (n = 6)" in made.results["grpo_training"]["reason"]


def test_augmented_rows_are_counted_and_learnt_from(tmp_path, capsys):
    made = pipeline_in(tmp_path, "answers.augment=[similar]", "answers.max_samples=6")
    kept = made.stage1_prepare_data()
    assert kept["num_samples"]["train"] == 6 + kept["augmented"] == 12
    assert "augmented: 6 rows added" in capsys.readouterr().out


def test_the_command_ends_with_1_at_the_threshold_and_once_forced_goes_on_by_itself(root, tmp_path):
    command = ["pipeline", "--params", str(root / "params" / "debug-answers.yaml"), "--set",
               f"output_root={tmp_path}", "answers.sft_accuracy_threshold=0.9"]  # fmt: skip
    assert main(command) == 1
    assert main([*command, "--force"]) == 0
    assert main(command) == 0, "what has begun needs no second --force"


# ---- failures and stops


def test_a_failure_is_named_saved_and_raised_again_and_the_next_run_goes_on(tmp_path, monkeypatch):
    broken = pipeline_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("rlkit.training.stages.train_sft", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            broken.run()
    kept = read_json(broken.folder / "training_results.json")
    assert kept["data"]["status"] == "finished"
    assert kept["sft_training"] == {
        "status": "failed", "error": "ZeroDivisionError: division by zero",
    }  # fmt: skip
    assert "2 of 6: SFT failed: ZeroDivisionError" in (broken.folder / "pipeline.log").read_text()
    again = pipeline_in(tmp_path)
    monkeypatch.setattr(AgenticRLPipeline, "_prepare", never)
    again.stage1_prepare_data()
    assert again.stage2_sft_training() == str(again.folder / "sft" / "adapter")


def test_a_report_that_fails_is_named_saved_and_raised_and_the_next_one_forgets_it(
    tmp_path, monkeypatch
):
    broken = pipeline_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline_module, "write_report", lambda folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            broken.stage6_save_results()
    kept = read_json(broken.folder / "training_results.json")
    assert kept["report"] == {"status": "failed", "error": "ZeroDivisionError: division by zero"}
    assert (
        "6 of 6: results failed: ZeroDivisionError" in (broken.folder / "pipeline.log").read_text()
    )
    assert tuple(read_json(broken.stage6_save_results())) == STAGES


def test_the_pipeline_goes_on_by_nature_whatever_training_resume_says(tmp_path):
    made = pipeline_in(tmp_path, "training.resume=false", "training.max_steps=1")
    made.run()
    assert made.results["grpo_training"]["status"] == "finished"


def test_an_interrupt_is_raised_and_kept_as_stopped(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    made = pipeline_in(tmp_path)
    monkeypatch.setattr(AgenticRLPipeline, "_prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert read_json(made.folder / "training_results.json")["data"]["status"] == "stopped"


def test_stages_come_in_order_and_with_their_own_model(finished, tmp_path):
    fresh = pipeline_in(tmp_path)
    with pytest.raises(RunError, match="stage 2 of .* is not finished"):
        fresh.stage3_sft_evaluation()
    with pytest.raises(RunError, match="not that of stage 2"):
        finished.stage3_sft_evaluation("models/other")


# ---- what it is given


def test_the_courses_file_is_accepted_as_it_is(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(COURSE), encoding="utf-8")
    made = AgenticRLPipeline(path, [f"output_root={tmp_path}"])
    config = made.config
    assert (config.run_name, config.task) == ("pipeline", "answers")
    assert config.model.base_model_path == "Qwen/Qwen3-0.6B"
    assert (config.answers.dataset, config.answers.max_samples) == ("gsm8k", 1000)
    assert (config.sft.num_epochs, config.sft.batch_size) == (3, 8)
    assert (config.training.num_epochs, config.training.batch_size) == (3, 4)
    # 1,000 rows, 4 a step, 3 times; and of 100, when they are asked for later
    assert (config.training.epoch_steps(1000), config.training.total_steps(1000)) == (250, 750)
    fewer = AgenticRLPipeline(path, ["answers.max_samples=100"]).config
    assert (fewer.training.epoch_steps(100), fewer.training.total_steps(100)) == (25, 75)
    assert (config.evaluation.max_states, config.answers.sft_accuracy_threshold) == (200, 0.4)
    assert config.monitoring.wandb_project == "agentic-rl-pipeline"
    assert config.model.init_adapter == "auto"
    assert {str(folder) for folder in made.copies.values()} == {
        "models/sft_model", "models/grpo_model",
    }  # fmt: skip
    assert not (tmp_path / "pipeline").exists(), "nothing is made before a stage begins"


def test_the_courses_file_is_what_the_params_file_of_its_run_says(root, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(COURSE), encoding="utf-8")
    ours = RunConfig.load(root / "params" / "qwen3-0.6b-gsm8k.yaml").as_dict()
    theirs = AgenticRLPipeline(path).config.as_dict()
    differing = {
        f"{section}.{name}"
        for section, keys in ours.items()
        if isinstance(keys, dict)
        for name in keys
        if keys[name] != theirs[section][name]
    }
    assert not differing


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"modle": {}}, "did you mean model?"),
        ({"grpo": {"num_epoch": 3}}, "did you mean grpo.num_epochs?"),
        ({"eval": {"sft_accuracy_threshold": 40}}, "from 0 to 1"),
        ({"sft": 3}, "holds keys and values"),
    ],
)
def test_a_slip_in_the_courses_file_names_the_file_and_the_nearest_key(tmp_path, change, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(COURSE | change), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        read_course_config(path)
    assert str(path) in str(error.value)


def test_the_courses_folders_receive_copies_of_the_adapters(tmp_path):
    path = tmp_path / "small.json"
    course = COURSE | {"model": {"base_model": "debug"}}
    course |= {"data": {"max_samples": 8, "dataset": "arithmetic"}}
    course["sft"] = {"output_dir": str(tmp_path / "sft"), "num_epochs": 1}
    course["grpo"] = {"output_dir": str(tmp_path / "grpo"), "num_epochs": 1, "max_new_tokens": 6}
    course["eval"] = {"max_samples": 3, "sft_accuracy_threshold": 0}
    path.write_text(json.dumps(course), encoding="utf-8")
    made = AgenticRLPipeline(
        path, [f"output_root={tmp_path / 'out'}", "monitoring.use_tensorboard=false"]
    )
    made.run()
    assert made.folder.name == "small" and made.results["grpo_training"]["num_steps"] == 2
    assert (tmp_path / "sft" / "adapter_model.safetensors").is_file()
    assert (tmp_path / "grpo" / "adapter_model.safetensors").is_file()


def test_a_search_run_or_a_given_adapter_is_no_pipeline(root):
    with pytest.raises(ConfigError, match="set task: answers"):
        AgenticRLPipeline(root / "params" / "run1.yaml")
    with pytest.raises(ConfigError, match="makes its own SFT adapter"):
        AgenticRLPipeline(root / "params" / "debug-answers.yaml", ["model.init_adapter=a/b"])
    with pytest.raises(Exception, match="no-such.json cannot be read"):
        AgenticRLPipeline("no-such.json")


def test_debug_shrinks_any_params_file_but_what_was_asked_for_by_name(root):
    small = AgenticRLPipeline(
        root / "params" / "qwen3-0.6b-gsm8k.yaml", ["grpo.group_size=6"], debug=True
    ).config
    assert (small.run_name, small.model.base_model_path) == ("qwen3-0.6b-gsm8k-debug", "debug")
    assert (small.grpo.group_size, small.training.max_steps) == (6, 4)
    assert small.answers.sft_accuracy_threshold == 0


def test_a_single_override_may_be_text(root):
    path = root / "params" / "debug-answers.yaml"
    assert AgenticRLPipeline(path, "seed=11").config.seed == 11


def test_a_run_is_named_after_its_file():
    assert run_name_of("config.json") == "pipeline"
    assert run_name_of("a/my course.json") == "my-course"


def test_the_docs_have_the_courses_keys(root):
    assert course_table() in (root / "docs" / "answers.md").read_text(encoding="utf-8")


def test_the_pipeline_is_public():
    assert rlkit.AgenticRLPipeline is AgenticRLPipeline
