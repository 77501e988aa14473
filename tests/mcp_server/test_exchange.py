"""The short way of 2026-07-28 beside the SDK's own: every answer is the same, and calls end with their clients."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.server.runner import serve_one

from tests.mcp_server.mcp_hub import HeldTool, McpHub, mcp_hub
from toolhub_service.domain.call import Principal
from toolhub_service.domain.event import EventType
from toolhub_service.domain.tool import Annotations
from toolhub_service.mcp_server.http import exchange as short_way
from toolhub_service.mcp_server.http import serving
from toolhub_service.mcp_server.http.admission import AdmissionTerms
from toolhub_service.mcp_server.http.exchange import Exchange
from toolhub_service.mcp_server.http.malformed import find_malformed
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
rules:
  - {id: asked, tools: [core/util.hash.text], effect: REQUIRE_APPROVAL, reason: "A person looks at it."}
  - {id: never, tools: [core/util.time.now], effect: DENY, reason: "Not today."}
"""
ERA = "2026-07-28"
META = "io.modelcontextprotocol/"
ENVELOPE: Mapping[str, Any] = {
    META + "protocolVersion": ERA,
    META + "clientInfo": {"name": "raw", "version": "1"},
    META + "clientCapabilities": {},
}
ECHO, ASKED = "held__echo_any", "core__util_hash_text"
# What no two answers share: ids of calls and approvals, sealed state.
_OWN = re.compile(rb"call_\w+|apr_\w+|v1\.[\w-]{40,}")


class Echo(Tool["Echo.In", "Echo.Out"]):
    """Gives back what it is given."""

    name = "held/echo.any"
    description = "Give back the value."
    annotations = Annotations(read_only=True)

    class In(ToolInput, frozen=True):
        value: Any = None

    class Out(ToolOutput, frozen=True):
        value: Any
        nothing: None = None

    async def run(self, args: In, context: ToolContext) -> Out:
        return self.Out(value=args.value)


def call(name: Any = ECHO, arguments: Any = ..., meta: Any = ENVELOPE, **params: Any) -> dict[str, Any]:
    sent = {"name": name, "_meta": meta, **params} | ({} if arguments is ... else {"arguments": arguments})
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": sent}


def asked(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "a", "method": method, "params": {"_meta": ENVELOPE, **params}}


def with_meta(**more: Any) -> dict[str, Any]:
    return {**ENVELOPE, **{name.replace("__", "/"): value for name, value in more.items()}}


VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.0, 0.1, 1e300, 2**53 + 1, 2**70, "", "ü€😀\u2028\u0000", "</script>"),
    *([], {}, [None], {"a": None, "b": [{"c": None}]}, {"$artifact": "none"}, [[[[1]]]], "x" * 40_000),
)
CALLS: tuple[dict[str, Any], ...] = (
    call(),
    *(call(arguments={"value": value}) for value in VALUES),
    *({**call(), "id": each} for each in (0, -7, 2**60, "", "ü", "a b")),
    call(arguments={}),
    call(arguments={"wrong": 1}),
    call("held/echo.any"),
    call("core__util_time_now"),
    call("nothing"),
    call("n" * 300),
    call(""),
    call("job_start", {"tool": "nothing"}),
    call("search_tools", {}),
    call(ASKED, {"text": "a", "algorithm": "sha256"}),
    call(ASKED, {"text": "b"}, with_meta(**{META + "clientCapabilities": {"elicitation": {}}})),
    call(ASKED, {"text": "c"}, with_meta(**{META + "clientCapabilities": {"elicitation": {"url": {}}}})),
    call(meta=with_meta(**{META + "clientInfo": None})),
    call(meta=with_meta(**{META + "clientInfo": {"name": "n" * 500, "version": "\u0007", "title": "t"}})),
    call(meta=with_meta(**{META + "clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}})),
    call(meta=with_meta(traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01", toolhub__purpose="why")),
    call(meta=with_meta(toolhub__request_id="r1", toolhub__session_id="s", vendor__thing={"a": [1]})),
    call(meta=with_meta(toolhub__idempotency_key=7)),
    call(meta=with_meta(**{META + "clientCapabilities": {"experimental": {"a": {"b": 2**70, "c": 1e300}}}})),
)
OF_KERNEL: tuple[dict[str, Any], ...] = (
    call(arguments=None),
    call(arguments=[]),
    call(arguments=[1]),
    call(arguments="text"),
    call(unknown={"a": 1}),
    call(inputResponses={"approval": {"action": "accept"}}),
    call(inputResponses=7),
    call(requestState="v1.forged"),
    call(requestState=7),
    call(task={"ttl": 1}),
    call(meta=with_meta(**{META + "clientInfo": {"name": "no version"}})),
    call(meta=with_meta(**{META + "clientInfo": "wrong"})),
    call(meta=with_meta(**{META + "clientCapabilities": None})),
    call(meta=with_meta(**{META + "clientCapabilities": 1})),
    call(meta=with_meta(toolhub__idempotency_key=7, progress_token=1)),
    *(asked(method) for method in ("tools/list", "server/discover", "resources/list", "resources/templates/list")),
    asked("tools/list", cursor="core/fs"),
    asked("tools/list", cursor=7),
    *(asked(method) for method in ("ping", "initialize", "no/such", "tasks/get", "completion/complete")),
    asked("resources/read", uri="toolhub://artifacts/none"),
)
_WRONG_IDS: tuple[Any, ...] = (None, True, 1.0, 1.5, [1], {})
OTHER: tuple[Any, ...] = (
    *({**call(), "id": each} for each in _WRONG_IDS),
    {name: value for name, value in call().items() if name != "id"},
    {name: value for name, value in call().items() if name != "jsonrpc"},
    {name: value for name, value in call().items() if name != "params"},
    {**call(), "jsonrpc": "1.0"},
    {**call(), "more": 1},
    {**call(), "method": 7},
    {**call(), "params": []},
    [call()],
    *([], 7, "text", None, True, {}),
    call(7),
    call(None),
    call(" padded "),
    call("naïve"),
    call("=?base64?eA==?="),
    call(meta=None),
    call(meta=[]),
    call(meta={}),
    call(meta={META + "protocolVersion": ERA}),
    call(meta=with_meta(**{META + "protocolVersion": "2025-11-25"})),
    call(meta=with_meta(**{META + "protocolVersion": 7})),
    call(meta=with_meta(progressToken="p")),
    call(meta=with_meta(progressToken=[])),
    call(meta=with_meta(**{META + "logLevel": "loud"})),
    asked("subscriptions/listen", notifications=7),
)
HEADERS: Mapping[str, str] = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": ERA,
    "mcp-method": "tools/call",
    "mcp-name": ECHO,
}
WRONG_HEADERS: tuple[tuple[str, str | None], ...] = (
    *itertools.product(HEADERS, (None, "", "text/plain", "2025-11-25x", "tools/list")),
    *(("accept", each) for each in ("*/*", "application/json", "text/event-stream", "application/*, text/*;q=0")),
    ("content-type", "Application/JSON; charset=utf-8"),
    ("mcp-protocol-version", "2027-01-01"),
    ("mcp-name", "=?base64?aGVsZF9fZWNob19hbnk=?="),
    ("mcp-name", "=?base64?wrong?="),
    *((name, value) for name, value in (("mcp-session-id", "s"), ("mcp-param-a", "1"), ("connection", "close"))),
)


@asynccontextmanager
async def served(hub: McpHub, exchange: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a further endpoint of the hub, with something else in the place of the short way."""
    monkeypatch.setattr(serving, "Exchange", exchange)
    bound = socket.create_server(("127.0.0.1", 0))
    admission = AdmissionTerms(is_local=True)

    async def everybody(*_: Any) -> Principal:
        return Principal("local")

    server = await serving.serve(hub.grpc.hub.mcp.engine, everybody, serving.HttpTerms(admission), bound)
    try:
        yield int(bound.getsockname()[1])
    finally:
        await server.close(1.0)


def posted(body: Any, *changed: tuple[str, str | None], twice: str = "") -> bytes:
    """A request, with headers that fit what is asked unless they are changed, or left out by None."""
    headers: dict[str, str | None] = dict(HEADERS)
    if isinstance(body, dict) and isinstance(body.get("params"), dict):
        headers["mcp-method"] = str(body.get("method"))
        named = body["params"].get("uri" if body.get("method") == "resources/read" else "name", "")
        headers["mcp-name"] = str(named).encode().decode("latin-1")
    headers.update(changed)
    data = json.dumps(body).encode()
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    if twice:
        lines.append(f"{twice}: {headers[twice]}")
    head = "\r\n".join(["POST /mcp HTTP/1.1", "host: 127.0.0.1", *lines, f"content-length: {len(data)}"])
    return head.encode("latin-1") + b"\r\n\r\n" + data


async def answer(port: int, request: bytes) -> bytes:
    """Head and body of a whole answer, without what no two answers share."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            if b"chunked" in head:
                body = await reader.readuntil(b"0\r\n\r\n") if b" 202 " not in head else b""
    finally:
        writer.close()
    return _OWN.sub(b"own", re.sub(rb"(?m)^(date|content-length|mcp-session-id): .*$", b"", head) + body)


@pytest.mark.promise("mcpserver.short-way")
async def test_each_answer_is_byte_for_byte_that_of_the_sdks_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_on: list[int] = []
    of_kernel: list[Any] = []

    async def counted_kernel(server: Any, outbound: Any, method: str, params: Any, **more: Any) -> dict[str, Any]:
        of_kernel.append(params)
        return await serve_one(server, outbound, method, params, **more)

    monkeypatch.setattr(short_way, "serve_one", counted_kernel)

    def counted(server: Any, inner: Any) -> Exchange:
        async def app(*args: Any) -> None:
            passed_on.append(1)
            await inner(*args)

        return Exchange(server, app)

    async with (
        mcp_hub(tmp_path, policy=POLICY, tools=[Echo()]) as hub,
        served(hub, counted, monkeypatch) as short,
        served(hub, lambda _, inner: inner, monkeypatch) as whole,
    ):

        async def compared(request: bytes) -> bool:
            """Whether the short way took it. Both answers are the same."""
            before = len(passed_on)
            ours, theirs = await answer(short, request), await answer(whole, request)
            assert ours == theirs, request
            return len(passed_on) == before

        assert [body for body in CALLS if not await compared(posted(body))] == []
        assert of_kernel == []
        assert [body for body in OF_KERNEL if not await compared(posted(body))] == []
        assert of_kernel == [body["params"] for body in OF_KERNEL]
        # What is no message at all is refused before either way.
        is_json = [(b"content-type", b"application/json")]
        refused = [body for body in OTHER if find_malformed(is_json, body) is not None]
        assert [body for body in OTHER if await compared(posted(body))] == refused
        for changed in WRONG_HEADERS:
            await compared(posted(call(arguments={"value": 1}), changed))
        for twice in HEADERS:
            assert not await compared(posted(call(), twice=twice))
        assert not await compared(posted(call()).replace(b"POST", b"GET", 1))


@pytest.mark.promise("mcpserver.short-way")
async def test_a_client_that_goes_ends_its_call_and_one_that_waits_is_kept_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = HeldTool()
    async with (
        mcp_hub(tmp_path, tools=[working]) as hub,
        served(hub, lambda server, inner: Exchange(server, inner, ping_s=0.01), monkeypatch) as port,
    ):
        request = posted(call("held__work_on", {}))
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        await working.begun.wait()
        writer.close()
        async with asyncio.timeout(60):
            await working.ended.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        async with asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"content-type: text/event-stream" in head
            await reader.readuntil(b": ping\r\n\r\n")
            working.go_on.set()
            event = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        message = re.search(rb"event: message\r\ndata: (.*)\r\n", event)
        assert message is not None
        assert json.loads(message[1])["result"]["structuredContent"] == {"done": True}
        events = [event.event for event in await hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}))]
        assert [event.outcome for event in events] == ["CANCELLED", "ok"]
