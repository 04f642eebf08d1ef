"""The command line: the same parameters as everywhere, sentences instead of tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pandas as pd
import pytest

from rlkit import cli
from rlkit.config import RunConfig
from rlkit.errors import ModelError
from rlkit.run import Run

PARAMS = str(Path(__file__).resolve().parents[1] / "params" / "debug.yaml")


@pytest.fixture
def stand_in(monkeypatch):
    """Put a module with one recording function in the place of a heavy one."""

    def put(module: str, function: str, result):
        calls = []

        def record(*args, **kwargs):
            calls.append((args, kwargs))
            if isinstance(result, BaseException):
                raise result
            return result

        fake = types.ModuleType(module)
        setattr(fake, function, record)
        monkeypatch.setitem(sys.modules, module, fake)
        return calls

    return put


def a_run(root: Path, state: str) -> Run:
    run = Run.open(RunConfig.from_sections(run_name="one", output_root=str(root)))
    run.set_status(state, step=4)
    return run


@pytest.fixture
def trainer(stand_in, tmp_path):
    return stand_in("rlkit.training.loop", "train_run", a_run(tmp_path, "finished"))


def test_train_without_params_takes_the_defaults(trainer):
    assert cli.main(["train"]) == 0
    assert trainer[0][0] == (RunConfig(),)


def test_train_takes_a_params_file_and_changes(trainer):
    arguments = ["--epochs", "10", "--resume", "--set", "grpo.group_size=8", "seed=3"]
    assert cli.main(["train", "--params", PARAMS, *arguments]) == 0
    config = trainer[0][0][0]
    assert (config.run_name, config.training.num_epochs) == ("debug", 10)
    assert (config.grpo.group_size, config.seed, config.training.resume) == (8, 3, True)


def test_debug_shrinks_but_keeps_what_was_asked_for_by_name(trainer):
    assert cli.main(["train", "--debug", "--epochs", "3", "--set", "run_name=mine"]) == 0
    config = trainer[0][0][0]
    assert (config.run_name, config.training.num_epochs) == ("mine-debug", 3)
    assert config.model.base_model_path == "debug"


def test_debug_prints_every_metric_and_every_action(stand_in, tmp_path, capsys):
    run = a_run(tmp_path, "finished")
    actions = {"state_id": "q/run_001/1", "reward": 2.5, "advantage": 0.25, "text": "a\x1bb"}
    run.write_rollouts(1, pd.DataFrame([{"action": k, **actions} for k in range(2)]))
    calls = stand_in("rlkit.training.loop", "train_run", run)
    assert cli.main(["train", "--debug"]) == 0
    calls[0][1]["progress"]({"step": 1, "reward": 1.25, "clip_ratio/low_mean": 0.0, "kl": None})
    out = capsys.readouterr().out
    assert r"step 1, q/run_001/1, action 1: reward 2.5, advantage 0.25, 'a\x1bb'" in out
    assert [line.split() for line in out.splitlines()[-5:]] == [
        ["step", "1:"], ["step", "1"], ["reward", "1.25"], ["clip_ratio/low_mean", "0"],
        ["kl", "None"],
    ]  # fmt: skip


def test_an_error_is_one_line_on_stderr_with_code_2(stand_in, capsys):
    stand_in("rlkit.training.loop", "train_run", ModelError("no model at x; check the path."))
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err == "error: no model at x; check the path.\n"


def test_an_interruption_says_how_to_go_on_with_code_130(stand_in, capsys):
    stand_in("rlkit.training.loop", "train_run", KeyboardInterrupt())
    assert cli.main(["train"]) == 130
    assert "--resume, goes on from the last checkpoint" in capsys.readouterr().err


def test_a_run_that_saved_itself_when_interrupted_ends_with_130_too(stand_in, tmp_path, capsys):
    stand_in("rlkit.training.loop", "train_run", a_run(tmp_path, "stopped"))
    assert cli.main(["train"]) == 130
    assert "goes on from the last checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["runs"], ["check", "--quick"], ["report", "one"]])
def test_what_one_process_does_is_refused_to_several(monkeypatch, capsys, command):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(command) == 2
    assert capsys.readouterr().err == (
        f"error: {command[0]} is done by one process, and the launcher started 2 (WORLD_SIZE); "
        f"start it with python -m rlkit {command[0]}. Several do train and sft.\n"
    )


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_of_several_processes_main_alone_speaks(stand_in, tmp_path, monkeypatch, capsys, state):
    monkeypatch.setenv("WORLD_SIZE", "2")
    stand_in("rlkit.training.loop", "train_run", a_run(tmp_path, state))
    monkeypatch.setenv("RANK", "1")
    assert cli.main(["train"]) == 0 and capsys.readouterr() == ("", "")
    monkeypatch.setenv("RANK", "0")
    assert cli.main(["train"]) == (0 if state == "finished" else 130)
    assert str(tmp_path) in "".join(capsys.readouterr())


def test_the_first_process_of_a_machine_says_what_all_of_it_failed_over(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    slept = []
    monkeypatch.setattr(cli.time, "sleep", slept.append)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert cli.main(["train", "--set", "grpo.group_sise=2"]) == 2
    first, other = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ") and other == first.replace("error: ", "error: rank 1: ")
    assert slept == [cli.SAID_BY_FIRST]  # by then the launcher has ended it


def test_a_mistake_in_the_usage_is_said_by_the_first_process_alone(monkeypatch, capsys):
    monkeypatch.setattr(cli.time, "sleep", lambda seconds: None)
    for rank, said in (("0", True), ("1", False)):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(SystemExit) as ended:
            cli.main(["train", "--nonsense"])
        assert ended.value.code == 2
        assert ("--nonsense" in capsys.readouterr().err) is said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "error: No space left on device; check the path"),
        (PermissionError(13, "Permission denied", "outputs/x"), "error: outputs/x: Permission den"),
    ],
)
def test_what_the_system_refuses_is_one_line_with_code_2(stand_in, capsys, error, said):
    stand_in("rlkit.training.loop", "train_run", error)
    assert cli.main(["train"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(said) and shown.count("\n") == 1


def test_a_folder_near_the_root_that_is_no_checkpoint_is_no_crash(stand_in, tmp_path):
    evaluate = stand_in("rlkit.results.compare", "evaluate_run", ModelError("no checkpoint."))
    assert cli.main(["eval", "--checkpoint", "/"]) == 2
    assert len(evaluate) == 1


def test_a_bug_keeps_its_traceback(stand_in):
    stand_in("rlkit.training.loop", "train_run", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "grop.group_size=8"], "did you mean grpo?"),
        (["--set", "grpo.group_size=1"], "grpo.group_size is 1; allowed is a whole number from 2"),
        (["--epochs", "0"], "training.num_epochs is 0"),
        (["--params", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--set", "monitoring.api_key=abc"], "set it in the environment"),
    ],
)
def test_a_slip_in_the_parameters_is_told_before_anything_heavy_is_loaded(arguments, said, root):
    code = (
        "import sys; from rlkit.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", *arguments], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and said in done.stderr
    assert done.stderr.count("\n") == 1


def test_eval_passes_baseline_and_checkpoints_and_takes_the_runs_own_parameters(
    stand_in, tmp_path, capsys
):
    result = types.SimpleNamespace(summary=lambda: pd.DataFrame({"reward": [1.0]}))
    calls = stand_in("rlkit.results.compare", "evaluate_run", result)
    own = RunConfig.from_sections(run_name="own", output_root=str(tmp_path), seed=5)
    checkpoint = Run.open(own).checkpoints_folder / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    assert cli.main(["eval", "--baseline", "--checkpoint", str(checkpoint)]) == 0
    assert calls[0] == ((own,), {"baseline": True, "checkpoints": [checkpoint]})
    assert "reward" in capsys.readouterr().out


def a_checkpoint(root: Path, name: str = "own") -> Path:
    own = RunConfig.from_sections(run_name=name, output_root=str(root))
    checkpoint = Run.open(own).checkpoints_folder / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    return checkpoint


def test_eval_of_a_checkpoint_is_of_its_runs_folder_from_any_working_directory(
    stand_in, tmp_path, monkeypatch
):
    result = types.SimpleNamespace(summary=lambda: pd.DataFrame({"reward": [1.0]}))
    calls = stand_in("rlkit.results.compare", "evaluate_run", result)
    (tmp_path / "there [1] #2").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "there [1] #2")
    checkpoint = a_checkpoint(Path("outputs"))
    assert cli.main(["eval", "--checkpoint", str(checkpoint)]) == 0
    assert calls[0][0][0].output_root == "outputs"  # as it was told, where that is the folder
    checkpoint = checkpoint.resolve()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["eval", "--checkpoint", str(checkpoint)]) == 0
    config = calls[1][0][0]
    assert Path(config.output_root) / config.run_name == checkpoint.parents[1]
    assert cli.main(["eval", "--checkpoint", str(checkpoint), "--set", "run_name=mine"]) == 0
    config = calls[2][0][0]
    assert (config.output_root, config.run_name) == ("outputs", "mine")


def test_a_checkpoint_of_a_renamed_folder_opens_no_other_run(tmp_path, capsys):
    checkpoint = a_checkpoint(tmp_path)
    (tmp_path / "own").rename(tmp_path / "moved")
    assert cli.main(["eval", "--checkpoint", str(tmp_path / "moved" / "lora_checkpoints" /
                                                 checkpoint.name)]) == 2  # fmt: skip
    assert "run is called 'own', and its folder is" in capsys.readouterr().err
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("module", "function", "teams"),
    [
        ("rlkit.results.compare", "evaluate_run", []),
        ("rlkit.results.team_run", "compare_teams", ["--teams"]),
    ],
)
def test_policies_that_are_named_beside_a_checkpoint_are_compared_with_it(
    stand_in, tmp_path, module, function, teams
):
    result = types.SimpleNamespace(summary=lambda: pd.DataFrame({"reward": [1.0]}), text=str)
    calls = stand_in(module, function, result)
    given = ["eval", "--checkpoint", str(a_checkpoint(tmp_path)), *teams]
    assert cli.main([*given, "--policy", "raw_question", "untouched"]) == 0
    assert cli.main(given) == 0
    (first, chosen), (_, alone) = calls
    assert first[0].evaluation.policies == ["raw_question", "untouched"]
    assert (chosen["baseline"], alone["baseline"]) == (True, False)


def test_eval_takes_the_words_best_and_newest_for_checkpoints(stand_in, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = types.SimpleNamespace(summary=lambda: pd.DataFrame({"reward": [1.0]}))
    calls = stand_in("rlkit.results.compare", "evaluate_run", result)
    assert cli.main(["eval", "--checkpoint", "best", "newest"]) == 0
    assert calls[0][1]["checkpoints"] == [Path("best"), Path("newest")]


def test_eval_of_a_checkpoint_that_is_not_there_is_an_error(tmp_path, capsys):
    assert cli.main(["eval", "--checkpoint", str(tmp_path / "checkpoint-4")]) == 2
    assert "there is no checkpoint at" in capsys.readouterr().err


def test_merge_lists_what_it_wrote(stand_in, capsys):
    calls = stand_in("rlkit.deploy.merge", "merge_run", [Path("merged/a-grpo-step5")])
    assert cli.main(["merge", "--checkpoints", "5", "100", "--output-dir", "D"]) == 0
    assert calls[0] == ((RunConfig(), [5, 100]), {"output_dir": Path("D")})
    assert capsys.readouterr().out == "merged/a-grpo-step5\n"


def test_collect_records_into_the_run_and_counts_what_failed(stand_in, tmp_path, capsys):
    report = types.SimpleNamespace(failed=0, skipped=12, questions=12)
    calls = stand_in("rlkit.practice.collect_run", "collect_run", [report])
    arguments = ["collect", "--policy", "raw_question", "--max-questions", "12"]
    arguments += ["--set", f"output_root={tmp_path}"]
    assert cli.main(arguments) == 0
    config, folder, policies = calls[0][0]
    assert (policies, config.data.max_questions) == (["raw_question"], 12)
    assert folder == tmp_path / "run" / "rounds"
    report.failed = 1
    assert cli.main([*arguments, "--output", str(tmp_path / "mine")]) == 1
    assert calls[1][0][1] == tmp_path / "mine"


def test_sft_and_report_say_where_the_result_is(stand_in, tmp_path, capsys):
    stand_in("rlkit.training.stages", "sft_run", Path("outputs/run/sft"))
    assert cli.main(["sft"]) == 0
    calls = stand_in("rlkit.results.report", "write_report", tmp_path / "report.html")
    run = Run.open(RunConfig.from_sections(run_name="one", output_root=str(tmp_path)))
    assert cli.main(["report", "one", "--output-root", str(tmp_path)]) == 0
    assert calls[0][0] == (run.folder,)
    out = capsys.readouterr().out
    assert "warm start: outputs/run/sft" in out and f"report: {tmp_path}/report.html" in out


def test_report_of_an_unknown_run_is_an_error(tmp_path, stand_in, capsys):
    stand_in("rlkit.results.report", "write_report", None)
    assert cli.main(["report", "nobody", "--output-root", str(tmp_path)]) == 2
    assert "there is no run 'nobody'" in capsys.readouterr().err


def test_runs_lists_runs(tmp_path, capsys):
    assert cli.main(["runs", "--output-root", str(tmp_path)]) == 0
    assert "no runs under" in capsys.readouterr().out
    run = Run.open(RunConfig.from_sections(run_name="one", output_root=str(tmp_path)))
    run.set_status("finished", step=24)
    cli.main(["runs", "--output-root", str(tmp_path)])
    assert "one" in (out := capsys.readouterr().out) and "finished" in out and "24" in out


def test_check_reports_each_subject_and_fails_on_what_is_missing(tmp_path, capsys):
    root = f"output_root={tmp_path}"
    check = ["check", "--quick", "--params", PARAMS, "--set"]
    assert cli.main([*check, root]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == [
        "parameters", "packages", "folder", "device", "model", "memory", "disk", "plug-ins",
        "data", "language", "gold", "splits",
    ]  # fmt: skip
    missing = [root, "model.base_model_path=./nowhere", "data.source=library",
               "data.corpus_path=no.jsonl", "data.questions_path=no.jsonl"]  # fmt: skip
    assert cli.main([*check, *missing]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fail")]
    assert [line.split()[1] for line in failed] == ["model", "data"]
    assert cli.main(["check", "--json", "--set", "grop.x=1"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["level"], found["subject"]) == ("fail", "parameters")
    assert "did you mean grpo?" in found["text"]


def test_check_counts_the_states_of_recorded_rounds_and_fails_without_any(tmp_path, capsys):
    (tmp_path / "corpus.jsonl").write_text('{"id": "d1", "title": "T", "text": "some words"}\n')
    (tmp_path / "rounds").mkdir()
    given = ["data.source=rounds", f"data.rounds_path={tmp_path}/rounds", f"output_root={tmp_path}"]
    check = ["check", "--quick", "--params", PARAMS, "--set", *given]
    assert cli.main(check) == 1
    assert "data.corpus_path is not set" in capsys.readouterr().out
    assert cli.main([*check, f"data.corpus_path={tmp_path}/corpus.jsonl"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("fail  data") and "rounds" in line for line in lines)
