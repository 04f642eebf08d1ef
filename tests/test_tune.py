"""A study of trials: what is refused, what is proposed, what a stop costs, and what comes out."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import filelock
import nbclient
import nbformat
import optuna
import pandas as pd
import pytest

from rlkit import cli
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError, RunError
from rlkit.files import read_json, read_jsonl
from rlkit.run import Run, list_runs
from rlkit.training.interrupts import interrupt_flag
from rlkit.tune import ObjectiveError, Study, evaluate_winner, study_figures, summary_text
from rlkit.tuning import results
from rlkit.tuning.plots import parallel_coordinates, parameter_importance, study_history
from rlkit.tuning.shared import shared_parts
from rlkit.tuning.space import read_space
from rlkit.tuning.study import _Watch

ROOT = Path(__file__).resolve().parents[1]
SPACE = {
    "grpo.learning_rate": {"low": 1e-3, "high": 0.1, "log": True},
    "grpo.kl_penalty": {"low": 0.01, "high": 0.5},
}


def config_of(folder: Path, **sections) -> RunConfig:
    """The toy task of tuning_toy.py, trained for four steps by a random model of two layers."""
    values = {
        "run_name": "toy",
        "output_root": str(folder),
        "task": "tests.tuning_toy:build",
        "model": {"base_model_path": "debug", "load_in_4bit": False, "dtype": "float32"},
        "grpo": {"group_size": 4, "temperature": 1.0, "max_new_tokens": 8},
        "training": {"num_epochs": 4, "steps_per_epoch": 1, "gradient_accumulation_steps": 1},
        "evaluation": {"epoch_states": 4, "policies": ["untouched"]},
        "monitoring": {"use_tensorboard": False},
        "tune": {"method": "random", "trials": 3, "space": SPACE},
    }
    values["model"] |= {"device": "cpu"}
    for name, changes in sections.items():
        values[name] = {**values.get(name, {}), **changes} if isinstance(changes, dict) else changes
    return RunConfig.from_sections(**values)


def space_of(space: dict, **sections) -> dict:
    return read_space(config_of(Path("unused"), tune={"space": space}, **sections))


def quiet(line: str) -> None:
    pass


@pytest.fixture
def trained(monkeypatch):
    """In the place of training: values by trial number, or an exception; counts who trained."""
    import rlkit.training.loop as loop

    class Stand:
        names: list[str] = []
        curve = staticmethod(lambda config, number: [0.0, 0.5, 1.0])
        error: dict[int, BaseException] = {}
        name = "eval/reward"

    stand = Stand()
    stand.names = []

    def train_run(config, *, log=print, progress=None):
        stand.names.append(config.run_name)
        number = int(config.run_name[-3:])
        run = Run.open(config)
        if number in stand.error:
            raise stand.error.pop(number)
        values = stand.curve(config, number)
        done = len(run.read_metrics())
        for epoch, value in list(enumerate(values))[done:]:
            row = {"step": epoch, "epoch": epoch, stand.name: value, "eval/states": 4.0}
            row |= {"eval/seconds": 0.0}
            run.append_metrics(row)
            if progress:
                progress(row)
        run.set_status("finished", step=len(values) - 1)
        return run

    monkeypatch.setattr(loop, "train_run", train_run)
    monkeypatch.setattr("gc.collect", lambda: 0)  # a second where torch is loaded, and no model is
    return stand


# ---- the space


def test_the_default_spaces_are_those_that_the_documentation_lists():
    grid = read_space(RunConfig.from_sections(tune={"method": "grid"}))
    assert {key: str(d) for key, d in grid.items()} == {
        "grpo.learning_rate": "1e-05, 5e-05, 0.0001",
        "lora.rank": "8, 16, 32",
        "grpo.kl_penalty": "0.05, 0.1, 0.2",
    }
    for method, ranks in (("random", "4, 8, 16, 32, 64"), ("bayesian", "8, 16, 32")):
        space = read_space(RunConfig.from_sections(tune={"method": method}))
        assert {key: str(d) for key, d in space.items()} == {
            "grpo.learning_rate": "1e-06 to 0.0001 (log)",
            "grpo.kl_penalty": "0.01 to 0.5",
            "lora.rank": ranks,
        }


def test_a_default_key_that_is_idle_here_is_left_out():
    space = read_space(RunConfig.from_sections(lora={"enabled": False}))
    assert list(space) == ["grpo.learning_rate", "grpo.kl_penalty"]


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"grpo.learning_rat": [1e-5]}, "did you mean grpo.learning_rate?"),
        ({"gropo.learning_rate": [1e-5]}, "did you mean grpo?"),
        ({"grpo.learning_rate": [5]}, "a number above 0 and at most 1"),
        ({"lora.rank": {"low": 8, "high": 4096}}, "a whole number from 1 to 1024"),
        ({"grpo.loss_type": ["grpo", "dapoo"]}, "did you mean dapo?"),
        ({"run_name": ["a", "b"]}, "belongs to the whole study"),
        ({"output_root": ["a", "b"]}, "belongs to the whole study"),
        ({"training.resume": [True, False]}, "changes nothing"),
        ({"evaluation.epoch_states": [4, 8]}, "must be measured alike"),
        ({"tune.trials": [4, 8]}, "changes nothing"),
        ({"reward.local_new": [0.1, 0.3]}, "what eval/reward is worth"),
        ({"sft.learning_rate": [1e-4, 2e-4]}, "no warm start is made"),
        ({"grpo.kl_penalty": 0.1}, "give a list of values, or low and high"),
        ({"grpo.kl_penalty": {"low": 0.1}}, "only one of low and high"),
        ({"grpo.kl_penalty": {"low": 0.5, "high": 0.1}}, "low must be below"),
        ({"grpo.kl_penalty": {"low": 0, "high": 0.1, "log": True}}, "low above 0"),
        ({"grpo.kl_penalty": {"low": 0.1, "high": 0.5, "lg": True}}, "did you mean log?"),
        ({"grpo.group_size": {"low": 2, "high": 8, "step": 1.5}}, "a whole number above 0"),
        ({"grpo.group_size": [4, "4"]}, "stands twice"),
        ({"grpo.loss_type": {"low": "grpo", "high": "dapo"}}, "for anything else give values"),
        ({"grpo.kl_penalty": {"values": [0.1], "high": 0.5}}, "give values: [...] alone"),
    ],
)
def test_a_space_that_cannot_be_run_is_told_in_one_sentence(space, said):
    with pytest.raises(ConfigError, match="^tune.space: ") as error:
        space_of(space)
    assert said in str(error.value)


def test_text_that_is_a_number_is_one():
    """papermill's YAML reads 1e-5 as text."""
    space = space_of({"grpo.learning_rate": ["1e-5", "1e-4"], "grpo.kl_penalty": ["0.1"]})
    assert space["grpo.learning_rate"].values == (1e-5, 1e-4)


