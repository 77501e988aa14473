"""How an exchange with an upstream can break, and which failure its caller gets then (`failure_of`)."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import httpcore
import httpx

from toolhub_service.domain.errors.failure import KEY_SENT, NOTHING_HAPPENED, WAS_SENT, ErrorKind, ToolFailure, refuse
from toolhub_service.guards.urls import ParsedUrl

REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods after which a broken exchange may be repeated without asking (RFC 9110 §9.2.1)."""


class Breakage(Enum):
    """What broke. The value is the second half of the caller's error message."""

    UNRESOLVED = "its name does not resolve. Check the spelling of the host"
    UNREACHABLE = "it refuses the connection. Check host and port, or try later"
    CONNECT_TIMEOUT = "no connection was made in time. Try later"
    UNTRUSTED = "its TLS certificate or handshake is invalid. Use a host with a valid certificate"
    BROKEN = "the connection broke before the answer was complete. Try again"
    SILENT = "it stopped sending. Try again, or with a larger timeoutMs"
    MALFORMED = "its response is not valid HTTP/1.1. Use another service"
    CRUMBLED = "its response has far more framing or chunks than content. Use another service"
    UNDECODABLE = "its response has a content encoding that was not requested or is damaged. Use another service"


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
"""What httpcore raises for failures of the network or the peer; any other exception is a defect of the hub."""

_BREAKAGES: tuple[tuple[type[Exception], Breakage], ...] = (
    (httpcore.ConnectTimeout, Breakage.CONNECT_TIMEOUT),
    (httpcore.ConnectError, Breakage.UNREACHABLE),
    (httpcore.TimeoutException, Breakage.SILENT),
    (httpcore.NetworkError, Breakage.BROKEN),
    (httpcore.RemoteProtocolError, Breakage.MALFORMED),
)


class WireError(httpx.TransportError):
    """An exchange broke. `GuardedTransport` raises it, also to code that knows only httpx."""

    def __init__(self, breakage: Breakage, *, on_kept: bool = False) -> None:
        super().__init__(breakage.name)
        self.breakage = breakage
        self.on_kept = on_kept
        """Whether a connection kept from an earlier exchange ended without an answer: it may already have been dead."""

    @property
    def was_sent(self) -> bool:
        """Return whether the peer may have received the request."""
        return self.breakage not in _BEFORE_SENDING and self.breakage is not Breakage.UNTRUSTED

    @property
    def clause(self) -> str:
        """Return what broke, without the advice to callers."""
        return self.breakage.value.partition(". ")[0]


def wire_error(error: Exception) -> WireError:
    """Return the breakage behind one of `WIRE_ERRORS`."""
    return WireError(next(breakage for kind, breakage in _BREAKAGES if isinstance(error, kind)))


class Repeat(Enum):
    """Whether an exchange, with all requests of its redirects, may be repeated."""

    NEVER = "never"
    READS = "reads"
    """It changes nothing."""
    KEYED = "keyed"
    """It changes something at most once: the hosts got the call's idempotency key, and honour it according to
    policy."""

    @property
    def facts(self) -> dict[str, Any]:
        """Return the facts for the details of a failure."""
        return {KEY_SENT: True} if self is Repeat.KEYED else {}


class Delivery:
    """How far one exchange came: the transport notes when it begins to write the request."""

    __slots__ = ("was_sent",)

    def __init__(self) -> None:
        self.was_sent = False
        """Whether the peer may have received the request, or a part of it."""


CHECK_EFFECT: Final = "It may have had its effect: check that before you send it again."


def failure_of(
    error: WireError, method: str, url: ParsedUrl, repeat: Repeat, *, may_have_acted: bool, blames_upstream: bool
) -> ToolFailure:
    """Return the failure for the caller. It suggests a repeat only where nothing can have happened twice.
    `may_have_acted`: whether a peer may have received a request that can have an effect."""
    breakage = error.breakage
    if may_have_acted:
        message = f"{method} to {url.host} was sent, and {error.clause}. {CHECK_EFFECT}"
        repeatable = repeat is Repeat.KEYED and breakage not in _LASTING
    else:
        message = f"{method} to {url.host} failed: {breakage.value}."
        repeatable = breakage not in _LASTING
    return refuse(
        _KINDS.get(breakage, ErrorKind.NETWORK_ERROR),
        message,
        retryable=repeatable,
        blames_upstream=blames_upstream,
        host=url.host,
        **_effect_facts(repeat, may_have_acted=may_have_acted),
    )


def out_of_time(
    method: str, url: ParsedUrl, timeout_s: float, repeat: Repeat, *, may_have_acted: bool, blames_upstream: bool
) -> ToolFailure:
    """The whole exchange exceeded its time limit. `may_have_acted`: as above."""
    advice = CHECK_EFFECT if may_have_acted else "Try again, with a larger timeoutMs or for less data."
    return refuse(
        ErrorKind.HTTP_TIMEOUT,
        f"{method} to {url.host} did not finish within {timeout_s:.1f} s. {advice}",
        retryable=repeat is Repeat.KEYED or not may_have_acted,
        blames_upstream=blames_upstream,
        host=url.host,
        timeout_ms=round(timeout_s * 1000),
        **_effect_facts(repeat, may_have_acted=may_have_acted),
    )


def _effect_facts(repeat: Repeat, *, may_have_acted: bool) -> dict[str, Any]:
    if repeat is Repeat.READS:
        return {}
    return {**repeat.facts, (WAS_SENT if may_have_acted else NOTHING_HAPPENED): True}
