"""The course's one call: what it takes, what it gives back, and that it really trains."""

from __future__ import annotations

import json
import math
import sys

import datasets
import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rlkit
from rlkit.answers import tool as tool_module
from rlkit.answers.evaluation import model_source
from rlkit.answers.tool import RLTrainingTool, ToolResult
from rlkit.answers.tool_data import own_rows, reward_settings
from rlkit.answers.tool_parameters import ACTIONS, ToolParameters, parameter_table
from rlkit.answers.tool_training import learning_rate, train_config
from rlkit.run import Run

SMALL = {
    "model_name": "debug",
    "dataset": "arithmetic",
    "max_samples": 6,
    "num_epochs": 1,
    "batch_size": 4,
}
GRPO = {**SMALL, "algorithm": "grpo", "max_new_tokens": 6, "use_tensorboard": False}
ROWS = [
    {"question": "What is 2 + 2?", "answer": "2 + 2 = 4\n#### 4"},
    {"question": "What is 5 + 3?", "answer": "5 + 3 = 8\n#### 8"},
    {"question": "What is 10 + 7?", "answer": "10 + 7 = 17\n#### 17"},
]


@pytest.fixture
def tool() -> RLTrainingTool:
    return RLTrainingTool(log=lambda line: None)


def trained(tool, folder, **changes) -> ToolResult:
    result = tool.run({"action": "train", "output_dir": str(folder), **SMALL, **changes})
    assert result["status"] == "success", result
    return result


# ---- the result


def test_a_result_is_json_text_and_a_mapping_at_once():
    result = ToolResult.of({"status": "success", "accuracy": 0.5, "x": math.nan})
    assert isinstance(result, str) and json.loads(result) == {
        "status": "success", "accuracy": 0.5, "x": None,
    }  # fmt: skip
    assert result["accuracy"] == 0.5 and result.get("nothing", 3) == 3
    assert list(result.keys()) == ["status", "accuracy", "x"]
    assert dict(result)["status"] == "success" and dict(result.items()) == dict(result)


def test_a_result_is_still_a_text():
    result = ToolResult.of({"status": "success"})
    assert result[0] == "{" and result[-1] == "}" and result[:3] == "{\n "
    assert "success" in result and result.startswith("{") and len(result) == len(str(result))
    assert result.replace("success", "error") == ToolResult.of({"status": "error"})
    assert "".join(result) == str(result)


def test_in_asks_for_a_key_where_the_name_is_one_of_results():
    result = ToolResult.of({"status": "error", "message": "no accuracy here"})
    assert "status" in result and "accuracy" not in result
    with pytest.raises(KeyError):
        result["accuracy"]


# ---- mistakes


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"action": "train", "max_sample": 3}, "did you mean max_samples?"),
        ({"action": "evaluat"}, "did you mean evaluate?"),
        ({}, "'action' is missing"),
        ([1], "run wants a dict"),
        ({"action": "train", "learning_rate": "fast"}, "allowed is a number above 0"),
        ({"action": "train", "num_generations": 1}, "from 2 to 1024"),
        ({"action": "train", "num_epochs": 2.5}, "a whole number of at least 1"),
        ({"action": "train", "use_lora": "perhaps"}, "true | false"),
        ({"action": "evaluate"}, "model_path is missing"),
        ({"action": "evaluate", "model_path": "no/such/folder/x"}, "no model folder"),
        ({"action": "create_reward", "reward_type": "steps"}, "did you mean step?"),
        ({"action": "load_dataset", "dataset": "gsm8"}, "did you mean gsm8k?"),
        ({"action": "evaluate", "metrics": "accuracy,acuracy"}, "a list of accuracy | average"),
        ({"action": "evaluate", "metrics": " , "}, "a list of accuracy | average"),
        ({"action": "register_dataset", "name": "mine"}, "give both"),
        ({"action": "register_dataset", "name": "a/b", "custom_dataset": ROWS}, "no name"),
    ],
)
def test_a_mistake_is_an_error_in_one_sentence(tool, call, said):
    result = tool.run(call)
    assert result["status"] == "error" and said in result["message"]
    assert "\n" not in result["message"] and "Traceback" not in result


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_bug_and_an_interrupt_are_raised(tool, monkeypatch, error):
    def broken(p):
        raise error

    monkeypatch.setattr(tool_module, "loaded", broken)
    with pytest.raises(error):
        tool.run({"action": "load_dataset", "dataset": "arithmetic"})


