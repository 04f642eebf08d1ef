"""Every params file loads, and says what its comment promises."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlkit.config import RunConfig

PARAMS = Path(__file__).resolve().parents[1] / "params"
FILES = sorted(path.name for path in PARAMS.glob("*.yaml"))


def differing(a: RunConfig, b: RunConfig) -> set[str]:
    """Keys of the top, or sections, in which two configs differ."""
    left, right = a.as_dict(), b.as_dict()
    return {name for name in left if left[name] != right[name]}


@pytest.mark.parametrize("name", FILES)
def test_a_params_file_loads_and_shrinks(name):
    config = RunConfig.load(PARAMS / name)
    assert config.debug().run_name == f"{config.run_name.removesuffix('-debug')}-debug"


@pytest.mark.parametrize("name", FILES)
def test_papermills_own_reader_gives_the_same_config(name):
    """papermill reads with YAML 1.1, for which 1e-5 is text, and passes sections as variables."""
    values = yaml.safe_load((PARAMS / name).read_text(encoding="utf-8"))
    assert RunConfig.from_sections(**values) == RunConfig.load(PARAMS / name)


def test_run_names_differ_so_that_no_file_runs_into_anothers_folder():
    names = [RunConfig.load(PARAMS / name).run_name for name in FILES]
    assert len(set(names)) == len(names)


def test_the_demo_needs_nothing_prepared():
    config = RunConfig.load(PARAMS / "run1.yaml")
    assert (config.data.source, config.model.init_adapter) == ("demo", "auto")
    assert config.model.base_model_path == "smollm2-135m-instruct"
    assert config.training.num_epochs * config.training.steps_per_epoch >= 20


def test_debug_is_a_run_of_four_steps_on_a_random_model():
    config = RunConfig.load(PARAMS / "debug.yaml")
    assert config.model.base_model_path == "debug"
    assert config.training.num_epochs * config.training.steps_per_epoch == 4


def test_2wiki_takes_rounds_of_one_clue():
    config = RunConfig.load(PARAMS / "2wiki.yaml")
    assert (config.data.source, config.data.min_clues_per_round) == ("library", 1)
    assert config.data.split != "hard_first"


def test_live_is_judged_by_a_model_on_this_machine_for_at_least_five_steps():
    config = RunConfig.load(PARAMS / "live.yaml")
    assert (config.checker.kind, config.data.source) == ("llm", "demo")
    assert config.model.vllm_base_url == "http://127.0.0.1:8000/v1"  # where `serve` listens
    assert config.training.num_epochs * config.training.steps_per_epoch >= 5


def test_qwen3_8b_is_the_defaults_but_for_the_data():
    config = RunConfig.load(PARAMS / "qwen3-8b.yaml")
    assert differing(config, RunConfig()) == {"run_name", "data"}


def test_important_first_is_the_demo_with_other_rewards():
    other = RunConfig.load(PARAMS / "important-first.yaml")
    assert differing(other, RunConfig.load(PARAMS / "run1.yaml")) == {"run_name", "reward"}


def test_important_first_cannot_be_gamed_as_the_defaults_can():
    default, other = RunConfig(), RunConfig.load(PARAMS / "important-first.yaml")
    read = other.search.max_documents
    assert 9 * default.reward.local_new > default.reward.important_new  # the weakness (nine: 2.7)
    worst_with_one = other.reward.important_new + (read - 1) * other.reward.discard_new
    best_without = read * max(other.reward.local_new, other.reward.discard_new)
    assert (worst_with_one, best_without) == (pytest.approx(1.8), pytest.approx(0.8))
    assert other.reward.important_seen == other.reward.local_seen == 0
