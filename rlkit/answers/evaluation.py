"""How many questions a model or adapter answers right, and in which form: greedy, in batches.

    found = evaluate_model("models/sft", load_rows("gsm8k", "test", 200), config)
    found.figures()      # accuracy with its exact interval, reward, length, format, errors
    found.details()      # one row a question

`figures` serves the pipeline's comparisons, too.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlkit.answers.rewards import AnswerReward
from rlkit.answers.rows import Row
from rlkit.answers.task import AnswerState, AnswerTask, answer_states
from rlkit.errors import DataError, ModelError
from rlkit.files import read_object
from rlkit.results.evaluate import Evaluation, evaluate_policies, records

POLICY = "model"
MAX_DETAILS = 100
NOT_SCORED = "could not be scored (their reward is None) and do not count in the average reward"


class ModelSource(NamedTuple):
    """What a name of a model means: the base, and the adapter on it where there is one."""

    base: str
    adapter: Path | None


def model_source(name: str) -> ModelSource:
    """A hub id, one of our own names, a model's folder, or an adapter's, which names its base.

    Raises ModelError where an adapter's settings do not say what its base is.
    """
    settings = Path(name) / "adapter_config.json"
    if not settings.is_file():
        return ModelSource(name, None)
    base = read_object(settings).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"{settings} does not name a base model (base_model_name_or_path); give the adapter's "
            "folder as it was saved."
        )
    return ModelSource(base, Path(name))


def check_model(name: str) -> ModelSource:
    """`model_source`, whose base is there if it is a folder or one of our own names; asked before
    any data is fetched. Raises ModelError."""
    from rlkit.training.models import resolve_base_model  # loads torch

    source = model_source(name)
    resolve_base_model(source.base)
    return source


@dataclass(frozen=True)
class ModelEvaluation:
    """One model's answers to some questions."""

    evaluation: Evaluation
    states: tuple[AnswerState, ...]
    device: str

    def figures(self) -> dict[str, Any]:
        """See `figures`."""
        return figures(self.evaluation, POLICY)

    def details(self, limit: int | None = None) -> list[dict[str, Any]]:
        """One row a question, of the first `limit` (null: MAX_DETAILS): question, completion,
        answer, ground_truth, correct (None: the gold answer cannot be read), reward."""
        taken = records(self.evaluation.frame)[: MAX_DETAILS if limit is None else limit]
        rows = zip(self.states, taken, strict=False)
        return [
            {
                "question": state.question,
                "completion": row["completion"],
                "answer": row["answer"],
                "ground_truth": state.ground_truth,
                "correct": None if row["accuracy"] is None else row["accuracy"] == 1,
                "reward": row["reward"],
            }
            for state, row in rows
        ]


def evaluate_model(
    model: str,
    rows: Sequence[Row],
    config: Any,
    *,
    use_adapter: bool = True,
    log: Callable[[str], None] = print,
) -> ModelEvaluation:
    """Let a model, or an adapter on its base, answer each question, and score the answers.

    `config` gives reward, prompt, longest answer, batch size and device; its
    `model.base_model_path` is not looked at. `use_adapter` false: an adapter's base alone.
    Raises DataError without rows, ModelError where the model cannot be loaded.
    """
    if not rows:
        raise DataError("there are no questions to evaluate; give a dataset with a test split.")
    from rlkit.results.compare import progress_lines  # loads torch
    from rlkit.training.policy import ModelPolicy
    from rlkit.training.text import token_counter

    states = tuple(answer_states(rows, config.answers))
    task = AnswerTask({"eval": states}, AnswerReward(config.answers), config)
    network, tokenizer = _load(model_source(model), config, use_adapter, log)
    task.count_tokens = token_counter(tokenizer)
    policy = ModelPolicy(
        network,
        tokenizer,
        task.prompt,
        max_new_tokens=config.grpo.max_new_tokens,
        batch_size=config.evaluation.batch_size,
        enable_thinking=config.model.enable_thinking,
    )
    evaluation = evaluate_policies(
        task,
        {POLICY: policy},
        states,
        batch_size=config.evaluation.batch_size,
        progress=progress_lines(log),
    )
    return ModelEvaluation(evaluation, states, device_name(config))


