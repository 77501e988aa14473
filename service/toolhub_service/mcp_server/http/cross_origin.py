"""Answers to pages of other origins that an operator has allowed: the preflight, and what a page may read (Fetch
Standard, "CORS protocol"). Pages of any other origin get none of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_METHODS: Final = b"POST, GET, DELETE"
_ALLOWED: Final = ("authorization", "content-type", "last-event-id", "toolhub-request-id")
_ALLOWED_PREFIX: Final = "mcp-"
_OF_PROTOCOL: Final = ("mcp-protocol-version", "mcp-session-id", "mcp-method", "mcp-name")
_EXPOSED: Final = b"mcp-session-id, www-authenticate, retry-after"
_KEEP_S: Final = b"600"


def is_preflight(method: str, headers: Sequence[tuple[str, str]]) -> bool:
    return method == "OPTIONS" and any(name == "access-control-request-method" for name, _ in headers)


def preflight_headers(headers: Sequence[tuple[str, str]]) -> Headers:
    """Return what a preflight of an allowed origin is answered, besides `origin_headers`."""
    wanted = ",".join(value for name, value in headers if name == "access-control-request-headers").lower().split(",")
    # The wildcard does not cover `authorization`, and there is none for a prefix: those asked for are named.
    more = (name for name in map(str.strip, wanted) if name.startswith(_ALLOWED_PREFIX) and _is_token(name))
    allowed = ", ".join(dict.fromkeys((*_ALLOWED, *_OF_PROTOCOL, *more)))
    return [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", allowed.encode()),
        (b"access-control-max-age", _KEEP_S),
    ]


def origin_headers(origin: str) -> Headers:
    """Return the headers of each answer. `origin`: an allowed one, as sent; empty: there is none."""
    vary = (b"vary", b"Origin")
    if not origin:
        return [vary]
    return [vary, (b"access-control-allow-origin", origin.encode()), (b"access-control-expose-headers", _EXPOSED)]


def with_headers(send: Send, headers: Headers) -> Send:
    """Return what sends messages with these headers in the answer's head."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return sending


def _is_token(name: str) -> bool:
    return name.isascii() and name.replace("-", "").replace("_", "").isalnum()
