"""Requests to one server as plain JSON: the SDK's framing, correlation and cancellation, without its result models.

The SDK's typed requests validate a whole answer twice with pydantic: one tool that does not conform to the
specification invalidates its whole page of the list, one invalid content block an otherwise good result, and a large
result is traversed twice on the event loop. The hub validates each part of an answer separately anyway. So the hub
builds the SDK's dispatcher, gives it to the session, and sends requests to it (`Dispatcher.send_raw_request`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict

from mcp import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    REQUEST_TIMEOUT,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolhub_service.adapters.mcp.failures import Breakage, breakage_error
from toolhub_service.adapters.mcp.messages.event_reader import EventReader
from toolhub_service.adapters.mcp.messages.exchanges import Exchanges
from toolhub_service.adapters.mcp.messages.http import Events, HttpRequest, Place, Transport, field_in
from toolhub_service.adapters.mcp.messages.json_rpc import (
    PROGRESS,
    encode_request,
    parse_message,
    report_progress,
    result_of,
)

if TYPE_CHECKING:
    from mcp.shared.dispatcher import CallOptions, Outbound, ProgressFnT
    from mcp_types import ClientCapabilities, Implementation


OnLog = Callable[[str, str, Any], None]  # level, logger, data
_ALWAYS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_LOG: Final = "notifications/message"
_YIELD_EVERY: Final = 32  # events in a row before other tasks run


class Redirected(Exception):
    """The server redirects the request to another URL without having processed it."""


class ShortWay(Protocol):
    """Sends `tools/call` without the SDK's dispatcher and models, as `FastClient` does over HTTP."""

    is_open: bool

    async def send(
        self,
        method: str,
        params: dict[str, Any],
        fields: Mapping[str, str],
        on_progress: ProgressFnT | None = None,
        on_log: OnLog | None = None,
    ) -> dict[str, Any]: ...


class FastClient:
    """Sends `tools/call` to a server of streamable HTTP that speaks 2026-07-28: one POST, no task, no model."""

    # That version has no session: a request is self-contained, its answer is in its own response, and closing the
    # response cancels it (SEP-2575, SEP-2567). The SDK puts two streams, three tasks and a model at each of them around
    # the POST, which cost more than the POST (decision 0035). This client sends exactly the same over the same
    # transport and raises the same errors. Calls share only the transport's pool of connections.

    def __init__(self, transport: Transport, place: Place, fields: Mapping[str, str]) -> None:
        """`fields` are sent with every request."""
        self._transport = transport
        self._place = place
        self._fields = {name.lower(): value for name, value in fields.items()} | _ALWAYS
        self._ids = count(1)
        self.is_open = True

    def close(self) -> None:
        """Let no further call begin."""
        self.is_open = False

    async def send(
        self,
        method: str,
        params: dict[str, Any],
        fields: Mapping[str, str],
        on_progress: ProgressFnT | None = None,
        on_log: OnLog | None = None,
    ) -> dict[str, Any]:
        """Return the `result` member of the answer, not validated. Raises MCPError for an error response or a breakage
        (`breakage_of`), and Redirected when nothing has run: then send it by the SDK."""
        asked = f"hub-{next(self._ids)}"
        content = encode_request(asked, method, params, has_progress=on_progress is not None)
        own = {name.lower(): value for name, value in fields.items()}
        answer = await self._transport.send(HttpRequest("POST", self._place, {**self._fields, **own}, content))
        try:
            media, status = field_in(answer.fields, b"content-type").lower(), answer.status
            if status in {200, 201} and answer.events is not None:
                return await _read_stream(answer.events, asked, on_progress, on_log)
            # From then on the SDK handles a server that redirects: it knows when a redirect may be followed.
            if status in {307, 308}:  # with others a server may have acted before it answered (RFC 9110 §15.4)
                self.is_open = False
                raise Redirected
            return result_of(_response_of_body(status, media, answer.content), asked)
        finally:
            answer.close()


async def _read_stream(
    events: Events, asked: str, on_progress: ProgressFnT | None, on_log: OnLog | None
) -> dict[str, Any]:
    """Return the answer that ends an event stream; progress is passed on, other messages are ignored."""
    seen = count(1)
    async for data in _messages_in(events):
        if next(seen) % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
        message = parse_message(data)
        if "method" not in message:
            return result_of(message, asked)
        if on_progress is not None and message["method"] == PROGRESS:
            await report_progress(message.get("params"), asked, on_progress)
        elif on_log is not None and message["method"] == _LOG and isinstance(line := message.get("params"), dict):
            on_log(str(line.get("level")), str(line.get("logger") or ""), line.get("data"))
    raise breakage_error(Breakage.LOST)


async def _messages_in(events: Events) -> AsyncIterator[bytes]:
    reader = EventReader()
    async for piece in events:
        for data in reader.messages(piece):
            yield data
    for data in reader.last_messages():
        yield data