def test_a_grid_counts_steps_of_a_range_and_wants_one():
    grid = {"method": "grid", "trials": None}
    stepped = {"grpo.kl_penalty": {"low": 0.1, "high": 0.75, "step": 0.2}, "lora.rank": [4, 8]}
    space = read_space(config_of(Path("x"), tune=grid | {"space": stepped}))
    assert space["grpo.kl_penalty"].grid() == [0.1, 0.3, 0.5, 0.7]
    with pytest.raises(ConfigError, match="a grid needs the points of grpo.learning_rate"):
        read_space(config_of(Path("x"), tune=grid | {"space": SPACE}))


def test_lists_can_be_tuned_too():
    layers = [["q_proj"], ["q_proj", "v_proj"]]
    dimension = space_of({"lora.target_modules": layers})["lora.target_modules"]
    trial = optuna.trial.FixedTrial({"lora.target_modules": dimension.labels()[1]})
    assert dimension.suggest(trial) == layers[1]


@pytest.mark.parametrize(
    ("task", "objective", "said"),
    [
        ("search", "eval/discovery", r"eval/kl, eval/important_rate.*mean eval/discovery_rate\?"),
        ("answers", "eval/acuracy", r"eval/kl, eval/accuracy, .*did you mean eval/accuracy\?"),
        (
            "answers",
            "eval/discovery_rate",
            r"measured on dev are eval/reward, eval/kl, eval/accuracy, ",
        ),
        ("answers", "eval/own_funktion", r"eval/own_function; did you mean eval/own_function\?"),
    ],
)
def test_an_objective_that_is_not_measured_is_told_before_any_trial(
    tmp_path, task, objective, said, monkeypatch
):
    module = types.ModuleType("my_rewards")
    module.own_function = lambda completions: [0.0]
    monkeypatch.setitem(sys.modules, "my_rewards", module)
    own = ["accuracy", *(["my_rewards:own_function"] if "own" in objective else [])]
    changes = {"task": task, "answers": {"rewards": own}, "tune": {"objective": objective}}
    with pytest.raises(ConfigError, match=said):
        Study(config_of(tmp_path, **changes), quiet)
    assert list(tmp_path.iterdir()) == []
    if "own" in objective:
        read_space(config_of(tmp_path, **changes | {"tune": {"objective": "eval/own_function"}}))
        spaced = {"objective": "eval/own_function", "space": {"answers.rewards": [["accuracy"]]}}
        with pytest.raises(ConfigError, match="tune.objective is 'eval/own_function'; measured"):
            read_space(config_of(tmp_path, **changes | {"tune": spaced}))


