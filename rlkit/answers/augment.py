"""More rows out of rows: paraphrases, similar questions with new numbers, back-translations.

    new, dropped = augment_rows(parts["train"], ["paraphrase", "similar"],
                                held_out=parts["dev"] + parts["eval"], client=ChatClient(url))

Generated problems (arithmetic.py) are augmented by rule, any others by a model behind the user's
own endpoint. Its replies are untrusted: every row is verified or dropped (augment_checks.py), is
marked with the method and the id of its origin, and belongs to its origin's split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rlkit.agents.llm import ChatClient
from rlkit.answers import arithmetic, augment_llm
from rlkit.answers.augment_checks import Guard, reason_against
from rlkit.answers.rows import Row
from rlkit.errors import ConfigError, did_you_mean

METHODS = ("paraphrase", "similar", "back_translation")
NO_OTHER = "there is no other wording, or there are no other numbers, of this story"


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was not kept: the origin's id, the method, why, and the question as it came."""

    origin: str
    method: str
    reason: str
    question: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One row to be made: from what, how, and the how-manieth of its kind (from 1)."""

    row: Row
    method: str
    number: int


def augment_rows(
    rows: Sequence[Row],
    methods: Sequence[str] = ("paraphrase", "similar"),
    *,
    held_out: Sequence[Row] = (),
    client: ChatClient | None = None,
    seed: int = 7,
    per_row: int = 1,
) -> tuple[list[Row], list[Dropped]]:
    """(new rows, what was dropped) of rows of one split; rows that are augmented are passed over.

    `held_out` are the rows of all other splits: a new row that equals one of them, or is nearly
    one, is dropped. `per_row` rows are tried for each row and method. Without a `client` the rows
    must be generated ones; with it, the same reply is not promised twice. Raises ConfigError for
    an unknown method, or one that needs a client, and AgentError where no request is answered.
    """
    methods = [methods] if isinstance(methods, str) else list(dict.fromkeys(methods))
    _check(methods, per_row)
    jobs = [
        Job(row, method, number)
        for method in methods
        for row in rows
        if row.augmented is None
        for number in range(1, per_row + 1)
    ]
    guard = Guard(rows, held_out)

    def reason(job: Job, row: Row) -> str | None:
        return reason_against(job.row, row, job.method, guard)

    if client is not None:
        made = augment_llm.asked(jobs, client, reason)
    else:
        _check_rules(jobs)
        made = [_by_rule(job, seed) for job in jobs]
    kept: list[Row] = []
    dropped: list[Dropped] = []
    for job, row in zip(jobs, made, strict=True):
        why = row if isinstance(row, str) else reason(job, row)
        if why is None:
            row = replace(row, augmented=job.method, origin=job.row.id, id=guard.free_id(row.id))
            guard.add(row)
            kept.append(row)
        else:
            question = "" if isinstance(row, str) else row.question
            dropped.append(Dropped(job.row.id, job.method, why, question))
    return kept, dropped


def _by_rule(job: Job, seed: int) -> Row | str:
    make: dict[str, Callable[[], Row | None]] = {
        "paraphrase": lambda: arithmetic.reworded(job.row, job.number),
        "similar": lambda: arithmetic.redrawn(job.row, job.number, seed),
    }
    return make[job.method]() or NO_OTHER


def _check(methods: Sequence[str], per_row: int) -> None:
    for method in methods:
        if method not in METHODS:
            hint = did_you_mean(str(method), METHODS)
            raise ConfigError(f"{method!r} is no method; allowed are {', '.join(METHODS)}{hint}")
    if not methods or per_row < 1:
        raise ConfigError(
            f"{len(methods)} methods and per_row {per_row} make no row; give at least one of each."
        )


def _check_rules(jobs: Sequence[Job]) -> None:
    needs = "give client=ChatClient(address), with its key in RLKIT_API_KEY where it needs one."
    if any(job.method == "back_translation" for job in jobs):
        raise ConfigError(f"back_translation has no rule, only a model can do it; {needs}")
    foreign = [job.row.id for job in jobs if not arithmetic.is_generated(job.row)]
    if foreign:
        raise ConfigError(
            f"row {foreign[0][:60]!r} is no generated problem, and only these are augmented by "
            f"rule; {needs}"
        )
