"""Whole questions, played by teams: what each team had found, and the tuned Executor's minus the
others'. `teams/<seed>` has the models' teams, `teams/untouched` those without any training, among
them the untouched model with untagged lines read as clues."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.study.parts import ROWS
from benchmarks.study.rows import Rows, Values, averaged
from rlkit.results.statistics import COUNT, SHARE, mean_interval, seeds_interval
from rlkit.results.teams import TeamComparison, load_teams


class Team(NamedTuple):
    """Which part's games are its own ({} is a seed), as which policy, and whether each seed has its
    own (else one game stands for all)."""

    title: str
    part: str
    policy: str

    @property
    def seeded(self) -> bool:
        return "{}" in self.part and self.policy != "untouched"


TEAMS = {
    "raw_question": Team("raw question, down its ranking", "teams-untouched", "raw_question"),
    "scripted": Team("rule-based script (made the rounds)", "teams-untouched", "scripted"),
    "untouched": Team("untouched", "teams-{}", "untouched"),
    "untouched_plain": Team("untouched, untagged lines count", "teams-untouched", "untouched"),
    "warm_start": Team("warm start", "teams-{}", "warm_start"),
    "tuned": Team("warm start + GRPO", "teams-{}", "tuned"),
}
AFTER = "discovery_after_"


def team_figures(rows: Rows) -> dict[str, Any]:
    """By team: discovery and documents read, means over questions of the seed-averaged values with
    intervals, discovery after each round, and each seed's discovery."""
    found: dict[str, Any] = {}
    for name, team in TEAMS.items():
        games = {seed: game for seed in rows.seeds if (game := _games(rows, team, seed))}
        if games:
            after = [c for c in next(iter(games.values())).frame.columns if c.startswith(AFTER)]
            means = {c.removeprefix(AFTER): _mean(games, team, c)["mean"] for c in after}
            found[name] = {
                "title": team.title,
                "discovery": _mean(games, team, "discovery"),
                "documents_read": _mean(games, team, "documents_read"),
                "after round": means,
            }
    return found


def team_differences(rows: Rows) -> dict[str, Any]:
    """By other team: `seeds_interval` of the tuned team's discovery minus the other's."""
    found = {}
    for other in (name for name in TEAMS if name != "tuned"):
        pairs = {seed: pair for seed in rows.seeds if (pair := _pair(rows, seed, other))}
        if pairs:
            found[other] = seeds_interval(pairs)
    return found


def teams_that_found_all(rows: Rows) -> dict[str, float]:
    """By team the share of its games in which every gold document was found, over the seeds."""
    found = {}
    for name, team in TEAMS.items():
        games = [game for seed in rows.seeds if (game := _games(rows, team, seed))]
        values = [game.question_values(team.policy, "discovery").values() for game in games]
        if values:
            shares = [sum(v > 1 - 1e-9 for v in of) / len(of) for of in values]
            found[name] = sum(shares) / len(shares)
    return found


def _pair(rows: Rows, seed: int, other: str) -> tuple[Values, Values] | None:
    teams = TEAMS["tuned"], TEAMS[other]
    games = [_games(rows, team, seed) for team in teams]
    if None in games:
        return None
    values = [g.question_values(t.policy, "discovery") for g, t in zip(games, teams, strict=True)]
    return values[0], values[1]


def _games(rows: Rows, team: Team, seed: int) -> TeamComparison | None:
    path = rows.output / ROWS / f"{team.part.format(seed)}.json"
    found = load_teams(path) if path.exists() else None
    return found if found is not None and team.policy in found.teams else None


def _mean(games: dict[int, TeamComparison], team: Team, metric: str) -> dict[str, Any]:
    by_seed = {seed: game.question_values(team.policy, metric) for seed, game in games.items()}
    bounds = COUNT if metric == "documents_read" else SHARE
    n, mean, low, high = mean_interval(averaged(by_seed).values(), bounds)
    found = {"mean": mean, "low": low, "high": high, "n": n}
    if team.seeded:
        found["seeds"] = {str(s): sum(of.values()) / len(of) for s, of in by_seed.items() if of}
    return found