def test_a_study_without_dev_states_is_refused():
    with pytest.raises(ConfigError, match="evaluation.epoch_states or data.dev_ratio is 0"):
        space_of(SPACE, evaluation={"epoch_states": 0})


# ---- trials


def test_every_combination_of_a_grid_is_run_once(tmp_path, trained):
    grid = {"grpo.learning_rate": [0.01, 0.1], "lora.rank": [4, 8, 16]}
    config = config_of(tmp_path, tune={"method": "grid", "trials": None, "space": grid})
    study = Study(config, quiet)
    assert study.run() == "finished"
    table = study.table()
    pairs = list(zip(table["grpo.learning_rate"], table["lora.rank"], strict=True))
    assert sorted(pairs) == sorted(itertools.product([0.01, 0.1], [4, 8, 16]))


def test_a_trial_is_a_run_with_its_parameters_and_no_tune_section(tmp_path, trained):
    study = Study(config_of(tmp_path), quiet)
    study.run()
    row = study.table().iloc[1]
    run = Run.at(tmp_path / "toy-random-trial-001")
    assert run.config.grpo.learning_rate == row["grpo.learning_rate"]
    assert run.config.tune == RunConfig().tune
    assert {r["run_name"] for r in list_runs(tmp_path)} == set(study.table()["run"])


@pytest.mark.parametrize("method", ["random", "bayesian"])
def test_a_study_in_two_parts_proposes_what_a_whole_one_does(tmp_path, trained, method):
    trained.curve = lambda config, number: [0.0, -abs(config.grpo.learning_rate - 0.02)]
    tables = []
    for name, parts in (("whole", [8]), ("parts", [3, 8])):
        for trials in parts:
            tune = {"method": method, "trials": trials, "startup_trials": 4}
            study = Study(config_of(tmp_path, run_name=name, tune=tune), quiet)
            study.run()
        tables.append(study.table()[list(SPACE)])
    pd.testing.assert_frame_equal(*tables)
    assert tables[0]["grpo.learning_rate"].nunique() == 8, "no draw comes twice"


def test_the_seed_decides_what_is_drawn(tmp_path, trained):
    for seed in (1, 2):
        study = Study(config_of(tmp_path / str(seed), seed=seed, tune={"trials": 1}), quiet)
        study.run()
        trained.names.append(study.table()["grpo.learning_rate"][0])
    assert trained.names[1] != trained.names[3]


def test_a_failed_trial_keeps_its_reason_and_the_study_goes_on(tmp_path, trained):
    trained.error = {0: TypeError("a bug"), 1: RunError("no memory; take less.")}
    lines = []
    study = Study(config_of(tmp_path), lines.append)
    assert study.run() == "finished"
    table = study.table()
    assert table["state"].tolist() == ["failed", "failed", "complete"]
    assert table["reason"].tolist() == ["TypeError: a bug", "RunError: no memory; take less.", ""]
    assert any("Traceback" in line and "TypeError: a bug" in line for line in lines)
    assert not any("Traceback" in line and "no memory" in line for line in lines)


