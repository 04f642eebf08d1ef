"""A tiny base, and an adapter whose update is not zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.tiny import make_adapter, make_base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(scope="session")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(base, tmp_path_factory.mktemp("adapters") / "checkpoint-5")


@pytest.fixture()
def base_maker(tmp_path: Path) -> Callable[..., Path]:
    return lambda name, **changes: make_base(tmp_path / name, **changes)


@pytest.fixture()
def adapter_maker() -> Callable[..., Path]:
    return make_adapter
