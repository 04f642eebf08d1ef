"""What an evaluation says in words: the headline with its n and interval, and three cases."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlkit.results.evaluation import NOT_TUNED, Evaluation, records
from rlkit.results.statistics import ALPHA, PairedInterval, holm, no_interval

_ENDINGS = {
    "higher": "This is a rise.",
    "lower": "This is a fall.",
    "no clear difference": "The interval holds 0, so no difference is claimed.",
}


# how the headline says a primary metric: "finds .67 of the missing documents where ... finds .55"
_CLAIMS = {
    "discovery_rate": ("finds", "of the missing documents"),
    "accuracy": ("answers", "of the questions right"),
}
_BEFORE = ("warm_start", "untouched", "raw_question")  # what a tuned policy's cases are held to


class Case(NamedTuple):
    """One state and what each policy did in it; `kind` says why it is shown, `primary` (discovery
    rate or accuracy) and `reward` how much they changed from the policy `before` to the tuned
    one."""

    kind: str
    before: str
    primary: float
    reward: float
    state: dict[str, Any]
    actions: list[dict[str, Any]]


def headline(evaluation: Evaluation) -> list[str]:
    """One sentence for each baseline about the tuned policy's primary metric, n and interval.

    No difference is claimed where Holm's p over all pairs that are compared in this metric is
    above 0.05.
    """
    tuned = tuned_policy(evaluation)
    if tuned is None:
        return ["No tuned policy has been evaluated yet, so there is nothing to compare."]
    bases = [name for name in ("untouched", "warm_start") if name in evaluation.policies]
    if not bases:
        return [f"Neither the untouched model nor a warm start was evaluated beside {tuned}."]
    pairs = evaluation.pairs()
    found = {pair: evaluation.difference(*pair, evaluation.primary) for pair in pairs}
    adjusted = dict(zip(pairs, holm([interval.p for interval in found.values()]), strict=True))
    compared = sum(p is not None for p in adjusted.values())
    return [
        _sentence(
            evaluation, pair, found[pair], ending(found[pair], adjusted[pair] or 0.0, compared)
        )
        for pair in ((tuned, base) for base in bases)
    ]


def known_text(evaluation: Evaluation) -> str:
    """What "known IMPORTANT documents" means in this evaluation."""
    texts = {
        "gold": "the question's gold documents",
        "recorded": "every document that any record of the question labels IMPORTANT "
        "(there is no gold set)",
        "mixed": "the gold documents where a question has them, else every document that any "
        "record of it labels IMPORTANT",
    }
    return texts.get(evaluation.facts.get("known", ""), "not recorded")


def pick_cases(evaluation: Evaluation, each: int = 1) -> list[Case]:
    """States of different questions: the `each` clearest wins, as many losses, and a tie.

    Compared is the tuned policy with what it started from (the warm start, else the untouched
    model, else the raw question) by the primary metric, then by reward. Where that makes fewer
    than three, further states stand in. The same evaluation always gives the same cases.
    """
    tuned = tuned_policy(evaluation)
    before = next((name for name in _BEFORE if name in evaluation.policies), None)
    if tuned is None or before is None:
        return []
    changes = _changes(evaluation, tuned, before)
    ranked = sorted(changes, key=lambda s: (changes[s], s))
    wanted = [
        *[("win", [s for s in ranked[::-1] if changes[s] > (0, 0)])] * each,
        *[("loss", [s for s in ranked if changes[s] < (0, 0)])] * each,
        ("tie", [s for s in ranked if changes[s] == (0, 0)]),
        *[("another", ranked[::-1])] * 3,
    ]
    states = {state["state_id"]: state for state in evaluation.states}
    chosen: dict[str, str] = {}
    questions: set[str] = set()
    for kind, candidates in wanted:
        fresh = [s for s in candidates if states[s]["question_id"] not in questions]
        if fresh and (kind != "another" or len(chosen) < 3):
            chosen[fresh[0]] = kind
            questions.add(states[fresh[0]]["question_id"])
    shown = [name for name in ("untouched", "warm_start", tuned) if name in evaluation.policies]
    shown = shown if before in shown else [before, *shown]
    return [
        Case(kind, before, *changes[s], states[s], _actions(evaluation, s, shown))
        for s, kind in chosen.items()
    ]


def tuned_policy(evaluation: Evaluation) -> str | None:
    """The tuned policy: the one of that name, else the last that is no baseline."""
    tuned = [name for name in evaluation.policies if name not in NOT_TUNED]
    return "tuned" if "tuned" in tuned else (tuned[-1] if tuned else None)


def _sentence(
    evaluation: Evaluation, pair: tuple[str, str], interval: PairedInterval, ending: str
) -> str:
    metric = evaluation.primary
    held_out = evaluation.facts.get("split") == "eval"
    questions = "held-out questions" if held_out else f"questions ({evaluation.facts.get('split')})"
    names = [evaluation.names.get(name, name) for name in pair]
    if interval.mean is None:
        return (
            f"The {names[0]} and the {names[1]} cannot be compared: no state of the {questions} "
            "that was judged under both has anything missing."
        )
    a, b = (sum(values.values()) / len(values) for values in evaluation.paired(*pair, metric))
    title = evaluation.metrics[metric].title.lower()
    verb, what = _CLAIMS.get(metric, ("reaches", f"in {title}"))
    return (
        f"The {names[0]} {verb} {a:.2f} {what} where the {names[1]} {verb} {b:.2f} "
        f"({title}): a difference of {interval.mean:+.2f} ({_ends(interval)}, "
        f"n = {interval.n} {questions}, of which {interval.non_zero} differ). {ending}"
    )


def _ends(interval: PairedInterval) -> str:
    if interval.low is None:
        return no_interval(interval.n)
    return f"95 % interval {interval.low:+.2f} to {interval.high:+.2f}"


def ending(interval: PairedInterval, adjusted: float, compared: int) -> str:
    """What the interval and Holm's p over the `compared` pairs let one claim, and the caution that
    belongs to it."""
    claim = _ENDINGS.get(interval.verdict, "")
    if interval.verdict == "no clear difference":
        if interval.leaves_out_zero:
            return interval.caution
        if interval.smallest_effect is not None:
            claim += f" This n could have shown one of {interval.smallest_effect:.2f} (power 0.8)."
    elif claim and adjusted > ALPHA:
        claim = (
            f"The interval leaves 0 out, but corrected for the {compared} comparisons p is "
            f"{adjusted:.3g} (Holm), so no difference is claimed."
        )
    return " ".join(filter(None, (claim, interval.caution)))


def _changes(evaluation: Evaluation, a: str, b: str) -> dict[str, tuple[float, float]]:
    """By state that was judged under both: the change of the primary metric and of the reward."""
    ours, theirs = (evaluation.judged_rows(name, "reward").set_index("state_id") for name in (a, b))
    kept = list(dict.fromkeys([evaluation.primary, "reward"]))
    change = (ours[kept] - theirs[kept]).dropna(subset=["reward"]).fillna(0.0).round(6)
    return {state: (row[evaluation.primary], row["reward"]) for state, row in change.iterrows()}


def _actions(evaluation: Evaluation, state_id: str, policies: list[str]) -> list[dict[str, Any]]:
    frame = evaluation.frame
    rows = records(frame[(frame["state_id"] == state_id) & frame["policy"].isin(policies)])
    return sorted(rows, key=lambda row: policies.index(row["policy"]))
