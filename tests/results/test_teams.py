"""Teams over whole questions: every figure worked out by hand from four small games."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlkit.errors import DataError
from rlkit.results.teams import Game, TeamComparison, game_row, load_teams, same_answer
from rlkit.rounds.state import MetaFile, RoundFile, RoundRef

GOLD = frozenset({"a", "b"})


def game(
    question: str,
    *seen: str,
    answer: str | None = None,
    wanted: str | None = "Trent",
    status: str = "finished",
    failed: tuple[int, ...] = (),
) -> Game:
    """`seen` holds, for each round, the letters of the documents read until then."""
    rounds = [RoundFile(schema=1, round=0)]
    rounds += [
        RoundFile(schema=1, round=number, strategy="SEARCH", seen_docids=tuple(letters))
        for number, letters in enumerate(seen, 1)
    ]
    refs = tuple(
        RoundRef(
            round=file.round,
            strategy="SEARCH",
            checkpoint=f"round_{file.round:03d}.json",
            failed="no answer" if file.round in failed else None,
        )
        for file in rounds[1:]
    )
    meta = MetaFile(
        schema=1,
        question_id=question,
        question="?",
        answer=wanted,
        status=status,
        rounds=refs,
        final_answer=answer,
    )
    return Game(meta, rounds)


def test_a_game_is_told_round_by_round():
    row = game_row("team", game("q", "ax", "axby", answer="the Trent."), GOLD, max_rounds=3)
    assert [row[f"discovery_after_{n}"] for n in (1, 2, 3)] == [0.5, 1.0, 1.0]
    assert (row["discovery"], row["documents_read"], row["rounds"]) == (1.0, 4, 2)
    assert (row["rounds_needed"], row["answer_found"], row["failed"]) == (2, 1.0, 0.0)


def test_a_question_that_ends_early_keeps_what_it_had():
    row = game_row("team", game("q", "a"), GOLD, max_rounds=3)
    assert [row[f"discovery_after_{n}"] for n in (1, 2, 3)] == [0.5, 0.5, 0.5]
    assert row["rounds_needed"] is None


def test_a_failed_round_is_no_round_and_a_failed_question_counts_with_what_it_found():
    row = game_row("team", game("q", "a", "a", "ab", failed=(2,)), GOLD, max_rounds=2)
    assert (row["rounds"], row["failed_rounds"], row["failed"]) == (2, 1, 0.0)
    assert (row["discovery_after_2"], row["rounds_needed"]) == (1.0, 2)
    lost = game_row("team", game("q", "a", "a", status="failed", failed=(2,)), GOLD, max_rounds=2)
    assert (lost["failed"], lost["discovery"], lost["discovery_after_2"]) == (1.0, 0.5, 0.5)


def test_without_a_round_nothing_was_read():
    row = game_row("team", game("q", status="failed"), GOLD, max_rounds=1)
    assert (row["discovery"], row["documents_read"], row["rounds"]) == (0.0, 0, 0)


def test_without_known_documents_or_a_known_answer_there_is_no_value():
    row = game_row("team", game("q", "a", answer="x", wanted=None), frozenset(), max_rounds=1)
    assert row["discovery"] is row["discovery_after_1"] is row["rounds_needed"] is None
    assert row["answer_found"] is None and row["documents_read"] == 1


def test_a_team_that_gives_answers_has_not_found_one_that_it_does_not_give():
    silent = game("q", "ab")
    assert game_row("team", silent, GOLD, 1, answers=True)["answer_found"] == 0.0
    assert game_row("team", silent, GOLD, 1, answers=False)["answer_found"] is None


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("The  River Trent!", "river trent", True),
        ("Ｔｒｅｎｔ", "Trent", True),
        ("《红楼梦》。", "红楼梦", True),
        ("1,200", "1200", True),
        ("Trent, England", "Trent", False),
        ("not Trent", "Trent", False),
        ("", "Trent", False),
        ("?", "!", False),  # nothing is left of either
        ("Theatre", "atre", False),
    ],
)
def test_answers_are_the_same_but_for_case_width_punctuation_and_articles(given, wanted, same):
    assert same_answer(given, wanted) is same


@pytest.fixture
def comparison() -> TeamComparison:
    """Two teams, two questions: discovery .5 and 1 against 0 and 1; one never completes q1."""
    games = {
        "untouched": [game("q1", "x", "xy"), game("q2", "x", "xab", answer="Lund")],
        "served": [game("q1", "a", "ax"), game("q2", "ab", answer="Trent")],
    }
    rows = [game_row(team, g, GOLD, 2) for team, played in games.items() for g in played]
    return TeamComparison.of(rows, {"split": "eval", "known": "gold", "questions": 2})


def test_means_are_over_questions_and_differences_paired_by_question(comparison):
    assert comparison.teams == ["untouched", "served"]
    assert comparison.pairs() == [("served", "untouched")]
    assert comparison.interval("served", "discovery").mean == 0.75
    assert comparison.interval("untouched", "discovery_after_1").mean == 0.0
    difference = comparison.difference("served", "untouched", "discovery")
    assert (difference.n, difference.mean, difference.non_zero) == (2, 0.25, 1)
    # only q2 was completed by both: in one round instead of two
    needed = comparison.difference("served", "untouched", "rounds_needed")
    assert (needed.n, needed.mean) == (1, -1.0)
    assert comparison.difference("served", "untouched", "answer_found").mean == 0.5
    assert difference.verdict == "too few to say"


def test_the_tables_name_metrics_and_teams(comparison):
    table = comparison.table()
    assert list(table.columns) == ["untouched model", "served Executor"]
    assert table.loc["Discovery after round 1", "served Executor"].startswith("0.75 [")
    assert table.loc["Rounds needed", "served Executor"] == "1.00 (no interval with n = 1)"
    differences = comparison.differences_table()
    assert set(differences["teams"]) == {"served Executor minus untouched model"}
    assert len(differences) == len(comparison.metrics) == 9


def test_where_nobody_was_tuned_every_team_is_compared_with_the_first(comparison):
    rows = [
        row | {"team": name}
        for name in ("scripted", "raw_question")
        for row in comparison.frame[comparison.frame["team"] == "served"].to_dict("records")
    ]
    assert TeamComparison.of(rows, {}).pairs() == [("raw_question", "scripted")]


def test_a_comparison_is_read_back_as_it_was_written(comparison, tmp_path: Path):
    path = comparison.save(tmp_path / "teams.json")
    again = load_teams(path)
    assert again.facts == comparison.facts
    assert again.table().equals(comparison.table())
    kept = json.loads(path.read_text())
    assert kept["schema"] == 1 and "NaN" not in path.read_text()
    needed = [row["rounds_needed"] for row in kept["rows"]]
    assert needed == [None, 2.0, None, 1.0]


@pytest.mark.parametrize("content", ["{}", '{"schema": 1, "rows": [{}]}', '{"schema": 2}', "[]"])
def test_another_file_is_no_comparison(content, tmp_path: Path):
    (tmp_path / "teams.json").write_text(content)
    with pytest.raises(DataError):
        load_teams(tmp_path / "teams.json")
