"""Clients that people use, each as a program of its own, do of a hub all that it promises, on each way in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

from tests.mcp_server.client_programs import ClientsHub, clients_hub, http, stdio
from tests.mcp_server.mcp_hub import ERAS
from toolhub_service.domain.event import EventType

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.promise("mcpserver.real-clients")]
OLD, NEW = ERAS
WRONG = {"Authorization": "Bearer thk_00000000_nothing"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClientsHub]:
    async with clients_hub(tmp_path_factory.mktemp("hub")) as opened:
        yield opened


async def test_the_python_sdk_of_the_1x_line(hub: ClientsHub) -> None:
    seen = await hub.see("python_v1.py", _both_ways(hub))
    await _holds(hub, "python-v1 1", seen, {"http": OLD, "stdio": OLD})


async def test_the_python_sdk_of_the_2x_line(hub: ClientsHub) -> None:
    seen = await hub.see("python_v2.py", [*_both_ways(hub), *_older(hub)])
    await _holds(hub, "python-v2 2", seen, {"http": NEW, "stdio": NEW, "older": OLD})
    assert seen["refused"]["failed"] == "MCPError: The API key is unknown or was revoked."


async def test_the_typescript_sdk_of_the_1x_line(hub: ClientsHub) -> None:
    seen = await hub.see("typescript_v1.mjs", _both_ways(hub))
    await _holds(hub, "typescript-v1 1", seen, {"http": OLD, "stdio": OLD})


async def test_the_typescript_sdk_of_the_2x_line(hub: ClientsHub) -> None:
    seen = await hub.see("typescript_v2.mjs", [*_both_ways(hub), *_older(hub)])
    await _holds(hub, "typescript-v2 2", seen, {"http": NEW, "stdio": NEW, "older": OLD})
    assert "authorization" in seen["refused"]["failed"]


async def test_fastmcps_client(hub: ClientsHub) -> None:
    seen = await hub.see("fastmcp_client.py", [*_both_ways(hub), *_older(hub)])
    # It has nothing to listen with in the newer era.
    await _holds(hub, "fastmcp 4", seen, {"http": NEW, "stdio": NEW, "older": OLD}, hears=(OLD,))
    assert seen["refused"]["failed"] == "MCPError: The API key is unknown or was revoked."


def _both_ways(hub: ClientsHub) -> list[dict[str, Any]]:
    return [http(hub.entry("--http"), "http"), stdio(hub.entry(), "stdio", hub.home)]


def _older(hub: ClientsHub) -> list[dict[str, Any]]:
    """The other era, and a key that is none."""
    entry = hub.entry("--http")
    return [http(entry, "older", mode="legacy"), http({**entry, "headers": WRONG}, "refused")]


async def _holds(
    hub: ClientsHub, client: str, seen: Mapping[str, Any], eras: Mapping[str, str], hears: Sequence[str] = ERAS
) -> None:
    """What the client saw on each connection, named with the era that it must have chosen; and the audit log's view."""
    for name, era in eras.items():
        report = seen[name]
        assert "failed" not in report, report
        assert report["about"]["era"] == era, name
        _found(report)
        _called(report)
        _followed(report)
        _approved(report)
        assert report.get("changed") == (True if era in hears else None)
    results = [event.event for event in await hub.hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}))]
    called = [event for event in results if event.labels["mcp_client"].startswith(client)]
    assert {event.labels["mcp_era"] for event in called} == set(eras.values())
    assert {event.principal for event in called} == {"alice"}


def _found(report: Mapping[str, Any]) -> None:
    about = report["about"]
    assert about["serverInfo"]["name"] == "tool-hub"
    assert "APPROVAL_REQUIRED" in about["instructions"]
    assert about["capabilities"]["tools"] == {"listChanged": True}
    assert {"core__fs_readText", "held__work_on", "job_start"} <= set(report["tools"])
    search = report["search"]
    assert json.loads(search["text"]) == search["structured"]
    assert search["structured"]["tools"][0]["name"] == "core__fs_readText"


def _called(report: Mapping[str, Any]) -> None:
    written, read = report["written"], report["read"]
    assert not written["isError"], written
    assert json.loads(read["text"]) == read["structured"]
    assert read["structured"]["text"] + ".txt" == written["structured"]["path"]
    wrong, absent = report["wrong"], report["absent"]
    assert (wrong["isError"], wrong["structured"]) == (True, None)
    assert wrong["error"]["kind"] == "INPUT_SCHEMA_INVALID"
    assert "Did you mean `path`?" in wrong["text"]
    assert (absent["isError"], absent["error"]["kind"]) == (True, "TOOL_NOT_FOUND")
    assert report["worked"]["structured"] == {"done": True}
    assert report["progress"] == [[3, 7, "three"]]
    assert report["cancelled"] == "cancelled"


def _followed(report: Mapping[str, Any]) -> None:
    job, artifact = report["job"], report["artifact"]
    assert not job["started"]["structured"]["isOver"]
    assert (job["status"]["structured"]["state"], job["status"]["structured"]["isOver"]) == ("RUNNING", False)
    assert job["result"]["structured"] == {"done": True}
    assert artifact["call"]["structured"] == {"size": len(artifact["text"])}
    assert artifact["text"].startswith("kept ")


def _approved(report: Mapping[str, Any]) -> None:
    approval = report["approval"]
    refused = approval["refused"]
    assert (refused["isError"], refused["error"]["kind"]) == (True, "APPROVAL_REQUIRED")
    assert refused["error"]["details"]["approval_id"] in refused["text"]
    assert not approval["repeated"]["isError"], approval["repeated"]
    assert len(approval["asked"]) == 2  # the first was declined, and the call refused with the approval's id
    assert not approval["granted"]["isError"], approval["granted"]
