"""Answers from the network: bodies decoded and read within limits, and how an exchange can break."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final

import httpcore
import httpx

from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.errors.failure import KEY_SENT, NOTHING_HAPPENED, WAS_SENT, ErrorKind, ToolFailure, refuse
from toolhub_service.guards.urls import ParsedUrl
from toolhub_service.schema.repaired_json import Repaired, loads_repaired
from toolhub_service.schema.strict_json import MAX_DEPTH, Structure, bound_structure, has_little, lexical_depth

# How an exchange can break; `failure_of` converts it for the caller.

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


# A body is decoded by at most one layer of gzip and cut at a number of bytes. `zlib.decompressobj` decompresses gzip
# with a maximum output per step (a 494-byte body can hold 200 MB); a second layer, or any other encoding, is refused.
# Between steps that need no new input other tasks run, so deadlines hold (RFC 1952, RFC 9110 section 8.4).

STEP_MAX_BYTES = 256 * 1024
_GZIP = 31  # window size 2**15, gzip header required
_MEMBERS_MAX = 64

Pull = Callable[[], Awaitable[bytes]]
"""Returns the next bytes as they were sent; empty at the end."""


def decoder_of(encoding: str, pull: Pull) -> Pull:
    """Return a decoder for the Content-Encoding. Raises WireError UNDECODABLE for any but gzip and identity, or for
    two."""
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return pull
    if name in {"gzip", "x-gzip"}:
        return _Gunzip(pull).next_piece
    raise WireError(Breakage.UNDECODABLE)


class BoundedBody:
    """At most `max_bytes` of a decoded body."""

    def __init__(self, pull: Pull, max_bytes: int) -> None:
        self._pull = pull
        self._left_bytes = max_bytes
        self.is_cut = False
        """Whether there was more."""

    async def next_piece(self) -> bytes:
        """Return the next bytes; empty at the end or at the limit."""
        if self.is_cut:
            return b""
        piece = await self._pull()
        if len(piece) > self._left_bytes:
            self.is_cut = True
            piece = piece[: self._left_bytes]
        self._left_bytes -= len(piece)
        return piece

    async def whole(self) -> bytes:
        """Return all that is left."""
        pieces = []
        while piece := await self.next_piece():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Gunzip:
    """Decompresses step by step; several members are one body (RFC 1952 §2.2), anything after them is ignored."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self._inflater = zlib.decompressobj(_GZIP)
        self._input = b""
        self._has_more_output = False
        self._has_begun = False
        self._is_over = False
        self._members = 1

    async def next_piece(self) -> bytes:
        while not self._is_over:
            if not self._input and not self._has_more_output:
                self._input = await self._pull()
                if not self._input:
                    return self._end()
                self._has_begun = True
            else:
                await asyncio.sleep(0)
            if piece := self._step():
                return piece
        return b""

    def _step(self) -> bytes:
        try:
            piece = self._inflater.decompress(self._input, STEP_MAX_BYTES)
        except zlib.error:
            raise WireError(Breakage.UNDECODABLE) from None
        self._input = self._inflater.unconsumed_tail
        # After a full step the decompressor may hold more output although its input is used up.
        self._has_more_output = len(piece) == STEP_MAX_BYTES
        if self._inflater.eof:
            self._next_member(self._inflater.unused_data)
        return piece

    def _next_member(self, rest: bytes) -> None:
        self._has_more_output = False
        # The first byte of gzip's magic number; padding after the last member is zeros.
        if rest.startswith(b"\x1f"):
            self._members += 1
            if self._members > _MEMBERS_MAX:
                raise WireError(Breakage.UNDECODABLE)
            self._inflater, self._input = zlib.decompressobj(_GZIP), rest
        else:
            self._is_over = True

    def _end(self) -> bytes:
        self._is_over = True
        if self._has_begun and not self._inflater.eof:
            raise WireError(Breakage.UNDECODABLE)
        return b""


# JSON from an upstream, parsed in a thread where it is large; what strict parsers refuse is repaired where that is
# possible.
#
# A parser holds the interpreter while it makes its objects, so a limit on bytes alone does not help: structure is
# counted first (schema/strict_json.py). A large value is parsed in a thread that often yields to the event loop, one at
# a time in the process, because small values take twenty times the memory of their text.

MOST: Final = Structure(containers=250_000, members=300_000, separators=1_500_000)
"""Per body: a parser takes less than a tenth of a second for it. Four megabytes of records or coordinates have less."""
AT_ONCE_BYTES: Final = 32 * 1024
"""Parsed at once, whatever it holds."""
LIGHT_BYTES: Final = 1024 * 1024
"""Parsed at once if it holds few values."""


class JsonBodies:
    """Parser for one event loop, which parses large bodies one after another."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def read(self, data: bytes, *, max_depth: int = MAX_DEPTH) -> Repaired:
        """Return the value, and what was repaired in its text. Raises ToolFailure INVALID_INPUT for what is no JSON at
        all, too deep a value, or too many values."""
        if not is_large(data):
            return loads_repaired(data, max_bytes=len(data), max_depth=max_depth)
        async with self._reading:
            return await in_thread(_read, data, max_depth)


def is_large(data: bytes) -> bool:
    """Return whether parsing it, or processing the value, would block the event loop."""
    return len(data) > AT_ONCE_BYTES and (len(data) > LIGHT_BYTES or not has_little(data))


def _read(data: bytes, max_depth: int) -> Repaired:
    bound_structure(data, MOST)
    if lexical_depth(data, max_depth) > max_depth:
        raise refuse(ErrorKind.INVALID_INPUT, f"The JSON is nested deeper than {max_depth} levels.", reason="too_deep")
    return loads_repaired(data, max_bytes=len(data), max_depth=max_depth)
