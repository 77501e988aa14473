"""From the list of servers that another client has to a governed call, by commands only."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command_line import CommandLine, CommandResult, serving
from tests.servers import node_program

pytestmark = pytest.mark.slow

WITHIN_S = 60.0


def until(cli: CommandLine, *words: str, code: int = 0) -> CommandResult:
    """The answer of a command, asked again until it exits so."""
    give_up_s = time.monotonic() + WITHIN_S
    while (result := cli(*words)).code != code:
        assert time.monotonic() < give_up_s, result
    return result


def sources(cli: CommandLine) -> dict[str, dict[str, Any]]:
    listed = cli("sources", "list", "--json")
    assert listed.code == 0, listed.err
    return {source["source"]: source for source in listed.json["sources"] if source["source"] != "core"}


def read(cli: CommandLine) -> dict[str, dict[str, Any]]:
    """The sources, once each has been read."""
    give_up_s = time.monotonic() + WITHIN_S
    while time.monotonic() < give_up_s:
        found = sources(cli)
        if all(source["state"] != "SOURCE_STATE_PENDING" for source in found.values()):
            return found
    raise AssertionError(found)


def test_a_list_of_another_client_becomes_a_governed_call(tmp_path: Path) -> None:
    """The whole way of a new user, without a file edited by hand but the policy's one line."""
    home = tmp_path / "home"
    home.mkdir()
    node, everything = node_program("mcp-server-everything")
    theirs = home / "claude_desktop_config.json"
    token = "ghp_" + "a1B2" * 9
    servers = {
        "everything": {"command": node, "args": [everything], "env": {"API_TOKEN": token}},
        "Time": {
            "command": "mcp-server-time",
            "args": ["--local-timezone", "UTC"],
            "alwaysAllow": ["*"],
        },
        "old": {"command": "mcp-server-git", "disabled": True},
    }
    theirs.write_text(json.dumps({"mcpServers": servers, "globalShortcut": ""}))
    cli = CommandLine(home)

    assert cli("policy", "init").code == 0
    dry = cli("sources", "add", str(theirs), "--dry-run")
    assert dry.code == 0, dry.err
    assert not (cli.data_dir / "sources.yaml").exists()
    added = cli("sources", "add", str(theirs))
    assert added.code == 0, added.err
    assert token not in (cli.data_dir / "sources.yaml").read_text() + added.out + added.err
    assert cli("sources", "check").code == 0

    with serving(home) as running:
        found = read(running)
        assert {name: source["state"] for name, source in found.items()} == {
            "everything": "SOURCE_STATE_READY",
            "time": "SOURCE_STATE_READY",
            "old": "SOURCE_STATE_DISABLED",
        }
        assert running("tools", "list", "--source", "time", "-o", "json").json.get("tools", []) == []
        call = ("call", "time/get_current_time", "timezone=UTC")
        refused = running(*call)
        assert (refused.code, refused.json["error"]["kind"]) == (1, "ERROR_KIND_POLICY_DENIED")
        _, grant = refused.json["error"]["details"]["remedy"].splitlines()
        (cli.data_dir / "policy.yaml").write_text(f"{grant}\n")
        assert until(running, *call).json["result"]["timezone"] == "UTC"
        assert running("call", "everything/echo", "message=hi").json["error"]["kind"] == "ERROR_KIND_POLICY_DENIED"
        assert running("sources", "remove", "everything").code == 0
        give_up_s = time.monotonic() + WITHIN_S
        while "everything" in sources(running):
            assert time.monotonic() < give_up_s