def test_a_trial_below_the_median_is_pruned_and_its_run_says_so(tmp_path, trained):
    trained.curve = lambda config, number: [0.0, 0.1, 0.2] if number == 4 else [0.0, 0.5, 1.0]
    study = Study(config_of(tmp_path, tune={"trials": 5}, training={"num_epochs": 2}), quiet)
    study.run()
    table = study.table()
    assert table["state"].tolist() == ["complete"] * 4 + ["pruned"]
    assert table["value"][4] == 0.1 and "worse than the median" in table["reason"][4]
    status = Run.at(tmp_path / "toy-random-trial-004").status()
    assert (status["state"], status["step"]) == ("stopped", 1)


def test_pruning_can_be_switched_off_and_nothing_is_pruned_at_its_last_epoch(tmp_path, trained):
    trained.curve = lambda config, number: [0.0, 0.1 if number == 4 else 0.5]
    for pruning, epochs in ((False, 2), (True, 1)):
        tune = {"trials": 5, "pruning": pruning}
        config = config_of(tmp_path / str(epochs), tune=tune, training={"num_epochs": epochs})
        study = Study(config, quiet)
        study.run()
        assert set(study.table()["state"]) == {"complete"}


def test_an_interrupt_stops_the_study_and_the_trial_goes_on_next_time(tmp_path, trained):
    trained.error = {1: KeyboardInterrupt()}
    study = Study(config_of(tmp_path), quiet)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert study.table()["state"].tolist() == ["complete", "broken off"]
    assert evaluate_winner(study) is None
    again = Study(config_of(tmp_path), quiet)
    assert again.run() == "finished"
    assert trained.names == [f"toy-random-trial-00{i}" for i in (0, 1, 1, 2)]
    assert again.table()["state"].tolist() == ["complete"] * 3


def test_a_trial_of_a_living_process_is_left_alone(tmp_path, trained):
    study = Study(config_of(tmp_path, tune={"trials": 2}), quiet)
    taken, lock = study._take()
    other = Study(config_of(tmp_path, tune={"trials": 2}), quiet)
    assert other.run() == "finished" and not other.done
    assert other.table()["state"].tolist() == ["running", "complete"]
    assert evaluate_winner(other) is None
    lock.release()
    assert other.table()["state"].tolist() == ["broken off", "complete"]
    assert other.run() == "finished" and other.done
    assert trained.names == ["toy-random-trial-001", "toy-random-trial-000"]


def _die(study: Study, epochs: int = 0) -> None:
    """What a killed process leaves of the next trial: nothing that runs at an exit."""
    trial, lock = study._take()
    watch = _Watch(study, trial)
    watch.count_death()
    for epoch in range(1, epochs + 1):
        watch({"step": epoch, "epoch": epoch, "eval/seconds": 0.0, "eval/reward": 0.5})
    lock.release()


def test_a_trial_whose_process_died_three_times_has_failed_and_the_study_goes_on(tmp_path, trained):
    lines = []
    study = Study(config_of(tmp_path, tune={"trials": 2}), lines.append)
    for _ in range(3):
        _die(study)
    assert study.run() == "finished"
    table = study.table()
    assert table["state"].tolist() == ["failed", "complete"]
    assert table["reason"][0] == "its process died 3 times"
    assert "trial 0 failed: its process died 3 times" in lines
    assert trained.names == ["toy-random-trial-001"]


def test_interrupts_and_deaths_between_which_an_epoch_was_finished_are_not_held_against_a_trial(
    tmp_path, trained
):
    study = Study(config_of(tmp_path, tune={"trials": 1}), quiet)
    for epochs in (0, 0, 1, 0):  # the third one got on: two deaths since
        _die(study, epochs)
    for _ in range(4):
        trained.error = {0: KeyboardInterrupt()}
        with pytest.raises(KeyboardInterrupt):
            study.run()
    assert study.run() == "finished"
    assert study.table()["state"].tolist() == ["complete"]


