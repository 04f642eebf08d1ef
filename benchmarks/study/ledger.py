"""Who opened a test set, when, and with which adapters: `test-ledger.jsonl` in the study's output.

A row of the table opens its test set once. The opening is written down before it begins; it may go
on after a stop, with the same adapters, and is refused when its row is there, or when other
adapters have come since. One that failed measured nothing, and is written down as such.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.study.parts import ROOT, Part, best_checkpoint, filled
from rlkit.errors import RunError
from rlkit.files import append_line, read_jsonl, read_object, write_bytes
from rlkit.lineage import git_state
from rlkit.yaml_text import read_yaml

NAME = "test-ledger.jsonl"
OPENED, KEPT, FOUND = "opened", "kept", "found, opened by hand"
BROKE_OFF = "broke off, nothing measured"
TESTED = (
    "seeds",
    "grpo",
    "clock",
    "controls",
    "untouched",
    "teams",
    "hotpotqa",
)  # of a plan; the others stay on dev


class Ledger:
    """The lines of one study's output. `recipe` is written beside each opening, see `recipe_of`."""

    def __init__(self, output: Path, recipe: str = "") -> None:
        self.output, self.recipe, self.path = output, recipe, output / NAME

    def lines(self, row: str | None = None) -> list[dict[str, Any]]:
        """All lines, or those of one row."""
        found = read_jsonl(self.path, skip_half_line=True) if self.path.exists() else ()
        return [line for _, line in found if row in (None, line["row"])]

    def open(self, part: Part) -> None:
        """Write that a part opens its test set. Raises RunError where its row is there already, or
        was begun with other adapters."""
        row, now = part.row_path(self.output), adapters(part, self.output)
        if row.exists():
            raise RunError(
                f"{part.name}: the test was opened for this row already ({row}); it is opened once."
            )
        last = self.lines(part.name)[-1:]
        if last and last[0]["what"] == OPENED and last[0]["adapters"] != now:
            raise RunError(
                f"{part.name}: the test was opened on {last[0]['time']} with other adapters; a "
                "choice that comes after it would be made on the test."
            )
        self._write(part, OPENED, adapters=now, recipe=self.recipe)

    def broke_off(self, part: Part) -> None:
        """Write that what was opened failed."""
        self._write(part, BROKE_OFF)

    def keep(self, part: Part, measured: Path | None = None, what: str = KEPT) -> None:
        """Keep what the part measured (default: as it wrote it) as its row."""
        content = (measured or self.output / part.run / part.writes).read_bytes()
        write_bytes(part.row_path(self.output), content)
        if part.test:
            self._write(part, what, sha256=sha256(content))

    def found(self, part: Part) -> bool:
        """Keep a test that lies in the run's folder already: this runner was killed before it kept
        it, or somebody opened it by hand. Raises RunError where only a part of the row is there."""
        wanted = set(part.changes["evaluation.policies"])
        stem, folder = Path(part.writes).stem, self.output / part.run
        for path in sorted(folder.glob(f"{stem}.json")) + sorted(folder.glob(f"{stem}-*.json")):
            data = read_object(path)
            here = {row.get("policy") or row.get("team") for row in data.get("rows", ())}
            if data.get("split") != "eval" or not wanted & here or not _as_asked(part, data):
                continue
            if not wanted <= here:
                raise RunError(
                    f"{part.name}: {path} opened the test for {', '.join(sorted(wanted & here))} "
                    f"and not for {', '.join(sorted(wanted - here))}; move it away if that was no "
                    "test, and say so."
                )
            self.keep(part, path, KEPT if self.lines(part.name) else FOUND)
            return True
        return False

    def _write(self, part: Part, what: str, **details: Any) -> None:
        line = {
            "row": part.name,
            "what": what,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "by": "benchmarks/study/run.py",
            "git": git_state(ROOT),
            **details,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.path, json.dumps(line))


def _as_asked(part: Part, data: dict[str, Any]) -> bool:
    """Whether teams played as many questions, and in the way, that the part says; of evaluations
    of states the table compares the states."""
    asked = {"questions": "evaluation.max_questions", "question_first": "evaluation.question_first"}
    return part.writes != "teams.json" or all(
        data.get(fact) == part.changes[key] for fact, key in asked.items() if key in part.changes
    )


def adapters(part: Part, output: Path) -> dict[str, str]:
    """What may play in a part, by folder: the SHA-256 (16 signs) of each adapter that is there."""
    run = output / part.run
    options = (Path(filled(option, output, Path())) for option in part.options)
    folders = [run / "sft" / "adapter", run / "reference_adapter", best_checkpoint(run), *options]
    files = [folder / "adapter_model.safetensors" for folder in folders]
    return {
        str(file.parent.relative_to(output)): sha256(file.read_bytes())
        for file in files
        if file.is_file()
    }


def recipe_of(plan: Path) -> str:
    """A hash of all values of a plan and its base that bear on a row of the test, so that a change
    of the recipe after an opening shows."""
    values = read_yaml(plan)
    recipe = {key: values.get(key) for key in TESTED} | {
        "base": read_yaml(plan.parent / values["base"])
    }
    return sha256(json.dumps(recipe, sort_keys=True).encode())


def sha256(content: bytes) -> str:
    """The first 16 signs of the SHA-256 of a file: enough to tell adapters and rows apart."""
    return hashlib.sha256(content).hexdigest()[:16]
