"""The report of `toolhub doctor` on the MCP endpoint, which it calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.mcp_server.mcp_hub import McpHub, mcp_hub
from toolhub_service.app.doctor import Finding, State
from toolhub_service.app.doctor.configuration import settings_checks


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[McpHub]:
    async with mcp_hub(tmp_path, settings={"auth": {"modes": ["insecure-local", "api-key"]}}) as opened:
        yield opened


async def findings(hub: McpHub, listen: str, workers: int = 1, **mcp: Any) -> dict[str, Finding]:
    settings = hub.grpc.hub.settings
    chosen = msgspec.structs.replace(settings.server.mcp, listen=listen, **mcp)
    server = msgspec.structs.replace(settings.server, mcp=chosen, workers=workers)
    found = await settings_checks(msgspec.structs.replace(settings, server=server))
    return {finding.name: finding for finding in found if finding.name.startswith("mcp")}


async def test_a_serving_hub_is_asked_in_both_versions_and_another_program_is_refused(hub: McpHub) -> None:
    listen = hub.url.removeprefix("http://").removesuffix("/mcp")
    found = await findings(hub, listen)
    assert found["mcp port"].text == f"{listen}: a hub serves there"
    assert found["mcp"].state is State.OK
    assert found["mcp"].text.startswith(f"http://{listen}/mcp speaks 2026-07-28 and 2025-11-25, and lists ")
    assert set(found) == {"mcp port", "mcp"}
    grpc = hub.grpc.address
    found = await findings(hub, f"127.0.0.1:{grpc.rpartition(':')[2]}")
    assert found["mcp port"].state is State.WARN


async def test_hosts_and_origins_that_match_nothing_and_workers_without_sessions_are_reported(hub: McpHub) -> None:
    mcp = {"allowed_hosts": ("hub.example:8443", "https://hub.example/"), "allowed_origins": ("*", "https://a.example")}
    found = await findings(hub, "127.0.0.1:0", workers=2, **mcp)
    assert "'https://hub.example/'" in found["mcp hosts"].text
    assert "'*'" in found["mcp origins"].text
    assert found["mcp sessions"].state is State.WARN
