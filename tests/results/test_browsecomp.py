"""The export has the files and fields that BrowseComp-Plus's own tools read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlkit import cli
from rlkit.errors import RunError
from rlkit.results import compare
from rlkit.results.browsecomp import export_browsecomp
from rlkit.results.evaluation import METRICS, Evaluation, records


def document(docid: str, clue: str) -> dict[str, Any]:
    return {"docid": docid, "title": docid.upper(), "verdict": "LOCAL", "new": True, "clue": clue}


def searched() -> Evaluation:
    """One question in two states: g1 and g2 are missing in the first, g2 in the second."""
    states = [
        {"state_id": f"q/{r}", "question_id": "q", "round": r, "missing": missing, "n_missing": 1}
        for r, missing in ((1, ["g1", "g2"]), (2, ["g2"]))
    ]
    common = dict.fromkeys(METRICS, 1.0) | {"policy": "tuned", "question_id": "q"}
    common |= {"hops": 2, "unjudged": 0, "documents_read": 1, "completion": ""}
    rows = [
        {"state_id": "q/2", "round": 2, "clues": ["third"], "documents": [document("x", "third")]},
        {"state_id": "q/1", "round": 1, "clues": ["first", "none"],
         "documents": [document("g1", "first"), document("x", "first")]},
    ]  # fmt: skip
    return Evaluation.of([common | row for row in rows], states, {})


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run_lists_searches_in_the_order_of_rounds_and_what_they_retrieved(
    tmp_path: Path,
) -> None:
    folder = export_browsecomp(searched(), tmp_path / "out", retriever="BM25", max_tokens=64)
    run = read(folder / "runs" / "tuned" / "run_0001.json")
    assert set(run) == {
        "metadata", "query_id", "tool_call_counts", "status", "retrieved_docids", "result",
    }  # fmt: skip
    assert (run["query_id"], run["status"]) == ("q", "incomplete")
    assert (run["metadata"]["model"], run["metadata"]["max_output_tokens"]) == ("tuned", 64)
    assert run["tool_call_counts"] == {"search": 3} and run["retrieved_docids"] == ["g1", "x"]
    queries = [json.loads(entry["arguments"])["query"] for entry in run["result"]]
    assert queries == ["first", "none", "third"]
    outputs = [json.loads(entry["output"]) for entry in run["result"]]
    assert [[d["docid"] for d in output] for output in outputs] == [["g1", "x"], [], ["x"]]


def test_the_summary_has_recall_over_what_was_missing_and_no_accuracy_without_answers(
    tmp_path: Path,
) -> None:
    folder = export_browsecomp(searched(), tmp_path / "out", retriever="BM25 (k1 0.9, b 0.4)")
    summary = read(folder / "evals" / "tuned" / "evaluation_summary.json")
    assert list(summary) == [
        "LLM", "Accuracy (%)", "Recall (%)", "avg_tool_stats", "Calibration Error (%)",
        "Retriever", "Link", "Evaluation Date", "per_query_metrics",
    ]  # fmt: skip
    assert (summary["Accuracy (%)"], summary["Recall (%)"]) == (None, 50.0)
    assert summary["avg_tool_stats"] == {"search": 3.0}
    assert summary["per_query_metrics"] == [{"query_id": "q", "correct": None, "recall": 50.0}]


def test_what_came_back_where_it_was_seen_already_is_no_recall(tmp_path: Path) -> None:
    """g1 is missing in round 1 alone, and round 2, which has seen it, brings it back."""
    before = searched()
    rows = records(before.frame)
    by_state = {row["state_id"]: row for row in rows}
    by_state["q/1"]["documents"] = [document("x", "first")]
    by_state["q/2"]["documents"] = [document("g1", "third") | {"new": False}]
    folder = export_browsecomp(Evaluation.of(rows, before.states, {}), tmp_path / "none")
    assert read(folder / "evals/tuned/evaluation_summary.json")["Recall (%)"] == 0.0
    by_state["q/2"]["documents"].append(document("g2", "third"))
    folder = export_browsecomp(Evaluation.of(rows, before.states, {}), tmp_path / "half")
    assert read(folder / "evals/tuned/evaluation_summary.json")["Recall (%)"] == 50.0


def test_a_policy_of_ones_own_has_a_folder(tmp_path: Path) -> None:
    before = searched()
    frame = before.frame.assign(policy="my.code:Policy")
    folder = export_browsecomp(Evaluation(frame, before.states), tmp_path / "out")
    assert read(folder / "runs/my.code.Policy/run_0001.json")["query_id"] == "q"
    assert read(folder / "evals/my.code.Policy/evaluation_summary.json")["LLM"] == "my.code:Policy"


def test_answers_are_output_texts_with_an_accuracy(tmp_path: Path) -> None:
    facts = {"metrics": {"accuracy": ["Accuracy", "share", False, True],
                         "reward": ["Reward", "", True, False]}}  # fmt: skip
    rows = [
        {"policy": "tuned", "state_id": q, "question_id": q, "completion": f"It is {q}.",
         "accuracy": right, "reward": right}
        for q, right in (("1", 1.0), ("2", 0.0), ("3", 0.0), ("4", None))  # 4: none could check it
    ]  # fmt: skip
    states = [{"state_id": q, "question_id": q, "missing": []} for q in "1234"]
    folder = export_browsecomp(Evaluation.of(rows, states, facts), tmp_path / "out")
    summary = read(folder / "evals" / "tuned" / "evaluation_summary.json")
    assert (summary["Accuracy (%)"], summary["Recall (%)"]) == (33.33, None)
    assert [row["correct"] for row in summary["per_query_metrics"]] == [True, False, False, None]
    run = read(folder / "runs" / "tuned" / "run_0002.json")
    assert run["status"] == "completed" and run["result"][-1]["output"] == "It is 2."


def test_every_policy_and_question_of_an_evaluation_is_written_and_nothing_is_overwritten(
    toy_evaluation: Evaluation, tmp_path: Path
) -> None:
    folder = export_browsecomp(toy_evaluation, tmp_path / "out")
    for policy in toy_evaluation.policies:
        assert len(list((folder / "runs" / policy).glob("run_*.json"))) == 36
    summary = read(folder / "evals" / "oracle" / "evaluation_summary.json")
    assert summary["Recall (%)"] == 100.0
    with pytest.raises(RunError, match="exists already"):
        export_browsecomp(toy_evaluation, tmp_path / "out")


def test_eval_exports_what_it_evaluated_and_refuses_before_it_evaluates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    evaluated: list[object] = []
    monkeypatch.setattr(
        compare, "evaluate_run", lambda config, **_: evaluated.append(config) or searched()
    )
    out = tmp_path / "out"
    assert cli.main(["eval", "--export", "browsecomp-plus", str(out)]) == 0
    summary = read(out / "evals" / "tuned" / "evaluation_summary.json")
    assert summary["Retriever"] == "bm25s (k1 0.9, b 0.4)"
    for wrong, said in (
        (["csv", str(tmp_path / "new")], "--export writes browsecomp-plus, and no format 'csv'."),
        (["browsecomp-plus", str(out)], f"--export: {out} exists already and is never over"),
    ):
        assert cli.main(["eval", "--export", *wrong]) == 2
        assert said in capsys.readouterr().err
    both = ["eval", "--teams", "--export", "browsecomp-plus", str(tmp_path / "new")]
    assert cli.main(both) == 2
    assert "--teams plays whole questions instead" in capsys.readouterr().err
    assert len(evaluated) == 1
