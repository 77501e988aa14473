"""How an exchange can break; `told` turns it into what the caller hears."""

from __future__ import annotations

from enum import Enum

import httpcore
import httpx

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.guards.urls import ParsedUrl

REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods after which a broken exchange may be repeated without asking (RFC 9110 §9.2.1)."""


class Breakage(Enum):
    """What broke. The value is the second half of the sentence that the caller reads."""

    UNRESOLVED = "its name does not resolve. Check the spelling of the host"
    UNREACHABLE = "it accepts no connection there. Check host and port, or try later"
    CONNECT_TIMEOUT = "no connection was made in time. Try later"
    UNTRUSTED = "its TLS certificate or handshake is not acceptable. Use a host with a valid certificate"
    BROKEN = "the connection broke before the answer was complete. Try again"
    SILENT = "it stopped sending. Try again, or with a larger timeoutMs"
    MALFORMED = "its answer is not valid HTTP/1.1. Use another service"
    CRUMBLED = "its answer comes in far more chunks, or far more framing, than it has content. Use another service"
    UNDECODABLE = "its answer is in a content encoding that was not asked for or is damaged. Use another service"


_KINDS = {
    Breakage.CONNECT_TIMEOUT: ErrorKind.HTTP_TIMEOUT,
    Breakage.SILENT: ErrorKind.HTTP_TIMEOUT,
    Breakage.MALFORMED: ErrorKind.UPSTREAM_ERROR,
    Breakage.CRUMBLED: ErrorKind.UPSTREAM_ERROR,
    Breakage.UNDECODABLE: ErrorKind.UPSTREAM_ERROR,
}
_BEFORE_SENDING = frozenset({Breakage.UNRESOLVED, Breakage.UNREACHABLE, Breakage.CONNECT_TIMEOUT})
_LASTING = frozenset({Breakage.UNTRUSTED, Breakage.MALFORMED, Breakage.CRUMBLED, Breakage.UNDECODABLE})

WIRE_ERRORS = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.RemoteProtocolError)
"""What httpcore raises when the network or the peer fails us; anything else that it raises is a fault of ours."""

_BREAKAGES: tuple[tuple[type[Exception], Breakage], ...] = (
    (httpcore.ConnectTimeout, Breakage.CONNECT_TIMEOUT),
    (httpcore.ConnectError, Breakage.UNREACHABLE),
    (httpcore.TimeoutException, Breakage.SILENT),
    (httpcore.NetworkError, Breakage.BROKEN),
    (httpcore.RemoteProtocolError, Breakage.MALFORMED),
)


class WireError(httpx.TransportError):
    """An exchange broke. What `GuardedTransport` raises, also to code that knows only httpx."""

    def __init__(self, breakage: Breakage, *, on_kept: bool = False) -> None:
        super().__init__(breakage.name)
        self.breakage = breakage
        self.on_kept = on_kept
        """Whether a connection kept from an earlier exchange ended unanswered: it may have been dead all the time."""

    @property
    def was_sent(self) -> bool:
        """Whether the peer may have got the request."""
        return self.breakage not in _BEFORE_SENDING and self.breakage is not Breakage.UNTRUSTED

    @property
    def clause(self) -> str:
        """What broke, without the advice to callers."""
        return self.breakage.value.partition(". ")[0]


def wire_error(error: Exception) -> WireError:
    """The breakage behind one of `WIRE_ERRORS`."""
    return WireError(next(breakage for kind, breakage in _BREAKAGES if isinstance(error, kind)))


def told(error: WireError, method: str, url: ParsedUrl, *, blames_upstream: bool) -> ToolFailure:
    """The failure as the caller hears it. Repeating is suggested only where nothing can have happened twice."""
    breakage = error.breakage
    repeatable = breakage in _BEFORE_SENDING or (method in REPEATABLE and breakage not in _LASTING)
    return refuse(
        _KINDS.get(breakage, ErrorKind.NETWORK_ERROR),
        f"{method} to {url.host} failed: {breakage.value}.",
        retryable=repeatable,
        blames_upstream=blames_upstream,
        host=url.host,
    )


def out_of_time(method: str, url: ParsedUrl, timeout_s: float, *, blames_upstream: bool) -> ToolFailure:
    """The whole exchange took longer than it was given."""
    return refuse(
        ErrorKind.HTTP_TIMEOUT,
        f"{method} to {url.host} did not finish within {timeout_s:.1f} s. "
        "Try again, with a larger timeoutMs or for less data.",
        retryable=method in REPEATABLE,
        blames_upstream=blames_upstream,
        host=url.host,
        timeout_ms=round(timeout_s * 1000),
    )
