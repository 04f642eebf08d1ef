"""A task that a random model gets better at within a few steps: the share of letters in what it
writes. `task: tests.tuning_toy:build`."""

from __future__ import annotations

import os
import types

from rlkit.practice.task import Score

SIZES = {"train": 12, "dev": 8, "eval": 10}


class LettersTask:
    step_metrics = {"letters": "letters", "marks": "marks"}

    def states(self, split):
        ids = [f"{split}-{i}" for i in range(SIZES[split])]
        return [types.SimpleNamespace(state_id=f"{i}/1", question_id=i) for i in ids]

    def prompt(self, state):
        return [{"role": "user", "content": f"Write letters, please ({state.question_id})."}]

    def score(self, state, completions):
        if os.environ.get("TUNING_TOY_FAILS"):
            raise TypeError("a bug in a user's task")
        scores = []
        for text in completions:
            letters = sum(letter.isascii() and letter.isalpha() for letter in text)
            share = letters / max(len(text), 1)
            scores.append(Score(share, {"letters": share, "marks": 1 - share}))
        return scores


def build(config, run, progress=None, count_tokens=None):
    return LettersTask()
