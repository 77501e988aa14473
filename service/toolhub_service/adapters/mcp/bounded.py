"""What goes to an MCP server over HTTP and comes back, judged and bounded.

Only the origins of the source are dialled. A response that is not an event stream is read here, at most
`max_message_bytes` of it after inflation; of an event stream each event is bounded so.
Whatever breaks becomes a response with a JSON-RPC error (`Breakage`): raised, it would end the task group of the
SDK's transport and with it every other call of the connection (python-sdk #3560). Cookies are dropped.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import httpx2
import orjson

from toolhub_service.adapters.mcp.failures import Breakage, error_of
from toolhub_service.adapters.mcp.lines import counted
from toolhub_service.registry.cooperative import run_in_slices
from toolhub_service.tools.egress.wire import BoundedBody, Pull, WireError, decoder_of

# In 2025-11-25 a cancellation is a message of its own (`notifications/cancelled`), and the SDK leaves the cancelled
# request's POST open until the server answers it. With a server that never does, every call that ends at its deadline
# would leave a socket and a task behind; so a request that is cancelled is abandoned here.

Answer = TypeVar("Answer")

_ID: Final = rb'(\d{1,18}|"[^"\\]{1,64}")'
_REQUEST: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":' + _ID + rb',"method":')
_CANCELLATION: Final = re.compile(
    rb'\{"jsonrpc":"2\.0","method":"notifications/cancelled","params":\{"requestId":' + _ID
)
"""As the SDK writes them; what is written in another way is not given up."""


class GivenUp(Exception):
    """Nobody waits for the answer any more."""


class Request:
    """One request, until its answer has been read."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None
        self._is_over = False

    async def wait(self, part: Awaitable[Answer]) -> Answer:
        """A part of its way. Raises GivenUp."""
        try:
            async with asyncio.timeout(0 if self._is_over else None) as self._scope:
                return await part
        except TimeoutError:
            if self._is_over:
                raise GivenUp from None
            raise
        finally:
            self._scope = None

    def give_up(self) -> None:
        self._is_over = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())


class InFlight:
    """Those of one connection."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, Request] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, content: bytes) -> tuple[bytes, Request]:
        """What is sent; `end` takes the key back."""
        found = _REQUEST.match(content)
        key, flight = found[1] if found else b"", Request()
        if key:
            self._under_way[key] = flight
        return key, flight

    def end(self, key: bytes, flight: Request) -> None:
        if self._under_way.get(key) is flight:
            del self._under_way[key]

    def heed(self, content: bytes) -> None:
        """Give up what this message, which was sent, cancels."""
        found = _CANCELLATION.match(content)
        flight = self._under_way.get(found[1]) if found else None
        if flight is not None:
            flight.give_up()


_SESSION = "mcp-session-id"
_PRIMARY = b"connection", b"content-encoding", b"content-length", b"set-cookie", b"set-cookie2", b"transfer-encoding"
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_SHORT = httpx2.Timeout(2.0).as_dict()
"""For what is sent out of politeness: a notification holds up every later request of the connection (the SDK posts it
in its writing loop), and the end of a session the end of the connection."""
_NOTIFIES = re.compile(rb'\{\s*"jsonrpc":\s*"2\.0",\s*"method":\s*"notifications/|\{\s*"method":\s*"notifications/')
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_END_MAX_BYTES = 3
"""Of an end of an event that stand before the piece that completes it."""


def origin_of(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Never raises for what the network or the server does."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        origins: frozenset[tuple[str, str, int]],
        max_message_bytes: int,
        on_lost: Callable[[str], None],
    ) -> None:
        self._inner = inner
        self._origins = origins
        self._max_message_bytes = max_message_bytes
        self._on_lost = on_lost
        self._flights = InFlight()
        self.trouble = ""
        """What broke last on the way, for people; empty when nothing has."""
        self.was_away = False
        """Whether a request could not be sent at all."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if origin_of(request.url) not in self._origins:
            return self._broken(Breakage.REFUSED, 403)
        content = await request.aread()
        if request.method == "DELETE" or _NOTIFIES.match(content):
            request.extensions = {**request.extensions, "timeout": _SHORT}
        key, flight = self._flights.begin(content)
        is_streaming = False
        try:
            response = await self._answered(request, flight)
            if isinstance(response.stream, _Events):
                response.stream.on_close = partial(self._flights.end, key, flight)
                is_streaming = True
            return response
        except GivenUp:
            return self._broken(Breakage.LOST, 502)
        finally:
            self._flights.heed(content)
            if not is_streaming:
                self._flights.end(key, flight)

    async def _answered(self, request: httpx2.Request, flight: Request) -> httpx2.Response:
        """Raises GivenUp."""
        try:
            response = await flight.wait(self._inner.handle_async_request(request))
        except _NOT_SENT as error:
            if isinstance(error, httpx2.PoolTimeout):
                self._on_lost("All its connections are taken.")
            self.was_away = True
            return self._broken(Breakage.NOT_SENT, 503, _trouble_of(error))
        except httpx2.TransportError:
            return self._broken(Breakage.LOST, 502)
        return await self._judged(request, response, flight)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _judged(self, request: httpx2.Request, response: httpx2.Response, flight: Request) -> httpx2.Response:
        try:
            pull = decoder_of(response.headers.get("content-encoding", ""), _pieces_of(response))
        except WireError:
            await response.aclose()
            return self._broken(Breakage.UNDECODABLE, 502)
        if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            return _rebuilt(response, stream=_Events(pull, response, self._max_message_bytes, flight))
        return await flight.wait(self._read(request, response, pull))

    async def _read(self, request: httpx2.Request, response: httpx2.Response, pull: Pull) -> httpx2.Response:
        body = BoundedBody(pull, self._max_message_bytes)
        try:
            content = await body.whole()
        except httpx2.TransportError:
            return self._broken(Breakage.LOST, 502)
        except WireError:
            return self._broken(Breakage.UNDECODABLE, 502)
        finally:
            await response.aclose()
        if body.is_cut or await run_in_slices(counted(content)):
            return self._broken(Breakage.TOO_LARGE, 502)
        if response.has_redirect_location and not self._leads_on(request, response):
            return self._broken(Breakage.REFUSED, 403)
        if _SESSION in request.headers and _knows_no_session(response.status_code, content):
            self._on_lost(Breakage.NO_SESSION.value)
            return self._broken(Breakage.NO_SESSION, 404)
        broken = _breakage_of_status(response.status_code)
        if broken is not None and not _is_jsonrpc_error(content):
            content = self._content(broken)
            response.headers["content-type"] = "application/json"
        return _rebuilt(response, content=content)

    def _leads_on(self, request: httpx2.Request, response: httpx2.Response) -> bool:
        try:
            return origin_of(request.url.join(response.headers["location"])) in self._origins
        except httpx2.InvalidURL:
            return False

    def _broken(self, breakage: Breakage, status: int, trouble: str = "") -> httpx2.Response:
        content = self._content(breakage, trouble)
        return httpx2.Response(status, headers={"content-type": "application/json"}, content=content)

    def _content(self, breakage: Breakage, trouble: str = "") -> bytes:
        self.trouble = trouble or breakage.value
        return _message(breakage)


