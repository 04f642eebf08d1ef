"""Alarms in plain language: what a person should hear before the run has wasted its time.

Every alarm is a function of the lines of `metrics.jsonl` so far and of nothing else, so that a
resumed run says what the uninterrupted one says. It looks at the mean of the last steps, since a
step is often one group of one question: single steps prove nothing, and but for `unjudged` no alarm
can come in the first seven.

| alarm | when |
|---|---|
| flat | no group of the last 8 steps taught anything; steps without two rewards are passed over |
| cut | nine of ten actions are cut at the length limit |
| still | the optimiser's last moves, 3 and 8 steps or more, changed nothing, though groups teach |
| kl | the last 3 steps lie far above the running median of the 20 before them |
| entropy | a quarter of what it was in the first steps |
| repeats | half of the clues are repeats, or a quarter more than in the first steps |
| leaves | the clues' words stand in the state far less often than in the first steps |
| invalid | more than half of the actions |
| unjudged | the same, or nearly all actions of each of the last 3 steps |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

Row = Mapping[str, Any]

WINDOW = 10  # steps in a mean: with one group a step, 10 questions; also what "the start" is
CALM = 10  # steps for which an alarm must have ceased before it is said again: noise ends it early
FLAT_STEPS = 8  # where half of the groups are flat, which is common, 8 in a row are 1 in 256
CUT = 0.9  # a mean over WINDOW; good runs with a tight limit stood at up to 0.86
MOVES = 3  # the gradients of equal actions with unequal rewards can cancel, once
STILL_STEPS = 8  # of these moves together, so that a run's first groups alone prove nothing
KL_STEPS, KL_BEFORE = 3, 20  # one step is often one rare token, since k3 has a heavy tail
KL_FACTOR = 5.0  # over its running median; the noise from question to question is about 3
KL_FLOOR = 0.3  # nats a token: good runs on the demo and on 2Wiki never had a step above 0.25
ENTROPY_LEFT = 0.25  # of the start; the 2Wiki run, which learnt well, still had half of it
DISTINCT = 0.5  # half of the written clues are repeats
DISTINCT_LEFT = 0.75  # of the start; good runs stay above 0.95 of it
GROUNDED_LEFT = 0.6  # of the start; the mean of WINDOW wobbles by about a tenth
GROUNDED_START = 0.2  # below it, the clues never were in the state, and there is nothing to leave
MOST = 0.5  # more than half
UNJUDGED_STEPS, NEARLY_ALL = 3, 0.9  # no chance brings that about


def holding(rows: Sequence[Row]) -> dict[str, str]:
    """The alarms that hold after the last of these lines: name and sentence."""
    found = {name: alarm(rows) for name, alarm in ALARMS.items()}
    return {name: text for name, text in found.items() if text}


def begun(rows: Sequence[Row]) -> list[str]:
    """The sentences of the alarms that begin with the last of these lines: they hold now, and
    held after none of the CALM lines before it."""

    def held(name: str) -> bool:
        return any(ALARMS[name](rows[:-n]) for n in range(1, CALM + 1))

    return [text for name, text in holding(rows).items() if not held(name)]


def said(rows: Iterable[Row]) -> list[tuple[int, str]]:
    """(step, sentence) of every alarm that stands in these lines, in order."""
    return [(int(row["step"]), text) for row in rows for text in row.get("alarms") or ()]


def listed(rows: Iterable[Row]) -> str:
    """The alarms that stand in these lines as text, one a line."""
    return "\n".join(f"step {step}: {text}" for step, text in said(rows)) or "no alarm was raised"


# -- the alarms: a sentence, or None ------------------------------------------------------------


def _flat(rows: Sequence[Row]) -> str | None:
    shares = [share for row in rows if (share := _flat_share(row)) is not None][-FLAT_STEPS:]
    if len(shares) < FLAT_STEPS or min(shares) < 1.0:
        return None
    return (
        f"all groups are equal: in the last {FLAT_STEPS} steps no action of a group was credited "
        "with more than its others, so nothing was learnt; raise grpo.temperature or "
        "grpo.group_size, or take states on which the policy sometimes succeeds and sometimes "
        "fails."
    )


def _cut(rows: Sequence[Row]) -> str | None:
    share = _recent(rows, "completions/clipped_ratio")
    if share is None or share < CUT:
        return None
    return (
        f"nearly everything is cut at the limit: {share:.0%} of the actions of the last {WINDOW} "
        "steps did not end by themselves; raise grpo.max_new_tokens, or ask for shorter answers."
    )


def _still(rows: Sequence[Row]) -> str | None:
    moves, steps = 0, 0
    for window in reversed(_moves(rows)):
        if not _unmoved(window):
            return None
        moves, steps = moves + 1, steps + sum(_flat_share(row) is not None for row in window)
        if moves >= MOVES and steps >= STILL_STEPS:
            break
    else:
        return None  # too few so far
    return (
        f"the adapter does not change: in the last {moves} moves of the optimiser the gradient or "
        "the learning rate was 0, although groups had something to teach; check the learning "
        "rate and its schedule, and, with grpo.mask_truncated, whether every action is cut."
    )


def _kl(rows: Sequence[Row]) -> str | None:
    values = _values(rows, "kl")
    before, last = values[:-KL_STEPS][-KL_BEFORE:], values[-KL_STEPS:]
    if len(before) < WINDOW:
        return None
    now, usual = median(last), median(before)
    if now < max(KL_FLOOR, KL_FACTOR * usual):
        return None
    return (
        f"the KL jumps: it stands at {now:.2g} nats a token, after {usual:.2g} in the steps "
        "before; the policy runs away from the reference. Lower grpo.learning_rate, or raise "
        "grpo.kl_penalty."
    )


def _entropy(rows: Sequence[Row]) -> str | None:
    start, now = _start_and_now(rows, "entropy")
    if start is None or now >= ENTROPY_LEFT * start:
        return None
    return (
        f"the entropy collapses: {now:.2g} nats a token, after {start:.2g} at the start; soon all "
        "actions of a group will be the same. Lower grpo.learning_rate, raise grpo.temperature, "
        "or raise grpo.clip_epsilon_high."
    )


def _repeats(rows: Sequence[Row]) -> str | None:
    now = _recent(rows, "distinct_clue_ratio")
    start, _ = _start_and_now(rows, "distinct_clue_ratio")
    if now is None or now >= max(DISTINCT, DISTINCT_LEFT * (start or 0.0)):
        return None
    return (
        f"the clues repeat: only {now:.0%} of the clues that an action writes are different ones; "
        "repeated clues change no reward. Lower grpo.learning_rate, raise grpo.kl_penalty, or go "
        "back to an earlier checkpoint."
    )


def _leaves(rows: Sequence[Row]) -> str | None:
    start, now = _start_and_now(rows, "grounded_clue_ratio")
    if start is None or start < GROUNDED_START or now >= GROUNDED_LEFT * start:
        return None
    return (
        f"the clues leave the state: {now:.0%} of their words stand in it, after {start:.0%} at "
        "the start; read some actions in rollouts/ and see whether names are made up."
    )


def _invalid(rows: Sequence[Row]) -> str | None:
    share = _recent(rows, "invalid_share")
    if share is None or share <= MOST:
        return None
    return (
        f"most actions are invalid: {share:.0%} in the last {WINDOW} steps had no clue, or clues "
        "that brought nothing back; make a warm start (model.init_adapter: auto), or look at "
        "executor.layout and executor.plain_lines."
    )


def _unjudged(rows: Sequence[Row]) -> str | None:
    share, steps = _recent(rows, "unjudged_share"), WINDOW
    last = _values(rows, "unjudged_share")[-UNJUDGED_STEPS:]
    if len(last) == UNJUDGED_STEPS and min(last) >= NEARLY_ALL:
        share, steps = fmean(last), UNJUDGED_STEPS
    elif share is None or share <= MOST:
        return None
    return (
        f"most actions could not be judged: {share:.0%} in the last {steps} steps, so they teach "
        "nothing; the judge's answers cannot be read, or its server refuses the documents: "
        "python -m rlkit check-judge shows what it says."
    )


ALARMS: dict[str, Callable[[Sequence[Row]], str | None]] = {
    "flat": _flat,
    "cut": _cut,
    "still": _still,
    "kl": _kl,
    "entropy": _entropy,
    "repeats": _repeats,
    "leaves": _leaves,
    "invalid": _invalid,
    "unjudged": _unjudged,
}


# -- what they look at --------------------------------------------------------------------------


def _values(rows: Sequence[Row], name: str) -> list[float]:
    """The known values of a metric, in order; step 0 and steps without one are passed over."""
    return [row[name] for row in rows if row.get(name) is not None]


def _recent(rows: Sequence[Row], name: str) -> float | None:
    """The mean of the last WINDOW known values; None where there are fewer."""
    last = _values(rows, name)[-WINDOW:]
    return fmean(last) if len(last) == WINDOW else None


def _start_and_now(rows: Sequence[Row], name: str) -> tuple[float, float] | tuple[None, None]:
    """The means of the first and of the last WINDOW known values, where they do not overlap."""
    values = _values(rows, name)
    if len(values) < 2 * WINDOW:
        return None, None
    return fmean(values[:WINDOW]), fmean(values[-WINDOW:])


def _moves(rows: Sequence[Row]) -> list[list[Row]]:
    """The lines that each move of the optimiser was made of; it ends where `grad_norm` is known."""
    windows: list[list[Row]] = [[]]
    for row in rows:
        windows[-1].append(row)
        if row.get("grad_norm") is not None:
            windows.append([])
    return windows[:-1]


def _unmoved(window: Sequence[Row]) -> bool:
    """Whether a move changed nothing although one of its groups had something to teach."""
    shares = [_flat_share(row) for row in window]
    teaches = any(share is not None and share < 1.0 for share in shares)
    return teaches and 0.0 in (window[-1]["grad_norm"], window[-1]["learning_rate"])


def _flat_share(row: Row) -> float | None:
    """The share of a step's groups that taught nothing; None where none had two rewards. Older
    lines tell it by the rewards alone, among which those of unjudged groups count as equal."""
    if "frac_groups_flat" in row:
        return row["frac_groups_flat"]
    most_unjudged = (row.get("unjudged_share") or 0.0) >= MOST
    return None if most_unjudged else row.get("frac_reward_zero_std")