def test_the_table_is_written_under_the_studys_lock(tmp_path, trained, monkeypatch):
    """A process that read the trials before another one told its result writes the older table."""
    study, free = Study(config_of(tmp_path, tune={"trials": 1}), quiet), []
    write = results.write_text

    def write_text(path, text):
        try:
            with filelock.FileLock(study.folder / ".study.lock", timeout=0):
                free.append(path.name)
        except filelock.Timeout:
            pass
        return write(path, text)

    monkeypatch.setattr(results, "write_text", write_text)
    study.run()
    assert (study.folder / "trials.csv").exists() and free == []


def test_an_interrupt_in_a_trials_last_step_ends_the_study_after_it(tmp_path, trained):
    def interrupted(config, number):
        with interrupt_flag(quiet):
            signal.raise_signal(signal.SIGINT)
        return [0.0, 1.0]

    trained.curve = interrupted
    study = Study(config_of(tmp_path), quiet)
    assert study.run() == "stopped"
    assert study.table()["state"].tolist() == ["complete"]


def test_minutes_count_over_the_whole_study_and_a_begun_trial_is_finished(tmp_path, trained):
    study = Study(config_of(tmp_path, tune={"trials": 9, "minutes": 1.0}), quiet)
    trial, lock = study._take()
    trial.set_user_attr("seconds", 10.0)
    lock.release()
    assert study.run() == "finished"  # it goes on with this one, and 50 seconds are left
    assert len(study.trials) == 9
    trial, lock = study.optuna.ask(), None
    trial.set_user_attr("seconds", 61.0)
    longer = Study(config_of(tmp_path, tune={"trials": 20, "minutes": 1.0}), quiet)
    assert longer.run() == "finished"
    assert len(longer.trials) == 10


def test_other_parameters_are_refused_but_another_budget_is_not(tmp_path):
    Study(config_of(tmp_path), quiet)
    Study(config_of(tmp_path, tune={"trials": 50, "minutes": 3}), quiet)
    for changes in ({"training": {"num_epochs": 7}}, {"evaluation": {"epoch_states": 7}}):
        with pytest.raises(RunError, match=r"4 there, 7 given\); give the same ones"):
            Study(config_of(tmp_path, **changes), quiet)
    with pytest.raises(RunError, match="tune.space.grpo.learning_rate.low"):
        Study(config_of(tmp_path, tune={"space": {"lora.rank": [4]}}), quiet)


def test_half_a_line_of_the_journal_costs_nothing(tmp_path, trained):
    study = Study(config_of(tmp_path, tune={"trials": 1}), quiet)
    study.run()
    journal = study.folder / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":5,"wor')
    again = Study(config_of(tmp_path, tune={"trials": 2}), quiet)
    again.run()
    assert again.table()["state"].tolist() == ["complete"] * 2
    journal.write_bytes(b"no journal\n" + whole)
    with pytest.raises(DataError, match="journal.log is damaged"):
        Study(config_of(tmp_path, tune={"trials": 2}), quiet)


# ---- what came out


@pytest.fixture
def judged(monkeypatch):
    """In the place of the evaluation on the test split: counts how often it is asked."""
    import types

    import rlkit.results.compare as compare

    asked = []

    def evaluate_run(config, *, log=print, progress=None):
        asked.append(config)
        row = {"policy": "tuned", "metric": "reward", "mean": 0.25, "low": 0.125, "high": 0.5}
        frame = pd.DataFrame([row | {"n_questions": 10, "n_states": 10}])
        return types.SimpleNamespace(summary=lambda: frame)

    monkeypatch.setattr(compare, "evaluate_run", evaluate_run)
    return asked


