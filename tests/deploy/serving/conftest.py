"""A tiny model, served in a thread."""

from __future__ import annotations

import pytest

from rlkit.deploy.serving.model import load_model
from rlkit.deploy.serving.settings import ServerSettings
from tests.deploy.serving.live import Live
from tests.deploy.tiny import make_base


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    folder = make_base(tmp_path_factory.mktemp("served") / "tiny", seed=3)
    settings = ServerSettings(model=str(folder), dtype="float32", device="cpu", executor="yes")
    return load_model(settings, log=lambda line: None)


@pytest.fixture(scope="session")
def live(served):
    """A server with room for all tests that need nothing special."""
    server = Live(served, {}, parallel=4, queue=250).start()
    yield server
    server.stop()


@pytest.fixture
def serving(served):
    """Makes servers of their own settings; `api_key` is their token."""
    made = []

    def make(api_key="", **settings):
        made.append(Live(served, {"RLKIT_API_KEY": api_key}, **settings).start())
        return made[-1]

    yield make
    for server in made:
        server.stop()
