"""Spellings in which a secret once slipped past the redactor, each found by sending it through a serving hub."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from toolhub_service.cli.root import toolhub
from toolhub_service.guards.secrets import Redactor
from toolhub_service.settings.document import CustomTool, Settings, Tools
from toolhub_service.settings.loading import known_secrets, load_settings
from toolhub_service.telemetry.logs import configure_logging, logger


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"


@pytest.mark.parametrize("break_", ["\n", "\r\n", "\t", "\f", "\b", " "])
@pytest.mark.parametrize("secret", [TOKEN, "Bearer c4nary0123456789", "sas=c4nary0123456789"])
def test_a_secret_after_a_line_break_is_found_in_values_and_in_their_json(break_: str, secret: str) -> None:
    canary = secret.rsplit("=", maxsplit=1)[-1].rsplit(maxsplit=1)[-1]
    for value in ({"text": f"a{break_}{secret}"}, [f"a{break_}{secret}"], json.dumps({"text": f"a{break_}{secret}"})):
        assert canary not in json.dumps(Redactor().value(value)), value
        assert canary not in Redactor().json_text(value), value


def test_a_token_keeps_what_stands_before_it() -> None:
    assert Redactor().text(f'{{"a":"x\\n{TOKEN}"}}') == '{"a":"x\\n***"}'
    assert Redactor().text(f"see {TOKEN}.") == "see ***."


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["login", "--token", "c4nary"], ["login", "--token", "***"]),
        (["login", "--api-key", "c4nary", "-v"], ["login", "--api-key", "***", "-v"]),
        (["curl", "-u", "me:c4nary", "https://example.com"], ["curl", "-u", "***", "https://example.com"]),
        (["curl", "-u", "me"], ["curl", "-u", "me"]),
        (["login", "--token", "--verbose"], ["login", "--token", "--verbose"]),
        (["grep", "-n", "token"], ["grep", "-n", "token"]),
    ],
)
def test_the_value_after_a_flag_is_hidden_in_an_argv(argv: list[str], shown: list[str]) -> None:
    assert Redactor().value({"argv": argv}) == {"argv": shown}


def test_the_keys_of_this_hub_have_a_shape_that_is_known() -> None:
    key = "thk_0a1b2c3d_" + "x" * 43
    assert Redactor().text(f"why: {key} does not work") == "why: *** does not work"


def test_secrets_of_environment_and_configuration_are_known_by_value() -> None:
    settings = Settings(tools=Tools(custom=(CustomTool("acme:T", args={"api_key": "c4nary-of-config", "retries": 3}),)))
    environment = {"ACME_TOKEN": "c4nary-of-env", "AUTH_TOKEN": "none", "PWD": "/home/somebody"}
    assert known_secrets(settings, environment) == ["c4nary-of-config", "c4nary-of-env"]


def test_foreign_text_drives_no_terminal(restored_logging: None) -> None:
    stream = io.StringIO()
    configure_logging(level="INFO", form="console", redactor=Redactor(), stream=stream)
    logger("hub").info("call", tool="a\n\x1b[2J2026 [error] forged\x07")
    logging.getLogger("library").warning("said %s", "b\n\x1b[31m2026 [error] forged")
    logger("hub").error("crash", exc_info=RuntimeError("c\x1b]0;title\x07"))
    assert not {character for character in stream.getvalue() if ord(character) < 32} - {"\n"}
    assert "\nb" not in stream.getvalue()
    assert sum("forged" in line for line in stream.getvalue().splitlines()) == 2


URLS = {
    "TOOLHUB_STORES_REDIS_URL": (
        "redis://user:{}@host:1/0",
        "redis://h:1/0?password={}",
        "redis://[::1:x@{0}:{0}@",
        "u:{}@h",
    ),
    "TOOLHUB_STORES_POSTGRES_URL": ("postgres://u:{}@h/db", "host=h password='{}'", "postgres://u@h/db?password={}"),
    "TOOLHUB_APPROVALS_WEBHOOK_URL": ("https://me:{}@hooks.example/x", "https://hooks.example/services/T0/{}"),
    "TOOLHUB_ARTIFACTS_BUCKET_URL": ("s3://key:{}@bucket/p", "s3://bucket/p?secret_key={}"),
    "TOOLHUB_TRACING_OTLP_ENDPOINT": ("http://me:{}@127.0.0.1:4317",),
}


@pytest.mark.parametrize(("name", "url"), [(name, url) for name, urls in URLS.items() for url in urls])
def test_password_in_a_url_of_the_settings_is_shown_by_no_command_and_known_everywhere(
    name: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "c4naryOfTheUrl" + "9" * 8
    monkeypatch.setenv(name, url.format(secret))
    for form in ([], ["--json"]):
        result = CliRunner().invoke(toolhub, ["config", "show", "--data-dir", str(tmp_path), *form])
        assert result.exit_code == 0, result.output
        assert "***" in result.output
        assert secret not in result.output
    settings = load_settings(None, {name: url.format(secret)})
    assert secret not in Redactor(known_secrets(settings, {})).text(f"it is {secret}, they say")
