"""What comes of it: evaluation, merging, studies of parameters, monitoring."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from rlkit.section import Section, key


class EvaluationSection(Section):
    title: ClassVar[str] = "evaluation"
    policies: list[str] = key(
        ["raw_question", "untouched", "warm_start", "tuned", "oracle"],
        "what is compared",
        choices=(
            "raw_question",
            "scripted",
            "untouched",
            "warm_start",
            "tuned",
            "oracle",
            "served",
        ),
        dotted=True,
        min_length=1,
    )
    max_states: int | None = key(None, "states evaluated; null: all", "states", ge=1)
    max_questions: int | None = key(
        None, "whole questions that each team plays; null: all", "questions", ge=1
    )
    question_first: bool = key(
        False,
        "teams: until something was found every team's clue is the question itself, and then its "
        "policy writes; for Executors that learnt from states of later rounds (data.first_round)",
    )
    batch_size: int = key(8, "states written for at once", "states", ge=1)
    epoch_states: int = key(16, "dev states at the end of each epoch; 0: none", "states", ge=0)
    epoch_kl: bool = key(
        True, "the KL to the reference on those states, too, for which their prompts are read twice"
    )
    split: Literal["eval", "dev", "train"] = key("eval", "whose states are evaluated")
    checkpoint: Literal["newest", "best"] = key(
        "newest", "which one is `tuned`; best: the highest on dev in training.best"
    )
    models: list[str] = key(
        [],
        "further ones that are compared: folders of checkpoints or whole (merged) models, or "
        "newest, best, all of the run's checkpoints",
        allowed="a list of folders | newest | best | all",
    )
    samples: int = key(
        0,
        "actions sampled for each state beside the greedy one, at grpo.temperature; 0: none",
        "actions",
        ge=0,
        le=256,
    )
    cache: bool = key(
        True,
        "keep what models answer, so that it is not written a second time; never of served, whose "
        "weights nobody can tell",
    )


class MergeSection(Section):
    title: ClassVar[str] = "merge"
    checkpoints: list[int] = key([], "steps whose checkpoints are merged; empty: all", "steps")
    output_dir: str | None = key(None, "where to; null: merged/ in the run's folder", min_length=1)
    dtype: Literal["float32", "bfloat16", "float16"] = key("bfloat16", "precision saved")


class TuneSection(Section):
    title: ClassVar[str] = "tune"
    method: Literal["grid", "random", "bayesian"] = key("bayesian", "how trials are chosen")
    space: dict[str, Any] = key(
        {},
        "what is searched; empty: learning rate, rank and KL penalty, as docs/tuning.md lists them",
        allowed="a mapping of section.key to {values: [...]} or {low, high, step or log}",
    )
    trials: int | None = key(
        None, "trials of the study; null: grid all, random 10, bayesian 20", "trials", ge=1
    )
    minutes: float | None = key(
        None, "no trial begins after so much trial time; null: no limit", "minutes", gt=0
    )
    objective: str = key(
        "eval/reward",
        "what is compared, as measured on dev at a trial's end",
        pattern=r"^eval/\S+$",
        allowed="a metric that begins with eval/",
    )
    direction: Literal["maximize", "minimize"] = key("maximize", "which objective is better")
    pruning: bool = key(
        True, "end a trial early whose objective is below the median of the others' at that epoch"
    )
    startup_trials: int = key(
        6, "bayesian: drawn at random before results guide the choice", "trials", ge=1
    )


class MonitoringSection(Section):
    title: ClassVar[str] = "monitoring"
    use_tensorboard: bool = key(True, "write TensorBoard events into the run's folder")
    use_wandb: bool = key(False, "log to Weights & Biases (its key comes from the environment)")
    wandb_project: str = key("rlkit", "project there", min_length=1)
    price_in: float = key(
        0.0, "what a server takes for a million tokens of prompts", "per million tokens", ge=0
    )
    price_out: float = key(
        0.0, "what a server takes for a million tokens of replies", "per million tokens", ge=0
    )
