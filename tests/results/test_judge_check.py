"""check-judge: a steady judge, one that goes by the order, one that is never sure; by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rlkit import cli
from rlkit.agents.verdict_cache import VerdictCache
from rlkit.config import RunConfig
from rlkit.doctor.data import splits
from rlkit.doctor.look import Look
from rlkit.errors import ConfigError
from rlkit.practice.splits import kept_splits, new_splits
from rlkit.practice.task import build_search_task
from rlkit.results.judge_check import JudgeCheck, _states, check_judge
from rlkit.results.judge_text import judge_text, meaning
from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.run import Run
from tests.agents.fault_server import Answer, FaultServer
from tests.agents.test_judge import Judge, fenced
from tests.rounds.recorded import write_run

PARAMS = Path(__file__).resolve().parents[2] / "params" / "debug.yaml"
VALUES = {"IMPORTANT": 2.5, "LOCAL": 0.3, "DISCARD": 0.0}


def rows(*verdicts: str) -> tuple[dict, ...]:
    """Rows of gold, first, again and reversed, by their first letters; `.` is unjudged."""
    names = {"I": "IMPORTANT", "L": "LOCAL", "D": "DISCARD", ".": None}
    keys = ("gold", "first", "again", "reversed")
    return tuple(
        {"state_id": "s", "question_id": "q", "docid": str(n)}
        | {key: names[letter] for key, letter in zip(keys, four, strict=True)}
        for n, four in enumerate(verdicts)
    )


FIVE = JudgeCheck(rows("IIII", "ILLD", "DDLD", "LL.L", "D..."), "toy", "dev", VALUES, 8)


def test_five_documents_by_hand():
    assert FIVE.agreement("first", "again")[:2] == (2, 3)  # I, L agree; D became L
    assert FIVE.agreement("first", "reversed")[:2] == (3, 4)
    assert FIVE.agreement("first", "gold")[:2] == (3, 4)
    assert FIVE.unjudged[:2] == (4, 15)
    assert FIVE.flips("again") == {"LOCAL / DISCARD": 1} == FIVE.flips("reversed")
    assert FIVE.against_gold == {
        "IMPORTANT": {"IMPORTANT": 1, "LOCAL": 1, "DISCARD": 0, "unjudged": 0},
        "LOCAL": {"IMPORTANT": 0, "LOCAL": 1, "DISCARD": 0, "unjudged": 0},
        "DISCARD": {"IMPORTANT": 0, "LOCAL": 0, "DISCARD": 1, "unjudged": 1},
    }


def test_what_flips_and_errors_do_to_the_reward_by_hand():
    # 7 pairs of judgings, two of which differ by 0.3; 8 documents an action
    assert FIVE.reward_noise() == pytest.approx(math.sqrt(8 * (0.09 + 0.09) / 7))
    # against gold: 0, 0.3 - 2.5, 0, 0: mean -0.55, variance (3·0.55² + 1.65²) / 4
    assert FIVE.reward_bias() == pytest.approx(-0.55)
    variance = (3 * 0.55**2 + 1.65**2) / 4
    assert FIVE.reward_error() == pytest.approx(math.sqrt(8 * variance + (8 * 0.55) ** 2))
    assert "differently by 0.45 (root mean square)" in meaning(FIVE)
    assert "by 5.16 (-0.55 a document on average)" in meaning(FIVE)


def test_the_table_shows_shares_intervals_and_the_confusion():
    text = judge_text(FIVE)
    assert "the same, asked again       0.67 [0.21, 0.94], 2 of 3, kappa 0.50" in text
    assert "flips, in reverse order: LOCAL / DISCARD 1" in text
    assert "unjudged                    0.27 [0.11, 0.52], 4 of 15" in text
    assert "IMPORTANT               1          1          0          0   0.50" in text


def test_without_gold_and_without_verdicts_it_says_so():
    blind = JudgeCheck(rows("I...", "L..."), "toy", "dev", VALUES, 8)
    assert "no document was judged twice" in meaning(blind)
    assert blind.reward_noise() is None and "kappa none" in judge_text(blind)
    bare = JudgeCheck(rows(".III"), "toy", "dev", VALUES, 8)
    assert bare.against_gold is None and "gold" not in judge_text(bare)
    assert json.loads(json.dumps(bare.as_dict()))["gold"] is None


# ---- with a server


def steady(body: dict, n: int) -> Answer:
    """Longer documents are better: wrong, but always the same."""
    found = {k: ("LOCAL" if len(v) % 2 else "DISCARD") for k, v in fenced(body).items()}
    return Answer(json.dumps(found))


def by_position(body: dict, n: int) -> Answer:
    """The first document is IMPORTANT, whatever it says."""
    found = {k: ("IMPORTANT" if k == "d1" else "DISCARD") for k in fenced(body)}
    return Answer(json.dumps(found))


def but_one(body: dict, n: int) -> Answer:
    """No label for documents with an even number of letters."""
    found = {k: "LOCAL" for k, v in fenced(body).items() if len(v) % 2}
    return Answer(json.dumps(found))


def nonsense(body: dict, n: int) -> Answer:
    """No verdict at all; a terminal's colours, a line break, a tag, the key that it was sent."""
    return Answer(f"\x1b[31mOnce upon\na time <b> there was geheim-{n % 2}. " + "a river " * 90)


