"""The Go client: its own tests, some of them against a whole hub, and the two modules as another program gets them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tls import Authority, tls_settings
from tests.hub import running_hub
from tests.missing import need_program
from tests.rpc.artifact_server import artifact_server

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "clients/go"
GENERATED = ROOT / "gen/go"
VERSION = "v0.1.0"
MODULES = {
    "github.com/tool-hub/tool-hub/clients/go": CLIENT,
    "github.com/tool-hub/tool-hub/gen/go": GENERATED,
}
POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs, "danger:destructive"]}
roles:
  - {principals: [local], roles: [agent, approver]}
rules:
  - {id: ask-first, effect: REQUIRE_APPROVAL, tools: [core/fs.stat], reason: A test asks.}
"""
BREAKS_AFTER = (1, 4, 1, 3, 2)
"""Of one upload: messages until a stream breaks, the header among them."""
PROGRAM = """
package main

import (
	"fmt"

	"github.com/tool-hub/tool-hub/clients/go/toolhub"
)

func main() {
	hub, err := toolhub.Connect("hub.example.com", toolhub.Config{})
	fmt.Println(hub.Address(), err)
}
"""

need_program("go")
pytestmark = pytest.mark.timeout(360)


def go(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "GOTOOLCHAIN": "local", **environment}
    return subprocess.run(("go", *words), cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.promise("clients.languages")
async def test_go_tests_pass_against_a_hub(tmp_path: Path) -> None:
    async with (
        running_hub(tmp_path, policy=POLICY) as running,
        artifact_server(tmp_path / "blobs") as artifacts,
        encrypted_hub(tmp_path / "tls") as encrypted,
    ):
        artifacts.breaking.after = list(BREAKS_AFTER)
        hubs = {"TOOLHUB_LIVE": running.address, "TOOLHUB_BREAKING": artifacts.address, **encrypted}
        tested = await asyncio.to_thread(go, "test", "-json", "./...", cwd=CLIENT, GOFLAGS="-mod=readonly", **hubs)
        assert artifacts.breaking.after == [], "every upload that was to break has gone on"
    events = [json.loads(line) for line in tested.stdout.splitlines() if line.startswith("{")]
    output = "".join(event.get("Output", "") for event in events)
    assert tested.returncode == 0, output + tested.stderr
    ended = {event["Test"]: event["Action"] for event in events if "Test" in event and event["Action"] != "output"}
    assert set(ended.values()) == {"pass"}, "none is skipped"
    assert len(ended) > 10


def encrypted_settings(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    authority, clients = Authority(), Authority()
    own = clients.sign("robot")
    for name, pem in {"ca.pem": authority.pem, "me.pem": own.certificate, "me.key": own.key}.items():
        (folder / name).write_bytes(pem)
    return tls_settings(folder, authority, client_ca=clients)


@asynccontextmanager
async def encrypted_hub(folder: Path) -> AsyncIterator[dict[str, str]]:
    """A hub that wants TLS and a certificate of its caller's; its settings for tests of clients."""
    async with running_hub(folder, settings=encrypted_settings(folder)) as running:
        address = f"https://localhost:{running.hub.server.port}"
        yield {"TOOLHUB_ENCRYPTED": address, "TOOLHUB_ENCRYPTED_FILES": str(folder)}


def published(proxy: Path, module: str, folder: Path) -> None:
    """The module as a proxy serves it (https://go.dev/ref/mod#goproxy-protocol)."""
    versions = proxy / module / "@v"
    versions.mkdir(parents=True)
    (versions / "list").write_text(f"{VERSION}\n")
    (versions / f"{VERSION}.info").write_text(json.dumps({"Version": VERSION, "Time": "2026-01-01T00:00:00Z"}))
    (versions / f"{VERSION}.mod").write_bytes((folder / "go.mod").read_bytes())
    with zipfile.ZipFile(versions / f"{VERSION}.zip", "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "go.work":
                archive.write(path, f"{module}@{VERSION}/{path.relative_to(folder)}")


@pytest.mark.skipif(os.environ.get("TEST_ACCEPTANCE") != "clients", reason="slow: make acceptance-clients")
@pytest.mark.promise("clients.packages")
def test_program_elsewhere_builds_with_the_published_modules(tmp_path: Path) -> None:
    proxy, program = tmp_path / "proxy", tmp_path / "program"
    for module, folder in MODULES.items():
        published(proxy, module, folder)
    program.mkdir()
    (program / "main.go").write_text(PROGRAM)
    requires = "".join(f"\nrequire {module} {VERSION}\n" for module in MODULES)
    (program / "go.mod").write_text(f"module example.com/agent\n\ngo 1.25.0\n{requires}")
    downloaded = go("env", "GOMODCACHE", cwd=program).stdout.strip()
    env = {
        "GOFLAGS": "-mod=mod -modcacherw",
        "GOPROXY": f"file://{proxy},file://{downloaded}/cache/download",
        "GONOSUMDB": "*",
        "GOMODCACHE": str(tmp_path / "cache"),
    }
    built = go("build", "-o", str(tmp_path / "agent"), ".", cwd=program, **env)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run((tmp_path / "agent",), capture_output=True, text=True, check=True)
    assert ran.stdout == "hub.example.com:50051 <nil>\n"
