"""Why a server is not connected, in a sentence for operators and models: no exception text, no secret."""

from __future__ import annotations

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, UNSUPPORTED_PROTOCOL_VERSION
from pydantic import ValidationError

from toolhub_service.adapters.mcp.breakage import breakage_of


class NotConnected(Exception):
    """A connection could not be made; `reason` is fit for models."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def reason_of(error: BaseException) -> str:
    """Of an exception that left the SDK's client; a group counts as its first leaf."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, NotConnected):
        return error.reason
    if isinstance(error, MCPError):
        return _of_protocol(error)
    if isinstance(error, ValidationError):
        return "Its answer to the handshake is not MCP."
    if isinstance(error, RuntimeError):
        return "It speaks no version of the protocol that the hub speaks."
    return "The connection broke."


def _of_protocol(error: MCPError) -> str:
    if (breakage := breakage_of(error)) is not None:
        return breakage.value
    if error.code == CONNECTION_CLOSED:
        return "It closed the connection during the handshake."
    if error.code == UNSUPPORTED_PROTOCOL_VERSION:
        return "It speaks no version of the protocol that the hub speaks."
    return f"It refused the handshake (JSON-RPC error {error.code})."