class _Events(httpx2.AsyncByteStream):
    """An event stream, inflated in bounded steps, whole events at a time.

    An event that is too large, or cannot be inflated, becomes one that fails the request that the stream answers (the
    SDK puts the request's id into it), and the last one.
    """

    def __init__(self, pull: Pull, response: httpx2.Response, max_event_bytes: int, flight: Request) -> None:
        self._pull = pull
        self._flight = flight
        self._response = response
        self.on_close: Callable[[], None] = _nothing
        self._max_event_bytes = max_event_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = bytearray()
        try:
            while piece := await self._flight.wait(self._pull()):
                seen = max(0, len(held) - _END_MAX_BYTES)
                held += piece
                if end := _end_of_events(held, seen):
                    events = bytes(held[:end])
                    del held[:end]
                    if await run_in_slices(counted(events)):
                        yield _failing_event(Breakage.TOO_LARGE)
                        return
                    yield events
                if len(held) > self._max_event_bytes:
                    yield _failing_event(Breakage.TOO_LARGE)
                    return
            if not await run_in_slices(counted(bytes(held))):
                yield bytes(held)
        except WireError:
            yield _failing_event(Breakage.UNDECODABLE)
        except GivenUp:
            yield _failing_event(Breakage.LOST)

    async def aclose(self) -> None:
        self.on_close()
        await self._response.aclose()


def _nothing() -> None:
    """There is nothing to do."""


def _end_of_events(held: bytearray, start: int) -> int:
    """Where the last whole event ends, looked for from `start`; 0 when there is no end."""
    found = ((held.rfind(end, start), len(end)) for end in _ENDS)
    return max(at + length if at >= 0 else 0 for at, length in found)


def _failing_event(breakage: Breakage) -> bytes:
    return b"event: message\ndata: " + _message(breakage) + b"\n\n"


def _message(breakage: Breakage) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error_of(breakage)})


def _pieces_of(response: httpx2.Response) -> Pull:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    pieces = aiter(response.stream)

    async def pull() -> bytes:
        return await anext(pieces, b"")

    return pull


def _rebuilt(
    response: httpx2.Response, *, content: bytes | None = None, stream: httpx2.AsyncByteStream | None = None
) -> httpx2.Response:
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _PRIMARY]
    return httpx2.Response(response.status_code, headers=headers, content=content, stream=stream)


def _knows_no_session(status: int, content: bytes) -> bool:
    """404 as the specification has it; TypeScript servers answer 400 and say so in words."""
    return status == 404 or (status == 400 and b"session" in content[:1_000].lower())


def _breakage_of_status(status: int) -> Breakage | None:
    if status in {401, 403}:
        return Breakage.UNAUTHORIZED
    if status == 429:
        return Breakage.BUSY
    return Breakage.STATUS if status >= 500 else None


def _is_jsonrpc_error(content: bytes) -> bool:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    return isinstance(body, dict) and "jsonrpc" in body and isinstance(body.get("error"), dict)


def _trouble_of(error: BaseException) -> str:
    """Why a connection could not be made, from the exceptions behind it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "Its host name does not resolve."
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "Its certificate is not trusted."
        if isinstance(cause, ssl.SSLError):
            return "TLS with it failed; it may ask for a client certificate."
        if isinstance(cause, ConnectionRefusedError):
            return "It refuses connections: nothing listens there."
        cause = cause.__cause__ or cause.__context__
    return Breakage.NOT_SENT.value
