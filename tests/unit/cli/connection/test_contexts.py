"""`toolhub context`: the file, what goes before what, and where a credential must not go."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from toolhub_service.cli.connection.chosen_context import ContextKey
from toolhub_service.cli.connection.client import connection_options
from toolhub_service.cli.connection.hub_options import contexts_file
from toolhub_service.cli.root import toolhub

Run = Callable[..., Result]


@click.command()
@connection_options
def probe(**options: Any) -> None:
    """What a command receives."""
    key = options["api_key"]
    shown = {**options, "api_key": key() if isinstance(key, ContextKey) else key}
    click.echo(json.dumps({name: value if value is None else str(value) for name, value in shown.items()}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TOOLHUB_ADDRESS", "TOOLHUB_API_KEY", "TOOLHUB_CONTEXT", "TOOLHUB_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def typed(*words: str) -> Result:
    return CliRunner().invoke(toolhub, words)


def received(*words: str, **environment: str) -> dict[str, Any]:
    """Address, key, TLS and CA that a command has when it is called so."""
    ran = CliRunner().invoke(probe, words, env=environment)
    assert ran.exit_code == 0, ran.output
    options: dict[str, Any] = json.loads(ran.stdout)
    return {name: options[name] for name in ("context_name", "address", "api_key", "tls", "ca_file")}


@pytest.mark.promise("cli.contexts")
def test_options_take_precedence_over_the_environment_and_that_over_the_context(home: Path) -> None:
    key, ca = home / "key", home / "ca.pem"
    key.write_text("of-prod\n")
    key.chmod(0o600)
    ca.write_text("CA")
    words = ("--address", "hub.example.com", "--ca-file", str(ca), "--api-key-file", str(key))
    assert typed("context", "add", "prod", *words).exit_code == 0
    assert typed("context", "add", "here", "--address", "127.0.0.1:50051").exit_code == 0
    prod = {"address": "hub.example.com:50051", "api_key": "of-prod", "tls": "True", "ca_file": str(ca)}
    own = {"api_key": None, "tls": None, "ca_file": None, "context_name": None}
    assert received() == {**prod, "context_name": "prod"}, "the first is the current one"
    assert received("--api-key", "typed")["api_key"] == "typed"
    assert received(TOOLHUB_API_KEY="set") == {**prod, "context_name": "prod", "api_key": "set"}
    assert received("--context", "prod", TOOLHUB_API_KEY="set", TOOLHUB_ADDRESS="a:1") == {
        **prod,
        "context_name": "prod",
    }
    assert received(TOOLHUB_CONTEXT="prod", TOOLHUB_ADDRESS="a:1") == {**prod, "context_name": "prod", "address": "a:1"}
    here = received("--context", "here", TOOLHUB_API_KEY="set", TOOLHUB_CONTEXT="prod")
    assert (here["address"], here["api_key"], here["tls"]) == ("127.0.0.1:50051", "set", "False")
    assert received("--no-tls")["ca_file"] is None
    # Another hub is named: nothing of the context goes there.
    assert received("--address", "evil:1") == {**own, "address": "evil:1"}
    assert received("--address", "evil:1", TOOLHUB_CONTEXT="prod") == {**own, "address": "evil:1"}
    assert received(TOOLHUB_ADDRESS="evil:1") == {**own, "address": "evil:1"}
    # Both are typed, as with a port that is forwarded.
    forwarded = received("--context", "prod", "--address", "localhost:9")
    assert forwarded == {**prod, "context_name": "prod", "address": "localhost:9"}
    assert typed("context", "use", "--none").exit_code == 0
    assert received() == {**own, "address": "127.0.0.1:50051"}
    for loose in (key, contexts_file()):
        loose.chmod(0o666)
        ran = CliRunner().invoke(probe, ["--context", "prod"])
        assert f"chmod 600 {loose}" in ran.output
        loose.chmod(0o600)


@pytest.mark.promise("cli.contexts")
def test_contexts_are_added_listed_shown_used_and_removed(home: Path) -> None:
    assert "There are no contexts" in typed("context", "list").output
    assert typed("context", "add", "Prod", "--address", "h").exit_code == 2
    assert "TLS, credential: login" in typed("context", "add", "prod", "--address", "hub.example.com", "--login").output
    added = typed("context", "add", "lab", "--address", "http://10.0.0.7:1", "--api-key-env", "LAB_KEY")
    assert "10.0.0.7:1, plaintext, credential: key in $LAB_KEY" in added.output
    file = contexts_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "already" in typed("context", "add", "lab", "--address", "h").output
    assert typed("context", "add", "x", "--address", "h", "--login", "--api-key-env", "X").exit_code == 2
    assert typed("context", "add", "x", "--address", "https://h", "--no-tls").exit_code == 2
    rows = [line.split()[:2] for line in typed("context", "list").output.splitlines()[1:]]
    assert rows == [["-", "lab"], ["*", "prod"]]
    assert typed("context", "use", "lab").output == "lab: 10.0.0.7:1\n"
    assert "Its key" not in typed("context", "show").output
    assert json.loads(typed("context", "show", "-o", "json").output)["api_key_env"] == "LAB_KEY"
    assert "There are: lab, prod" in typed("context", "use", "nope").output
    complete = ShellComplete(toolhub, {}, "toolhub", "_TOOLHUB_COMPLETE")
    for line in (["context", "use"], ["tools", "list", "--context"], ["login", "--context"]):
        assert [each.value for each in complete.get_completions(line, "p")] == ["prod"]
    assert typed("context", "remove", "lab").exit_code == 0
    assert json.loads(file.read_text())["current"] == ""
    for broken in ("{", '{"version": 2}', '{"version": 1, "contexts": {"x": {"address": "h", "token": "t"}}}'):
        file.write_text(broken)
        assert "is no file of contexts" in typed("context", "list").output


@pytest.mark.promise("cli.contexts")
def test_options_of_a_connection_stand_before_and_behind_each_word(home: Path) -> None:
    assert typed("context", "add", "gone", "--address", "127.0.0.1:1").exit_code == 0
    words = ["tools", "list"]
    for place in range(3):
        for option in (["--context", "gone"], ["--context=gone"], ["--address", "127.0.0.1:1"]):
            ran = typed(*words[:place], *option, *words[place:])
            assert (ran.exit_code, "No hub answers at 127.0.0.1:1" in ran.output) == (3, True), ran.output
    files = ("--cert", "me.pem", "--key", "me.key")
    for ran in (typed(*files, "health"), typed("health", *files), typed(*files, "jobs", "submit", "core/x")):
        assert "--key-file me.key: No such file" in ran.output
    assert "--cert-file and --key-file go together" in typed("jobs", "submit", "--key", "k", "--cert", "c", "x").output


@pytest.mark.promise("cli.contexts")
def test_clients_are_configured_for_the_hub_of_the_context(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLHUB_DATA_DIR", str(home / "hub"))
    words = ("--address", "hub.example.com", "--mcp-url", "https://hub.example.com/mcp")
    assert typed("context", "add", "prod", *words, "--login").exit_code == 0
    assert typed("context", "add", "lab", "--address", "10.0.0.7", "--api-key-env", "LAB_KEY").exit_code == 0

    def entry(*words: str) -> dict[str, Any]:
        written: dict[str, Any] = json.loads(typed(*words).stdout)["mcpServers"]["tool-hub"]
        return written

    assert entry("mcp", "config", "cursor", "--http") == {"type": "http", "url": "https://hub.example.com/mcp"}
    for before in (("--context", "lab", "mcp", "config"), ("mcp", "config", "--context", "lab")):
        assert entry(*before, "cursor", "--http") == {
            "type": "http",
            "url": "https://10.0.0.7:50052/mcp",
            "headers": {"Authorization": "Bearer ${env:LAB_KEY}"},
        }
        started = entry(*before, "cursor")
        assert (started["args"], started["env"]) == (["mcp", "--context", "lab"], {"LAB_KEY": "${env:LAB_KEY}"})
    assert entry("mcp", "config", "cursor", "--data-dir", str(home / "hub"))["args"][1] == "--data-dir"
    assert typed("context", "use", "--none").exit_code == 0
    assert entry("mcp", "config", "cursor")["args"] == ["mcp"]
