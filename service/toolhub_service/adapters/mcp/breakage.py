"""What broke between the hub and an MCP server, told through the SDK in the shape of a JSON-RPC error.

The transports give errors a mark that no server can know, so `breakage_of` believes no server that imitates one.
"""

from __future__ import annotations

import secrets
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp import MCPError

_MARK = secrets.token_hex(8)
CODE = -32000
"""The SDK's own code for a connection that is closed."""


class Breakage(Enum):
    """The value is the sentence for people."""

    NOT_SENT = "The server could not be reached."
    LOST = "The connection broke before the answer came."
    TOO_LARGE = "The server sent a message larger than the source allows."
    UNDECODABLE = "The server sent what cannot be decoded."
    REFUSED = "The request would have gone to an origin that the source does not name."
    UNAUTHORIZED = "The server or its authorization server refused the hub's credentials."
    NO_SESSION = "The server does not know the session any more."
    BUSY = "The server has no room for the request now (HTTP 429)."
    STATUS = "The server answered with an HTTP error (5xx)."

    @property
    def was_taken(self) -> bool:
        """Whether the server may have begun to work on the request."""
        return self in {Breakage.LOST, Breakage.TOO_LARGE, Breakage.UNDECODABLE, Breakage.STATUS}


def error_of(breakage: Breakage) -> dict[str, Any]:
    """The `error` member of a JSON-RPC error response."""
    return {"code": CODE, "message": breakage.value, "data": {"mark": _MARK, "breakage": breakage.name}}


def breakage_of(error: MCPError) -> Breakage | None:
    """What broke; None when the server itself answered this error, or the SDK made it.

    -32000 without a breakage is a connection that closed under the request: it may have been taken.
    """
    data = error.error.data
    if not isinstance(data, dict) or data.get("mark") != _MARK:
        return None
    return Breakage[data["breakage"]]
