"""What goes to an MCP server over HTTP and comes back, judged and bounded.

Only the origins of the source are dialled. A response that is not an event stream is read here, at most
`max_message_bytes` of it after inflation; an event stream is inflated in bounded steps (the SDK bounds each event).
Whatever breaks becomes a response with a JSON-RPC error (breakage.py): raised, it would end the task group of the
SDK's transport and with it every other call of the connection (python-sdk #3560). Cookies are dropped.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable

import httpx2
import orjson

from toolhub_service.adapters.mcp.breakage import Breakage, error_of
from toolhub_service.tools.egress.body import BoundedBody, Pull, decoder_of
from toolhub_service.tools.egress.breakage import WireError

_SESSION = "mcp-session-id"
_PRIMARY = b"connection", b"content-encoding", b"content-length", b"set-cookie", b"set-cookie2", b"transfer-encoding"
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_DELETE_S = 2.0


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
        self.trouble = ""
        """What broke last on the way, for people; empty when nothing has."""
        self.was_away = False
        """Whether a request could not be sent at all."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if origin_of(request.url) not in self._origins:
            return self._broken(Breakage.REFUSED, 403)
        if request.method == "DELETE":
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(_DELETE_S).as_dict()}
        try:
            response = await self._inner.handle_async_request(request)
        except _NOT_SENT as error:
            if isinstance(error, httpx2.PoolTimeout):
                # Requests that were cancelled in the older era stay open until the server answers them.
                self._on_lost("All its connections are taken.")
            self.was_away = True
            return self._broken(Breakage.NOT_SENT, 503, _trouble_of(error))
        except httpx2.TransportError:
            return self._broken(Breakage.LOST, 502)
        return await self._judged(request, response)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _judged(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if response.status_code == 404 and _SESSION in request.headers:
            self._on_lost("The server does not know the session any more.")
        try:
            pull = decoder_of(response.headers.get("content-encoding", ""), _pieces_of(response))
        except WireError:
            await response.aclose()
            return self._broken(Breakage.UNDECODABLE, 502)
        if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            return _rebuilt(response, stream=_Events(pull, response))
        return await self._read(request, response, pull)

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
        if body.is_cut:
            return self._broken(Breakage.TOO_LARGE, 502)
        if response.has_redirect_location and not self._leads_on(request, response):
            return self._broken(Breakage.REFUSED, 403)
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
        return orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error_of(breakage)})


class _Events(httpx2.AsyncByteStream):
    """An event stream, inflated in bounded steps."""

    def __init__(self, pull: Pull, response: httpx2.Response) -> None:
        self._pull = pull
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self._pull():
                yield piece
        except WireError:
            raise httpx2.ReadError(Breakage.UNDECODABLE.value) from None

    async def aclose(self) -> None:
        await self._response.aclose()


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
