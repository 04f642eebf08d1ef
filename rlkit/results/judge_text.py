"""What `check-judge` prints: agreement, flips, the confusion with gold, and what it means."""

from __future__ import annotations

from rlkit.results.agreement import cohens_kappa, share_of
from rlkit.results.judge_check import PASSES, UNJUDGED, JudgeCheck
from rlkit.rounds.state import VERDICTS

_TITLES = {"again": "the same, asked again", "reversed": "the same, in reverse order"}


def judge_text(check: JudgeCheck) -> str:
    """Tables, and one sentence that says what they mean for the reward. Shares stand with their
    95 % Wilson interval and their count."""
    lines = [f"judge {check.judge}: {len(check.rows)} documents ({check.source})", ""]
    lines += [_agreement_line(check, _TITLES[name], name) for name in PASSES[1:]]
    if check.against_gold:
        lines.append(_agreement_line(check, "the same as gold", "gold"))
    lines.append(f"{UNJUDGED:<28}{check.unjudged}")
    for name in PASSES[1:]:
        flips = ", ".join(f"{kind} {count}" for kind, count in check.flips(name).items())
        lines.append(f"flips, {_TITLES[name].split(', ')[1]}: {flips or 'none'}")
    if check.against_gold:
        lines += ["", *_confusion_lines(check)]
    if check.unread:
        lines += ["", "replies without a verdict that was asked for, shortened, such as:"]
        lines += [f"  | {reply}" for reply in check.unread]
    return "\n".join([*lines, "", meaning(check)])


def meaning(check: JudgeCheck) -> str:
    """What the noise, and the distance from gold, do to the reward."""
    noise, error = check.reward_noise(), check.reward_error()
    if noise is None:
        return (
            "What it means for the reward: no document was judged twice, so nothing can be said, "
            "and actions whose documents are all unjudged teach nothing; look at what the judge "
            "answers, and name a model that keeps to the form in model.checker_model."
        )
    read, worth = check.documents_read, check.values["IMPORTANT"]
    said = (
        f"What it means for the reward: judged again, an action that reads {read} new documents "
        f"would be rewarded differently by {noise:.2f} (root mean square), where one new IMPORTANT "
        f"document is worth {worth:g}"
    )
    if error is not None:
        said += (
            f", and the judge rewards it otherwise than gold would by {error:.2f} "
            f"({check.reward_bias():+.2f} a document on average)"
        )
    return f"{said}; differences between actions that are smaller than this tell nothing."


def _agreement_line(check: JudgeCheck, title: str, other: str) -> str:
    kappa = cohens_kappa(check.pairs("first", other))
    beyond = "none (one label only)" if kappa is None else f"{kappa:.2f}"
    return f"{title:<28}{check.agreement('first', other)}, kappa {beyond}"


def _confusion_lines(check: JudgeCheck) -> list[str]:
    """Gold in the rows, the judge in the columns; the share of each that the other confirms."""
    table = check.against_gold or {}
    columns = (*VERDICTS, UNJUDGED)
    lines = ["gold \\ judge  " + "".join(f"{name:>11}" for name in columns) + "   the judge agrees"]
    for gold, row in table.items():
        judged = sum(row[name] for name in VERDICTS)
        counts = "".join(f"{row[name]:>11}" for name in columns)
        lines.append(f"{gold:<14}{counts}   {share_of(row[gold], judged)}")
    lines.append("")
    for name in VERDICTS:
        said = sum(row[name] for row in table.values())
        right = share_of(table[name][name], said)
        lines.append(f"of what it calls {name + ',':<11} gold agrees: {right}")
    return lines
