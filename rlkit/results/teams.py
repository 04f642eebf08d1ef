"""Teams over whole questions: what each had found after every round, what it read, whether its
answer was right, and how many rounds it took; one row a (team, question), paired by question.

    comparison = compare_teams(config)      # results/team_run.py plays them
    comparison.table()                      # per team: mean over questions, 95 % interval, n
    comparison.differences()                # the tuned Executor's team minus the others

Discovery after round r is the share of the question's known documents that had been read by then;
a question that ended earlier keeps what it had. Questions without known documents are left out of
it. A failed round is no round. A question that failed counts with what had been found until then,
and in `failed`: where that is often, the servers are compared, not the Executors.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rlkit.errors import DataError
from rlkit.files import read_object, write_json
from rlkit.library.tokenize import folded
from rlkit.results.breakdown import bounds_of
from rlkit.results.evaluate import NAMES, policy_pairs, records
from rlkit.results.statistics import (
    Interval,
    PairedInterval,
    claimed,
    holm,
    interval_text,
    mean_interval,
    paired_interval,
)
from rlkit.rounds.state import FAILED, SEARCH, MetaFile, RoundFile

SCHEMA = 1
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


class TeamMetric(NamedTuple):
    """A column of the comparison: its title and its unit."""

    title: str
    unit: str


METRICS = {
    "discovery": TeamMetric("Discovery", "share of known documents"),
    "answer_found": TeamMetric("Answers found", "share of questions with a known answer"),
    "documents_read": TeamMetric("Documents read", "per question"),
    "rounds": TeamMetric("Rounds", "searches per question"),
    "rounds_needed": TeamMetric("Rounds needed", "until all known documents were read"),
    "failed": TeamMetric("Failed", "share of questions"),
    "failed_rounds": TeamMetric("Failed rounds", "per question; they count as no round"),
}
_AFTER = re.compile(r"discovery_after_([0-9]+)")
_COLUMNS = ("team", "question_id", *METRICS)


class Game(NamedTuple):
    """One recorded question: `rounds` holds the state before the first round, then each round."""

    meta: MetaFile
    rounds: Sequence[RoundFile]


def game_row(
    team: str, game: Game, known: frozenset[str], max_rounds: int, answers: bool = True
) -> dict[str, Any]:
    """What one game came to. `known` are the question's known documents; `answers` says whether
    this team gives answers at all: where it does, a question without one is not answered.

    `rounds_needed` is None where some known document was never read, `answer_found` where the
    question has no answer or the team gives none.
    """
    meta, failed = game.meta, {ref.round for ref in game.meta.rounds if ref.failed}
    rounds = [file for file in game.rounds if file.round not in failed]
    found = _found_after(rounds, known)
    given, wanted = final_answer(game), meta.answer
    row: dict[str, Any] = {
        "team": team,
        "question_id": meta.question_id,
        "discovery": found[-1] if known else None,
        "answer_found": float(same_answer(given or "", wanted)) if answers and wanted else None,
        "documents_read": len(set(rounds[-1].seen_docids)),
        "rounds": sum(file.strategy == SEARCH for file in rounds),
        "rounds_needed": found.index(1.0) if known and found[-1] == 1.0 else None,
        "failed": float(meta.status == FAILED),
        "failed_rounds": len(failed),
        "answer": given,
    }
    for number in range(1, max_rounds + 1):
        reached = found[min(number, len(found) - 1)]
        row[f"discovery_after_{number}"] = reached if known else None
    return row


def _found_after(rounds: Sequence[RoundFile], known: frozenset[str]) -> list[float]:
    """The share of the known documents that were read after round 0, 1, ...; 0 without any."""
    return [len(known.intersection(file.seen_docids)) / max(1, len(known)) for file in rounds]


def final_answer(game: Game) -> str | None:
    """The answer that the team ended with; None without one."""
    answer = getattr(game.meta, "final_answer", None)
    return answer if isinstance(answer, str) and answer.strip() else None


def same_answer(given: str, wanted: str) -> bool:
    """Whether two answers are the same text but for case, width, punctuation, articles, blanks
    (SQuAD's normalisation: Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1)."""
    return bool(_bare(wanted)) and _bare(given) == _bare(wanted)


def _bare(answer: str) -> str:
    text = "".join(c for c in folded(answer) if unicodedata.category(c)[0] not in "PS")
    return " ".join(_ARTICLE.sub(" ", text).split())


@dataclass(frozen=True)
class TeamComparison:
    """One row a (team, question) in `frame`, and the `facts`: `split`, `known` (gold, recorded,
    mixed), `max_rounds`, `questions` (asked of every team), and what plays and judges."""

    frame: pd.DataFrame
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> TeamComparison:
        """From the rows that `game_row` made."""
        after = dict.fromkeys(key for row in rows for key in row if _AFTER.fullmatch(key))
        frame = pd.DataFrame(list(rows), columns=[*_COLUMNS, *after, "answer"])
        return cls(frame.astype(dict.fromkeys([*METRICS, *after], "float64")), dict(facts))

    @property
    def teams(self) -> list[str]:
        """The teams in the order in which they played."""
        return list(dict.fromkeys(self.frame["team"]))

    @property
    def metrics(self) -> dict[str, TeamMetric]:
        """All columns that are compared: `METRICS`, and the discovery after each round."""
        found = [match for match in map(_AFTER.fullmatch, self.frame.columns) if match]
        unit = METRICS["discovery"].unit
        after = {m[0]: TeamMetric(f"Discovery after round {m[1]}", unit) for m in found}
        return {**METRICS, **after}

    def question_values(self, team: str, metric: str) -> dict[str, float]:
        """The metric of each question that has a value of it."""
        rows = self.frame[self.frame["team"] == team]
        return rows[rows[metric].notna()].set_index("question_id")[metric].to_dict()

    def interval(self, team: str, metric: str) -> Interval:
        """Mean over questions, with its 95 % interval."""
        bounds = bounds_of(metric, self.metrics[metric].unit)
        return mean_interval(self.question_values(team, metric).values(), bounds)

    def difference(self, team: str, other: str, metric: str) -> PairedInterval:
        """Mean of team - other over the questions that both have a value for."""
        values = (self.question_values(name, metric) for name in (team, other))
        most = 1.0 if self.metrics[metric].unit.startswith("share") else math.inf
        return paired_interval(*values, metric == "answer_found", most)

    def pairs(self) -> list[tuple[str, str]]:
        """Whom to compare with whom: as in an evaluation; where that leaves nobody, every team
        with the first."""
        teams = self.teams
        return policy_pairs(teams) or [(team, teams[0]) for team in teams[1:]]

    def summary(self) -> pd.DataFrame:
        """One row a (team, metric): n questions, mean, low, high, caution (why there is no
        interval)."""
        rows = []
        for team in self.teams:
            for metric in self.metrics:
                found = self.interval(team, metric)
                row = {"team": team, "metric": metric, **found._asdict()}
                rows.append(row | {"caution": found.caution})
        return pd.DataFrame(rows, columns=["team", "metric", *Interval._fields, "caution"])

    def differences(self) -> pd.DataFrame:
        """One row a (pair, metric): mean of team - other by question, interval, verdict."""
        rows = []
        for team, other in self.pairs():
            for metric in self.metrics:
                found = self.difference(team, other, metric)
                row = {"team": team, "other": other, "metric": metric, **found._asdict()}
                rows.append(row | {"verdict": found.verdict})
        columns = ["team", "other", "metric", *PairedInterval._fields, "verdict"]
        return pd.DataFrame(rows, columns=columns)

    def table(self) -> pd.DataFrame:
        """One row a metric, one column a team: mean over questions, 95 % interval, n."""
        return pd.DataFrame(
            {
                NAMES.get(team, team): {
                    metric.title: interval_text(self.interval(team, name))
                    for name, metric in self.metrics.items()
                }
                for team in self.teams
            }
        )

    def differences_table(self) -> pd.DataFrame:
        """`differences` to read: one row a pair of teams and metric; the verdict is what Holm's p
        over all rows lets one claim."""
        rows, differences = [], []
        for a, b in self.pairs():
            for name, metric in self.metrics.items():
                found = self.difference(a, b, name)
                row = {"teams": f"{NAMES.get(a, a)} minus {NAMES.get(b, b)}"}
                rows.append(row | {"metric": metric.title, "difference": interval_text(found)})
                differences.append(found)
        verdicts = map(claimed, differences, holm([found.p for found in differences]))
        rows = [row | {"verdict": said} for row, said in zip(rows, verdicts, strict=True)]
        return pd.DataFrame(rows, columns=["teams", "metric", "difference", "verdict"])

    def text(self) -> str:
        """Both tables, to print."""
        differences = self.differences_table()
        compared = (
            "one team only, nothing to compare"
            if differences.empty
            else differences.to_string(index=False)
        )
        return f"{self.table().to_string()}\n\n{compared}"

    def save(self, path: str | Path) -> Path:
        """Write `teams.json` (schema 1) so that it appears whole; NaN becomes null."""
        return write_json(
            path,
            {
                "schema": SCHEMA,
                **self.facts,
                "summary": records(self.summary()),
                "differences": records(self.differences()),
                "rows": records(self.frame),
            },
        )


def load_teams(path: str | Path) -> TeamComparison:
    """Read what `TeamComparison.save` wrote. Raises DataError where it is something else."""
    data = read_object(path)
    rows = data.get("rows")
    if data.get("schema") != SCHEMA or not isinstance(rows, list):
        raise DataError(f"{path} is no comparison of teams of schema {SCHEMA}; compare them again.")
    if not all(isinstance(row, dict) and set(_COLUMNS) <= set(row) for row in rows):
        raise DataError(f"{path}: a row lacks one of {', '.join(_COLUMNS)}; compare them again.")
    worked_out = ("schema", "summary", "differences", "rows")
    return TeamComparison.of(rows, {k: v for k, v in data.items() if k not in worked_out})
