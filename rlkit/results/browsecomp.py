"""An evaluation in the layout of BrowseComp-Plus (github.com/texttron/BrowseComp-Plus), so that its
tools can read it: what `search_agent/qwen_client.py` writes as a run and
`scripts_evaluation/evaluate_run.py` as its summary.

    runs/<policy>/run_0001.json ...            one question each: tool calls, documents retrieved
    evals/<policy>/evaluation_summary.json     accuracy, recall, tool calls, and both by question

There a run plays a whole question; here it is one round from each recorded state of the question,
in order, one `search` a clue, with the documents that came back. Recall is the share of the
documents missing in any of these states that were retrieved from a state in which they were missing
(there: of all evidence). Where nobody answers, as in the search task, accuracy is null and each run
`incomplete`; an answer that could not be checked is neither right nor wrong, and not counted. The
folder of a policy `module:object` is `module.object`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlkit.errors import RunError
from rlkit.files import check_id, new_folder, write_json
from rlkit.results.evaluation import Evaluation, records


def export_browsecomp(
    evaluation: Evaluation, folder: str | Path, *, retriever: str = "BM25", max_tokens: int = 0
) -> Path:
    """Write every policy's greedy actions into a new folder, which appears whole.

    `retriever` is named in the summaries, `max_tokens` (the longest action) in the runs. Raises
    RunError where the folder exists, DataError where a policy's name is no name for a folder.
    """
    folder = Path(folder)
    if folder.exists():
        raise RunError(f"{folder} exists already and is never overwritten; name another folder.")
    with new_folder(folder) as temporary:
        for policy in evaluation.policies:
            name = check_id(policy.replace(":", "."), "the policy")
            asked = _by_question(evaluation, policy)
            runs = [_run(policy, question, rows, max_tokens) for question, rows in asked.items()]
            for number, run in enumerate(runs, start=1):
                write_json(temporary / "runs" / name / f"run_{number:04d}.json", run)
            recalls = {question: _recall(evaluation, rows) for question, rows in asked.items()}
            summary = _summary(evaluation, policy, runs, recalls, retriever)
            write_json(temporary / "evals" / name / "evaluation_summary.json", summary)
    return folder


def _by_question(evaluation: Evaluation, policy: str) -> dict[str, list[dict[str, Any]]]:
    """The policy's actions by question, in the order of rounds."""
    order = {state["state_id"]: place for place, state in enumerate(evaluation.states)}
    rows = records(evaluation.frame[evaluation.frame["policy"] == policy])
    by_question: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row.get("round") or 0, order[row["state_id"]])):
        by_question.setdefault(row["question_id"], []).append(row)
    questions = dict.fromkeys(state["question_id"] for state in evaluation.states)
    return {question: by_question[question] for question in questions if question in by_question}


def _run(policy: str, question: str, rows: list[dict[str, Any]], max_tokens: int) -> dict[str, Any]:
    result = [entry for row in rows for entry in _entries(row)]
    calls = Counter(entry["tool_name"] for entry in result if entry["type"] == "tool_call")
    retrieved = {d["docid"] for row in rows for d in row.get("documents") or ()}
    answered = bool(result) and result[-1]["type"] == "output_text"
    return {
        "metadata": {"model": policy, "max_output_tokens": max_tokens, "output_dir": ""},
        "query_id": question,
        "tool_call_counts": dict(calls),
        "status": "completed" if answered else "incomplete",
        "retrieved_docids": sorted(retrieved),
        "result": result,
    }


def _entries(row: dict[str, Any]) -> list[dict[str, Any]]:
    """What an action did: one search a clue; of another task, the text that it answered."""
    if "clues" not in row:
        return [_entry("output_text", None, None, row["completion"])]
    found = {clue: [] for clue in row["clues"]}
    for document in row["documents"]:
        found.setdefault(document["clue"], []).append(
            {"docid": document["docid"], "title": document["title"]}
        )
    return [
        _entry(
            "tool_call",
            "search",
            json.dumps({"query": clue}, ensure_ascii=False),
            json.dumps(documents, ensure_ascii=False),
        )
        for clue, documents in found.items()
    ]


def _entry(kind: str, tool: str | None, arguments: str | None, output: str) -> dict[str, Any]:
    return {"type": kind, "tool_name": tool, "arguments": arguments, "output": output}


def _summary(
    evaluation: Evaluation,
    policy: str,
    runs: list[dict[str, Any]],
    recalls: dict[str, float | None],
    retriever: str,
) -> dict[str, Any]:
    right = _right(evaluation, policy)
    calls = sum((Counter(run["tool_call_counts"]) for run in runs), Counter())
    return {
        "LLM": policy,
        "Accuracy (%)": _percent(right.values()),
        "Recall (%)": _percent(recalls.values()),
        "avg_tool_stats": {tool: count / len(runs) for tool, count in calls.items()},
        "Calibration Error (%)": None,
        "Retriever": retriever,
        "Link": "",
        "Evaluation Date": time.strftime("%Y-%m-%d", time.gmtime()),
        "per_query_metrics": [
            {
                "query_id": question,
                "correct": right[question] == 1 if question in right else None,
                "recall": _percent([value]),
            }
            for question, value in recalls.items()
        ],
    }


def _right(evaluation: Evaluation, policy: str) -> dict[str, float]:
    """By question whether its answer was right, of those that could be checked; empty for a task
    without answers."""
    if "accuracy" not in evaluation.metrics:
        return {}
    return evaluation.question_values(policy, "accuracy")


def _recall(evaluation: Evaluation, rows: list[dict[str, Any]]) -> float | None:
    """Of one question; what came back in a state that had seen it was not found there."""
    played = {row["state_id"]: row.get("documents") or () for row in rows}
    missing = {s["state_id"]: {*s["missing"]} for s in evaluation.states if s["state_id"] in played}
    found = {d["docid"] for s, known in missing.items() for d in played[s] if d["docid"] in known}
    wanted = set().union(*missing.values())
    return len(found) / len(wanted) if wanted else None


def _percent(shares: Iterable[float | None]) -> float | None:
    """Their mean in percent, of those that are known."""
    known = [share for share in shares if share is not None]
    return round(100 * sum(known) / len(known), 2) if known else None
