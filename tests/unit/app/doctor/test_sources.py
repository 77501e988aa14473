"""What a configuration of sources refers to and is not here, found without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hub import settings_of
from toolhub_service.app.config_files.sources_file import to_source
from toolhub_service.app.doctor import State
from toolhub_service.app.doctor.sources import missing_for, source_checks
from toolhub_service.app.doctor.start import start_findings

FILES = "langchain_community.agent_toolkits:FileManagementToolkit"
WHOLE = {"command": "sh"}


@pytest.mark.parametrize(
    ("entry", "missing"),
    [
        (WHOLE, []),
        ({"command": "no-such-program"}, ["the program `no-such-program` is not on the PATH"]),
        (
            {"url": "https://a.example/mcp", "tls": {"ca_file": "/no/ca.pem", "key_file": "/no/key.pem"}},
            ["tls.ca_file: there is no file /no/ca.pem", "tls.key_file: there is no file /no/key.pem"],
        ),
        (
            {
                "command": "sh",
                "args": ["-x", {"env": "NOT_SET_ANYWHERE"}],
                "env": {"A": "plain", "B": {"file": "/no/b"}},
            },
            [
                "env.B: the file /no/b cannot be read: No such file or directory",
                "args.1: the environment variable NOT_SET_ANYWHERE is not set for the hub",
            ],
        ),
        (
            {
                "url": "https://a.example/mcp",
                "headers": {"X": {"file": "/no/x"}},
                "oauth": {"client_id": "hub", "client_secret": {"file": "/no/s"}},
            },
            [
                "headers.X: the file /no/x cannot be read: No such file or directory",
                "oauth.client_secret: the file /no/s cannot be read: No such file or directory",
            ],
        ),
        ({"kind": "langchain", "load": ["acme.tools:all"]}, []),
        (
            {"kind": "langchain", "load": ["acme.tools:all", "acmeevil:all"]},
            ["`acmeevil:all` is not below one of tools.trusted_namespaces"],
        ),
        ({"kind": "langchain", "load": [FILES], "args": {"root_dir": "papers"}}, []),
        (
            {"kind": "langchain", "load": [FILES]},
            [f"`{FILES}` accepts any path of the machine: add `args: {{root_dir: FOLDER}}`"],
        ),
    ],
)
def test_a_missing_requirement_of_a_source_is_reported_by_its_place(
    tmp_path: Path, entry: dict[str, Any], missing: list[str]
) -> None:
    settings = settings_of(tmp_path, {"tools": {"trusted_namespaces": ["acme", "langchain_community"]}})
    assert list(missing_for(to_source("far", entry), settings)) == missing


def test_doctor_counts_those_that_lack_nothing_and_leaves_switched_off_ones_out(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"sources": {"file": str(tmp_path / "sources.yaml")}})
    (tmp_path / "sources.yaml").write_text(
        "sources: {good: {command: sh}, bad: {command: no-such-program}, idle: {command: none-either, enabled: false}}"
    )
    bad, count = source_checks(settings)
    assert (bad.state, bad.disables) == (State.WARN, ("bad/*",))
    assert count.text.startswith("1 of 2 have what they need; 1 switched off;")


async def test_an_invalid_file_is_a_failure_of_the_start(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"sources": {"file": str(tmp_path / "absent.yaml")}})
    assert list(source_checks(settings)) == []
    (found,) = await start_findings(settings)
    assert (found.name, found.state, "No such file" in found.text) == ("sources", State.FAIL, True)
