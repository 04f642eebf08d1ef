"""A look before a run: is everything there, is the data sound, and does a step of training work?

    python -m rlkit check --params params/run1.yaml            # with one real step on two states
    python -m rlkit check --params params/run1.yaml --quick    # without: no model is loaded

Each finding has a level (ok, warn, fail: green, amber, red), a subject, a sentence, and what to do.
The judgements are pure functions of what was seen; `setup`, `needs`, `data`, `language`, `servers`
look, `practice` takes the step, `step` judges it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rlkit.config import RunConfig
from rlkit.doctor import data, language, needs, servers, setup
from rlkit.doctor.look import Finding, Look, finding, line_of, plugin_fault, refused
from rlkit.errors import RlkitError

__all__ = ["CHECKS", "Finding", "full_check", "line_of", "quick_check"]

CHECKS: dict[str, Callable[[Look], Any]] = {
    "packages": setup.packages,
    "folder": setup.folder,
    "device": setup.device,
    "model": setup.model,
    "memory": needs.memory,
    "disk": needs.disk,
    "plug-ins": setup.plugins,
    "data": data.library,
    "language": language.language,
    "gold": data.gold,
    "splits": data.splits,
    "live agents": servers.live_agents,
    "served": servers.served,
}
# what a check can say nothing of where another one failed
RESTS_ON = {
    "memory": {"device", "model"},
    "disk": {"model"},
    "language": {"plug-ins", "data"},
    "gold": {"plug-ins", "data"},
    "splits": {"data"},
}


def quick_check(config: RunConfig) -> Iterator[Finding]:
    """Yield one finding a subject, in the order in which a run needs them; no model is loaded."""
    yield from _checks(Look(config))


def full_check(config: RunConfig) -> Iterator[Finding]:
    """`quick_check`, and then what one real step on two states shows, taken in a temporary folder:
    the run is left as it is. The step is left out where something failed before it."""
    from rlkit.doctor.practice import practice

    look = Look(config)
    yield from _checks(look)
    yield from practice(look)


def _checks(look: Look) -> Iterator[Finding]:
    config = look.config
    said = f"run {config.run_name}, task {config.task}, seed {config.seed}"
    yield Finding("ok", "parameters", said)
    for subject, check in CHECKS.items():
        if RESTS_ON.get(subject, set()) & look.failed:
            continue
        try:
            found = check(look)
        except (RlkitError, OSError, MemoryError) as error:
            found = refused(error)
        except Exception as error:
            found = plugin_fault(config, error)
            if found is None:
                raise
        if found is not None:
            if found[0] == "fail":
                look.failed.add(subject)
            yield finding(subject, found)
