"""What grpo_step.py hands on: the result as plain values, and the table that is printed of it."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.limit import total
from benchmarks.machine import machine, versions
from benchmarks.measure import ROOT
from benchmarks.peer_trl import VARIANTS
from benchmarks.workload import Workload
from rlkit.lineage import git_state


def result(
    options: argparse.Namespace,
    work: Workload,
    answers: dict[str, list[dict[str, Any]]],
    rates: dict[str, Any],
    limits: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """Everything measured and worked out, by trainer, with where it comes from."""
    sides = {name: side(found[: options.rounds], work) for name, found in answers.items()}
    for name, found in answers.items():
        if options.profile:
            sides[name]["profile_s"] = profile(found[-1])
    least = total(limits)
    made = {
        **_header(options, work),
        **sides,
        "limit": {"seconds": least, "phases": limits, "rates": rates},
        "distance": sides["ours"]["median_s"] / least,
    }
    if "trl" in sides:
        made["times_faster"] = sides["trl"]["median_s"] / sides["ours"]["median_s"]
        made["memory_share"] = sides["ours"]["peak_mib"] / sides["trl"]["peak_mib"]
    return made


def _header(options: argparse.Namespace, work: Workload) -> dict[str, Any]:
    shown = {k: str(v) for k, v in vars(options).items() if v not in (None, False)}
    shown.pop("output", None)
    flags = " ".join(
        f"--{k.replace('_', '-')}" + ("" if v == "True" else f" {shlex.quote(v)}")
        for k, v in shown.items()
    )
    return {
        "benchmark": "grpo_step",
        "preset": options.preset,
        "command": f"python benchmarks/grpo_step.py {flags}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": git_state(ROOT),
        "variant": options.variant,
        "workload": asdict(work),
        "seeds": [options.seed + number for number in range(options.rounds)],
        "machine": {**machine(), **_gpu(work), "threads": options.threads},
        "versions": versions(),
    }


def _gpu(work: Workload) -> dict[str, str]:
    if work.device == "cpu":
        return {}
    import torch

    return {"gpu": torch.cuda.get_device_name()}


def side(found: Sequence[dict[str, Any]], work: Workload) -> dict[str, Any]:
    """One trainer's processes, their steps pooled."""
    steps = [seconds for answer in found for seconds in answer["steps"]]
    made = {
        "n": len(steps),
        "median_s": median(steps),
        "median_cpu_s": median(s for answer in found for s in answer["steps_cpu"]),
        "steps_s": [answer["steps"] for answer in found],
        "tokens_per_second": work.actions * work.action_tokens / median(steps),
        "peak_mib": max(answer["peak_mib"] for answer in found),
        "before_mib": max(answer["before_mib"] for answer in found),
    }
    shares = [row for answer in found for row in answer.get("shares", [])]
    if shares:
        made["shares"] = {name: median(row[name] for row in shares) for name in shares[0]}
    if "settings" in found[0]:
        made["settings"] = found[0]["settings"]
    return made


def profile(answer: dict[str, Any]) -> dict[str, float]:
    """Median seconds of every phase in a profiled process, and of what is in none of them."""
    rows, steps = answer["phases"], answer["steps"]
    names = {name: None for row in rows for name in row}
    found = {name: median(row.get(name, 0.0) for row in rows) for name in names}
    rest = median(s - sum(row.values()) for s, row in zip(steps, rows, strict=True))
    return {**found, "other": rest}


def text(made: dict[str, Any]) -> str:
    """The table for a terminal."""
    sides = [name for name in ("ours", "trl") if name in made]
    lines = [_title(made), "", _row("", *sides, "")]
    lines += [
        _row("step, median s", *(f"{made[s]['median_s']:.3f}" for s in sides), _faster(made)),
        _row("  n", *(str(made[s]["n"]) for s in sides)),
        _row("  shortest and longest s", *(_range(made[s]["steps_s"]) for s in sides)),
        _row("  on the processor, median", *(f"{made[s]['median_cpu_s']:.3f}" for s in sides)),
        _row("sampled tokens a second", *(f"{made[s]['tokens_per_second']:.1f}" for s in sides)),
        _row("peak memory MiB", *(f"{made[s]['peak_mib']:.0f}" for s in sides), _memory(made)),
        _row("  before the first step", *(f"{made[s]['before_mib']:.0f}" for s in sides)),
        "",
        f"limit {made['limit']['seconds']:.3f} s; ours takes {made['distance']:.2f} times as long",
        *_shares(made),
        *([f"TRL: {made['variant']}"] if "trl" in made else []),
        "",
        *_phases(made, sides),
    ]
    return "\n".join(lines)


