"""Other ways in: API keys, a Unix socket, several workers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.command_server import on_path
from tests.e2e.command_line import CommandLine, serving

POLICY = """
extends: none
grants: [{principals: [research-agent], capabilities: ["read:fs", "write:fs"]}]
"""


def test_a_key_admits_its_principal_and_nobody_is_admitted_without(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    key = cli("keys", "create", "research-agent").out.strip()
    (cli.data_dir / "policy.yaml").write_text(POLICY)
    with serving(tmp_path, TOOLHUB_AUTH_MODES="api-key") as hub:
        for credential in ({}, {"TOOLHUB_API_KEY": "thk_00000000_nothing"}):
            shut_out = hub("call", "core/fs.listDir", "path=.", **credential)
            assert shut_out.code == 3
            assert "TOOLHUB_API_KEY" in shut_out.err
        let_in = hub("call", "core/fs.listDir", "path=.", TOOLHUB_API_KEY=key)
        assert let_in.json["ok"] is True
        assert hub("health").out == "SERVING\n"
        auditing = hub("audit", "tail", TOOLHUB_API_KEY=key)
        assert auditing.code == 1
        assert "auditor" in auditing.err


def test_a_unix_socket_is_an_address_like_any_other(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/hub.sock"
    with serving(tmp_path, "--listen", address) as hub:
        assert hub.address == address
        assert hub("call", "core/util.hash.sha256Text", "text=x").code == 0


def test_several_workers_answer_on_one_port_and_keep_one_log(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2") as hub:
        for number in range(6):
            assert hub("call", "core/util.hash.sha256Text", f"text={number}").code == 0
        verified = hub("audit", "verify", "-o", "json").json
        assert verified["ok"] is True
        assert verified["writersChecked"] == 2
        refused = hub("tools", "unregister", "core/fs.copy")
        assert refused.code == 1
        assert "several workers" in refused.err


def completed(cli: CommandLine, words: str, position: int, **environment: str) -> list[str]:
    """What bash would offer for the word at `position`."""
    asked = {"_TOOLHUB_COMPLETE": "bash_complete", "COMP_CWORD": str(position), "COMP_WORDS": words}
    env, server = on_path({**cli.env, **environment, **asked})
    done = subprocess.run(["toolhub"], env=env, pass_fds=[server], capture_output=True, text=True, check=False)
    assert not done.stderr
    return [line.removeprefix("plain,") for line in done.stdout.split(os.linesep) if line]


def test_the_shell_completes_commands(tmp_path: Path) -> None:
    assert completed(CommandLine(tmp_path), "toolhub tools se", 2) == ["search"]
    assert completed(CommandLine(tmp_path), "toolhub tools list --kind la", 4) == ["langchain"]


def test_the_shell_completes_tools_and_approvals_that_the_hub_knows(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    cli.data_dir.mkdir(parents=True)
    (cli.data_dir / "policy.yaml").write_text("rules: [{id: ask, effect: REQUIRE_APPROVAL, tools: [core/fs.move]}]")
    with serving(tmp_path) as hub:
        at_hub = {"TOOLHUB_ADDRESS": hub.address, "TOOLHUB_COMPLETION_TIMEOUT_S": "60"}  # a busy machine is slow
        assert completed(cli, "toolhub call core/fs.read", 2, **at_hub) == ["core/fs.readText"]
        assert completed(cli, "toolhub tools show core/exec", 3, **at_hub) == []
        assert completed(cli, "toolhub call core/fs.move so", 3, **at_hub) == ["source="]
        assert completed(cli, "toolhub call core/fs.move source=a so", 4, **at_hub) == []
        assert completed(cli, "toolhub tools list --source co", 4, **at_hub) == ["core"]
        assert "files" in completed(cli, "toolhub tools list --tag fi", 4, **at_hub)
        asked = hub("call", "core/fs.move", "source=a", "destination=b").json
        (approval_id,) = completed(cli, "toolhub approvals show apr_", 3, **at_hub)
        assert approval_id == asked["error"]["details"]["approval_id"]


def test_the_shell_offers_nothing_when_no_hub_answers(tmp_path: Path) -> None:
    at_nobody = f"unix:{tmp_path}/none.sock"
    assert completed(CommandLine(tmp_path), "toolhub call core/fs", 2, TOOLHUB_ADDRESS=at_nobody) == []
