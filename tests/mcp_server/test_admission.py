"""Who comes in at the MCP endpoint, and how much: credentials, roles, sessions, Host, Origin, sizes, times, numbers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.mcp_server.mcp_hub import ERAS, McpHub, mcp_hub
from toolhub_service.app.config_files.key_file import KeyFile
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.call import Principal
from toolhub_service.domain.event import EventFilter, EventType
from toolhub_service.mcp_server.http.admission import AdmissionTerms
from toolhub_service.mcp_server.http.serving import HttpTerms, serve

POLICY = """
extends: none
grants:
  - {principals: [alice, bob], capabilities: [read:fs]}
roles:
  - {principals: [alice, bob], roles: [agent]}
  - {principals: [auditor], roles: [auditor]}
"""
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}


def newer(method: str) -> dict[str, Any]:
    """A request of 2026-07-28."""
    meta = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    params = {"_meta": {f"io.modelcontextprotocol/{name}": value for name, value in meta.items()}}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def newer_headers(method: str, session_id: str) -> dict[str, str]:
    return {"mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-session-id": session_id}


@asynccontextmanager
async def keyed_hub(home: Path, **mcp: Any) -> AsyncIterator[tuple[McpHub, dict[str, str]]]:
    async with mcp_hub(home, policy=POLICY, settings={"auth": {"modes": ["api-key"]}}, **mcp) as hub:
        file = KeyFile(Paths(hub.grpc.hub.settings).api_keys)
        keys = {name: file.create(name) for name in ("alice", "bob", "auditor", "nobody")}
        hub.grpc.hub.keys.replace(file.read())
        yield hub, keys


@pytest.mark.promise("mcpserver.same-credentials")
async def test_a_key_and_the_role_of_agents_open_the_door_and_refusals_are_on_record(tmp_path: Path) -> None:
    async with keyed_hub(tmp_path) as (hub, keys), httpx2.AsyncClient(headers=HEADERS) as http:
        for era in ERAS:
            async with hub.client(era, keys["alice"]) as client:
                assert not (await client.call_tool("core__util_time_now", {})).is_error
        refusals = {
            "": (401, 'Bearer realm="tool-hub"'),
            "Bearer thk_00000000_nothing": (401, 'Bearer realm="tool-hub", error="invalid_token"'),
            "Basic YTpi": (401, 'Bearer realm="tool-hub", error="invalid_token"'),
            f"Bearer {keys['auditor']}": (403, None),
            f"Bearer {keys['nobody']}": (403, None),
        }
        for credential, (status, challenge) in refusals.items():
            headers = {"authorization": credential} if credential else {}
            for method in ("POST", "GET", "DELETE"):
                answer = await http.request(method, hub.url, headers=headers, json=PING if method == "POST" else None)
                assert (answer.status_code, answer.headers.get("www-authenticate")) == (status, challenge), credential
                assert answer.json()["error"]["message"]
        hub.grpc.hub.access.flush()
        events = await hub.grpc.hub.audit.read(_where(EventType.AUTH_FAILED), after=None, limit=100)
        assert events
        assert {event.event.attributes["method"] for event in events} <= {"POST /mcp", "GET /mcp", "DELETE /mcp"}


@pytest.mark.promise("mcpserver.same-credentials")
async def test_a_session_is_its_principals_alone_and_a_revoked_key_ends_it(tmp_path: Path) -> None:
    async with keyed_hub(tmp_path) as (hub, keys), httpx2.AsyncClient(headers=HEADERS) as http:
        as_alice, as_bob = ({"authorization": f"Bearer {keys[name]}"} for name in ("alice", "bob"))
        opened = await http.post(hub.url, json=INITIALIZE, headers=as_alice)
        session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        assert (await http.post(hub.url, json=PING, headers={**as_alice, **session})).status_code == 200
        for method in ("POST", "GET", "DELETE"):
            body = PING if method == "POST" else None
            answer = await http.request(method, hub.url, json=body, headers={**as_bob, **session})
            assert answer.status_code == 404, method
        assert (await http.post(hub.url, json=PING, headers={**as_alice, **session})).status_code == 200
        hub.grpc.hub.keys.replace({})
        assert (await http.post(hub.url, json=PING, headers={**as_alice, **session})).status_code == 401


@pytest.mark.promise("mcpserver.same-credentials")
async def test_a_listener_gets_nothing_more_once_its_key_is_revoked(tmp_path: Path) -> None:
    asked = newer("subscriptions/listen")
    asked["params"]["notifications"] = {"toolsListChanged": True}
    notices: list[str] = []
    async with keyed_hub(tmp_path) as (hub, keys), httpx2.AsyncClient(headers=HEADERS, timeout=60.0) as http:
        sent = {**newer_headers("subscriptions/listen", ""), "authorization": f"Bearer {keys['alice']}"}
        async with http.stream("POST", hub.url, json=asked, headers=sent) as stream:
            assert stream.status_code == 200, await stream.aread()
            async for line in stream.aiter_lines():
                notices.append(line)
                if "list_changed" in line:
                    hub.grpc.hub.keys.replace({})
                if line.startswith("data"):  # it is open, or has sent the change before
                    hub.grpc.hub.policy.replace(f"{POLICY}# {len(notices)}")
    assert sum("list_changed" in line for line in notices) == 1, notices


@pytest.mark.promise("mcpserver.admission")
async def test_hosts_origins_paths_methods_and_bodies_are_checked_before_anything_else(tmp_path: Path) -> None:
    terms: dict[str, Any] = {
        "allowed_hosts": ["hub.example"],
        "allowed_origins": ["https://app.example"],
        "max_body_bytes": 2_000,
    }
    async with mcp_hub(tmp_path, **terms) as hub, httpx2.AsyncClient(headers=HEADERS) as http:
        cases: list[tuple[int, dict[str, str]]] = [
            (421, {"host": "evil.example"}),
            (421, {"host": "127.0.0.1.evil.example:50052"}),
            (421, {"host": "localhost@evil.example"}),
            (403, {"origin": "http://evil.example"}),
            (403, {"origin": "http://localhost.evil.example"}),
            (403, {"origin": "null"}),
            (403, {"origin": "http://[::1"}),
            (200, {"host": "hub.example:443"}),
            (200, {"host": "localhost"}),
            (200, {"host": "LOCALHOST:1"}),
            (200, {"origin": "http://localhost:6274"}),
            (200, {"origin": "https://app.example"}),
        ]
        for status, headers in cases:
            answer = await http.post(hub.url, json=INITIALIZE, headers=headers)
            assert answer.status_code == status, (headers, answer.text)
        base = hub.url.removesuffix("/mcp")
        assert (await http.get(f"{base}/healthz")).text == "ok\n"
        assert (await http.post(f"{base}/mcp/", json=INITIALIZE)).status_code == 200
        assert [(await http.post(base + path)).status_code for path in ("/", "/mcp/x", "/mcpx", "//mcp")] == [404] * 4
        page = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        for address, status in ((base, 404), (hub.url, 406)):
            shown = await http.get(address, headers=page)
            assert (shown.status_code, "`toolhub mcp config`" in shown.text) == (status, True)
        assert [(await http.request(verb, hub.url)).status_code for verb in ("PUT", "OPTIONS", "TRACE")] == [405] * 3
        bodies: list[tuple[int, bytes | AsyncIterator[bytes]]] = [
            (413, b" " * 2_001),
            (413, _chunks(3, 1_000)),
            (400, b"{"),
            (400, b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}'),
            (400, b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}'),
            (400, b"[" * 900 + b"]" * 900),
        ]
        for status, body in bodies:
            answer = await http.post(hub.url, content=body)
            assert answer.status_code == status, answer.text
        assert (await http.post(hub.url, json=INITIALIZE)).status_code == 200


@pytest.mark.promise("mcpserver.admission")
async def test_connections_heads_bodies_and_sessions_are_bounded(tmp_path: Path) -> None:
    async with mcp_hub(tmp_path) as hub:
        admission = AdmissionTerms(is_local=True, body_s=0.2, max_requests=4, max_streams=4, max_sessions=4)
        terms = HttpTerms(admission=admission, max_connections=3, head_s=0.2)
        bound = socket.create_server(("127.0.0.1", 0))
        port = bound.getsockname()[1]

        async def who(headers: Any, *_: str) -> Principal:
            return Principal(dict(headers).get("x-who", "a"))

        server = await serve(hub.grpc.hub.mcp.engine, who, terms, bound)
        url = f"http://127.0.0.1:{port}/mcp"
        try:
            async with httpx2.AsyncClient(headers=HEADERS) as http:
                opened = [await http.post(url, json=INITIALIZE) for _ in range(3)]
                assert [answer.status_code for answer in opened] == [200, 200, 503]
                assert (await http.post(url, json=INITIALIZE, headers={"x-who": "b"})).status_code == 200
                session = {"mcp-session-id": opened[0].headers["mcp-session-id"]}
                assert (await http.delete(url, headers=session)).status_code == 200
                assert (await http.post(url, json=INITIALIZE)).status_code == 200
                # In the newer protocol there are no sessions: ids that are named there open none, and end none.
                for named in ("made-up-1", "made-up-2", opened[1].headers["mcp-session-id"]):
                    for method, status in (("tools/list", 200), ("nothing/here", 404)):
                        answer = await http.post(url, json=newer(method), headers=newer_headers(method, named))
                        assert answer.status_code == status, answer.text
                        assert server.open_now() == (3, 0)
            head = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
            assert await _answer(port, head.encode()) == b""  # cut off: the head does not end
            slow = await _answer(port, head.encode() + b"content-length: 10\r\n\r\n{")
            assert slow.startswith(b"HTTP/1.1 408 ")
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            health = f"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode()
            # One too many takes the place of one that asks for nothing.
            assert (await _answer(port, health)).endswith(b"ok\n")
            assert await held[0][0].read() == b""
            for _, writer in held:
                writer.close()
        finally:
            await server.close(1.0)


async def _chunks(count: int, size_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b" " * size_bytes


async def _answer(port: int, sent: bytes) -> bytes:
    """All that comes until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def _where(*types: EventType) -> Any:
    return EventFilter(types=frozenset(types))