def _response_of_body(status: int, media: str, content: bytes) -> dict[str, Any]:
    """Return the JSON-RPC response of a body that is not a stream; an invalid one gets the SDK's own error text."""
    is_json = media.startswith("application/json")
    if status >= 400:
        message = _error_in(content) if is_json else None
        if message is not None:
            return message
        if status == 404:
            raise MCPError(METHOD_NOT_FOUND, "Not Found")
        raise MCPError(INTERNAL_ERROR, "Server returned an error response")
    if status == 202:
        raise MCPError(INVALID_REQUEST, "server answered a request with 202 Accepted")
    if not is_json:
        raise MCPError(INVALID_REQUEST, f"Unexpected content type: {media}")
    return parse_message(content)


def _error_in(content: bytes) -> dict[str, Any] | None:
    try:
        message = parse_message(content)
    except MCPError:
        return None
    return message if "error" in message else None


_EXTENSIONS: Final = "extensions"
_WRITE_S: Final = 0.5  # for a request that is not written in time


def is_modern(protocol_version: str) -> bool:
    """Return whether it is 2026-07-28 or later: no sessions, questions by InputRequiredResult."""
    return protocol_version in MODERN_PROTOCOL_VERSIONS


class SendOptions(TypedDict, total=False):
    """Options of a request besides its method and params."""

    timeout_s: float | None
    on_progress: ProgressFnT | None
    headers: Mapping[str, str] | None
    extension: str
    capabilities: Mapping[str, Any] | None
    on_log: OnLog | None


class RequestSender:
    """Sends the requests of one connection."""

    def __init__(
        self,
        dispatcher: Outbound,
        protocol_version: str,
        client: Implementation,
        capabilities: ClientCapabilities,
        fast: ShortWay | None = None,
        exchanges: Exchanges | None = None,
    ) -> None:
        """`capabilities`: what the hub declares. `fast`: sends `tools/call`. `exchanges`:
        those of the HTTP transport beneath."""
        self._dispatcher = dispatcher
        self._version = protocol_version
        self._capabilities = _dump_model(capabilities)
        self._meta = (
            {
                PROTOCOL_VERSION_META_KEY: protocol_version,
                CLIENT_INFO_META_KEY: _dump_model(client),
                CLIENT_CAPABILITIES_META_KEY: self._capabilities,
            }
            if is_modern(protocol_version)
            else {}
        )
        self.fast = fast
        self._exchanges = exchanges

    async def send(
        self,
        method: str,
        params: dict[str, Any],
        *,
        timeout_s: float | None = None,
        on_progress: ProgressFnT | None = None,
        headers: Mapping[str, str] | None = None,
        extension: str = "",
        capabilities: Mapping[str, Any] | None = None,
        on_log: OnLog | None = None,
    ) -> dict[str, Any]:
        """Return the `result` member of the answer, not validated.

        When the caller is cancelled, or after `timeout_s`, the server is told to cancel. `extension` and `capabilities`
        are declared with this request only, and `on_log` requests lines of the server's log (2026-07-28; over HTTP).

        Raises MCPError: an error response, -32001 after `timeout_s`, or a breakage (`breakage_of`).
        """
        fields = {MCP_PROTOCOL_VERSION_HEADER: self._version}
        if self._meta:  # SEP-2575, SEP-2243
            params = {**params, "_meta": {**params.get("_meta", {}), **self._meta_with(extension, capabilities or {})}}
            if on_log is not None:
                params["_meta"][LOG_LEVEL_META_KEY] = "debug"
            fields[MCP_METHOD_HEADER] = method
            name = params.get(NAME_BEARING_METHODS.get(method, ""))
            if isinstance(name, str):
                fields[MCP_NAME_HEADER] = encode_header_value(name)
        fields |= headers or {}
        if self.fast is not None and self.fast.is_open and method == "tools/call":
            with suppress(Redirected):  # nothing was run there; the SDK's client below follows it
                async with _limit_time(method, timeout_s):
                    return await self.fast.send(method, params, fields, on_progress, on_log)
        named: AbstractContextManager[dict[str, str]] = (
            self._exchanges.name_exchange() if self._exchanges else nullcontext({})
        )
        with named as name:
            options: CallOptions = {"headers": {**fields, **name}}
            if on_progress is not None:
                options["on_progress"] = on_progress
            if timeout_s is None:
                return await self._dispatcher.send_raw_request(method, params, options)
            options["timeout"] = timeout_s
            # The SDK's timeout begins only after the request is written, and a program may not read at all.
            async with _limit_time(method, timeout_s + _WRITE_S):
                return await self._dispatcher.send_raw_request(method, params, options)

    def _meta_with(self, extension: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
        if not extension and not capabilities:
            return self._meta
        declared = {**self._capabilities, **capabilities}
        if extension:
            declared[_EXTENSIONS] = {**(self._capabilities.get(_EXTENSIONS) or {}), extension: {}}
        return {**self._meta, CLIENT_CAPABILITIES_META_KEY: declared}


@asynccontextmanager
async def _limit_time(method: str, timeout_s: float | None) -> AsyncIterator[None]:
    """Raises MCPError -32001 after this time."""
    try:
        async with asyncio.timeout(timeout_s) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise MCPError(REQUEST_TIMEOUT, f"Request {method!r} timed out") from None


def _dump_model(model: Implementation | ClientCapabilities) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
