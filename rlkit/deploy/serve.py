"""A model behind HTTP: `POST /generate`, and OpenAI's chat completions (docs/serving.md).

python -m rlkit serve --model outputs/run1/merged/MODEL-grpo-step24
RLKIT_MODEL=outputs/run1/merged/MODEL-grpo-step24 uvicorn rlkit.deploy.serve:app
"""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from rlkit.errors import ConfigError, ModelError

INSTALL = "install them with: pip install -c constraints.txt -e '.[serve]'"


def __getattr__(name: str) -> Any:
    """`app`, made of the environment when a server asks for it."""
    if name != "app":
        raise AttributeError(f"{__name__} has no {name!r}")
    from rlkit.deploy.serving.app import create_app
    from rlkit.deploy.serving.settings import ServerSettings

    return create_app(ServerSettings.from_env(os.environ))


def serve(
    host: str = "127.0.0.1", port: int = 8000, log: Callable[[str], None] = print, **options: Any
) -> None:
    """Serve a model until SIGINT or SIGTERM; then take nothing new, finish what was begun (for
    `drain_timeout` seconds at most), and return.

    `options` are those of ServerSettings; what is not given there is taken from the environment.
    Port 0 is any that is free. Raises ConfigError for a setting, an address or a port of no use,
    and for an address that others reach, without a token; ModelError where there is no model.
    """
    try:
        import prometheus_client  # noqa: F401
        import uvicorn

        from rlkit.deploy.serving.app import create_app
    except ImportError as error:
        raise ModelError(f"serving needs fastapi, uvicorn and more ({error}); {INSTALL}") from None
    from rlkit.deploy.serving.model import load_model
    from rlkit.deploy.serving.settings import ServerSettings

    settings = ServerSettings.from_env(os.environ, **options)
    with _bound(host, port, open_to_all=settings.api_key is not None) as listening:
        served = load_model(settings, log)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(settings, served), log_level="warning", access_log=False,
                server_header=False, timeout_graceful_shutdown=math.ceil(settings.drain_timeout),
            )
        )  # fmt: skip
        address, port = listening.getsockname()[:2]
        address = f"[{address}]" if ":" in address else address
        log(f"{served.name} at http://{address}:{port}, {settings.parallel} requests at once, "
            f"{served.context} tokens each; Ctrl-C stops it.")  # fmt: skip

        def stop(*_: object) -> None:  # uvicorn hands its signals on when it has ended
            server.should_exit = True

        before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            server.run(sockets=[listening])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if not server.started:
        raise ModelError("the server did not start; see above.")
    log("stopped.")


def _bound(host: str, port: int, open_to_all: bool) -> socket.socket:
    """A socket at the address. Raises ConfigError where it cannot be had, or must not be."""
    from rlkit.deploy.serving.gate import is_loopback

    try:
        family, kind, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        if not (open_to_all or is_loopback(address[0])):
            raise ConfigError(
                f"--host {host} is open to other machines, and there is no token; set "
                "RLKIT_API_KEY in the environment to a long random one, or leave --host out."
            )
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address[0], port, *address[2:]))
        bound.listen()  # else another one can bind as well, and both load their models
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--host {host} --port {port} cannot be listened on ({error}); give another one, or "
            "port 0 for any that is free."
        ) from None
    return bound
