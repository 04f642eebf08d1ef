"""Many questions at once: in threads, while agents wait for a server, or in step, where a model in
this process writes for all questions together. What is played does not depend on who is faster."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rlkit.agents.game import Game, Recorded
from rlkit.library.corpus import Question

if TYPE_CHECKING:
    from rlkit.agents.team import Team

OnBegin = Callable[[int, Game], None]
OnEnd = Callable[[int, Recorded], None]
OnWait = Callable[[], None]

BATCH = 8  # questions that a model in this process writes for at once
TICK = 1.0  # seconds from one call of `on_wait` to the next


def play_each(
    team: Team,
    questions: Sequence[Question],
    on_end: OnEnd,
    on_wait: OnWait = lambda: None,
    batch_size: int | None = None,
    on_begin: OnBegin = lambda index, game: None,
) -> None:
    """Play every question, `team.threads` at once, and hand each over as it ends.

    `on_end(index, recorded)` and `on_wait()` (now and then, meanwhile; where no agent waits for a
    server, between rounds) are called in the caller's thread, `on_begin(index, game)` in the one
    that plays. An Executor with `write_batch` that is not `concurrent` writes there, too, for
    `batch_size` questions (default 8) at once; whose place becomes free is given to the next
    question, so that its batches depend on nothing but the questions. What an agent or a callback
    raises, and an interrupt, ends all: questions that have ended are handed over, and those in
    play are dropped.
    """
    if team.writes_in_batches:
        return _in_step(team, questions, on_end, on_wait, batch_size or BATCH, on_begin)
    stopped = threading.Event()
    after_round = (lambda: None) if team.waits else _seldom(on_wait)
    try:
        calls = [
            partial(_whole, team, question, stopped, partial(on_begin, index), after_round)
            for index, question in enumerate(questions)
        ]
        call_each(calls, team.threads, on_end, on_wait, aside=team.waits)
    finally:
        stopped.set()


def _whole(
    team: Team,
    question: Question,
    stopped: threading.Event,
    on_begin: Callable[[Game], None],
    after_round: OnWait,
) -> Recorded:
    """One question from its beginning to its end, in this thread."""
    game = Game(team, question)
    on_begin(game)
    game.begin()
    while game.state is not None and not stopped.is_set():
        game.play_round(team.write([game.state])[0])
        if game.state is not None:
            after_round()
    return game.recorded()


def _in_step(
    team: Team,
    questions: Sequence[Question],
    on_end: OnEnd,
    on_wait: OnWait,
    batch_size: int,
    on_begin: OnBegin,
) -> None:
    """All questions in play write together, then each plays its round."""
    each = partial(call_each, threads=team.threads, on_wait=on_wait, aside=team.waits)
    after_round = _seldom(on_wait)
    todo = deque(enumerate(questions))
    games: dict[int, Game] = {}  # in the order of the questions
    while todo or games:
        fresh = [todo.popleft() for _ in range(min(batch_size - len(games), len(todo)))]
        for index, question in fresh:
            games[index] = Game(team, question)
            on_begin(index, games[index])
        each([games[index].begin for index, _ in fresh])
        _pass_on_ended(games, on_end)
        waiting = list(games.values())
        texts = team.write([game.state for game in waiting]) if waiting else []
        rounds = [partial(g.play_round, text) for g, text in zip(waiting, texts, strict=True)]
        each(rounds)
        _pass_on_ended(games, on_end)
        after_round()


def _pass_on_ended(games: dict[int, Game], on_end: OnEnd) -> None:
    for index in [index for index, game in games.items() if game.state is None]:
        on_end(index, games.pop(index).recorded())


def _seldom(call: OnWait) -> OnWait:
    """The call, but only where TICK has passed since the last one."""
    last = time.monotonic()

    def maybe() -> None:
        nonlocal last
        if time.monotonic() - last >= TICK:
            last = time.monotonic()
            call()

    return maybe


class _Outcome(NamedTuple):
    """What a call returned, or raised."""

    index: int
    value: Any
    error: BaseException | None = None


def call_each(
    calls: Sequence[Callable[[], Any]],
    threads: int,
    on_end: Callable[[int, Any], None] = lambda index, value: None,
    on_wait: OnWait = lambda: None,
    aside: bool = False,
) -> None:
    """Make all calls, `threads` at once, and pass each result on in this thread as it comes.

    With one thread that is this one, unless they are made `aside`, so that `on_wait` is called
    meanwhile. Else an interrupt, or what a call raised, is raised here after results that are
    there already were passed on; calls under way are left to themselves, in threads that nobody
    waits for, not even the interpreter's end.
    """
    if min(threads, len(calls)) <= 1 and not aside:
        for index, call in enumerate(calls):
            on_end(index, call())
        return
    todo, outcomes = deque(enumerate(calls)), queue.SimpleQueue[_Outcome]()
    for _ in range(min(threads, len(calls))):
        threading.Thread(target=_work, args=(todo, outcomes), daemon=True).start()
    try:
        for _ in calls:
            try:
                outcome = _next(outcomes, on_wait)
                if outcome.error is not None:
                    raise outcome.error
            except BaseException:  # an interrupt, too; what is done is handed over first
                _pass_on_rest(outcomes, on_end)
                raise
            on_end(outcome.index, outcome.value)
    finally:
        todo.clear()


def _pass_on_rest(
    outcomes: queue.SimpleQueue[_Outcome], on_end: Callable[[int, Any], None]
) -> None:
    """What is there already, so that it is not lost to an error of another one."""
    while not outcomes.empty():
        if (outcome := outcomes.get()).error is None:
            on_end(outcome.index, outcome.value)


def _work(todo: deque[tuple[int, Callable[[], Any]]], outcomes: queue.SimpleQueue) -> None:
    while True:
        try:
            index, call = todo.popleft()
        except IndexError:
            return
        try:
            outcomes.put(_Outcome(index, call()))
        except BaseException as error:  # nothing is held back: the caller's thread raises it
            todo.clear()  # nothing more begins
            outcomes.put(_Outcome(index, None, error))


def _next(outcomes: queue.SimpleQueue[_Outcome], on_wait: OnWait) -> _Outcome:
    while True:
        try:
            return outcomes.get(timeout=TICK)
        except queue.Empty:
            on_wait()
