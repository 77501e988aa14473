"""The fast path for a request of 2026-07-28: one POST, one answer, without the SDK's HTTP transport.

The SDK's transport makes a stream, two tasks and a dozen models for each request, which is most of what a call costs.
For a request that needs only its answer, this module checks the same headers and runs the same handlers: of plain
calls by `plain_calls.py`, of others by the SDK's own `serve_one`. The answer is the same, byte for byte (a test
compares them). Any other request, and any with an invalid envelope, goes to the SDK.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import anyio
from mcp.server.connection import Connection
from mcp.server.lowlevel.server import Server
from mcp.server.runner import modern_error_data, serve_one
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, NAME_BEARING_METHODS
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    ErrorData,
    JSONRPCError,
)
from mcp_types.version import LATEST_MODERN_VERSION
from starlette.requests import Request

from toolhub_service.mcp_server.caller import PRINCIPAL
from toolhub_service.mcp_server.http.admission import (
    LISTEN_METHOD,
    REQUEST,
    App,
    Message,
    Receive,
    Scope,
    Send,
)
from toolhub_service.mcp_server.plain_calls import METHOD, PlainCalls
from toolhub_service.schema import canonical_json

_LISTEN: Final = LISTEN_METHOD.decode()
_VERSION: Final = LATEST_MODERN_VERSION.encode()
_ENVELOPE: Final = frozenset({"jsonrpc", "id", "method", "params"})
# Of `_meta`: what needs a stream for its answer.
_STREAMED: Final = frozenset({"progressToken", LOG_LEVEL_META_KEY})
_SESSION: Final = b"mcp-session-id"
_PARAM_PREFIX: Final = b"mcp-param-"
_X_HEADER: Final = b'"x-mcp-header"'
_SCHEMAS_MAX: Final = 10_000
_LIFESPAN: Final[dict[str, Any]] = {}
_TRANSPORT: Final = TransportContext(kind="streamable-http", can_send_request=False)
# Most calls have ended before their client's connection is checked.
_WATCH_AFTER_S: Final = 0.05
PING_S: Final = 15.0
"""As the SDK does: an answer that takes longer is a stream, which is kept open for proxies by comments."""
_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]
_write_json: Final = json.JSONEncoder(separators=(",", ":")).encode


class Exchange:
    """ASGI application before the SDK's; requests have been admitted, and are strict JSON."""

    def __init__(self, server: Server[Any], inner: App, ping_s: float = PING_S) -> None:
        self._server = server
        self._inner = inner
        self._ping_s = ping_s
        self._calls = PlainCalls(server)
        self._running: dict[tuple[str, bytes, str], _Running] = {}
        """Running requests of the older protocol, by principal, session and id."""
        self._mirrored: dict[str, tuple[Any, bool]] = {}
        """By a tool's name: its schema, and whether a property of it is sent as a header too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = scope.pop(REQUEST, None)
        if not self._is_plain(scope, body):
            await self._pass_on(body, scope, receive, send)
            return
        method = body["method"]
        params = body["params"]
        request = Request(scope)
        client = _Client(receive, send, self._ping_s)
        try:
            answer = await self._serve_request(body["id"], method, params, request)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Only the cancellation that `_Client` caused ends here; one from outside has to go on.
            if not client.is_gone or (task is not None and task.uncancel()):
                raise
            return
        finally:
            await client.unwatch()
        await client.send(*answer)

    async def _pass_on(self, body: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the SDK.

        Of two requests of one session with one id it would answer one, and leave the other waiting.
        """
        session_id = next((value for name, value in scope["headers"] if name == _SESSION), b"")
        if not session_id or type(body) is not dict or "id" not in body or "method" not in body:
            await self._inner(scope, receive, send)
            return
        key = scope[PRINCIPAL].id, session_id, str(body["id"])
        while (before := self._running.get(key)) is not None:
            if not before.is_answered:
                error = ErrorData(code=INVALID_REQUEST, message="A request with this id still runs. Give each its own.")
                refused = JSONRPCError(jsonrpc="2.0", id=None, error=error).model_dump(mode="json", exclude_unset=True)
                await _send_body(send, 400, _write_json(refused))
                return
            await before.ended.wait()
        running = self._running[key] = _Running(send)
        try:
            await self._inner(scope, receive, running.send)
        finally:
            del self._running[key]
            running.ended.set()

    def _is_plain(self, scope: Scope, body: Any) -> bool:
        """Return whether the fast path answers it. If not, the SDK decides whether it is valid."""
        if type(body) is not dict or body.keys() != _ENVELOPE or body["jsonrpc"] != "2.0":
            return False
        method = body["method"]
        params = body["params"]
        if (
            type(method) is not str
            or method == _LISTEN
            or type(body["id"]) not in (str, int)
            or type(params) is not dict
        ):
            return False
        meta = params.get("_meta")
        if type(meta) is not dict or meta.get(PROTOCOL_VERSION_META_KEY) != LATEST_MODERN_VERSION:
            return False
        if CLIENT_CAPABILITIES_META_KEY not in meta or not _STREAMED.isdisjoint(meta):
            return False
        return _has_headers(scope, method, params) and not self._is_mirrored(method, params)

    def _is_mirrored(self, method: str, params: Mapping[str, Any]) -> bool:
        """Return whether an argument must be in a header, too."""
        lookup = self._server.get_tool_input_schema
        if method != "tools/call" or lookup is None or not params.get("arguments"):
            return False
        name = params["name"]
        schema = lookup(name)
        known = self._mirrored.get(name)
        # By identity: a tool with a new definition is another object.
        if known is not None and known[0] is schema:
            return known[1]
        if schema is None:
            return False
        if len(self._mirrored) >= _SCHEMAS_MAX:
            # Cleared as a whole: it is refilled cheaply, and only needs a bound.
            self._mirrored.clear()
        found = _X_HEADER in canonical_json.dumps(schema)
        self._mirrored[name] = (schema, found)
        return found

    async def _serve_request(
        self, request_id: str | int, method: str, params: dict[str, Any], request: Request
    ) -> tuple[int, str]:
        outbound: Any = _Outbound(request_id, request)
        connection = self._calls.connection_of(params) if method == METHOD else None
        try:
            if connection is not None:
                result = await self._calls.answer(connection, outbound, params, request)
            else:
                meta = params["_meta"]
                connection = Connection.from_envelope(
                    LATEST_MODERN_VERSION, meta.get(CLIENT_INFO_META_KEY), meta[CLIENT_CAPABILITIES_META_KEY]
                )
                result = await serve_one(
                    self._server, outbound, method, params, connection=connection, lifespan_state=_LIFESPAN
                )
        except Exception as failure:  # noqa: BLE001 - the SDK tells which of them is said how
            error = modern_error_data(failure)
            message = JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
            status = ERROR_CODE_HTTP_STATUS.get(error.code, 200)
            return status, _write_json(message.model_dump(mode="json", by_alias=True, exclude_none=True))
        return 200, _write_json({"jsonrpc": "2.0", "id": request_id, "result": result})


