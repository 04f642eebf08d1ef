"""`python -m rlkit serve --model DIR` and `uvicorn rlkit.deploy.serve:app`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rlkit.cli import main
from rlkit.deploy import llama_server
from rlkit.deploy import serve as module
from rlkit.deploy.serve import serve
from rlkit.errors import ConfigError, ModelError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("RLKIT_")]:
        monkeypatch.delenv(name)


def test_an_address_that_others_reach_wants_a_token(base, monkeypatch):
    with pytest.raises(ConfigError, match="RLKIT_API_KEY"):
        serve("0.0.0.0", 0, model=str(base))
    monkeypatch.setenv("RLKIT_API_KEY", "s3cret-token")
    with module._bound("0.0.0.0", 0, open_to_all=True) as bound:
        assert bound.getsockname()[0] == "0.0.0.0"


def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(base, monkeypatch):
    monkeypatch.setenv("RLKIT_API_KEY", "a secret with blanks")
    with pytest.raises(ConfigError, match="RLKIT_API_KEY holds a blank") as error:
        serve(port=0, model=str(base))
    assert "secret" not in str(error.value)


def test_a_port_or_host_of_no_use_is_named(base):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConfigError, match="cannot be listened on"):
            serve(port=taken.getsockname()[1], model=str(base))
    with pytest.raises(ConfigError, match="cannot be listened on"):
        serve(port=99999, model=str(base))


def test_of_two_servers_started_at_once_the_second_ends_before_its_model_is_loaded():
    with module._bound("127.0.0.1", 0, open_to_all=False) as first:
        with pytest.raises(ConfigError, match="cannot be listened on"):
            module._bound("127.0.0.1", first.getsockname()[1], open_to_all=False)


def test_a_folder_without_a_model_and_a_setting_out_of_range_are_refused(tmp_path, base):
    with pytest.raises(ModelError):
        serve(port=0, model=str(tmp_path), log=lambda line: None)
    with pytest.raises(ConfigError, match="parallel"):
        serve(port=0, model=str(base), parallel=0)
    with pytest.raises(ConfigError, match="no model is named"):
        serve(port=0)


def test_missing_packages_come_with_the_line_that_installs_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ModelError, match="pip install .*serve"):
        serve(model="x")


def test_the_command_takes_folders_to_our_server_and_gguf_files_to_llama_cpp(
    base, tmp_path, monkeypatch, capsys
):
    called = []
    monkeypatch.setattr(module, "serve", lambda *a, **k: called.append(("ours", a[:2], k)))
    monkeypatch.setattr(llama_server, "serve", lambda *a, **k: called.append(("llama.cpp", a)))
    file = tmp_path / "file"
    file.write_bytes(b"GGUF")
    for words in ([], ["--model", str(file)], ["--model", "gone.gguf"]):
        assert main(["serve", *words]) == 0
    assert main(["serve", "--model", str(base), "--port", "8001", "--adapter", "a"]) == 0
    monkeypatch.setenv("RLKIT_MODEL", str(base))
    assert main(["serve"]) == 0
    assert [name for name, *_ in called] == ["llama.cpp"] * 3 + ["ours"] * 2
    _, where, options = called[3]
    assert where == ("127.0.0.1", 8001)
    assert options == {"model": str(base), "adapter": "a", "context": None, "parallel": None}
    assert main(["serve", "--model", str(file), "--host", "::1"]) == 2
    assert "--host" in capsys.readouterr().err


def test_the_app_for_uvicorn_is_made_of_the_environment(monkeypatch):
    monkeypatch.setenv("RLKIT_MODEL", "somewhere")
    monkeypatch.setenv("RLKIT_API_KEY", "s3cret-token")
    app = module.app
    assert "HTTPBearer" in app.openapi()["components"]["securitySchemes"]
    monkeypatch.setenv("RLKIT_QUEUE", "many")
    with pytest.raises(ConfigError, match="queue .*RLKIT_"):
        module.app  # noqa: B018
    with pytest.raises(AttributeError):
        module.nothing  # noqa: B018


@contextmanager
def process(*command: str, **env: str):
    kept = {name: v for name, v in os.environ.items() if not name.startswith("RLKIT_")}
    env = {**kept, **env, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-u", "-m", *command], cwd=ROOT, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_answers_end_takes_no_more_and_exits_with_0(base, number):
    command = ["rlkit", "serve", "--model", str(base), "--port", "0", "--parallel", "2"]
    body = {"text": "a", "max_tokens": 1500, "temperature": 0, "raw": True}
    patient = {f"RLKIT_{name}_TIMEOUT": "300" for name in ("QUEUE", "REQUEST", "DRAIN")}
    with process(*command, **patient) as running:
        lines = [running.stdout.readline() for _ in range(2)]
        url = re.search(r"http://127\.0\.0\.1:\d+", lines[1])[0]
        found: list[httpx.Response] = []

        def ask():
            found.append(httpx.post(f"{url}/generate", json=body, timeout=300, trust_env=False))

        threads = [threading.Thread(target=ask) for _ in range(3)]  # two run, one waits
        for thread in threads:
            thread.start()
        busy = re.compile(r"running 2\.0\n(.*\n)*rlkit_requests_waiting 1\.0\n")
        while not busy.search(httpx.get(f"{url}/metrics", trust_env=False).text):
            assert not found
        running.send_signal(number)
        with pytest.raises(httpx.TransportError):
            while True:
                httpx.get(f"{url}/health", trust_env=False)
        assert len(found) < 3  # they were still running
        for thread in threads:
            thread.join(300)
        assert [answer.status_code for answer in found] == [200] * 3
        assert all(answer.json()["completion_tokens"] == 1500 for answer in found)
        assert running.stdout.read() == "stopped.\n"
        assert running.wait(60) == 0


@pytest.mark.slow
def test_uvicorn_serves_the_app(base):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = ["uvicorn", "rlkit.deploy.serve:app", "--port", str(port)]
    with process(*command, RLKIT_MODEL=str(base), RLKIT_NAME="tower") as running:
        for line in running.stdout:
            if "Application startup complete" in line:
                break
        url = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"] == "tower"
        body = {"text": "a", "max_tokens": 2}
        assert httpx.post(f"{url}/generate", json=body, trust_env=False).status_code == 200
        running.send_signal(signal.SIGTERM)
        assert "Application shutdown complete" in running.stdout.read()