def test_the_winner_is_evaluated_once_on_the_test_split_and_both_values_are_told(
    tmp_path, trained, judged
):
    trained.curve = lambda config, number: [0.0, [0.2, 0.9, 0.4, 0.95][number]]
    study = Study(config_of(tmp_path, evaluation={"checkpoint": "best"}), quiet)
    study.run()
    winner = evaluate_winner(study, log=quiet)
    assert (winner["trial"], winner["dev"], winner["dev_median"]) == (1, 0.9, 0.4)
    assert evaluate_winner(study, log=quiet) == winner and len(judged) == 1
    assert (judged[0].run_name, judged[0].evaluation.split) == ("toy-random-trial-001", "eval")
    assert "tuned" in judged[0].evaluation.policies
    assert judged[0].evaluation.checkpoint == "newest", "dev compared the last one"
    text = summary_text(study, winner)
    assert "eval/reward is 0.9, the best of 3 (their median: 0.4)" in text
    assert "tuned: 0.25 (95 % interval 0.125 to 0.5, n = 10 questions)" in text
    assert "looked at once" in text and (study.folder / "summary.md").read_text() == text + "\n"
    # a fourth trial wins: the test split is no longer untouched
    best = {"checkpoint": "best"}
    longer = Study(config_of(tmp_path, evaluation=best, tune={"trials": 4}), quiet)
    longer.run()
    assert "looked at 2 times" in summary_text(longer, evaluate_winner(longer, log=quiet))


def test_an_objective_that_the_test_split_has_no_value_of_is_said(tmp_path, trained, judged):
    trained.name = "eval/kl"
    lines = []
    study = Study(config_of(tmp_path, tune={"objective": "eval/kl"}), quiet)
    study.run()
    winner = evaluate_winner(study, log=lines.append)
    assert "has no kl, so the reward is told in its place" in "".join(lines)
    assert "reward (eval/kl is not measured there):" in summary_text(study, winner)


def test_minimize_takes_the_lowest(tmp_path, trained, judged):
    trained.curve = lambda config, number: [0.0, [0.2, 0.9, 0.1][number]]
    study = Study(config_of(tmp_path, tune={"direction": "minimize"}), quiet)
    study.run()
    assert evaluate_winner(study, log=quiet)["trial"] == 2


def test_the_best_parameters_are_a_params_file_that_loads_as_it_is(tmp_path, trained):
    trained.curve = lambda config, number: [0.0, [0.2, 0.9, 0.1][number]]
    study = Study(config_of(tmp_path), quiet)
    study.run()
    best = RunConfig.load(study.folder / "best.yaml")
    assert best.run_name == "toy-random-best"
    assert best.grpo.learning_rate == study.table()["grpo.learning_rate"][1]
    trial = Run.at(tmp_path / "toy-random-trial-001").config
    assert best.with_overrides("run_name=x") == trial.with_overrides("run_name=x")
    rows = pd.read_csv(study.folder / "trials.csv")
    assert rows["value"].tolist() == [0.2, 0.9, 0.1]


def test_without_a_complete_trial_the_last_reason_is_told(tmp_path, trained):
    trained.error = {i: RunError(f"reason {i}.") for i in range(3)}
    study = Study(config_of(tmp_path), quiet)
    study.run()
    with pytest.raises(RunError, match="no trial of .* is complete; .*reason 2"):
        evaluate_winner(study)


@pytest.mark.parametrize("complete", [0, 1, 2, 5])
def test_figures_are_there_however_few_trials_are_complete(tmp_path, trained, complete):
    trained.curve = lambda config, number: [0.0, float(number)]
    trained.error = {i: RunError("no.") for i in range(complete, 6)}
    space = SPACE | {"lora.target_modules": [["q_proj"], ["v_proj"]], "lora.rank": [4, 8]}
    study = Study(config_of(tmp_path, tune={"trials": 6, "space": space}), quiet)
    study.run()
    figures = study_figures(study)
    said = {n: [t.get_text() for t in f.axes[0].texts] for n, f in figures.items()}
    assert ("no trial is complete yet" in said["history"]) == (complete == 0)
    assert ("fewer than two trials are complete" in said["parallel"]) == (complete < 2)
    assert any("too few" in text for text in said["importance"]) == (complete < 4)
    for figure in figures.values():
        figure.savefig(tmp_path / "x.png")


