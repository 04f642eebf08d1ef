"""The question-answering task: a state is a question with a checkable answer, an action its
worked solution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlkit.agents.prompt import CountTokens, Messages
from rlkit.answers.datasets import Row, completion_text, normalised, question_prompt
from rlkit.answers.extract import answer_value
from rlkit.answers.rewards import AnswerReward
from rlkit.answers.splits import kept_parts
from rlkit.config import load_object
from rlkit.errors import ConfigError, DataError
from rlkit.practice.splits import PARTS
from rlkit.practice.task import Score
from rlkit.results.evaluate import Metric


@dataclass(frozen=True, slots=True)
class AnswerState:
    """A question as the trainers meet it; `completion` is what SFT learns, `columns` are the
    row's further fields, for reward functions."""

    state_id: str
    question_id: str
    question: str
    ground_truth: str
    full_answer: str = ""
    completion: str = ""
    messages: Messages = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=dict)


class AnswerSplits(dict[str, list[AnswerState]]):
    """The states of train, dev and eval."""

    def describe(self) -> dict[str, dict[str, int]]:
        """Questions and states of each part."""
        return {
            part: {"questions": len({s.question_id for s in states}), "states": len(states)}
            for part, states in self.items()
        }


class AnswerTask:
    """Questions with checkable answers, scored by an `AnswerReward`.

    `count_tokens` measures completions; words are counted until it is set. Raises DataError where
    a question stands in two parts.
    """

    metrics: ClassVar[dict[str, Metric]] = {
        "accuracy": Metric("Accuracy", "share of answers", False, True),
        "reward": Metric("Reward", "per answer", True),
        "format": Metric("Format correctness", "share of answers", False, True),
        "length": Metric("Length", "tokens", False),
    }
    primary = "accuracy"
    step_metrics: Mapping[str, str] = {
        "accuracy": "accuracy",
        "format": "format_correctness",
        "length_penalty": "length_penalty",
        "step_reward": "step_reward",
    }

    def __init__(
        self,
        splits: Mapping[str, Sequence[AnswerState]],
        reward: AnswerReward,
        config: Any,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.splits = AnswerSplits({part: list(splits.get(part, ())) for part in PARTS})
        self.reward, self.config, self.facts = reward, config, dict(facts or {})
        self.count_tokens: CountTokens | None = None
        own = {name: f"rewards/{name}" for name in reward.own}
        self.step_metrics = {**type(self).step_metrics, **own}
        _refuse_leakage(self.splits)

    def states(self, split: str) -> list[AnswerState]:
        """The states of train, dev or eval. Raises ConfigError for another name."""
        if split not in self.splits:
            raise ConfigError(f"{split!r} is no part of a split; choose one of {', '.join(PARTS)}.")
        return list(self.splits[split])

    def prompt(self, state: AnswerState) -> Messages:
        """The prompt of a state as chat messages."""
        return state.messages or question_prompt(state, self.config.answers.language)

    def score(self, state: AnswerState, completions: Sequence[str]) -> list[Score]:
        """Rewards and components of completions for one state."""
        own = {
            "prompts": self.prompt(state),
            "ground_truth": state.ground_truth,
            "question": state.question,
            "full_answer": state.full_answer,
        }
        columns = {k: [v] * len(completions) for k, v in {**state.columns, **own}.items()}
        columns.pop("lengths", None)
        if self.count_tokens is not None:
            columns["lengths"] = [self.count_tokens(text) for text in completions]
        return self.reward(completions, columns)

    def examples(self) -> list[tuple[AnswerState, str]]:
        """What SFT learns: each training state with its worked solution."""
        return [(state, state.completion) for state in self.splits["train"]]

    def known_action(self, state: AnswerState) -> str:
        """The worked solution of a state, as the policy would write it; for a look at it."""
        return state.completion

    def lineage(self) -> dict[str, Any]:
        """What the data was: for the run's `lineage.json`."""
        return {**self.facts, "parts": self.splits.describe()}


def build_answer_task(
    config: Any,
    run: Any,
    *,
    progress: Callable[[Any], None] | None = None,
    count_tokens: CountTokens | None = None,
) -> AnswerTask:
    """The answer task of a run: its dataset, the split kept in `splits.json`, and its rewards.

    Evaluation is the dataset's test split (without one, cut from train); dev is cut from train;
    `answers.max_samples` cuts train alone. Raises DataError where the dataset is no longer what
    the kept split was made of, or no training answer can be read.
    """
    parts, facts = kept_parts(run.folder, config)
    if not any(answer_value(row.ground_truth) is not None for row in parts["train"]):
        raise DataError(
            f"{config.answers.dataset}: none of the {len(parts['train'])} training answers is a "
            f"number, such as {parts['train'][0].ground_truth[:40]!r}; give rows whose "
            "ground_truth can be checked."
        )
    reward = AnswerReward(config.answers)
    splits = {part: answer_states(parts[part], config.answers) for part in PARTS}
    task = AnswerTask(splits, reward, config, facts)
    task.count_tokens = count_tokens
    return task


def answer_states(rows: Iterable[Row], settings: Any) -> list[AnswerState]:
    """Rows as states, with the prompt that params section `answers` asks for.

    Raises ConfigError where a prompt of the user's own returns no messages.
    """
    write = _prompt_writer(settings)
    return [_state(row, write(row)) for row in rows]


def _prompt_writer(settings: Any) -> Callable[[Row], Messages]:
    if settings.prompt is None:
        return lambda row: question_prompt(row, settings.language)
    own = load_object(settings.prompt)

    def write(row: Row) -> Messages:
        messages = own(row)
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise ConfigError(
                f"answers.prompt {settings.prompt} returned {str(messages)[:80]!r}; it must "
                "return a list of {'role': ..., 'content': ...} with at least one message."
            )
        return [dict(message) for message in messages]

    return write


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and all(
        isinstance(message.get(name), str) for name in ("role", "content")
    )


def _state(row: Row, messages: Messages) -> AnswerState:
    return AnswerState(
        state_id=row.id,
        question_id=row.id,
        question=row.question,
        ground_truth=row.ground_truth,
        full_answer=row.full_answer,
        completion=completion_text(row),
        messages=messages,
        columns=row.columns,
    )


def _refuse_leakage(splits: AnswerSplits) -> None:
    home: dict[str, str] = {}
    for part, states in splits.items():
        for state in states:
            other = home.setdefault(normalised(state.question), part)
            if other != part:
                raise DataError(
                    f"the question {state.question[:60]!r} stands in {other} and in {part}; a "
                    "question may stand in one part only."
                )