def _has_headers(scope: Scope, method: str, params: Mapping[str, Any]) -> bool:
    """Return whether the required headers are there, each once, and agree with the body."""
    sent: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        # A proxy and the hub could read a repeated header differently.
        if name in sent or name.startswith(_PARAM_PREFIX):
            return False
        sent[name] = value
    if sent.get(b"mcp-protocol-version") != _VERSION or sent.get(b"mcp-method") != method.encode():
        return False
    key = NAME_BEARING_METHODS.get(method)
    if key is not None:
        named = params.get(key)
        # Such names are encoded in the header, which the SDK knows how to compare.
        if type(named) is not str or not named.isascii() or named.startswith("=?"):
            return False
        if sent.get(b"mcp-name") != named.encode():
            return False
    if not sent.get(b"content-type", b"").lower().startswith(b"application/json"):
        return False
    accepted = {each.strip() for each in sent.get(b"accept", b"").split(b",")}
    return b"application/json" in accepted and b"text/event-stream" in accepted


class _Running:
    """A request of the older protocol that the SDK answers."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_answered = False
        self.ended = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_answered = True
        await self._send(message)


class _Outbound:
    """The SDK's channel from handlers to the client; a plain request has none."""

    can_send_request = False
    transport = _TRANSPORT

    def __init__(self, request_id: str | int, request: Request) -> None:
        self.request_id = request_id
        self.message_metadata = ServerMessageMetadata(request_context=request)

    @cached_property
    def cancel_requested(self) -> anyio.Event:
        return anyio.Event()

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Any, opts: Any = None) -> None:
        """Only asked for by what `_is_plain` leaves to the SDK."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """The same."""


class _Client:
    """The client's connection, checked while the request is answered, in the same task."""

    def __init__(self, receive: Receive, send: Send, ping_s: float) -> None:
        self.is_gone = False
        self._receive = receive
        self._send = send
        self._ping_s = ping_s
        self._is_streaming = False
        self._answering = asyncio.current_task()
        self._watching: asyncio.Task[None] | None = None
        self._later = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._begin)

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Keep the response stream open when it takes long; a client that disconnects ends the call."""
        leaving = asyncio.create_task(self._wait_for_disconnect())
        try:
            while not (await asyncio.wait({leaving}, timeout=self._ping_s))[0]:
                if not self._is_streaming:
                    self._is_streaming = True
                    await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                await self._send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})
        except OSError:
            pass  # it takes nothing: as if it had disconnected
        finally:
            leaving.cancel()
        self.is_gone = True
        assert self._answering is not None
        # The answering task is cancelled, so that the call ends and is recorded as cancelled.
        self._answering.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def unwatch(self) -> None:
        self._later.cancel()
        if self._watching is not None and not self._watching.done():
            self._watching.cancel()
            await asyncio.wait({self._watching})

    async def send(self, status: int, body: str) -> None:
        """The answer, and the end of it."""
        if self._is_streaming:
            event = f"event: message\r\ndata: {body}\r\n\r\n".encode()
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
        else:
            await _send_body(self._send, status, body)


async def _send_body(send: Send, status: int, body: str) -> None:
    data = body.encode()
    headers = [(b"content-length", b"%d" % len(data)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
