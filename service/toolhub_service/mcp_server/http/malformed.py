"""Finds requests that are not messages of the protocol, by their body or headers.

They are refused with a plain text before the SDK reads them, which would quote its parser.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from mcp_types import INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from toolhub_service.domain.json import JsonObject, JsonValue

_VERSION_HEADER: Final = b"mcp-protocol-version"
_SHOWN_CHARS: Final = 80


class Malformed(NamedTuple):
    status: int
    message: str
    code: int = INVALID_REQUEST
    data: JsonObject | None = None


def find_malformed(headers: Iterable[tuple[bytes, bytes]], body: JsonValue) -> Malformed | None:
    """Return why the body of a POST cannot be a message; None when it can."""
    sent = {name: value.decode("latin-1")[:_SHOWN_CHARS] for name, value in headers}
    kind = sent.get(b"content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        return Malformed(415, f"Send `Content-Type: application/json`, not {kind!r}." if kind else _NO_TYPE)
    if isinstance(body, list):
        return Malformed(400, "Batches are no part of MCP since 2025-06-18: send each message in a request of its own.")
    if not isinstance(body, dict) or body.get("jsonrpc") != "2.0" or body.keys().isdisjoint(_PARTS):
        return Malformed(400, 'This is no JSON-RPC message: send an object with `"jsonrpc": "2.0"` and `method`.')
    version = sent.get(_VERSION_HEADER)
    if version is None or version in KNOWN_PROTOCOL_VERSIONS or _has_envelope(body):
        return None
    message = f"This hub does not speak version {version!r} of MCP, which the header MCP-Protocol-Version names."
    data: JsonObject = {"supported": list(KNOWN_PROTOCOL_VERSIONS), "requested": version}
    return Malformed(400, message, UNSUPPORTED_PROTOCOL_VERSION, data)


_NO_TYPE: Final = "Send `Content-Type: application/json`."
_PARTS: Final = frozenset({"method", "result", "error"})


def _has_envelope(body: JsonObject) -> bool:
    """Return whether the message itself names its version (2026-07-28), which the SDK then compares."""
    params = body.get("params")
    return isinstance(params, dict) and isinstance(params.get("_meta"), dict)
