"""Tuning: a study of many short runs that differ in the keys of `tune.space`.

python -m rlkit tune --params params/tune-debug.yaml --method random --trials 12

tuning/space.py     what is searched, checked before anything runs
tuning/study.py     the trials: proposed, run, pruned, and taken up again after any stop
tuning/shared.py    recorded rounds and warm starts, made once for all trials
tuning/results.py   the table, the best parameters, the winner on the test split
tuning/plots.py     history, importance, parallel coordinates
"""

from __future__ import annotations

from rlkit.tuning.results import evaluate_winner, study_figures, summary_text, write_figures
from rlkit.tuning.study import ObjectiveError, Study

__all__ = [
    "ObjectiveError",
    "Study",
    "evaluate_winner",
    "study_figures",
    "summary_text",
    "write_figures",
]
