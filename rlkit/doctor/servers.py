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
    level, text = _found_at(look, client, client.probe)
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
    return _found_at(look, client, lambda: looked_at(client, model))


def _found_at(look: Look, client: Any, ask: Callable[[], Any]) -> tuple[str, str]:
    """What a look at a server finds, within some 10 s; one that is away may be started yet."""
    from rlkit.agents.llm_faults import RefusedError

    try:
        report = ask()
    except AgentError as error:
        look.away = True
        return ("fail" if isinstance(error, RefusedError) else "warn"), str(error)
    finally:
        client.close()
    return ("warn" if report.thinks else "ok"), str(report)


def _unsaid(line: str) -> None:
    """A check says all in one line."""
