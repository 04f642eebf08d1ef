"""What was answered once is not asked for again, whatever happened to the file in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlkit.results.answer_cache import Answers, CachedPolicy, CachedSampler

STATES = [SimpleNamespace(state_id=name) for name in ("a", "b", "c")]
AUTHOR = {"model": "0123", "adapter": None}


class Scribe:
    """Answers with the state's id, and keeps count of what it was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def write_batch(self, states: Sequence[SimpleNamespace]) -> list[str]:
        self.asked += [state.state_id for state in states]
        return [f"answer {state.state_id} \ud800 《红楼梦》\n" for state in states]

    def sample_batch(self, states: Sequence[SimpleNamespace], count: int, first: int) -> list:
        self.asked += [(state.state_id, first, count) for state in states]
        return [[f"{state.state_id}{i}" for i in range(first, count)] for state in states]


def prompt(state: SimpleNamespace) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"state {state.state_id}"}]


def cached(folder: Path, log=print, author: dict = AUTHOR, **decoding: int) -> CachedPolicy:
    decoding = {"max": 16, **decoding}
    return CachedPolicy(Scribe(), Answers(folder, author, log), prompt, decoding)


def test_only_what_is_lacking_is_asked_for_and_the_order_is_kept(tmp_path: Path) -> None:
    first = cached(tmp_path)
    written = first.write_batch(STATES[1:])
    again = cached(tmp_path)
    assert again.write_batch(STATES)[1:] == written  # lone surrogates and line breaks, too
    assert again.policy.asked == ["a"] and (again.asked, again.found) == (1, 2)
    assert cached(tmp_path).write(STATES[0]).startswith("answer a")


@pytest.mark.parametrize(
    "changed", [{"author": {**AUTHOR, "adapter": "45"}}, {"max": 17}, {"thinking": 1}]
)
def test_another_author_or_decoding_is_another_answer(tmp_path: Path, changed: dict) -> None:
    cached(tmp_path).write_batch(STATES)
    other = cached(tmp_path, **changed)
    other.write_batch(STATES)
    assert other.policy.asked == ["a", "b", "c"]


def test_half_a_line_of_a_killed_writer_is_cut_off_without_a_word(tmp_path: Path) -> None:
    policy = cached(tmp_path)
    policy.write_batch(STATES[:2])
    path = policy.answers.path
    path.write_bytes(path.read_bytes() + b'{"key": "12", "ans')
    said: list[str] = []
    again = cached(tmp_path, said.append)
    again.write_batch(STATES)
    assert again.policy.asked == ["c"] and said == []
    assert [json.loads(line) for line in path.read_text().splitlines()][0]["model"] == "0123"
    assert cached(tmp_path).answers.get("12") is None
    last = cached(tmp_path)
    last.write_batch(STATES)
    assert last.policy.asked == []


def test_a_damaged_file_is_set_aside_and_its_whole_answers_go_on(tmp_path: Path) -> None:
    policy = cached(tmp_path)
    policy.write_batch(STATES)
    path = policy.answers.path
    damaged = path.read_bytes().replace(b"answer b", b"answer B")
    path.write_bytes(damaged)
    said: list[str] = []
    again = cached(tmp_path, said.append)
    assert again.write_batch(STATES) == policy.write_batch(STATES)
    assert again.policy.asked == ["b"]
    assert "damaged-1" in said[0] and "2 of 3 answers" in said[0]
    assert path.with_name(f"{path.name}.damaged-1").read_bytes() == damaged


def test_nothing_is_appended_to_half_a_line_that_another_writer_left_behind(tmp_path: Path) -> None:
    reader = cached(tmp_path)
    reader.write_batch(STATES[:1])  # holds the file in memory from now on
    path = reader.answers.path
    path.write_bytes(path.read_bytes() + b'{"key": "12", "ans')  # another process, killed
    reader.write_batch(STATES[1:])
    said: list[str] = []
    again = cached(tmp_path, log=said.append)
    again.write_batch(STATES)
    assert again.policy.asked == [] and said == []
    path.write_bytes(b'{"schema": 1, "mod')  # killed in the author's line
    reader.answers.put({"key": "answer"})
    assert [*map(json.loads, path.read_text().splitlines())][0] == reader.answers.author
    assert cached(tmp_path).answers.get("key") == "answer"


@pytest.mark.parametrize("first", [None, b'{"schema": 1, "model": "01'])
def test_a_file_that_lost_its_first_line_keeps_its_answers_since_its_name_tells_whose_they_are(
    tmp_path: Path, first: bytes | None
) -> None:
    policy = cached(tmp_path)
    policy.write_batch(STATES)
    path = policy.answers.path
    rows = path.read_bytes().splitlines()[1:]
    path.write_bytes(b"".join(line + b"\n" for line in ([first] if first else []) + rows))
    said: list[str] = []
    again = cached(tmp_path, said.append)
    again.write_batch(STATES)
    assert again.policy.asked == []
    assert "damaged-1" in said[0] and "3 of 3 answers" in said[0]
    assert json.loads(path.read_bytes().splitlines()[0]) == again.answers.author


def test_no_answer_is_taken_from_a_file_of_another_author(tmp_path: Path) -> None:
    other = cached(tmp_path, author={**AUTHOR, "adapter": "45"})
    other.write_batch(STATES)
    said: list[str] = []
    mine = cached(tmp_path, said.append)
    other.answers.path.rename(mine.answers.path)
    mine.write_batch(STATES)
    assert mine.policy.asked == ["a", "b", "c"]
    assert "is of another model" in said[0] and "0 of 3 answers" in said[0]


def test_answers_under_the_first_line_of_another_author_are_not_taken(tmp_path: Path) -> None:
    other = cached(tmp_path, author={**AUTHOR, "adapter": "45"})
    mine = cached(tmp_path)
    for policy in (other, mine):
        policy.write_batch(STATES)
    first, _ = mine.answers.path.read_bytes().split(b"\n", 1)
    _, rows = other.answers.path.read_bytes().split(b"\n", 1)
    mine.answers.path.write_bytes(first + b"\n" + rows)
    said: list[str] = []
    again = cached(tmp_path, said.append)
    again.write_batch(STATES)
    assert again.policy.asked == ["a", "b", "c"] and "0 of 3 answers" in said[0]


def test_more_samples_cost_only_the_rest(tmp_path: Path) -> None:
    def sampler(seed: int = 7) -> CachedSampler:
        answers = Answers(tmp_path, AUTHOR)
        return CachedSampler(Scribe(), answers, prompt, {"max": 16}, {"seed": seed})

    assert sampler().sample_batch(STATES[:1], 2) == [["a0", "a1"]]
    more = sampler()
    assert more.sample_batch(STATES[:2], 3) == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
    assert more.policy.asked == [("b", 0, 3), ("a", 2, 3)] and (more.asked, more.found) == (4, 2)
    other = sampler(seed=8)
    other.sample_batch(STATES[:1], 2)
    assert other.policy.asked == [("a", 0, 2)]
