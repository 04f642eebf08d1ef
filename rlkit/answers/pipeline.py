"""The whole way for questions with checkable answers, as the Hello-Agents course goes it: data,
SFT, evaluate, GRPO on top, evaluate, results.

    pipeline = AgenticRLPipeline("config.json")      # the course's, or a params file
    pipeline.run()

Everything is in one run's folder; `training_results.json` there is written after every stage. A
pipeline that was stopped, killed or interrupted goes on at its stage when it is run again, and what
is finished is not done twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rlkit.answers.course_config import read_course_config, run_name_of
from rlkit.answers.evaluation import figures, figures_line, fingerprint, number
from rlkit.answers.quality import check_data_quality, model_limits
from rlkit.answers.tool_training import publish, trained_grpo, trained_sft
from rlkit.config import RunConfig, listed_changes
from rlkit.errors import ConfigError, DataError, RunError
from rlkit.files import append_line, plain, read_object, write_json
from rlkit.practice.splits import NAME
from rlkit.results.evaluate import Evaluation, load_evaluation
from rlkit.results.report import write_report
from rlkit.run import Run

STAGES = ("data", "sft_training", "sft_evaluation", "grpo_training", "grpo_evaluation")
REPORT = "report"  # a key of the results where the last report failed
RESULTS, LOG, BEFORE = "training_results.json", "pipeline.log", "evaluation-sft.json"
_SHOWN = 20  # findings that are kept


class AgenticRLPipeline:
    """See the head of this file. `results` holds what each stage came to, by the names in `STAGES`.

    `config_path` is the course's `config.json`, a params file, or a RunConfig; `overrides` change
    single values (section.key=value); `debug` makes it a run of seconds. Raises ConfigError.
    """

    def __init__(
        self,
        config_path: str | Path | RunConfig = "config.json",
        overrides: str | Iterable[str] = (),
        *,
        debug: bool = False,
    ) -> None:
        self.copies: dict[str, Path] = {}
        overrides = listed_changes(overrides)
        config = self.load_config(config_path, overrides)
        if debug:
            small, self.copies = config.debug(), {}
            changes = ["answers.sft_accuracy_threshold=0", *overrides, f"run_name={small.run_name}"]
            config = small.with_overrides(*changes)  # what was asked for by name holds
        self.config = config
        self.folder = Path(config.output_root) / config.run_name
        self._run: Run | None = None
        kept = self.folder / RESULTS
        saved = read_object(kept) if kept.exists() else {}
        self.results = {name: saved[name] for name in STAGES if isinstance(saved.get(name), dict)}

    def load_config(
        self, config_path: str | Path | RunConfig, overrides: str | Iterable[str] = ()
    ) -> RunConfig:
        """The parameters, however they are given; SFT is always made first. Raises ConfigError."""
        overrides = listed_changes(overrides)
        if isinstance(config_path, RunConfig):
            config = config_path.with_overrides(*overrides)
        elif Path(config_path).suffix == ".json":
            course = read_course_config(config_path)
            self.copies = course.copies
            config = course.run_config(run_name_of(config_path)).with_overrides(*overrides)
        else:
            config = RunConfig.load(config_path, overrides)
        if config.task != "answers":
            raise ConfigError(
                f"task is {config.task!r}, and the pipeline is for questions with checkable "
                "answers; set task: answers, such as in params/arithmetic.yaml."
            )
        if config.model.init_adapter not in (None, "auto"):
            raise ConfigError(
                f"model.init_adapter is {config.model.init_adapter!r}, and the pipeline makes its "
                "own SFT adapter; leave it out, or use `python -m rlkit train`."
            )
        policies = "evaluation.policies=[untouched, warm_start, tuned]"
        again = "training.resume=true"  # each stage goes on in the folder of the one before
        return config.with_overrides("model.init_adapter=auto", policies, again)

    def log(self, message: Any) -> None:
        """Print lines that begin `[YYYY-MM-DD HH:MM:SS]`, and keep them in `pipeline.log`."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        for text in str(message).splitlines() or [""]:
            line = f"[{now}] {text}"
            print(line, flush=True)
            if self._run is not None:
                append_line(self.folder / LOG, line)

    @property
    def run_of_stages(self) -> Run:
        """The run whose folder everything is in; made when it is first needed."""
        if self._run is None:
            self._run = Run.open(self.config)
        return self._run

    def stage1_prepare_data(self) -> dict[str, Any]:
        """Load, check and split the questions; problems of the data are logged."""
        return self._stage("data", "1 of 6: data", self._prepare, lambda: [])

    def stage2_sft_training(self) -> str:
        """Fine-tune on worked solutions; returns the adapter's folder."""
        adapter = self.run_of_stages.warm_start_folder
        self._stage("sft_training", "2 of 6: SFT", self._sft, lambda: [adapter.exists()])
        return str(adapter)

    def stage3_sft_evaluation(self, model_path: str | None = None) -> dict[str, Any]:
        """Compare the untouched model and the SFT policy on held-out questions, and measure the SFT
        policy on dev, for the gate of stage 4."""
        self._needs("sft_training", 2, model_path)
        title = "3 of 6: evaluation after SFT"
        return self._stage("sft_evaluation", title, self._evaluate_sft, self._sft_inputs)

    def stage4_grpo_training(
        self, model_path: str | None = None, *, force: bool = False
    ) -> str | None:
        """GRPO on top of SFT, whose policy is the reference; returns the adapter's folder. None
        where it was interrupted, or the accuracy on dev after SFT is below the threshold (and
        neither `force` nor answers.below_threshold says to go on, nor has it begun before)."""
        self._needs("sft_training", 2, model_path)
        self._needs("sft_evaluation", 3)
        reason = self._held_back()
        begun = self.run_of_stages.checkpoints_folder.exists()
        if reason and not (force or begun) and self.config.answers.below_threshold == "stop":
            self.log(f"stage 4 of 6: {reason}")
            self._keep("grpo_training", {"status": "not_started", "reason": reason})
            return None
        if reason:
            self.log(f"stage 4 of 6 goes on, although {reason}")
        kept = self._stage("grpo_training", "4 of 6: GRPO", self._grpo, self._steps)
        return kept.get("model_path") if kept["status"] == "finished" else None

    def stage5_grpo_evaluation(self, model_path: str | None = None) -> dict[str, Any]:
        """Add the tuned policy to the comparison; what stage 3 found is not computed again."""
        self._needs("grpo_training", 4, model_path)
        title = "5 of 6: evaluation after GRPO"
        return self._stage("grpo_evaluation", title, self._evaluate_grpo, self._grpo_inputs)

    def stage6_save_results(self) -> Path:
        """Write `training_results.json` and `report.html`; returns the former's path."""
        with self._named(REPORT, "6 of 6: results"):
            self.results.pop(REPORT, None)  # how an earlier one failed
            self._save()
            report = write_report(self.run_of_stages.folder)
        self.log(f"stage 6 of 6: results in {self.folder / RESULTS}, report in {report}")
        return self.folder / RESULTS

    def run(self, force: bool = False) -> dict[str, Any]:
        """All stages; returns `results`. Ends after stage 3 where the accuracy is below the
        threshold (see stage 4), and where an interrupt stops GRPO after a step."""
        self.stage1_prepare_data()
        adapter = self.stage2_sft_training()
        self.stage3_sft_evaluation(adapter)
        tuned = self.stage4_grpo_training(adapter, force=force)
        if tuned is not None:
            self.stage5_grpo_evaluation(tuned)
        self.stage6_save_results()
        return self.results

    @property
    def stopped(self) -> bool:
        """Whether an interrupt ended GRPO after a step."""
        return self.results.get("grpo_training", {}).get("status") == "stopped"

    def _stage(
        self,
        name: str,
        title: str,
        work: Callable[[], dict[str, Any]],
        inputs: Callable[[], list[Any]],
    ) -> dict[str, Any]:
        """Do a stage that is not finished with the same inputs, keep what it came to, and keep
        the name of what stopped it."""
        self.run_of_stages  # noqa: B018 - its folder is there from here on
        kept = self.results.get(name, {})
        if kept.get("status") == "finished" and kept.get("inputs") == fingerprint(*inputs()):
            self.log(f"stage {title}: finished before")
            return kept
        self.log(f"stage {title}")
        start = time.monotonic()
        with self._named(name, title):
            values = {"status": "finished", **work()}
            values |= {"seconds": time.monotonic() - start, "inputs": fingerprint(*inputs())}
            copy = self.copies.get(name)
            if copy and values["status"] == "finished":
                self.log(f"copied to {publish(Path(values['model_path']), copy)}")
            self._keep(name, values)
        return self.results[name]

    @contextlib.contextmanager
    def _named(self, name: str, title: str) -> Iterator[None]:
        """Keep the name of what stops the work inside, and raise it again."""
        try:
            yield
        except BaseException as error:
            status = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            reason = f"{type(error).__name__}: {error}"[:1000]
            with contextlib.suppress(OSError):  # a full disk must not hide what failed
                self._keep(name, {"status": status, "error": reason})
                self.log(f"stage {title} {status}: {reason}")
            raise

    def _keep(self, name: str, values: dict[str, Any]) -> None:
        self.results[name] = plain(values)
        self._save()

    def _save(self) -> None:
        kept = {name: None for name in STAGES} | self.results
        write_json(self.run_of_stages.folder / RESULTS, kept)

    def _needs(self, name: str, number: int, given: str | None = None) -> None:
        """Refuse a stage whose forerunner is not finished, or that is given another's model."""
        kept = self.results.get(name, {})
        if kept.get("status") != "finished":
            raise RunError(f"stage {number} of {self.folder} is not finished; run it first.")
        if given is not None and Path(given) != Path(kept["model_path"]):
            raise RunError(
                f"the model {given!r} is not that of stage {number}, {kept['model_path']!r}; the "
                "stages of a run go on with its own."
            )

    def _task(self) -> Any:
        from rlkit.training.stages import prepare_data  # loads torch

        return prepare_data(self.config, self.run_of_stages, self.log)

    def _prepare(self) -> dict[str, Any]:
        with self.run_of_stages.lock():
            task = self._task()
        dataset = self.config.answers.dataset
        problems = check_data_quality(dataset, **model_limits(self.config))
        for sentence in problems[:_SHOWN]:
            self.log(f"data quality: {sentence}")
        self.log(f"data quality: {len(problems)} findings in {dataset}")
        sizes = {part: len(task.states(part)) for part in ("train", "dev", "eval")}
        facts = {"dataset": dataset, "num_samples": sizes, "n_findings": len(problems)}
        made = task.lineage()
        facts["data_fingerprint"] = made.get("data_fingerprint")
        if self.config.answers.augment:
            facts |= {"augmented": made["augmented"], "unfit": made["unfit"]}
            self.log(f"augmented: {made['augmented']} rows added; dropped: {made['unfit'] or 0}")
        return facts | {"findings": problems[:_SHOWN]}

    def _sft(self) -> dict[str, Any]:
        folder, facts = trained_sft(self.config, self.log)
        epochs, base = self.config.sft.num_epochs, self.config.model.base_model_path
        return {"model": base, "model_path": str(folder), "num_epochs": epochs, **facts}

    def _sft_inputs(self) -> list[Any]:
        wanted = self.config.evaluation
        return [self.run_of_stages.warm_start_folder, wanted.split, wanted.max_states, "dev gate"]

    def _evaluate_sft(self) -> dict[str, Any]:
        from rlkit.results.compare import evaluate_run

        gate = self._gate()
        found = evaluate_run(self.config, baseline=True, log=self.log)
        found.save(self.folder / BEFORE)
        values = self._told(found, "warm_start")
        if gate is None:
            gate = {"split": found.facts.get("split", "eval"), **values["policies"]["warm_start"]}
            self.log(f"there are no dev states, so the gate is decided on {gate['split']}")
        if gate["accuracy"] is None:
            raise DataError(
                f"none of the {gate['num_samples']} {gate['split']} answers can be read, so that "
                "nothing tells whether GRPO may begin; give rows whose ground_truth is a number."
            )
        threshold = self.config.answers.sft_accuracy_threshold
        gate["passed"] = gate["accuracy"] >= threshold
        word = "reaches" if gate["passed"] else "is below"
        self.log(
            f"the accuracy on {gate['split']} {word} answers.sft_accuracy_threshold {threshold}"
        )
        return values | {"threshold": threshold, "gate": gate}

    def _gate(self) -> dict[str, Any] | None:
        """The SFT policy on all dev states, which decides whether GRPO begins: a choice is not
        made on the split that the results are told of. None where there are no dev states."""
        from rlkit.results.compare import evaluate_run

        if not read_object(self.folder / NAME)["rows"]["dev"]:
            return None
        on_dev = self.config.with_overrides(
            "evaluation.split=dev", "evaluation.max_states=null", "evaluation.policies=[warm_start]"
        )
        found = figures(evaluate_run(on_dev, baseline=True, log=self.log), "warm_start")
        self.log(f"Warm start on dev, which decides on GRPO: {figures_line(found)}")
        return {"split": "dev", **found}

    def _told(self, found: Evaluation, policy: str) -> dict[str, Any]:
        """Figures of `policy`, of all policies, and the paired differences of accuracy."""
        values = {name: figures(found, name) for name in found.policies}
        for name, row in values.items():
            self.log(f"{found.names.get(name, name)}: {figures_line(row)}")
        table = found.differences()
        differences = table[table["metric"] == "accuracy"].to_dict("records")
        for row in differences:
            self.log(
                f"{row['policy']} - {row['baseline']}: accuracy {number(row['mean'], sign='+')}, "
                f"{row['verdict']}"
            )
        return {**values[policy], "policies": values, "differences": differences}

    def _held_back(self) -> str | None:
        """Why GRPO does not begin by itself, with how to go on; None where it does."""
        gate, wanted = self.results["sft_evaluation"]["gate"], self.config.answers
        if gate["accuracy"] >= wanted.sft_accuracy_threshold:
            return None
        judged = gate.get("num_judged", gate["num_samples"])  # results of before lack it
        return (
            f"the accuracy after SFT on {gate['split']} is {gate['accuracy']:.3f} "
            f"(n = {judged}), below answers.sft_accuracy_threshold "
            f"{wanted.sft_accuracy_threshold}; to go on all the same, run it again with "
            "run(force=True) (--force), or set answers.below_threshold to continue."
        )

    def _steps(self) -> list[Any]:
        training = self.config.training
        return [training.num_epochs, training.steps_per_epoch, training.max_steps]

    def _grpo(self) -> dict[str, Any]:
        folder, facts = trained_grpo(self.config, self.log)
        facts |= {"status": facts.pop("state"), "num_epochs": self.config.training.num_epochs}
        return facts | {"model_path": str(folder) if folder else None}

    def _grpo_inputs(self) -> list[Any]:
        return [*self._sft_inputs(), Path(self.results["grpo_training"]["model_path"])]

    def _evaluate_grpo(self) -> dict[str, Any]:
        from rlkit.results.compare import evaluate_run

        self.stage3_sft_evaluation()  # done before, unless what is evaluated has changed
        before = load_evaluation(self.folder / BEFORE)
        adapter = self.results["grpo_training"]["model_path"]
        tuned = evaluate_run(self.config, checkpoints=[adapter], log=self.log)
        found = tuned.joined(before)
        if found is None:
            raise RunError(
                f"{self.folder / BEFORE} is of other questions or rewards; remove it and its entry "
                f"sft_evaluation in {RESULTS}, and run the pipeline again."
            )
        found.save(self.run_of_stages.evaluation_path)
        return self._told(found, "tuned")