def figures(evaluation: Evaluation, policy: str) -> dict[str, Any]:
    """What a policy's answers came to: num_samples, num_judged (of them, those whose gold answer
    can be read, so that they are right or wrong), accuracy over these and its exact 95 % interval
    (None where there are none), average_reward (over what could be scored), average_length
    (tokens), format_correctness, and the number of errors of each kind. An answer that has no
    reward is unscored, whatever else it is."""
    rows = evaluation.frame[evaluation.frame["policy"] == policy]
    found = evaluation.interval(policy, "accuracy")
    unscored = rows["reward"].isna()
    wrong = (rows["accuracy"] == 0) & ~unscored
    return {
        "num_samples": len(rows),
        "num_judged": found.n,
        "accuracy": found.mean,
        "accuracy_interval": [found.low, found.high],
        "average_reward": _mean(rows["reward"]),
        "average_length": _mean(rows["length"]),
        "format_correctness": _mean(rows["format"]),
        "errors": {
            "wrong_answer": int((wrong & rows["answer"].notna()).sum()),
            "no_answer": int((wrong & rows["answer"].isna()).sum()),
            "unscored": int(unscored.sum()),
        },
    }


def figures_line(values: dict[str, Any]) -> str:
    """The figures in a line, the accuracy with n and interval."""
    low, high = values["accuracy_interval"]
    interval = "" if low is None else f" [{low:.3f}, {high:.3f}]"
    judged, count, unscored = (
        values["num_judged"], values["num_samples"], values["errors"]["unscored"],
    )  # fmt: skip
    n = f"{judged}" if judged == count else f"{judged} of {count} whose gold answer can be read"
    return (
        f"accuracy {number(values['accuracy'])}{interval}, n = {n}; reward "
        f"{number(values['average_reward'])}, format {number(values['format_correctness'])}, "
        f"{number(values['average_length'], 0)} tokens"
        + (f"; {unscored} answers {NOT_SCORED}" if unscored else "")
    )


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """A figure with that many digits; `none` where there is none."""
    return "none" if value is None or math.isnan(value) else f"{value:{sign}.{digits}f}"


def device_name(config: Any) -> str:
    """Where the model of a config is computed: `cpu` or `cuda`."""
    from rlkit.training.precision import choose_precision

    return choose_precision(config.model.device, config.model.dtype).device


def fingerprint(*parts: Any) -> str:
    """Twelve signs that change where one of the parts (JSON values, or folders) does."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for file in sorted(f for f in part.iterdir() if f.suffix in (".json", ".safetensors")):
                digest.update(hashlib.sha256(file.read_bytes()).digest())
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:12]


def _load(
    source: ModelSource, config: Any, use_adapter: bool, log: Callable[[str], None]
) -> tuple[Any, Any]:
    from rlkit.training.policy import load_base_model, load_model_with_lora
    from rlkit.training.precision import choose_precision

    model = config.model
    if source.adapter is not None and use_adapter:
        return load_model_with_lora(
            source.base, config.lora, device=model.device, dtype=model.dtype,
            load_in_4bit=model.load_in_4bit, adapter=source.adapter,
            trust_remote_code=model.trust_remote_code, log=log,
        )  # fmt: skip
    precision = choose_precision(model.device, model.dtype, model.load_in_4bit)
    log(f"model: {source.base} on {precision.reason}")
    return load_base_model(source.base, precision, trust_remote_code=model.trust_remote_code)


def _mean(column: Any) -> float | None:
    kept = column.dropna()
    return float(kept.mean()) if len(kept) else None
