"""The tool's data and rewards: rows of one's own become a registered dataset, a function of one's
own a registered reward, so that a run's parameters can name both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rlkit.answers.datasets import given_rows, load_rows, register_dataset, rl_rows, sft_rows
from rlkit.answers.extract import extract_answer
from rlkit.answers.rewards import register_reward_function
from rlkit.answers.rows import QUESTION, Row, rows_from
from rlkit.answers.tool_parameters import REWARDS, SHAPES, ToolParameters
from rlkit.config import load_object
from rlkit.errors import ConfigError, DataError, did_you_mean

SHOWN = 3  # rows that load_dataset shows


def dataset_name(p: ToolParameters) -> str:
    """The dataset of a call; rows of one's own are registered under a name made of their content,
    so that the same rows are the same dataset."""
    if p.custom_dataset is None:
        return p.dataset
    splits = own_rows(p.custom_dataset, "custom_dataset")
    text = json.dumps({s: [r.fields() for r in rows] for s, rows in splits.items()}, default=str)
    name = f"custom-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    register_dataset(name, splits)
    return name


def own_rows(given: Any, name: str) -> dict[str, list[Row]]:
    """{split: rows} of a list of dicts or Rows, {split: such a list}, a datasets.Dataset or
    DatasetDict. A row {prompt, completion} without a question, as SFT sets have it, gets its
    answer from its completion. Raises DataError (BadRow) for what cannot be used."""
    splits = given if isinstance(given, Mapping) else {"train": given}
    found = {}
    for split in splits or {"train": ()}:
        rows = given_rows(splits, split, name)
        found[str(split)] = rows_from(map(_with_question, rows), f"{name}-{split}")
    if not found["train"]:
        raise DataError(f"{name} holds no rows; give at least two questions with their answers.")
    return found


def _with_question(row: Any) -> Any:
    if not isinstance(row, Mapping) or any(row.get(name) for name in QUESTION):
        return row
    if not isinstance(row.get("prompt"), str) or not isinstance(row.get("completion"), str):
        return row  # reading it says what is missing
    if "<|" in row["prompt"] or "[INST]" in row["prompt"]:
        raise DataError(
            f"the prompt {row['prompt'][:40]!r}... holds the markers of a chat template, and would "
            "be put into another one; give the question alone, as `question` or as `prompt`."
        )
    answer = extract_answer(row["completion"])
    others = {k: v for k, v in row.items() if k not in ("prompt", "completion", "text")}
    own = {"question": row["prompt"], "full_answer": row["completion"]}
    return {**({"ground_truth": answer.text} if answer else {}), **others, **own}


def loaded(p: ToolParameters) -> dict[str, Any]:
    """What `load_dataset` tells of a dataset: its size, its columns, and its first rows."""
    split = p.split or "train"
    name = dataset_name(p)
    rows = load_rows(name, split, p.max_samples, p.seed)
    if not rows:
        raise DataError(f"the dataset {name!r} has no rows in its split {split}; take another.")
    tokenizer = None
    if p.model_name:
        from rlkit.training.policy import load_tokenizer  # loads torch

        tokenizer = load_tokenizer(p.model_name)
    shown = (sft_rows if p.format == "sft" else rl_rows)(rows[:SHOWN], tokenizer)
    return {
        "status": "success",
        "dataset": name,
        "format": p.format,
        "split": split,
        "dataset_size": len(rows),
        "sample_keys": list(shown[0]),
        "details": shown,
    }


def reward_settings(p: ToolParameters, own: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys of params section `answers` that make the reward of a call, and its type. `own`
    are the tool's registered functions; one under the dataset's name is taken by itself.

    Raises ConfigError for a reward that nobody knows, or that is no function.
    """
    if p.custom_reward is not None:
        name = getattr(p.custom_reward, "__name__", "")
        name = name if name.isidentifier() and not name.startswith("_") else "custom_reward"
        return {"rewards": [register_reward_function(name, p.custom_reward)]}, name
    kind = p.reward_type or (
        p.dataset if p.dataset in own and p.custom_dataset is None else "accuracy"
    )
    if kind in REWARDS:
        names = {"penalty_weight": "length_penalty", "max_length": "length_limit"}
        shape = {names.get(name, name): getattr(p, name) for name in SHAPES.get(kind, ())}
        return {"rewards": REWARDS[kind], **shape}, kind
    if kind in own:
        return {"rewards": [register_reward_function(_identifier(kind), own[kind])]}, kind
    if ":" in kind:
        load_object(kind)
        return {"rewards": [kind]}, kind
    known = [*REWARDS, *own]
    raise ConfigError(
        f"reward_type is {kind!r}; there are {', '.join(known)}, and module:object"
        + did_you_mean(kind, known)
    )


def _identifier(name: str) -> str:
    """A name that a dotted path can hold."""
    plain = "".join(c if c.isalnum() else "_" for c in name).strip("_")
    return plain if plain[:1].isalpha() else f"reward_{plain}"


def described(settings: Mapping[str, Any], kind: str) -> str:
    """A reward in a sentence."""
    if kind == "length_penalty":
        return (
            f"1 for a right answer, less {settings['length_penalty']} for each token beyond "
            f"{settings['length_limit']}; 0 for a wrong one."
        )
    if kind == "step":
        return (
            f"1 for a right answer, and {settings['step_bonus']} for each right equation in it; "
            "0 for a wrong one."
        )
    return (
        "1 for a right answer, 0 for a wrong one." if kind == "accuracy" else f"Your own, {kind}."
    )
