"""Clients that people use, each as a program of its own, do of a hub all that it promises, on each way in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

from tests.mcp_server.client_programs import ClientsHub, clients_hub, http, stdio
from tests.mcp_server.mcp_hub import ERAS
from tests.servers import node_program
from toolhub_service.domain.event import EventType

pytestmark = pytest.mark.asyncio(loop_scope="module")
OLD, NEW = ERAS
WRONG = {"Authorization": "Bearer thk_00000000_nothing"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClientsHub]:
    async with clients_hub(tmp_path_factory.mktemp("hub")) as opened:
        yield opened


@pytest.mark.promise("mcpserver.real-clients")
async def test_the_python_sdk_of_the_1x_line(hub: ClientsHub) -> None:
    seen = await hub.see("python_v1.py", [*_both_ways(hub), _embedded(hub)])
    assert await _eras_called(hub, "python-v1 1", seen, {"http": OLD, "stdio": OLD}) == {OLD}
    _found(seen["embedded"])
    _called(seen["embedded"])


@pytest.mark.promise("mcpserver.real-clients")
async def test_the_python_sdk_of_the_2x_line(hub: ClientsHub) -> None:
    seen = await hub.see("python_v2.py", [*_both_ways(hub), *_older(hub)])
    assert await _eras_called(hub, "python-v2 2", seen, {"http": NEW, "stdio": NEW, "older": OLD}) == {NEW, OLD}
    assert seen["refused"]["failed"] == "MCPError: The API key is unknown or was revoked."


@pytest.mark.promise("mcpserver.real-clients")
async def test_the_typescript_sdk_of_the_1x_line(hub: ClientsHub) -> None:
    seen = await hub.see("typescript_v1.mjs", [*_both_ways(hub), _by_mcp_remote(hub), _nobody(hub)])
    assert await _eras_called(hub, "typescript-v1 1", seen, {"http": OLD, "stdio": OLD, "mcp-remote": OLD}) == {OLD}
    assert "No hub answers at http://127.0.0.1:1/mcp. Start it" in seen["nobody"]["failed"]


@pytest.mark.promise("mcpserver.real-clients")
async def test_the_typescript_sdk_of_the_2x_line(hub: ClientsHub) -> None:
    seen = await hub.see("typescript_v2.mjs", [*_both_ways(hub), *_older(hub)])
    assert await _eras_called(hub, "typescript-v2 2", seen, {"http": NEW, "stdio": NEW, "older": OLD}) == {NEW, OLD}
    assert "authorization" in seen["refused"]["failed"]


@pytest.mark.promise("mcpserver.real-clients")
async def test_fastmcps_client(hub: ClientsHub) -> None:
    seen = await hub.see("fastmcp_client.py", [*_both_ways(hub), *_older(hub)])
    eras = {"http": NEW, "stdio": NEW, "older": OLD}  # it has nothing to listen with in the newer one
    assert await _eras_called(hub, "fastmcp 4", seen, eras, notified=(OLD,)) == {NEW, OLD}
    assert seen["refused"]["failed"] == "MCPError: The API key is unknown or was revoked."


@pytest.mark.promise("mcpserver.real-clients")
async def test_langchains_adapter(hub: ClientsHub) -> None:
    over_http, by_program = ({**way, "searches": False} for way in _both_ways(hub))  # a model calls what is listed
    # It opens a session for each call, so it says what its calls share.
    headers = over_http["entry"]["headers"] | {"Toolhub-Request-Id": "thread-1"}
    over_http = {**over_http, "asks": True, "entry": {**over_http["entry"], "headers": headers}}
    seen = await hub.see("langchain_client.py", [over_http, by_program])
    assert await _eras_called(hub, "mcp", seen, {"http": OLD, "stdio": OLD}, notified=(), ends_calls=("http",)) == {OLD}


def _both_ways(hub: ClientsHub) -> list[dict[str, Any]]:
    return [http(hub.entry("--http"), "http"), stdio(hub.entry(), "stdio", hub.home)]


def _older(hub: ClientsHub) -> list[dict[str, Any]]:
    """The other era, and a key that is none."""
    entry = hub.entry("--http")
    return [http(entry, "older", mode="legacy"), http({**entry, "headers": WRONG}, "refused")]


def _by_mcp_remote(hub: ClientsHub) -> dict[str, Any]:
    """A program that lets clients without HTTP use servers over it."""
    entry = hub.entry("--http")
    command, *words = node_program("mcp-remote")
    header = f"Authorization:{entry['headers']['Authorization']}"
    return stdio({"command": command, "args": [*words, entry["url"], "--header", header]}, "mcp-remote", hub.home)


def _nobody(hub: ClientsHub) -> dict[str, Any]:
    """The entry of a client's file whose hub is not running."""
    entry = hub.entry()
    return stdio({**entry, "args": ["mcp", "--url", "http://127.0.0.1:1/mcp"]}, "nobody", hub.home)


