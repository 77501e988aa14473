"""JSON-RPC messages of calls as plain JSON, for the ways that do without the SDK's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from mcp import MCPError
from mcp_types import PARSE_ERROR

from toolhub_service.adapters.upstream import as_number

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

PROGRESS: Final = "notifications/progress"
_decoded: Final = msgspec.json.Decoder().decode  # strict, and exact for integers of any size


def encode_request(asked: int | str, method: str, params: Mapping[str, Any], *, has_progress: bool) -> bytes:
    """`asked`: the id, and the token of its progress."""
    if has_progress:
        params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": asked}}
    message = {"jsonrpc": "2.0", "id": asked, "method": method, "params": params}
    return msgspec.json.encode(message, enc_hook=_thaw)


def _thaw(value: object) -> object:
    """Return a mapping as a dict; arguments may be frozen."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


async def report_progress(params: object, asked: int | str, on_progress: ProgressFnT) -> None:
    if not isinstance(params, dict) or params.get("progressToken") != asked:
        return
    step, total, message = as_number(params.get("progress")), as_number(params.get("total")), params.get("message")
    if step is not None:
        await on_progress(step, total, message if isinstance(message, str) else None)


def parse_message(text: bytes) -> dict[str, Any]:
    """Parse a JSON-RPC message. Raises MCPError -32700."""
    try:
        message = _decoded(text)
    except (ValueError, RecursionError):
        raise _unreadable_error() from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise _unreadable_error()
    return message


def is_response(message: Mapping[str, Any]) -> bool:
    """Return whether it is a response: a result, or an error with code and message."""
    error = message.get("error")
    if message.get("jsonrpc") != "2.0" or ("error" in message) == ("result" in message):
        return False
    if "error" not in message:
        return isinstance(message["result"], dict)
    return isinstance(error, dict) and type(error.get("code")) is int and isinstance(error.get("message"), str)


def result_of(message: Mapping[str, Any], asked: int | str) -> dict[str, Any]:
    """Return the result in a response. An error may have no id when the server could not read the request's. Raises
    MCPError."""
    if is_response(message):
        if "error" in message:
            if message.get("id") in (asked, None):
                error = message["error"]
                raise MCPError(error["code"], error["message"], error.get("data"))
        elif message.get("id") == asked:
            result: dict[str, Any] = message["result"]
            return result
    raise _unreadable_error()


def _unreadable_error() -> MCPError:
    return MCPError(PARSE_ERROR, "Failed to parse JSON response")
