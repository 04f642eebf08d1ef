"""What a server is told when it starts: by environment variables RLKIT_<KEY>, or by options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from rlkit.errors import ConfigError
from rlkit.section import Section, key

PREFIX = "RLKIT_"
_KEY = "api_key"
_HEADER = range(0x21, 0x7F)  # what a header may hold: printable ASCII without blanks


class ServerSettings(Section):
    """Model, limits and token of a server. `queue` counts the requests that wait for a place."""

    model: str = key("", "folder or hub id of the model, or the folder of an adapter")
    adapter: str | None = key(None, "folder of an adapter that is put on the model")
    name: str | None = key(None, "what clients call the model; null: the folder's name")
    device: str = key("auto", "where the model computes", choices=("auto", "cpu", "cuda"))
    dtype: str = key(
        "auto", "its precision", choices=("auto", "float32", "bfloat16", "float16")
    )  # fmt: skip
    load_in_4bit: bool = key(False, "4-bit weights (bitsandbytes)")
    executor: str = key(
        "auto", "whether answers are read as clues; auto: by the model's run",
        choices=("auto", "yes", "no"),
    )  # fmt: skip
    context: int = key(4096, "longest prompt and answer together", "tokens", ge=16)
    parallel: int = key(8, "requests that are answered at once", "requests", ge=1, le=256)
    queue: int = key(32, "requests that may wait beyond these", "requests", ge=0)
    queue_timeout: float = key(30.0, "longest wait for a place", "seconds", gt=0)
    request_timeout: float = key(300.0, "longest time for an answer", "seconds", gt=0)
    drain_timeout: float = key(
        60.0, "longest time for the last answers at the end", "seconds", gt=0
    )
    max_body: int = key(2**21, "largest body of a request", "bytes", ge=1024)
    api_key: SecretStr | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str], **options: Any) -> ServerSettings:
        """The settings of an environment; `options` that are not None come first. The token comes
        from the environment alone. Raises ConfigError naming the variable."""
        given: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            value = env.get(PREFIX + name.upper())
            if value not in (None, ""):
                given[name] = _truth(value) if field.annotation is bool else value
        secret = given.pop(_KEY, "")
        given |= {name: value for name, value in options.items() if value is not None}
        try:
            settings = cls(**given)
        except ConfigError as error:
            raise ConfigError(
                f"{error} (It may be set by {PREFIX}<KEY IN CAPITALS>.)"
            ) from None  # fmt: skip
        if not settings.model:
            raise ConfigError(
                "no model is named; give --model or set RLKIT_MODEL to a model's folder."
            )
        if not secret:
            return settings
        if not all(ord(letter) in _HEADER for letter in secret):
            raise ConfigError(
                "RLKIT_API_KEY holds a blank, a control character or a letter outside ASCII, which "
                "no client can send in a header; set another one."
            )
        return settings.model_copy(update={_KEY: SecretStr(secret)})


def _truth(value: str) -> Any:
    return {"true": True, "false": False}.get(value.lower(), value)