def _embedded(hub: ClientsHub) -> dict[str, Any]:
    """A hub of the client's own."""
    entry = {**hub.entry(), "env": {}, "args": ["mcp", "--embedded", "--data-dir", str(hub.home / "own")]}
    return stdio(entry, "embedded", hub.home, is_embedded=True)


async def _eras_called(
    hub: ClientsHub,
    client: str,
    seen: Mapping[str, Any],
    eras: Mapping[str, str],
    *,
    notified: Sequence[str] = ERAS,
    ends_calls: Sequence[str] = ("http", "stdio", "older", "mcp-remote"),
) -> set[str]:
    """Holds what the client saw on each connection to the era that it must have chosen; the eras of the audit log."""
    for name, era in eras.items():
        report = seen[name]
        assert "failed" not in report, report
        assert report["about"]["era"] == era, name
        _found(report)
        _called(report)
        _followed(report)
        _approved(report)
        assert report["cancelled"] == ("cancelled" if name in ends_calls else "released")
        assert report.get("changed") == (True if era in notified else None)
    results = [event.event for event in await hub.hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}))]
    called = [event for event in results if event.labels["mcp_client"].startswith(client)]
    assert {event.principal for event in called} == {"alice"}
    return {event.labels["mcp_era"] for event in called}


def _found(report: Mapping[str, Any]) -> None:
    about = report["about"]
    assert about["serverInfo"]["name"] == "tool-hub"
    assert "APPROVAL_REQUIRED" in about["instructions"]
    assert about["capabilities"]["tools"] == {"listChanged": True}
    assert {"core__fs_readText", "job_start"} <= set(report["tools"])
    search = report.get("search")
    if search is not None:
        assert json.loads(search["text"]) == search["structured"]
        assert search["structured"]["tools"][0]["name"] == "core__fs_readText"


def _called(report: Mapping[str, Any]) -> None:
    written, read = report["written"], report["read"]
    assert not written["isError"], written
    assert json.loads(read["text"]) == read["structured"]
    assert read["structured"]["text"] + ".txt" == written["structured"]["path"]
    wrong, absent = report["wrong"], report.get("absent")
    assert (wrong["isError"], wrong["structured"]) == (True, None)
    assert wrong["text"].startswith("INPUT_SCHEMA_INVALID: ")
    assert "Did you mean `path`?" in wrong["text"]
    if absent is not None:
        assert (absent["isError"], absent["error"]["kind"]) == (True, "TOOL_NOT_FOUND")
        assert "Did you mean core__fs_readText, " in absent["text"]


def _followed(report: Mapping[str, Any]) -> None:
    assert report["worked"]["structured"] == {"done": True}
    assert report["progress"] == [[3, 7, "three"]]
    job, artifact = report["job"], report["artifact"]
    assert not job["started"]["structured"]["is_over"]
    assert (job["status"]["structured"]["state"], job["status"]["structured"]["is_over"]) == ("RUNNING", False)
    assert job["result"]["structured"] == {"done": True}
    assert artifact["call"]["structured"] == {"size": len(artifact["text"])}
    assert artifact["text"].startswith("kept ")


def _approved(report: Mapping[str, Any]) -> None:
    approval = report["approval"]
    refused = approval["refused"]
    assert (refused["isError"], refused["text"].partition(":")[0]) == (True, "APPROVAL_REQUIRED")
    assert "make the same call again" in refused["text"]
    assert not approval["repeated"]["isError"], approval["repeated"]
    if "asked" not in approval:
        return
    assert len(approval["asked"]) == 2  # the first was declined, and the call refused with the approval's id
    assert not approval["granted"]["isError"], approval["granted"]
