"""What the study set out to reach, and whether it did: by how much a target was met or missed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.study.games import team_differences, team_figures
from benchmarks.study.hotpotqa import FROM_ROUND, hotpotqa_difference, hotpotqa_figures
from benchmarks.study.parts import metrics
from benchmarks.study.rows import Rows, curve, first_reaching
from rlkit.results.statistics import SeedsInterval, signed

NOT_RUN = "not run yet"
THIRD = 1 / 3  # of TRL's time, for the same discovery


@dataclass(frozen=True)
class Target:
    """A difference `pair` (policy, baseline): its mean at least `least`, its interval's lower end
    above `floor`, and every seed's mean above 0."""

    name: str
    pair: tuple[str, str] = ("", "")
    least: float | None = None
    floor: float | None = None
    every_seed: bool = False

    def judged(self, found: Mapping[str, Any], seeds: int) -> dict[str, Any]:
        """Beside the figures: `met`, and a sentence of what is lacking. `found` has mean, low,
        high, n and seeds; where some of so many seeds lack, that is said."""
        row = {"target": self.name, "wanted": self.wanted()}
        if not found or found["mean"] is None:
            return row | {"met": None, "said": f"{self.wanted()}: {NOT_RUN}"}
        missed = [*self._missed(found)]
        few = len(found["seeds"]) < seeds
        low, high = (found[end] for end in ("low", "high"))
        ends = "no interval" if low is None else f"[{signed(low)}, {signed(high)}]"
        each = ", ".join(f"{seed} {signed(mean)}" for seed, mean in found["seeds"].items())
        said = (
            f"wanted {self.wanted()}; {signed(found['mean'])} {ends}, n = {found['n']} ({each}): "
        )
        said += f"missed, {'; '.join(missed)}" if missed else "met"
        said += f" (so far, {len(found['seeds'])} of {seeds} seeds)" if few else ""
        said += f". {found['caution']}" if found.get("caution") else ""
        figures = {k: found[k] for k in ("mean", "low", "high", "n", "seeds")}
        return row | figures | {"met": not missed and not few, "said": said}

    def wanted(self) -> str:
        parts = [] if self.least is None else [f"at least {signed(self.least)}"]
        parts += [] if self.floor is None else [f"interval above {signed(self.floor)}"]
        return ", ".join(parts + ["every seed above 0"] * self.every_seed)

    def _missed(self, found: Mapping[str, Any]) -> list[str]:
        missed, low = [], found["low"]
        if self.least is not None and found["mean"] < self.least:
            missed.append(f"the mean by {self.least - found['mean']:.3f}")
        if self.floor is not None and (low is None or low <= self.floor):
            by = "for want of one" if low is None else f"by {self.floor - low:.3f}"
            missed.append(f"the interval {by}")
        if self.every_seed and min(found["seeds"].values()) <= 0:
            missed.append("not every seed is above 0")
        return missed


TEAMS = {
    "untouched": Target("teams, whole questions: tuned over untouched", floor=0.0),
    "untouched_plain": Target(
        "teams: tuned over untouched, its lines without tags read as clues", floor=0.0
    ),
}
HOTPOTQA = Target("HotpotQA, never trained on: tuned not worse than warm start", floor=-0.02)


def further_targets(rows: Rows) -> dict[str, Any]:
    """Teams over whole questions, and HotpotQA: figures, and their targets."""
    teams = {other: plain_interval(found) for other, found in team_differences(rows).items()}
    minus = {
        which: {
            f"{other}{' (greedy)' * greedy}": plain_interval(found)
            for other in ("adapter", "raw_question")
            for greedy in (False, True)
            if (found := hotpotqa_difference(rows, which, other, greedy))
        }
        for which in FROM_ROUND
    }
    seeds = len(rows.seeds)
    targets = [target.judged(teams.get(other, {}), seeds) for other, target in TEAMS.items()]
    targets.append(HOTPOTQA.judged(minus["all rounds"].get("adapter", {}), seeds))
    teams = {"policies": team_figures(rows), "tuned minus": teams}
    hotpotqa = {"policies": hotpotqa_figures(rows), "tuned minus": minus}
    return {"teams": teams, "hotpotqa": hotpotqa, "targets": targets}


def plain_interval(found: SeedsInterval) -> dict[str, Any]:
    seeds = {str(seed): one.mean for seed, one in found.per_seed.items()}
    return {**found.averaged._asdict(), "seeds": seeds, "caution": found.averaged.caution}


def trl_against_ours(output: Path, seed: int) -> dict[str, Any]:
    """Time of an update (medians), and time until the highest dev discovery that TRL reached."""
    name = "TRL: the same discovery in at most a third of the time"
    theirs = output / f"study-trl-{seed}"
    ours = output / "study-ablation-all-states"  # visits the states that TRL visits
    points, reached = curve(theirs), curve(ours)
    row: dict[str, Any] = {"target": name, "wanted": f"at most {THIRD:.2f} of TRL's time"}
    if len(points) < 2 or not reached:
        return {"figures": {}, "targets": [row | {"met": None, "said": NOT_RUN}]}
    best = max(points[1:], key=lambda point: point.discovery)
    beside = f" ({ours.name}; one seed, {len(points) - 1} and {len(reached) - 1} points a curve)"
    if best.discovery <= points[0].discovery:
        said = f"nothing to compare: TRL stayed at {points[0].discovery:.3f} or below"
        figures = {"seconds an update": {run.name: _medians(run) for run in (ours, theirs)}}
        return {"figures": figures, "targets": [row | {"met": None, "said": said}]}
    first = first_reaching(reached, best.discovery)
    figures = {
        "ours": ours.name,
        "seconds an update": {run.name: _medians(run) for run in (ours, theirs)},
        "discovery": best.discovery,
        "TRL": best._asdict(),
        "ours reached it": None if first is None else first._asdict(),
    }
    if first is None:
        highest = max(point.discovery for point in reached)
        said = f"missed: TRL's best is {best.discovery:.3f}, ours reached {highest:.3f}{beside}"
        return {"figures": figures, "targets": [row | {"met": False, "said": said}]}
    ratios = {kind: getattr(first, kind) / getattr(best, kind) for kind in ("processor", "clock")}
    met = ratios["processor"] <= THIRD
    said = (
        f"dev discovery {best.discovery:.3f} after {ratios['processor']:.2f} of TRL's processor "
        f"time ({ratios['clock']:.2f} on the clock): {'met' if met else 'missed'}{beside}"
    )
    figures["ratio"] = ratios
    return {"figures": figures, "targets": [row | {"met": met, "said": said}]}


def _medians(run: Path) -> dict[str, float]:
    rows = [row for row in metrics(run) if row.get("step_time")]
    names = {"processor": "cpu_time", "clock": "step_time"}
    return {
        kind: median(known)
        for kind, name in names.items()
        if (known := [row[name] for row in rows if row.get(name) is not None])
    }