@pytest.fixture
def config(tmp_path):
    def make(url: str, *changes: str) -> RunConfig:
        given = ["checker.kind=llm", f"model.vllm_base_url={url}", "model.checker_model=toy",
                 f"output_root={tmp_path}", "checker.batch_size=4"]  # fmt: skip
        return RunConfig.load(PARAMS, [*given, *changes])

    return make


def quiet(line: str) -> None:
    """The tests look at what is returned."""


def test_a_steady_judge_agrees_with_itself_and_is_asked_past_the_cache(config, tmp_path):
    with FaultServer(judge := Judge(steady)) as server:
        check, path = check_judge(config(server.url), samples=20, log=quiet)
        assert sum(judge.sizes) == 3 * 20  # three passes, none of them out of the cache
        again, _ = check_judge(config(server.url), samples=20, log=quiet)
        assert sum(judge.sizes) == 6 * 20
    assert check.rows == again.rows  # the sample is drawn by the seed
    for name in ("again", "reversed"):
        assert check.agreement("first", name)[:3] == (20, 20, 1.0)
    assert check.reward_noise() == 0.0 and check.unjudged.count == 0
    assert (check.judge, len(VerdictCache(tmp_path / "verdicts.sqlite"))) == ("toy", 0)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert path == tmp_path / "judge_check.json" and kept["documents"] == 20
    assert sum(sum(row.values()) for row in kept["gold"]["confusion"].values()) == 20


def test_a_judge_that_goes_by_the_order_is_found_out(config):
    with FaultServer(Judge(by_position)) as server:
        check, _ = check_judge(config(server.url), samples=20, log=quiet)
    assert check.agreement("first", "again").share == 1.0
    # of every four documents the first and the last change places
    assert check.agreement("first", "reversed")[:2] == (10, 20)
    assert check.flips("reversed") == {"IMPORTANT / DISCARD": 10}
    assert check.reward_noise() == pytest.approx(math.sqrt(8 * 2.5**2 * 10 / 40), rel=1e-9)


def test_documents_without_a_label_are_counted_and_never_discarded(config):
    with FaultServer(Judge(but_one)) as server:
        check, _ = check_judge(config(server.url), samples=12, log=quiet)
    assert 0 < check.unjudged.count < 36
    assert {row["first"] for row in check.rows} == {"LOCAL", None}
    assert sum(row["unjudged"] for row in check.against_gold.values()) == check.unjudged.count / 3


def test_a_judge_of_nonsense_is_shown_in_its_own_words_made_harmless(config, monkeypatch):
    monkeypatch.setenv("RLKIT_API_KEY", "geheim-1")
    with FaultServer(Judge(nonsense)) as server:
        check, path = check_judge(config(server.url), samples=8, log=quiet)
    assert check.unjudged.share == 1.0
    text = judge_text(check)
    lines = [line for line in text.splitlines() if line.startswith("  | ")]
    starts = sorted(line.split(". a river")[0] for line in lines)
    assert starts == [
        "  | [31mOnce upon a time ‹b> there was ***",
        "  | [31mOnce upon a time ‹b> there was geheim-0",
    ]
    assert all(len(line) <= 206 for line in check.unread) and "\x1b" not in text
    assert json.loads(path.read_text(encoding="utf-8"))["unread"] == list(check.unread)
    assert "name a model that keeps to the form" in text


def test_no_more_than_three_replies_are_shown_and_none_that_was_read(config):
    def numbered(body: dict, n: int) -> Answer:
        return Answer(f"story {n}" if n % 2 else "") if len(fenced(body)) > 1 else steady(body, n)

    with FaultServer(Judge(numbered)) as server:
        check, _ = check_judge(config(server.url), samples=12, log=quiet)
    assert len(check.unread) == 3 and check.unjudged.count == 0
    assert all(line == "(nothing)" or line.startswith("story ") for line in check.unread)
    assert "  | " not in judge_text(FIVE)


def test_dev_states_of_recorded_rounds_are_taken_and_the_run_keeps_the_file(config, tmp_path):
    with FaultServer(Judge(steady)) as server:
        here = config(server.url)
        run = Run.open(here)
        gold = RunConfig.load(PARAMS, [f"output_root={tmp_path / 'gold'}"])
        task = build_search_task(gold, Run.open(gold))  # rounds and split, by the gold checker
        rounds = f"data.rounds_path={Run.open(gold).rounds_folder}"
        source = ["data.source=rounds", rounds]
        corpus = tmp_path / "corpus.jsonl"
        lines = [
            json.dumps({"id": d.docid, "title": d.title, "text": d.text})
            for d in task.env.orchestrator.corpus
        ]
        corpus.write_text("\n".join(lines), encoding="utf-8")
        here = config(server.url, *source, f"data.corpus_path={corpus}")
        check, path = check_judge(here, samples=8, log=quiet)
    assert check.source == "dev" and path == run.folder / "judge_check.json"
    dev = {state.question_id for state in task.splits.dev}
    assert {row["question_id"] for row in check.rows} <= dev