def test_wandb_without_its_package_is_one_sentence(tool, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # which makes its import fail
    for call in (GRPO, SMALL):
        asked = {"action": "train", **call, "use_wandb": True, "output_dir": str(tmp_path)}
        message = tool.run(asked)["message"]
        assert message.startswith("use_wandb is true, but wandb is not installed")
        assert message.endswith("or set use_wandb to false.")


# ---- parameters


def test_what_is_idle_in_a_combination_is_accepted_and_listed(tool):
    call = {"action": "load_dataset", "dataset": "arithmetic", "max_samples": "4", "format": "SFT"}
    result = tool.run(call | {"use_wandb": False, "wandb_project": "mine", "kl_coef": None})
    assert result["dataset_size"] == 4
    assert result["ignored"] == ["use_wandb", "wandb_project"]  # null is not given at all


def test_metrics_may_be_a_text_with_commas():
    def metrics(given):
        call = {"action": "evaluate", "model_path": "debug", "metrics": given}
        return ToolParameters.read(call).metrics

    assert metrics("accuracy,average_reward") == ["accuracy", "average_reward"]
    assert metrics(" errors , details,") == ["errors", "details"]
    assert metrics("accuracy") == metrics(["accuracy"]) == ["accuracy"]


@pytest.mark.parametrize("algorithm", ["sft", "grpo"])
def test_trackers_count_for_both_algorithms_and_wandb_project_with_wandb_on(algorithm):
    def ignored(**given):
        return ToolParameters.read({"action": "train", "algorithm": algorithm, **given}).ignored()

    assert ignored(wandb_project="a", use_wandb=True, use_tensorboard=False) == []
    assert ignored(wandb_project="a", use_wandb=False) == ["wandb_project"]
    assert ignored(use_lora=False, lora_rank=8) == ["lora_rank"]
    shape = {"reward_type": "step", "step_bonus": 0.2, "max_length": 9}
    idle = {"sft": ["reward_type", "max_length", "step_bonus"], "grpo": ["max_length"]}
    assert ignored(**shape) == idle[algorithm]


@pytest.mark.parametrize(
    ("algorithm", "use_lora", "low", "high"),
    [("sft", True, 1e-5, 2e-4), ("grpo", True, 1e-5, 2e-4),
     ("sft", False, 1e-6, 5e-6), ("grpo", False, 1e-6, 5e-6)],
)  # fmt: skip
def test_the_default_learning_rate_is_safe(algorithm, use_lora, low, high):
    p = ToolParameters.read({"action": "train", "algorithm": algorithm, "use_lora": use_lora})
    assert low <= learning_rate(p) <= high
    assert learning_rate(p.model_copy(update={"learning_rate": 0.5})) == 0.5


def test_a_call_becomes_a_run_whose_epoch_passes_once_over_the_rows():
    call = {**GRPO, "action": "train", "num_epochs": "2", "num_generations": 8, "kl_coef": 0.1}
    p = ToolParameters.read(call | {"learning_rate": "1e-5", "lora_rank": 4, "lora_alpha": 8})
    config = train_config(p, model_source("debug"), "arithmetic", {})
    # 10 prompts, 4 a step: the third step is not full, and no rule asks 8 to be divided by 4
    assert (config.training.epoch_steps(10), config.training.total_steps(10)) == (3, 6)
    assert (config.training.batch_size, config.grpo.group_size) == (4, 8)
    assert (config.grpo.kl_penalty, config.grpo.learning_rate) == (0.1, 1e-5)
    assert (config.lora.rank, config.lora.alpha) == (4, 8)
    assert config.data.dev_ratio == 0


def test_the_docs_table_is_the_parameters_own(root):
    text = (root / "docs" / "answers.md").read_text(encoding="utf-8")
    assert parameter_table() in text
    assert all(f"`{action}`" in text for action in ACTIONS)


# ---- data and rewards


def test_rows_come_as_sft_and_as_rl_sets(tool):
    call = {"action": "load_dataset", "dataset": "arithmetic", "max_samples": 3}
    sft, rl = tool.run(call), tool.run(call | {"format": "rl", "split": "test"})
    assert sft["sample_keys"] == ["prompt", "completion", "text"] and sft["split"] == "train"
    assert {"prompt", "ground_truth", "question", "full_answer"} <= set(rl["sample_keys"])
    assert (rl["format"], rl["split"], rl["dataset_size"]) == ("rl", "test", 3)
    assert "Final Answer: " in sft["details"][0]["completion"]


def test_a_tokenizers_chat_template_goes_around_the_rows(tool):
    call = {"action": "load_dataset", "dataset": "arithmetic", "max_samples": 1}
    text = tool.run(call | {"model_name": "debug"})["details"][0]["text"]
    assert text.startswith("<|im_start|>system") and text.endswith("<|im_end|>")


def test_rows_of_ones_own_may_be_a_list_a_hub_dataset_or_a_finished_sft_set():
    hub = datasets.Dataset.from_list(ROWS)
    assert own_rows(hub, "mine") == own_rows(ROWS, "mine")
    made = {"prompt": "What is 2 + 2?", "completion": "2 + 2 = 4\nFinal Answer: 4", "text": "..."}
    (row,) = own_rows([made], "mine")["train"]
    assert (row.question, row.ground_truth) == ("What is 2 + 2?", "4")


@pytest.mark.parametrize(
    ("rows", "said"), [([], "holds no rows"), ("text", "give a list"), (3, "give a list"),
                       ([{"question": "?"}], "row 1"), ({"test": ROWS}, "needs 'train'")],
)  # fmt: skip
def test_bad_rows_are_one_sentence(tool, rows, said):
    result = tool.run({"action": "load_dataset", "custom_dataset": rows})
    assert result["status"] == "error" and said in result["message"]


def test_a_registered_dataset_has_a_size_and_a_reward_of_its_name(tool):
    result = tool.run({"action": "register_dataset", "name": "tool-sums", "custom_dataset": ROWS})
    assert (result["status"], result["dataset_size"]) == ("success", 3)

    def polite(completions, **columns):
        return [1.0 for _ in completions]

    p = ToolParameters.read({"action": "train", "algorithm": "grpo", "dataset": "tool-sums"})
    assert reward_settings(p, tool.rewards) == ({"rewards": ["accuracy"]}, "accuracy")
    tool.run({"action": "register_reward_function", "name": "tool-sums", "custom_reward": polite})
    settings, kind = reward_settings(p, tool.rewards)
    assert kind == "tool-sums" and settings["rewards"] != ["accuracy"]
    other = p.model_copy(update={"reward_type": "accuracy"})
    assert reward_settings(other, tool.rewards)[1] == "accuracy", "what is asked for by name wins"


def test_rewards_are_the_courses_by_name(tool):
    def made(**call):
        return tool.run({"action": "create_reward", **call})

    assert made(reward_type="accuracy")["parameters"] == {}
    long = made(reward_type="length_penalty", penalty_weight=0.01, max_length=50)
    assert long["parameters"] == {"length_penalty": 0.01, "length_limit": 50}
    assert made(reward_type="STEP", step_bonus="0.2")["parameters"] == {"step_bonus": 0.2}
    assert made(reward_type="step", penalty_weight=0.1)["ignored"] == ["penalty_weight"]


# ---- training


def test_sft_puts_an_adapter_into_the_folder_and_the_same_call_shows_it_again(tool, tmp_path):
    first = trained(tool, tmp_path / "sft")
    assert (first["algorithm"], first["model"], first["num_samples"]) == ("sft", "debug", 6)
    assert first["final_loss"] > 0 and first["device"] in ("cpu", "cuda")
    board = EventAccumulator(str(Run.at(first["run_folder"]).tensorboard_folder / "sft")).Reload()
    losses = [event.value for event in board.Scalars("sft/loss")]
    assert len(losses) == first["updates"] == 2
    assert losses[-1] == pytest.approx(first["final_loss"])
    adapter = tmp_path / "sft" / "adapter_model.safetensors"
    weights = load_file(adapter)
    assert any("lora_B" in name and abs(w).max() > 0 for name, w in weights.items())
    when = (tmp_path / "sft" / "sft" / "sft" / "adapter").stat().st_mtime_ns
    assert trained(tool, tmp_path / "sft") == first
    assert (tmp_path / "sft" / "sft" / "sft" / "adapter").stat().st_mtime_ns == when
    found = tool.run(
        {"action": "evaluate", "model_path": str(tmp_path / "sft"), "dataset": "arithmetic",
         "max_samples": 3, "max_new_tokens": 4, "metrics": ["accuracy", "errors"]}
    )  # fmt: skip
    assert found["status"] == "success" and found["num_samples"] == 3
    assert isinstance(found["accuracy"], float) and isinstance(found["average_reward"], float)
    assert "errors" in found and "details" not in found and "average_length" not in found


def test_grpo_on_top_of_sft_has_the_sft_policy_as_its_reference(tool, tmp_path):
    trained(tool, tmp_path / "sft")
    result = trained(
        tool, tmp_path / "grpo", **GRPO | {"model_name": str(tmp_path / "sft"), "lora_rank": 8}
    )
    assert result["ignored"] == ["lora_rank"], "the adapter has its own"
    run = Run.at(result["run_folder"])
    reference = load_file(run.folder / "reference_adapter" / "adapter_model.safetensors")
    begun = load_file(tmp_path / "sft" / "adapter_model.safetensors")
    assert all((reference[name] == begun[name]).all() for name in begun)
    assert [row["epoch"] for row in run.read_metrics()] == [0.5, 1.0]  # 6 prompts, 4 a step
    assert (tmp_path / "grpo" / "adapter_config.json").is_file()
    assert not (tmp_path / "grpo" / "optimizer.safetensors").exists()


def test_a_reward_of_ones_own_is_what_grpo_is_paid_by(tool, tmp_path):
    asked: list[str] = []

    def always(completions, ground_truth, **columns):
        asked.extend(ground_truth)
        return [0.25 for _ in completions]

    changes = {"custom_dataset": ROWS, "custom_reward": always, "num_generations": 3}
    given = {k: v for k, v in GRPO.items() if k != "dataset"}
    result = tool.run({"action": "train", "output_dir": str(tmp_path), **given, **changes})
    assert result["average_reward"] == 0.25 and set(asked) <= {"4", "8", "17"} and asked
    assert result["reward_type"] == "always"


def test_answers_that_could_not_be_scored_are_told_in_result_and_log(tmp_path):
    heard: list[str] = []
    tool = RLTrainingTool(log=heard.append)

    def silent(completions, ground_truth):
        return [None if gold == "4" else 0.5 for gold in ground_truth]

    asked = {"action": "evaluate", "model_path": "debug", "custom_dataset": {"train": ROWS,
             "test": ROWS}, "max_new_tokens": 4, "custom_reward": silent}  # fmt: skip
    found = tool.run(asked | {"metrics": "average_reward"})
    assert found["average_reward"] == 0.5
    assert found["reward_note"].startswith("1 of 3 answers could not be scored")
    assert found["reward_note"] in heard
    none = tool.run(asked | {"custom_reward": lambda completions: [None] * len(completions)})
    assert none["average_reward"] is None and none["reward_note"].startswith("3 of 3 answers")
    assert "reward_note" not in tool.run(asked | {"custom_reward": lambda completions: [0]})

    given = {k: v for k, v in GRPO.items() if k != "dataset"} | {"output_dir": str(tmp_path)}
    never = {"custom_reward": lambda completions: [None] * len(completions)}
    trained = tool.run({"action": "train", **given, "custom_dataset": ROWS, **never})
    assert trained["average_reward"] is None and trained["status"] == "success"
    assert trained["reward_note"].startswith("100.0% of the last epoch's answers could not be")
    assert trained["reward_note"] in heard


def test_an_edited_reward_of_the_same_name_is_another_run(tool, tmp_path):
    def paying(amount):
        def paid(completions, **columns):
            return [amount for _ in completions]

        return paid

    def train(reward):
        call = {"action": "train", "output_dir": str(tmp_path), **GRPO, "max_samples": 4}
        return tool.run(call | {"custom_reward": reward})

    assert train(paying(0.25))["average_reward"] == 0.25
    assert train(paying(0.25))["average_reward"] == 0.25, "the same call shows the same run"
    edited = train(paying(0.5))
    assert edited["status"] == "error" and "answers.rewards" in edited["message"]


def test_a_function_is_checked_under_its_own_name_and_registered_when_it_is_used(tool):
    def no_columns(texts):
        return []

    result = tool.run(
        {"action": "register_reward_function", "name": "a b", "custom_reward": no_columns}
    )
    assert result["status"] == "error" and "no_columns has no parameter" in result["message"]


def test_all_weights_make_a_model_folder_that_can_be_evaluated(tool, tmp_path):
    result = trained(tool, tmp_path, use_lora=False)
    assert result["learning_rate"] == 5e-6
    assert (tmp_path / "config.json").is_file() and not (tmp_path / "adapter_config.json").exists()
    found = tool.run(
        {"action": "evaluate", "model_path": str(tmp_path), "dataset": "arithmetic",
         "max_samples": 2, "max_new_tokens": 4, "use_lora": True}
    )  # fmt: skip
    assert found["status"] == "success" and found["ignored"] == ["use_lora"]
    assert len(found["details"]) == 2
    again = tool.run({"action": "train", "output_dir": str(tmp_path), **SMALL})
    assert "holds a model already" in again["message"]


def test_grpo_of_all_weights_goes_on_from_such_a_model_folder(tool, tmp_path):
    trained(tool, tmp_path / "sft", use_lora=False, learning_rate=1e-3)
    call = {**GRPO, "use_lora": False, "model_name": str(tmp_path / "sft"), "max_samples": 4}
    result = trained(tool, tmp_path / "grpo", **call, custom_reward=lengths_count)
    assert (result["num_steps"], result["learning_rate"]) == (1, 1e-6)
    before = load_file(tmp_path / "sft" / "model.safetensors")
    after = load_file(tmp_path / "grpo" / "model.safetensors")
    assert before.keys() == after.keys() and "ignored" not in result
    assert any((before[name] != after[name]).any() for name in before)
    assert not (tmp_path / "grpo" / "optimizer.safetensors").exists()


def lengths_count(completions, **columns):
    return [float(len(text)) for text in completions]


def test_other_parameters_in_the_same_folder_are_refused_with_the_tools_own_word(tool, tmp_path):
    trained(tool, tmp_path)
    result = tool.run({"action": "train", "output_dir": str(tmp_path), **SMALL | {"lora_rank": 8}})
    assert result["status"] == "error" and "lora.rank" in result["message"]
    assert "output_dir" in result["message"] and "run_name" not in result["message"]


def test_sft_does_not_begin_from_an_adapter(tool, tmp_path):
    trained(tool, tmp_path / "a")
    result = tool.run(
        {"action": "train", **SMALL, "model_name": str(tmp_path / "a"), "output_dir": "b"}
    )
    assert result["status"] == "error" and "begins from a whole model" in result["message"]


def test_details_are_capped_and_that_is_said(tool, monkeypatch):
    monkeypatch.setattr("rlkit.answers.evaluation.MAX_DETAILS", 2)
    found = tool.run(
        {"action": "evaluate", "model_path": "debug", "dataset": "arithmetic", "max_samples": 3,
         "max_new_tokens": 3}
    )  # fmt: skip
    assert len(found["details"]) == 2 and found["details_note"] == "the first 2 of 3 rows"


def test_the_tool_is_public():
    assert rlkit.RLTrainingTool is RLTrainingTool


@pytest.mark.slow
def test_a_small_real_model_learns_the_form_from_a_few_solutions(tool, tmp_path):
    call = {"model_name": "smollm2-135m-instruct", "max_samples": 96, "learning_rate": 2e-4}
    trained(tool, tmp_path, **call)

    def format_correctness(model: str) -> float:
        found = tool.run(
            {"action": "evaluate", "model_path": model, "dataset": "arithmetic",
             "max_samples": 24, "max_new_tokens": 64, "batch_size": 24}
        )  # fmt: skip
        return found["format_correctness"]

    assert format_correctness(str(tmp_path)) > format_correctness("smollm2-135m-instruct") + 0.3


def test_a_prompt_with_a_chat_template_is_refused_and_a_plain_one_is_a_question(tool):
    rows = [{"prompt": "<|im_start|>user\nHow many?<|im_end|>", "completion": "2"}] * 3
    refused = tool.run({"action": "register_dataset", "name": "mine", "custom_dataset": rows})
    assert refused["status"] == "error" and "markers of a chat template" in refused["message"]
    rows = [{"prompt": f"How many, {n}?", "completion": f"Final Answer: {n}"} for n in range(3)]
    known = tool.run({"action": "register_dataset", "name": "mine", "custom_dataset": rows})
    assert known["dataset_size"] == 3


def test_a_built_in_reward_keeps_its_name(tool):
    given = {"name": "accuracy", "custom_reward": lambda completions, **_: [0.0] * len(completions)}
    refused = tool.run({"action": "register_reward_function", **given})
    assert refused["status"] == "error" and "is a built-in reward" in refused["message"]