def test_figures_show_every_trial():
    table = pd.DataFrame(
        {"trial": range(4), "state": ["complete", "failed", "pruned", "complete"],
         "value": [1.0, None, 0.5, 3.0], "a.rate": [1e-5, 1e-4, 1e-4, 1e-3]}
    )  # fmt: skip
    ax = study_history(table, "eval/reward").axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert drawn["complete"] == [1.0, 3.0] and drawn["best so far"] == [1.0, 3.0]
    assert drawn["pruned, last value"] == [0.5] and "failed (1)" in drawn
    lines = parallel_coordinates(table, ["a.rate"], "eval/reward").axes[0].lines[:2]
    assert [list(line.get_ydata()) for line in lines] == [[0.0, 0.0], [1.0, 1.0]]
    bars = parameter_importance({"a.rate": 0.75, "b": 0.25}, 4).axes[0].patches
    assert [bar.get_width() for bar in bars] == [0.25, 0.75]


# ---- what trials share


def test_rounds_and_warm_starts_are_made_once_for_those_that_would_make_the_same(
    tmp_path, monkeypatch
):
    import rlkit.training.stages as stages

    made = []

    def prepare_data(config, run, log):
        made.append(config.run_name)

    def sft_run(config, *, log):
        made.append(config.run_name)
        assert config.data.rounds_path.endswith("s-rounds/rounds")

    monkeypatch.setattr(stages, "prepare_data", prepare_data)
    monkeypatch.setattr(stages, "sft_run", sft_run)
    base = RunConfig.load(ROOT / "params" / "debug.yaml", [f"output_root={tmp_path}"])
    found = [
        shared_parts(base, tuned, "s", tmp_path, quiet)
        for tuned in (
            {"lora.rank": 4, "grpo.learning_rate": 1e-4},
            {"lora.rank": 8, "grpo.learning_rate": 1e-4},
            {"lora.rank": 4, "grpo.learning_rate": 1e-5},
        )
    ]
    assert found[0] == found[2] != found[1]
    assert len(made) == 3 and made[0] == "s-rounds"
    warm = Path(found[1]["model.init_adapter"]).parents[1]
    assert Run.at(warm).config.lora.rank == 8
    given = base.with_overrides("model.init_adapter=null", "data.rounds_path=mine")
    assert shared_parts(given, {"lora.rank": 4}, "s", tmp_path, quiet) == {}


# ---- the real thing: training, killing, the command line, the notebook


def test_an_objective_that_is_not_measured_ends_the_study_with_what_there_is(tmp_path):
    config = config_of(tmp_path, tune={"objective": "eval/rewrd"})
    with pytest.raises(ObjectiveError, match="eval/letters.*did you mean eval/reward"):
        Study(config, quiet).run()


def test_a_bug_in_a_users_task_fails_its_trial_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNING_TOY_FAILS", "1")
    lines = []
    study = Study(config_of(tmp_path, tune={"trials": 1}), lines.append)
    assert study.run() == "finished"
    assert study.table()["reason"][0] == "TypeError: a bug in a user's task"
    assert any("tuning_toy.py" in line for line in lines), "the traceback is shown"


def test_the_command_runs_a_study_and_says_both_values(tmp_path, capsys):
    path = tmp_path / "toy.yaml"
    config_of(tmp_path / "out").save(path)
    arguments = ["tune", "--params", str(path), "--method", "random", "--trials", "2"]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "out" / "toy-random"
    assert "On dev (n = 4 states), eval/reward is" in out and "On the test split, reward:" in out
    for name in ("trials.csv", "best.yaml", "winner.json", "history.png", "parallel.png"):
        assert (folder / name).stat().st_size > 0
    winner = read_json(folder / "winner.json")
    evaluation = read_json(tmp_path / "out" / winner["run"] / "evaluation.json")
    assert evaluation["split"] == "eval"
    assert {row["policy"] for row in winner["test"]} == {"untouched", "tuned"}
    assert cli.main([*arguments[:-1], "0"]) == 2


