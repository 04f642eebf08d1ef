"""Many questions at once: in threads, while agents wait for a server, or in step, where a model in
this process writes for all questions together. What is played does not depend on who is faster."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rlkit.agents.game import Game, Recorded
from rlkit.library.corpus import Question

if TYPE_CHECKING:
    from rlkit.agents.team import Team

OnEnd = Callable[[int, Recorded], None]
OnWait = Callable[[], None]
Run = Callable[..., Iterable[Any]]  # as `map`

BATCH = 8  # questions that a model in this process writes for at once
TICK = 1.0  # seconds from one call of `on_wait` to the next


def play_each(
    team: Team,
    questions: Sequence[Question],
    on_end: OnEnd,
    on_wait: OnWait = lambda: None,
    batch_size: int | None = None,
) -> None:
    """Play every question, `team.threads` at once, and hand each over as it ends.

    `on_end(index, recorded)` and `on_wait()` (now and then, meanwhile) are called in the caller's
    thread. An Executor with `write_batch` that is not `concurrent` writes there, too, for
    `batch_size` questions (default 8) at once; whose place becomes free is given to the next
    question, so that its batches depend on nothing but the questions. What an agent or a callback
    raises ends all: questions in play are dropped, and those that have ended are handed over.
    """
    threads = min(team.threads, len(questions))
    stopped = threading.Event()
    pool = ThreadPoolExecutor(threads, "question") if threads > 1 else None
    try:
        if team.writes_in_batches:
            run = map if pool is None else pool.map
            _in_step(team, questions, on_end, on_wait, batch_size or BATCH, run)
        elif pool is None:
            for index, question in enumerate(questions):
                on_end(index, _whole(team, question, stopped))
        else:
            futures = {pool.submit(_whole, team, q, stopped): i for i, q in enumerate(questions)}
            _hand_over(futures, on_end, on_wait)
    finally:
        stopped.set()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _whole(team: Team, question: Question, stopped: threading.Event) -> Recorded:
    """One question from its beginning to its end, in this thread."""
    game = Game(team, question)
    game.begin()
    while game.state is not None and not stopped.is_set():
        game.play_round(team.write([game.state])[0])
    return game.recorded()


def _hand_over(futures: dict[Future, int], on_end: OnEnd, on_wait: OnWait) -> None:
    """Wait for all, and pass each on as it ends; before an error, all that have ended."""
    ended: queue.SimpleQueue[Future] = queue.SimpleQueue()
    for future in futures:
        future.add_done_callback(ended.put)
    left = len(futures)
    while left:
        try:
            future = ended.get(timeout=TICK)
            recorded = future.result()
        except queue.Empty:
            on_wait()
            continue
        except BaseException:  # an interrupt, or what an agent raised
            while not ended.empty():
                if (future := ended.get()).exception() is None:
                    on_end(futures[future], future.result())
            raise
        on_end(futures[future], recorded)
        left -= 1


def _in_step(
    team: Team,
    questions: Sequence[Question],
    on_end: OnEnd,
    on_wait: OnWait,
    batch_size: int,
    run: Run,
) -> None:
    """All questions in play write together, then each plays its round."""
    todo = deque(enumerate(questions))
    games: dict[int, Game] = {}  # in the order of the questions
    while todo or games:
        fresh = [todo.popleft() for _ in range(min(batch_size - len(games), len(todo)))]
        games |= {index: Game(team, question) for index, question in fresh}
        list(run(Game.begin, [games[index] for index, _ in fresh]))
        _pass_on_ended(games, on_end)
        waiting = list(games.values())
        texts = team.write([game.state for game in waiting]) if waiting else []
        list(run(Game.play_round, waiting, texts))
        _pass_on_ended(games, on_end)
        on_wait()


def _pass_on_ended(games: dict[int, Game], on_end: OnEnd) -> None:
    for index in [index for index, game in games.items() if game.state is None]:
        on_end(index, games.pop(index).recorded())
