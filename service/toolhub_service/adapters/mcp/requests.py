"""Requests to one server as plain JSON: the SDK's framing, correlation and cancellation, without its result models.

The SDK's typed requests validate an answer twice with pydantic, as a whole: one tool that is not to the letter of the
specification loses its whole page of the list, one odd content block loses a result that is otherwise good, and a
large result is walked twice on the event loop. The hub judges each part of an answer by itself anyway. So the hub
builds the SDK's dispatcher, gives it to the session, and sends requests to it (`Dispatcher.send_raw_request`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from mcp import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolhub_service.adapters.mcp.failures import REQUEST_TIMEOUT
from toolhub_service.adapters.mcp.fast_client import FastClient, Redirected

if TYPE_CHECKING:
    from mcp.shared.dispatcher import CallOptions, Outbound, ProgressFnT
    from mcp_types import ClientCapabilities, Implementation

_EXTENSIONS: Final = "extensions"
_WRITE_S: Final = 0.5
"""For a request that is not written in its time."""


def is_modern(protocol_version: str) -> bool:
    """2026-07-28 or later: no sessions, questions by InputRequiredResult."""
    return protocol_version in MODERN_PROTOCOL_VERSIONS


class RequestSender:
    """Of one connection."""

    def __init__(
        self,
        dispatcher: Outbound,
        protocol_version: str,
        client: Implementation,
        capabilities: ClientCapabilities,
        fast: FastClient | None = None,
    ) -> None:
        """`capabilities`: what the hub declares. `fast`: sends `tools/call` to a modern server over HTTP."""
        self._dispatcher = dispatcher
        self._version = protocol_version
        self._capabilities = _plain(capabilities)
        self._meta = (
            {
                PROTOCOL_VERSION_META_KEY: protocol_version,
                CLIENT_INFO_META_KEY: _plain(client),
                CLIENT_CAPABILITIES_META_KEY: self._capabilities,
            }
            if is_modern(protocol_version)
            else {}
        )
        self.fast = fast if self._meta else None

    async def send(
        self,
        method: str,
        params: dict[str, Any],
        *,
        timeout_s: float | None = None,
        on_progress: ProgressFnT | None = None,
        headers: Mapping[str, str] | None = None,
        extension: str = "",
    ) -> dict[str, Any]:
        """The `result` member of the answer: an object, of which nothing has been judged.

        When the caller is cancelled, or after `timeout_s`, the server is told to cancel. `extension` is declared with
        this request alone (2026-07-28).

        Raises:
            MCPError: an error response, -32001 after `timeout_s`, or what broke (`breakage_of`).
        """
        fields = {MCP_PROTOCOL_VERSION_HEADER: self._version}
        if self._meta:  # SEP-2575, SEP-2243
            params = {**params, "_meta": {**params.get("_meta", {}), **self._meta_with(extension)}}
            fields[MCP_METHOD_HEADER] = method
            name = params.get(NAME_BEARING_METHODS.get(method, ""))
            if isinstance(name, str):
                fields[MCP_NAME_HEADER] = encode_header_value(name)
        fields |= headers or {}
        if self.fast is not None and self.fast.is_open and method == "tools/call":
            with suppress(Redirected):
                async with _bounded(method, timeout_s):
                    return await self.fast.send(method, params, fields, on_progress)
        options: CallOptions = {"headers": fields}
        if on_progress is not None:
            options["on_progress"] = on_progress
        if timeout_s is None:
            return await self._dispatcher.send_raw_request(method, params, options)
        options["timeout"] = timeout_s
        # The SDK's timeout does not begin before the request is written, and a program may read nothing.
        async with _bounded(method, timeout_s + _WRITE_S):
            return await self._dispatcher.send_raw_request(method, params, options)

    def _meta_with(self, extension: str) -> dict[str, Any]:
        if not extension:
            return self._meta
        extensions = {**(self._capabilities.get(_EXTENSIONS) or {}), extension: {}}
        return {**self._meta, CLIENT_CAPABILITIES_META_KEY: {**self._capabilities, _EXTENSIONS: extensions}}


@asynccontextmanager
async def _bounded(method: str, timeout_s: float | None) -> AsyncIterator[None]:
    """Raises MCPError -32001 after that time."""
    try:
        async with asyncio.timeout(timeout_s) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise MCPError(REQUEST_TIMEOUT, f"Request {method!r} timed out") from None


def _plain(model: Implementation | ClientCapabilities) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
