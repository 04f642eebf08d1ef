"""`splits.json` of the question-answering task: which rows of the dataset train, and which are held
out. It is written once; a resumed run and a second evaluation read the same parts."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from rlkit.agents.llm import ChatClient
from rlkit.answers.arithmetic import is_generated
from rlkit.answers.augment import augment_rows
from rlkit.answers.datasets import Parts, Row, load_rows, split_rows
from rlkit.answers.rows import rows_from
from rlkit.errors import DataError
from rlkit.files import read_json, read_object, write_json
from rlkit.practice.splits import NAME, PARTS, restored_parts, split_seed

AUGMENTED = "augmented.json"


def kept_parts(folder: str | Path, config: Any) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """The rows of train, dev and eval as `folder`'s `splits.json` has them, or a new split, which
    is then kept there; and the facts of the dataset.

    Rows that came into the dataset later stay out. Raises DataError where kept rows are gone or
    changed, or the file is damaged.
    """
    path, dataset = Path(folder) / NAME, config.answers.dataset
    train, test = _load(config), load_rows(dataset, "test")
    split = split_rows(
        train,
        test,
        dev_ratio=config.data.dev_ratio,
        train_ratio=config.data.train_ratio,
        seed=split_seed(config),
    )
    kept = read_json(path) if path.exists() else None
    if kept is None:
        parts = _cut(split, config)
        new, unfit = _augmented(path.with_name(AUGMENTED), parts, config)
        parts["train"] += new
    else:
        new, unfit = _augmented(path.with_name(AUGMENTED), None, config)
        by_id = {row.id: row for row in (*chain(*split.values()), *new)}
        parts = restored_parts(path, kept, "rows", by_id, f"{dataset} no longer has")
    facts = {
        "dataset": dataset,
        "data_fingerprint": fingerprint(parts),
        "dropped": split.dropped,
        "repeated": split.repeated,
        "augmented": sum(row.augmented is not None for row in parts["train"]),
        "unfit": unfit,
    }
    if kept is None:
        ids = {part: [row.id for row in parts[part]] for part in PARTS}
        write_json(path, {"schema": 1, "task": "answers", **facts, "rows": ids})
    elif kept.get("data_fingerprint") != facts["data_fingerprint"]:
        raise DataError(
            f"{path} was made of other rows: questions or answers of {dataset} have changed since; "
            "restore the dataset, or start a run of another name."
        )
    return parts, facts


def fingerprint(parts: Mapping[str, Iterable[Row]]) -> str:
    """The first 16 signs of a SHA-256 over all rows, in order."""
    digest = hashlib.sha256()
    for part in PARTS:
        for row in parts[part]:
            text = json.dumps([part, row.fields()], ensure_ascii=True, sort_keys=True, default=str)
            digest.update(text.encode())
    return digest.hexdigest()[:16]


def _load(config: Any) -> list[Row]:
    """The train rows before they are split; a generated set makes as many as are asked for."""
    wanted, dataset = config.answers.max_samples, config.answers.dataset
    rows = load_rows(dataset, "train")
    if wanted is None or len(rows) * (1 - config.data.dev_ratio) > wanted + 1:
        return rows
    more = math.ceil((wanted + 1) / (1 - config.data.dev_ratio)) + 1
    return load_rows(dataset, "train", max(more, len(rows)))


def _cut(split: Parts, config: Any) -> dict[str, list[Row]]:
    parts, wanted = {part: split[part] for part in PARTS}, config.answers.max_samples
    if wanted is not None and len(parts["train"]) > wanted:
        rows = parts["train"]
        chosen = random.Random(f"{config.seed} samples").sample(range(len(rows)), wanted)
        parts["train"] = [rows[index] for index in sorted(chosen)]
    return parts


def _augmented(
    path: Path, parts: dict[str, list[Row]] | None, config: Any
) -> tuple[list[Row], dict[str, int]]:
    """The rows that `answers.augment` makes of the training rows, kept in `path`, and how many were
    dropped for which reason. What is kept there is not made again, since a model's replies differ
    each time; without `parts`, it must be there.

    Raises ConfigError where rows cannot be made by rule and no server answers, DataError where
    the file is gone.
    """
    methods = config.answers.augment
    if not methods:
        return [], {}
    if parts is None and not path.exists():
        raise DataError(f"{path} is gone; restore it, or start a run of another name.")
    if parts is not None:
        held_out = [*parts["dev"], *parts["eval"]]
        by_rule = "back_translation" not in methods and all(map(is_generated, parts["train"]))
        made_by = nullcontext() if by_rule else closing(_client(config))
        with made_by as client:
            new, dropped = augment_rows(
                parts["train"], methods, held_out=held_out, client=client, seed=config.seed
            )
        reasons = Counter(one.reason for one in dropped)
        write_json(path, {"rows": [row.fields() for row in new], "dropped": dict(reasons)})
    found = read_object(path)
    return rows_from(found.get("rows", ()), AUGMENTED), found.get("dropped", {})


def _client(config: Any) -> ChatClient:
    return ChatClient(config.model.vllm_base_url, config.model.checker_model)
