"""`README.md` of a merged model: what it is, whether the merge holds, where it comes from, and how
the run's evaluation came out. All that is shown is text: nothing in it can become markup."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import yaml

from rlkit.deploy.certificate import Certificate, Exported
from rlkit.errors import DataError
from rlkit.files import read_object
from rlkit.results.model_content import weights_sum
from rlkit.run import Run
from rlkit.training.checkpointing import PREFIX

_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|~:@$^=\"])")  # escaped by a backslash, as CommonMark says
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MADE = {"adapter": "merged", "model": "saved here"}
_LONGEST = 2000  # characters of one value


def as_text(value: Any) -> str:
    """A value as Markdown that shows exactly its words, on one line."""
    text = re.sub(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", str(value))[:_LONGEST]
    text = _MARKUP.sub(r"\\\1", text)
    text = re.sub("[&<>]", lambda found: _HTML[found[0]], text)
    return re.sub(r"(?i)www\.", r"www\\.", text)  # GitHub makes links of such words by itself


def model_card(
    certificate: Certificate | Exported,
    lineage: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
) -> str:
    """The card's text; `lineage` and `evaluation` as `run_lineage` and `run_evaluation` give."""
    head = yaml.safe_dump(
        {
            "base_model": certificate.base["name"],
            "library_name": "transformers",
            "pipeline_tag": "text-generation",
            "tags": ["rlkit", "grpo", *(["lora", "merged"] if certificate.adapters else [])],
        },
        sort_keys=False,
        default_style='"',  # one line a value, whatever stands in it: no `---` of its own
        width=float("inf"),
    )
    body = _template().render(certificate=certificate, lineage=lineage or {}, evaluation=evaluation)
    return f"---\n{head}---\n\n" + re.sub(r"\n{3,}", "\n\n", body).rstrip() + "\n"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rlkit.deploy", "templates"),
        finalize=as_text,  # every value, whether the template thinks of it or not
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("model_card.md.j2")


def run_lineage(run: Run, step: int) -> dict[str, Any]:
    """What is shown of the run that trained a checkpoint, by name."""
    config, kept = run.config, _kept(run.lineage_path)
    git = kept.get("git") or {}
    commit = git.get("commit")
    shown = {
        "run": config.run_name,
        "checkpoint": f"step {step}",
        "task": config.task,
        "seed": config.seed,
        "data": config.data.source if config.task == "search" else config.answers.dataset,
        "warm start": config.model.init_adapter,
        "corpus": kept.get("corpus_fingerprint"),
        "trained": kept.get("created"),
        "trained on": kept.get("device"),
        "code": f"{commit}{', changed since' if git.get('dirty') else ''}" if commit else None,
    }
    return {name: value for name, value in shown.items() if value is not None}


def run_evaluation(run: Run, step: int) -> dict[str, Any] | None:
    """The summary of the run's `evaluation.json`, and whether it is of this checkpoint, by its
    weights (where a file of before does not tell them, by its folder); None where there is none."""
    kept = _kept(run.evaluation_path)
    rows = [_row(row) for row in kept.get("summary") or [] if isinstance(row, dict)]
    if not rows:
        return None
    played = [a for a in (kept.get("adapters") or {}).values() if isinstance(a, dict)]
    checkpoint = run.checkpoints_folder / f"{PREFIX}{step}"
    if any(_is(a, checkpoint, run) for a in played):
        kind = "adapter" if run.config.lora.enabled else "model"
        which = f"The {kind} of step {step}, before it was {_MADE[kind]}, is among the policies."
    elif others := sorted({_place(a, checkpoint, run) for a in played}):
        which = f"It evaluated {', '.join(others)}, not this checkpoint."
    else:
        which = "It does not say which checkpoint it evaluated."
    return {"split": kept.get("split", "unknown"), "which": which, "rows": rows}


def _is(played: dict[str, Any], checkpoint: Path, run: Run) -> bool:
    """Whether what an evaluation played is this checkpoint."""
    if "sha256" not in played:
        return (run.folder / str(played.get("folder"))).resolve() == checkpoint.resolve()
    return checkpoint.is_dir() and played["sha256"] == weights_sum(checkpoint)


def _place(played: dict[str, Any], checkpoint: Path, run: Run) -> str:
    """What an evaluation played, in words: a step of this run, or a folder."""
    folder = str(played.get("folder"))
    if (run.folder / folder).resolve() == checkpoint.resolve():
        return f"step {played.get('step')} with other weights"
    own = Path(folder).parent == Path(checkpoint.parent.name)
    return f"step {played.get('step')}" if own else folder


def _row(row: dict[str, Any]) -> dict[str, str]:
    low, mean, high = (_number(row.get(key)) for key in ("low", "mean", "high"))
    n = row.get("n_questions", row.get("n"))
    return {
        "policy": str(row.get("policy")),
        "metric": str(row.get("metric")),
        "mean": mean,
        "interval": f"{low} to {high}",
        "n": "unknown" if n is None else str(n),
    }


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else "unknown"


def _kept(path: Any) -> dict[str, Any]:
    """A file of the run, or nothing: a card is written whatever became of it."""
    try:
        return read_object(path) if path.exists() else {}
    except DataError:
        return {}
