"""The servers that a run will ask: are they there, and is their model's thinking off?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlkit.doctor.look import Look, Said
from rlkit.errors import AgentError

HASTE = {"timeout": 4.5, "max_retries": 0, "patience": 0.0}  # seconds; of a look at a server


def live_agents(look: Look) -> Said | None:
    """The model behind a server that judges, plans, or keeps the tables; None: no agent does."""
    config = look.config
    kinds = {
        "judge": config.checker.kind,
        "planner": config.data.planner,
        "entity manager": config.data.entities,
    }
    roles = [role for role, kind in kinds.items() if kind == "llm"]
    if not roles:
        return None
    from rlkit.agents.llm import ChatClient

    client = ChatClient(
        config.model.vllm_base_url, config.model.checker_model, log=_unsaid, **HASTE
    )
    level, text, away = _found_at(client, client.probe)
    asked = [role for role in roles if role == "judge" or look.rounds is None]
    if away and asked:  # the others play only where rounds are still to be collected
        url = config.model.vllm_base_url
        look.away["live agents"] = f"no answer from the {' and '.join(asked)} at {url}"
    return level, f"{', '.join(roles)}: {text}"


def served(look: Look) -> Said | None:
    """The Executor behind a server; None where no policy is `served`."""
    config = look.config
    if "served" not in (*config.data.collectors, *config.evaluation.policies):
        return None
    from rlkit.agents.llm import ChatClient
    from rlkit.agents.served import NAMES, looked_at

    url, model = config.executor.served_url, config.executor.served_model
    client = ChatClient(url or config.model.vllm_base_url, model, log=_unsaid, names=NAMES, **HASTE)
    level, text, away = _found_at(client, lambda: looked_at(client, model))
    if away and "served" in config.data.collectors and look.rounds is None:
        where = url or config.model.vllm_base_url
        look.away["served"] = f"no answer from the served Executor at {where}"
    return level, text


def _found_at(client: Any, ask: Callable[[], Any]) -> tuple[str, str, bool]:
    """Level and text of what a look at a server finds, within some 10 s, and whether it is away:
    such a one may be started yet."""
    from rlkit.agents.llm_faults import RefusedError

    try:
        report = ask()
    except AgentError as error:
        return ("fail" if isinstance(error, RefusedError) else "warn"), str(error), True
    finally:
        client.close()
    return ("warn" if report.thinks else "ok"), str(report), False


def _unsaid(line: str) -> None:
    """A check says all in one line."""