def _title(made: dict[str, Any]) -> str:
    w, m = made["workload"], made["machine"]
    return (
        f"grpo_step {made['preset']}: {w['model']} {w['dtype']}, P {w['prompt_tokens']}, "
        f"C {w['action_tokens']}, K {w['actions']}, LoRA {w['rank']}, beta {w['kl_penalty']}; "
        f"{m.get('gpu', m['cpu'])}, {m['threads']} of {m['cores']} cores"
    )


def _row(name: str, *cells: str) -> str:
    return f"{name:<26}" + "".join(f"{cell:>17}" for cell in cells)


def _range(steps: Sequence[Sequence[float]]) -> str:
    pooled = [seconds for part in steps for seconds in part]
    return f"{min(pooled):.3f} to {max(pooled):.3f}"


def _faster(made: dict[str, Any]) -> str:
    return f"{made['times_faster']:.2f} x faster" if "times_faster" in made else ""


def _memory(made: dict[str, Any]) -> str:
    return f"{made['memory_share']:.2f} of it" if "memory_share" in made else ""


def _shares(made: dict[str, Any]) -> list[str]:
    shares = made["ours"].get("shares", {})
    named = ", ".join(f"{k.removeprefix('time/')} {v:.0%}" for k, v in shares.items())
    return [f"ours, share of the step: {named}"] if named else []


def _phases(made: dict[str, Any], sides: Sequence[str]) -> list[str]:
    """A line for every phase: the limit and what bounds it, and, where profiled, each trainer."""
    profiles = {s: made[s]["profile_s"] for s in sides if "profile_s" in made[s]}
    limits, ours = made["limit"]["phases"], profiles.get("ours", {})
    heads = [*(f"{s} s" for s in profiles), "ours / limit"] if profiles else []
    lines = [_row("phase", "limit s", "bound by", *heads)]
    for name in [*limits, *(["other"] if profiles else [])]:
        row = limits.get(name)
        bound = "" if row is None else "memory" if row["moving_s"] else "products"
        taken = [f"{profiles[s].get(name, 0.0):.3f}" for s in profiles]
        times = f"{ours[name] / row['seconds']:.2f}" if row and name in ours else ""
        lines.append(_row(name, f"{row['seconds']:.3f}" if row else "", bound, *taken, times))
    return lines


def variants_result(
    options: argparse.Namespace, work: Workload, found: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What TRL's variants took, and what each changed."""
    rows = {k: v if "error" in v else side([v], work) for k, v in found.items()}
    for name, row in rows.items():
        row.pop("settings", None)
        row["changes"] = VARIANTS[name]
    return {**_header(options, work), "variants": rows}


def variants_text(made: dict[str, Any]) -> str:
    lines = [
        _title(made),
        "",
        f"{'TRL with':<34}{'median s':>10}{'cpu s':>10}{'n':>4}{'peak MiB':>10}",
    ]
    for name, row in made["variants"].items():
        if "error" in row:
            lines.append(f"{name:<34}  fails: {row['error']}")
        else:
            times = f"{row['median_s']:>10.3f}{row['median_cpu_s']:>10.3f}"
            lines.append(f"{name:<34}{times}{row['n']:>4}{row['peak_mib']:>10.0f}")
    return "\n".join(lines)


def added_text(small: dict[str, Any], large: dict[str, Any]) -> str:
    """What more actions a group cost, beside what the limit says that they must."""
    cost = large["ours"]["median_s"] - small["ours"]["median_s"]
    least = large["limit"]["seconds"] - small["limit"]["seconds"]
    few, many = (made["workload"]["actions"] for made in (small, large))
    return (
        f"{small['preset']} to {large['preset']}: from K {few} to {many} a step takes "
        f"{cost:.3f} s more; the limit says {least:.3f} s: {cost / least:.2f} times what it must."
    )
