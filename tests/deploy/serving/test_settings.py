"""Settings come from the environment, options first; docs/serving.md names them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlkit.deploy.serving.settings import ServerSettings
from rlkit.errors import ConfigError

DOCS = Path(__file__).resolve().parents[3] / "docs" / "serving.md"


def test_options_come_before_the_environment_and_none_is_no_option():
    env = {
        "RLKIT_MODEL": "a",
        "RLKIT_PARALLEL": "3",
        "RLKIT_QUEUE_TIMEOUT": "1.5",
        "RLKIT_QUEUE": "",
    }
    settings = ServerSettings.from_env(env, parallel=5, model=None)
    assert (settings.model, settings.parallel, settings.queue_timeout) == ("a", 5, 1.5)
    assert settings.queue == 32 and settings.api_key is None


def test_only_what_is_true_or_false_is_read_so():
    env = {"MODEL": "a", "NAME": "true", "API_KEY": "true", "LOAD_IN_4BIT": "True"}
    settings = ServerSettings.from_env({f"RLKIT_{name}": value for name, value in env.items()})
    assert (settings.name, settings.load_in_4bit) == ("true", True)
    assert settings.api_key.get_secret_value() == "true"
    with pytest.raises(ConfigError, match="load_in_4bit"):
        ServerSettings.from_env({"RLKIT_MODEL": "a", "RLKIT_LOAD_IN_4BIT": "maybe"})


def test_the_token_is_shown_nowhere():
    settings = ServerSettings.from_env({"RLKIT_MODEL": "a", "RLKIT_API_KEY": "s3cret-token"})
    assert "s3cret" not in f"{settings!r} {settings} {settings.model_dump_json()}"
    with pytest.raises(ConfigError):
        ServerSettings.from_env({"RLKIT_MODEL": "a"}, api_key="s3cret-token", queue=-1)


def test_the_documentation_names_every_setting_with_its_default():
    text = DOCS.read_text(encoding="utf-8")
    for name, field in ServerSettings.model_fields.items():
        default = {None: "null", False: "false"}.get(field.default, field.default)
        default = f" `{default}` " if default != "" and name != "api_key" else " "
        assert f"| `RLKIT_{name.upper()}` |{default}|" in text
