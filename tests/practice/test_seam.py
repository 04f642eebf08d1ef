"""The seam is light, and a task says itself whether it searches."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import rlkit.practice.task as task
from rlkit.answers.task import AnswerTask
from rlkit.practice import seam


def test_a_task_of_ones_own_can_be_written_without_loading_environment_collector_and_bm25():
    heavy = "('rlkit.practice.environment', 'rlkit.practice.collect_run', 'rlkit.library.bm25')"
    code = f"import sys, rlkit.practice.seam; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
    assert (task.Score, task.Task) == (seam.Score, seam.Task)


def test_a_task_searches_where_it_says_so_and_not_because_it_happens_to_have_an_env():
    assert seam.searches(task.SearchTask) and not seam.searches(AnswerTask)
    assert not seam.searches(SimpleNamespace(env={"API_BASE": "x"}))
