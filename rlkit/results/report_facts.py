"""What was run, for the report: parameters that differ from the defaults, lineage, time and cost,
and what the run's folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlkit.agents.recording import SPENT
from rlkit.config import RunConfig
from rlkit.errors import ConfigError, DataError
from rlkit.files import flat, read_json, read_jsonl, read_object
from rlkit.run import Run
from rlkit.section import shown
from rlkit.yaml_text import read_yaml

FILES = {
    "config.yaml": "every parameter, resolved",
    "lineage.json": "code version, packages, device, data fingerprint, seed",
    "metrics.jsonl": "one line a step, with the alarms that began there",
    "evaluation.json": "every action of every policy with its documents and verdicts",
    "status.json": "how the run ended",
    "training_results.json": "what each stage of the pipeline came to",
    "evaluation-sft.json": "the answers before GRPO",
    "pipeline.log": "the pipeline's lines",
    "rollouts": "every action that was sampled in training, one table a step",
    "rounds": "the recorded rounds",
    "sft": "the warm start",
    "lora_checkpoints": "adapters with all that is needed to resume",
    "merged": "whole models, ready to serve",
}
USED = ("requests", "prompt_tokens", "completion_tokens")  # of servers, as they count
NOT_CHOICES = ("run_name", "overrides", "output_root")


def parameters(path: str | Path) -> dict[str, Any]:
    """What a `config.yaml` sets, as {section.key: value}; raises ConfigError for another shape."""
    values = read_yaml(path) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {shown(values)}; wanted are sections, such as `grpo:`.")
    return flat(values)


def changed_parameters(path: str | Path) -> list[dict[str, Any]]:
    """The parameters of a `config.yaml` that differ from the defaults, with unit and help."""
    given, rows = parameters(path), []
    for key, default, unit, _, text in RunConfig.describe():
        value = given.get(key, default)
        if key not in NOT_CHOICES and value != default:
            unit = "" if unit == "-" else unit
            rows.append(dict(key=key, value=value, default=default, unit=unit, help=text))
    return rows


def lineage(path: Path) -> dict[str, Any]:
    """The lineage as rows: versions in one, the records of earlier sessions as their number."""
    record = read_object(path)
    versions, earlier = record.pop("versions", None) or {}, record.pop("earlier", None) or []
    if not isinstance(versions, dict) or not isinstance(earlier, list):
        raise DataError(
            f"{path}: `versions` is an object and `earlier` a list; mend or remove the file."
        )
    record["versions"] = ", ".join(f"{name} {v}" for name, v in versions.items() if v)
    record["earlier"] = len(earlier)
    return {key: value for key, value in flat(record).items() if value not in (None, "")}


def time_and_cost(run: Run, metrics: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """How long the parts of the run took and how much was sampled, as far as it is recorded."""
    steps = [row for row in metrics if row.get("step_time")]
    rows = []
    if steps:
        seconds = _sum(steps, "step_time")
        shares = [
            f"{part} {sum(r.get(f'time/{part}') or 0 for r in steps) / len(steps):.0%}"
            for part in ("sampling", "environment", "training")
            if f"time/{part}" in steps[0]
        ]
        text = f"{_clock(seconds)} for {len(steps)} steps, {seconds / len(steps):.3g} s a step"
        rows.append(("Training", f"{text} ({', '.join(shares)})" if shares else text))
        tokens = sum((r.get("tokens_per_second") or 0) * r["step_time"] for r in steps)
        if tokens:
            rows.append(("Tokens sampled in training", f"{round(tokens):,}"))
    on_dev = [row for row in metrics if row.get("eval/seconds")]
    if on_dev:
        text = f"{_clock(_sum(on_dev, 'eval/seconds'))}, {len(on_dev)} times"
        rows.append(("Evaluations on the dev states", text))
    updates = run.warm_start_folder / "sft_metrics.json"
    if updates.exists():
        found = read_json(updates)
        text = f"{_clock(_sum(found, 'seconds'))} for {len(found)} updates"
        rows.append(("Warm start", f"{text}, {_sum(found, 'tokens'):,.0f} tokens learnt from"))
    rates = [row.get("verdict_cache_hit_rate") for row in metrics]
    hits = [rate for rate in rates if rate is not None]
    rows += _collecting(run)
    if hits:
        text = f"{1 - sum(hits) / len(hits):.0%} of those looked up, mean over {len(hits)} steps"
        rows.append(("Documents that the judge had to label", text))
    judged = [row for row in metrics if row.get("judge_requests")]
    if judged:
        used = [_sum(judged, f"judge_{name}") for name in USED]
        prices = run.config.monitoring.price_in, run.config.monitoring.price_out
        cost = sum(tokens * price for tokens, price in zip(used[1:], prices, strict=True)) / 1e6
        rows.append(("The judge, in training", _asked(*used, cost)))
    return rows


def _collecting(run: Run) -> list[tuple[str, str]]:
    """What the rounds of this run took to collect; nothing where it was given recorded ones."""
    path = run.folder / "rounds" / SPENT
    spent = [row for _, row in read_jsonl(path, skip_half_line=True)] if path.exists() else []
    if not spent:
        return []
    counts = {name: 0 for name in dict.fromkeys(row["collector"] for row in spent)}
    for row in spent:
        counts[row["collector"]] += row["played"]
    played = ", ".join(f"{count} by {name}" for name, count in counts.items())
    text = f"{_clock(_sum(spent, 'seconds'))} for questions played: {played}"
    if _sum(spent, "requests"):
        text += "; " + _asked(*(_sum(spent, name) for name in USED), _sum(spent, "cost"))
    return [("Collecting the rounds", text)]


def _asked(requests: float, read: float, written: float, cost: float) -> str:
    """What was asked of a server, and its price where one is known (`monitoring.price_in`)."""
    text = f"{requests:,.0f} requests, {read:,.0f} tokens read and {written:,.0f} written"
    return f"{text}, cost {cost:.2f}" if cost else text


def _sum(rows: Sequence[dict[str, Any]], key: str) -> float:
    return sum(row.get(key) or 0.0 for row in rows)


def _clock(seconds: float) -> str:
    """`48 s`, `12 min`, or `3.4 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
