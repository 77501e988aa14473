"""Calls of 2026-07-28 without the SDK's kernel, which validates each request three times and each answer once.

For a `tools/call` of a few plain fields there is little to validate: what its client says of itself was validated when
it first came, the rest is checked here. The same middleware and the same handler answer it, and the answer is the same,
byte for byte (`tests/mcp_server/test_exchange.py` compares both ways). Any other call goes to the kernel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CORE_RESULT_TYPES,
    INTERNAL_ERROR,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
)
from mcp_types.methods import serialize_server_result, validate_client_request
from mcp_types.version import LATEST_MODERN_VERSION
from starlette.requests import Request

from toolhub_service.mcp_server.convert_calls import META_PREFIX, Context
from toolhub_service.schema import canonical_json

METHOD: Final = "tools/call"
_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_RESULT: Final = frozenset({"content", "structuredContent", "isError", "resultType", "_meta"})
_TEXT: Final = frozenset({"type", "text"})
_LIFESPAN: Final[dict[str, Any]] = {}
_CLIENTS_MAX: Final = 1_000
_CLIENT_MAX_BYTES: Final = 4_096


class PlainCalls:
    def __init__(self, server: Server[Any]) -> None:
        self._server = server
        self._info = server.server_info_stamp
        self._clients: OrderedDict[bytes, Connection] = OrderedDict()
        """By what clients say of themselves: what the SDK makes of it. Nothing in it belongs to a request."""

    def connection_of(self, params: Mapping[str, Any]) -> Connection | None:
        """Return the client of a call that can be answered here; None when it is for the kernel."""
        if not params.keys() <= _PARAMS or type(params["name"]) is not str:
            return None
        if type(params.get("arguments", _LIFESPAN)) is not dict or "progress_token" in params["_meta"]:
            return None
        meta = params["_meta"]
        try:
            said = canonical_json.dumps([meta.get(CLIENT_INFO_META_KEY), meta[CLIENT_CAPABILITIES_META_KEY]])
        except canonical_json.NotJson:  # nested too deeply
            return None
        known = self._clients.get(said)
        return known if known is not None else self._add(said, params)

    def _add(self, said: bytes, params: Mapping[str, Any]) -> Connection | None:
        try:
            validate_client_request(METHOD, LATEST_MODERN_VERSION, params)
        except ValueError:  # the kernel says what is wrong
            return None
        meta = params["_meta"]
        connection = Connection.from_envelope(
            LATEST_MODERN_VERSION, meta.get(CLIENT_INFO_META_KEY), meta[CLIENT_CAPABILITIES_META_KEY]
        )
        if len(said) <= _CLIENT_MAX_BYTES:
            self._clients[said] = connection
            if len(self._clients) > _CLIENTS_MAX:
                self._clients.popitem(last=False)
        return connection

    async def answer(
        self, connection: Connection, outbound: Any, params: Mapping[str, Any], request: Request
    ) -> dict[str, Any]:
        """Return the result. Raises what the handlers raise."""
        meta = params["_meta"]
        context: Context = ServerRequestContext(
            session=ServerSession(outbound, connection, request_meta=meta),
            lifespan_context=_LIFESPAN,
            protocol_version=LATEST_MODERN_VERSION,
            method=METHOD,
            params=params,
            request_id=outbound.request_id,
            meta=meta,
            request=request,
        )
        call_next: CallNext = self._call
        for middleware in reversed(self._server.middleware):
            call_next = partial(_pass_through, middleware, call_next)
        result = await call_next(context)
        assert isinstance(result, dict)
        return result

    async def _call(self, context: Context) -> HandlerResult:
        handler = self._server.get_request_handler(METHOD)
        assert handler is not None
        assert context.params is not None
        params = CallToolRequestParams(name=context.params["name"], arguments=context.params.get("arguments"))
        result = await handler.handler(context, params)
        assert isinstance(result, dict)
        shaped = result if result.get("resultType") not in CORE_RESULT_TYPES else _in_order(result) or _sieved(result)
        meta = shaped.get("_meta")
        if isinstance(meta, dict) and meta.get(SERVER_INFO_META_KEY) is None:
            return {**shaped, "_meta": {**meta, SERVER_INFO_META_KEY: self._info}}
        return shaped if meta is not None else {**shaped, "_meta": {SERVER_INFO_META_KEY: self._info}}


async def _pass_through(middleware: Any, call_next: CallNext, context: Context) -> HandlerResult:
    answer: HandlerResult = await middleware(context, call_next)
    return answer


def _in_order(result: dict[str, Any]) -> dict[str, Any] | None:
    """Return a result of the hub's own texts as the SDK would write it; None: it has more than that."""
    meta = result.get("_meta", _LIFESPAN)
    if result["resultType"] != "complete" or not result.keys() <= _RESULT:
        return None
    if any(block.keys() != _TEXT or block["type"] != "text" for block in result["content"]):
        return None
    if any(value is None or not name.startswith(META_PREFIX) for name, value in meta.items()):
        return None
    content = [{"text": block["text"], "type": "text"} for block in result["content"]]
    ordered: dict[str, Any] = {"_meta": meta} if meta else {}
    ordered |= {"content": content, "isError": result["isError"], "resultType": "complete"}
    if result.get("structuredContent") is not None:
        ordered["structuredContent"] = result["structuredContent"]
    return ordered


def _sieved(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with blocks of another server, or a question, as the SDK validates and writes it."""
    try:
        return serialize_server_result(METHOD, LATEST_MODERN_VERSION, result)
    except ValueError as wrong:
        raise MCPError(INTERNAL_ERROR, "Handler returned an invalid result") from wrong