def _study_process(config: Path, **environment) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "rlkit", "tune", "--params", str(config)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grid", "random", "bayesian"])
def test_a_study_killed_in_the_middle_of_a_trial_ends_as_an_unbroken_one(tmp_path, method):
    space = {"grpo.learning_rate": [0.003, 0.02], "grpo.kl_penalty": [0.05, 0.2]}
    tune = {"method": method, "trials": 4, "startup_trials": 2, "pruning": False}
    tune["space"] = space if method == "grid" else SPACE
    training = {"num_epochs": 6, "steps_per_epoch": 2}
    folders = [tmp_path / name for name in ("broken", "whole")]
    for folder in folders:
        config_of(folder, tune=tune, training=training).save(tmp_path / f"{folder.name}.yaml")
    metrics = folders[0] / f"toy-{method}-trial-002" / "metrics.jsonl"
    process = _study_process(tmp_path / "broken.yaml")
    until = time.monotonic() + 120
    while time.monotonic() < until and not (
        metrics.exists() and len(metrics.read_bytes().splitlines()) > 4
    ):
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    outputs = []
    for folder in folders:
        process = _study_process(tmp_path / f"{folder.name}.yaml")
        outputs.append(process.communicate(timeout=300)[0])
        assert process.returncode == 0, outputs[-1]
    assert "trial 2 was broken off; it goes on" in outputs[0]
    broken, whole = (pd.read_csv(f / f"toy-{method}" / "trials.csv") for f in folders)
    columns = ["trial", "state", "value", *space]
    pd.testing.assert_frame_equal(broken[columns], whole[columns])
    assert broken["state"].tolist() == ["complete"] * 4
    for number in range(4):  # nothing ran twice: one start each, two of the one that was killed
        run = folders[0] / f"toy-{method}-trial-00{number}"
        starts = 1 + len(read_json(run / "lineage.json").get("earlier", []))
        assert starts == (2 if number == 2 else 1)
        steps = [row["step"] for _, row in read_jsonl(run / "metrics.jsonl")]
        assert steps == list(range(13))


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path):
    tune = {"trials": 6, "pruning": False}
    config_of(tmp_path / "out", tune=tune).save(tmp_path / "toy.yaml")
    processes = [_study_process(tmp_path / "toy.yaml") for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    rows = pd.read_csv(tmp_path / "out" / "toy-random" / "trials.csv")
    assert rows["state"].tolist() == ["complete"] * 6
    assert rows["grpo.learning_rate"].nunique() == 6
    done = [output.count(" complete: ") for output in outputs]
    assert sum(done) == 6, done
    assert sum("evaluation: " in output and ".json" in output for output in outputs) == 1
    assert read_json(tmp_path / "out" / "toy-random" / "winner.json")["earlier"] == []


@pytest.mark.slow
def test_an_interrupt_ends_a_study_after_a_step_and_says_how_to_go_on(tmp_path):
    training = {"num_epochs": 200, "steps_per_epoch": 2}
    config_of(tmp_path / "out", training=training).save(tmp_path / "toy.yaml")
    process = _study_process(tmp_path / "toy.yaml")
    metrics = tmp_path / "out" / "toy-random-trial-000" / "metrics.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and not (
        metrics.exists() and len(metrics.read_bytes().splitlines()) > 4
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130, output
    assert "the same command goes on" in output and "Traceback" not in output
    rows = pd.read_csv(tmp_path / "out" / "toy-random" / "trials.csv")
    assert rows["state"].tolist() == ["broken off"]


@pytest.mark.slow
def test_the_notebook_runs_a_study_and_shows_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config_of(tmp_path / "out").save(tmp_path / "toy.yaml")
    notebook = nbformat.read(ROOT / "notebooks" / "tune.ipynb", as_version=4)
    cell = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    cell.source += f"\nparams_file = {str(tmp_path / 'toy.yaml')!r}"
    resources = {"metadata": {"path": str(ROOT / "notebooks")}}
    nbclient.NotebookClient(notebook, kernel_name="python3", resources=resources).execute()
    shown = json.dumps([c.get("outputs", []) for c in notebook.cells])
    assert shown.count('"image/png": "') == 3 and "On the test split, reward:" in shown
    assert (tmp_path / "out" / "toy-random" / "best.yaml").exists()


def test_no_lock_of_a_study_outlives_it(tmp_path, trained):
    study = Study(config_of(tmp_path), quiet)
    study.run()
    for path in study.folder.glob(".*.lock"):
        with filelock.FileLock(path, timeout=0):
            pass