@pytest.fixture
def recorded(tmp_path):
    """Parameters of runs on the same twenty questions of three rounds each."""
    for number in range(20):
        write_run(tmp_path / "rounds", f"q{number:02}", status="failed", collector="toy")
    given = {"source": "rounds", "rounds_path": str(tmp_path / "rounds"), "corpus_path": "c.jsonl"}

    def make(name: str = "run", seed: int = 7, **data: object) -> RunConfig:
        data = {**given, "split": "random", "dev_ratio": 0.2} | data
        return RunConfig.from_sections(
            run_name=name, output_root=str(tmp_path / "outputs"), seed=seed, data=data
        )

    return make


def looked_at(config: RunConfig) -> list[set[str]]:
    """The questions of the parts that check-judge and check take for dev."""
    states, source = _states(config, None)
    assert source == "dev"
    dev = new_splits(Look(config).recorded.states, config).dev
    return [{state.question_id for state in part} for part in (states, dev)]


def test_the_dev_part_is_that_of_the_split_that_the_run_will_make(recorded, tmp_path):
    shared = looked_at(recorded(seed=8, split_seed=3))
    assert shared == looked_at(recorded(seed=9, split_seed=3)) == looked_at(recorded(seed=3))
    assert shared[0] == shared[1] and 0 < len(shared[0]) < 20
    assert shared != looked_at(recorded(seed=8))
    config = recorded("kept", seed=8, split_seed=3)
    kept = kept_splits(tmp_path / "outputs" / "kept", _loader(config), config)
    assert {state.question_id for state in kept.dev} == shared[0]


def test_rounds_before_the_first_one_are_not_judged(recorded):
    later = recorded(first_round=2)
    assert {state.round for state in _states(later, None)[0]} == {2, 3}
    assert {state.round for state in Look(later).recorded.states} == {2, 3}


def test_a_kept_split_may_name_runs_that_were_played_again_since(recorded, tmp_path):
    config = recorded("kept")
    folder = tmp_path / "outputs" / "kept"
    kept_splits(folder, _loader(config), config)
    dev, _ = _states(config, None)
    for number in range(20):
        write_run(tmp_path / "rounds", f"q{number:02}", collector="toy")
    assert [state.state_id for state in _states(config, None)[0]] == [s.state_id for s in dev]
    assert splits(Look(config))[0] == "ok"


def _loader(config: RunConfig) -> RLCheckpointLoader:
    return RLCheckpointLoader(config.data.rounds_path)


def test_a_judge_of_rules_and_a_sample_of_nothing_are_refused(config):
    with pytest.raises(ConfigError, match="checker.kind is gold, which labels by rules"):
        check_judge(RunConfig.load(PARAMS), log=quiet)
    with pytest.raises(ConfigError, match="--samples is 0"):
        check_judge(config("http://127.0.0.1:9/v1"), samples=0, log=quiet)


def test_the_command_prints_tables_and_a_sentence(config, tmp_path, capsys):
    with FaultServer(Judge(steady)) as server:
        changes = [f"model.vllm_base_url={server.url}", f"output_root={tmp_path}"]
        arguments = ["--params", str(PARAMS), "--samples", "8", "--set", "checker.kind=llm"]
        assert cli.main(["check-judge", *arguments, *changes]) == 0
    out = capsys.readouterr().out
    assert "judge toy: 8 documents" in out and "What it means for the reward: " in out
    assert f"kept in {tmp_path / 'judge_check.json'}" in out


def test_the_command_fails_where_no_label_could_be_read(tmp_path, capsys):
    with FaultServer(Judge(nonsense)) as server:
        changes = [f"model.vllm_base_url={server.url}", f"output_root={tmp_path}"]
        arguments = ["--params", str(PARAMS), "--samples", "4", "--set", "checker.kind=llm"]
        assert cli.main(["check-judge", *arguments, *changes]) == 1
    assert "no document was judged twice" in capsys.readouterr().out


def test_a_missing_server_is_one_sentence_of_the_command(tmp_path, capsys):
    changes = [f"output_root={tmp_path}", "checker.patience=0", "checker.max_retries=0",
               "model.vllm_base_url=http://127.0.0.1:9/v1", "checker.kind=llm"]  # fmt: skip
    assert cli.main(["check-judge", "--params", str(PARAMS), "--set", *changes]) == 2
    assert capsys.readouterr().err.startswith("error: http://127.0.0.1:9/v1 has not answered")
