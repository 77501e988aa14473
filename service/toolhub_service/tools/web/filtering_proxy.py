"""The browser's only access to the network: a forward proxy on loopback that checks each connection like the hub's own.

Plain HTTP is checked by URL and method, with one request per connection. A tunnel (CONNECT, RFC 9110 §9.3.6) hides its
content: it is checked as the root of its host, so that a rule with other paths opens none. Names are resolved here,
each address is checked, and the proxy connects to a checked address. A client without the password of this call is
refused.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.ports import Resolver
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.backend import resolve_checked
from toolhub_service.egress.breakage import Breakage, Repeat, WireError, failure_of
from toolhub_service.guards.accepting import BACKLOG, Accepted, Acceptor
from toolhub_service.guards.urls import CheckedUrl, check_url

USER: Final = "hub"
_HEAD_MAX_BYTES: Final = 64 * 1024
_HEAD_S: Final = 30.0
_CONNECT_S: Final = 10.0
_PIECE_BYTES: Final = 64 * 1024
_CONNECTIONS_MAX: Final = 256
_CARRIED_MAX: Final = 64
_REFUSALS_MAX: Final = 100
_NO_AUTHORITY: Final = frozenset("/?#@\\")
_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Headers of one connection only (RFC 9110 §7.6.1), or for the proxy itself.
_HOP_BY_HOP: Final = frozenset(
    "connection proxy-connection proxy-authorization keep-alive te trailer transfer-encoding upgrade host "
    "content-length expect".split()
)
_OF_CONNECTION: Final = frozenset({b"connection", b"proxy-connection", b"keep-alive"})
_INTERIM_MAX: Final = 16


class FilteringProxy:
    """The proxy of one call. `start`, then `close`."""

    def __init__(self, resolver: Resolver, egress: tuple[EgressRule, ...], *, max_bytes: int) -> None:
        """`max_bytes`: limit of all data received through it; then it carries no more."""
        # Any process of this machine can connect to a port on loopback; this proxy is for one browser only.
        self.password = secrets.token_urlsafe(24)
        self.failures: list[ToolFailure] = []
        """Why connections were not made, in order, at most a hundred."""
        self.is_exhausted = False
        """Whether `max_bytes` were carried."""
        self._resolver = resolver
        self._egress = egress
        self._left_bytes = max_bytes
        self._credentials = base64.b64encode(f"{USER}:{self.password}".encode())
        # A page may open any number of connections; more than these wait.
        self._places = asyncio.Semaphore(_CARRIED_MAX)
        self._acceptor: Acceptor | None = None

    async def start(self) -> str:
        """Start to listen and return the proxy's URL. Raises OSError."""
        bound = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._acceptor = Acceptor([bound], self._serve, max_connections=_CONNECTIONS_MAX, first_byte_s=_HEAD_S)
        self._acceptor.start()
        return f"http://127.0.0.1:{bound.getsockname()[1]}"

    async def close(self) -> None:
        """End every connection."""
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait()

    async def _serve(self, accepted: Accepted) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted.socket, limit=_HEAD_MAX_BYTES)
        try:
            await self._serve_connection(accepted, reader, writer)
        # The browser sees the end of its connection; the hub's refusal is already in `failures`.
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass
        finally:
            accepted.end()
            writer.transport.abort()

    async def _serve_connection(
        self, accepted: Accepted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one request, which ends the connection."""
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        fields = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        words = first.split(" ")
        if len(words) != 3:
            await _respond(writer, 400)
        elif not self._knows_password(fields):
            await _respond(writer, 407, 'Proxy-Authenticate: Basic realm="hub"\r\n')
        else:
            accepted.begin()  # from here on it is the browser's, and keeps its place
            async with self._places:
                await self._carry_out(words, fields, reader, writer)

    async def _carry_out(
        self,
        words: Sequence[str],
        fields: Sequence[tuple[str, str]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if words[0] == "CONNECT" and _NO_AUTHORITY.isdisjoint(words[1]):
            await self._tunnel(words[1], reader, writer)
        elif words[0] in _METHODS:
            await self._forward(words[0], words[1], fields, reader, writer)
        else:
            await _respond(writer, 405)

    def _knows_password(self, fields: Sequence[tuple[str, str]]) -> bool:
        given = next((value for name, value in fields if name == "proxy-authorization"), "")
        scheme, _, credentials = given.partition(" ")
        return scheme.lower() == "basic" and hmac.compare_digest(credentials.strip().encode(), self._credentials)

    async def _tunnel(self, authority: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The content of a tunnel is not visible (ws: uses one as well), so either scheme may allow it.
        upstream = await self._dial_first_allowed([f"https://{authority}/", f"http://{authority}/"], "GET")
        if upstream is None:
            await _respond(writer, 403)
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self._relay((reader, writer), upstream)

    async def _forward(
        self,
        method: str,
        target: str,
        fields: Sequence[tuple[str, str]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        url = self._check_or_note(target, method)
        upstream = await self._connect(url) if url is not None and url.scheme == "http" else None
        if url is None or upstream is None:
            await _respond(writer, 403)
            return
        # Host is rewritten from the checked URL, so that no other one reaches a server of many names.
        kept = "".join(f"{name}: {value}\r\n" for name, value in fields if name not in _HOP_BY_HOP)
        request = f"{method} {url.target} HTTP/1.1\r\nhost: {url.authority}\r\n{kept}connection: close\r\n\r\n"
        upstream[1].write(request.encode("latin-1"))
        try:
            async with asyncio.timeout(_HEAD_S):
                writer.write(await _answer_head(upstream[0]))
        except (ValueError, OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            upstream[1].transport.abort()
            await _respond(writer, 502)
            return
        await self._relay((reader, writer), upstream, answers_only=True)

    # Checking and connecting.

    async def _dial_first_allowed(
        self, urls: Sequence[str], method: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return a connection for the first allowed URL; None when none is allowed, or no connection can be made."""
        before = len(self.failures)
        for written in urls:
            if (url := self._check_or_note(written, method)) is not None:
                # The refusal of the first scheme does not count where the second is allowed.
                del self.failures[before:]
                return await self._connect(url)
        return None

    def _check_or_note(self, url: str, method: str) -> CheckedUrl | None:
        try:
            return check_url(url, method, self._egress)
        except ToolFailure as failure:
            self._note(failure)
            return None

    async def _connect(self, url: CheckedUrl) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                for address in await resolve_checked(self._resolver, url.host, url.port, url.networks):
                    with suppress(OSError):  # the next address may answer; if none does, that is noted below
                        return await asyncio.open_connection(address, url.port, limit=_HEAD_MAX_BYTES)
            error = WireError(Breakage.UNREACHABLE)
        except TimeoutError:
            error = WireError(Breakage.CONNECT_TIMEOUT)
        except WireError as unresolved:
            error = unresolved
        except ToolFailure as failure:
            self._note(failure)
            return None
        self._note(failure_of(error, "GET", url, Repeat.READS, may_have_acted=False, blames_upstream=True))
        return None

    def _note(self, failure: ToolFailure) -> None:
        if len(self.failures) < _REFUSALS_MAX:
            self.failures.append(failure)

    # Carrying.

    async def _relay(
        self,
        browser: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        answers_only: bool = False,
    ) -> None:
        """Relay both ways until either side ends; `answers_only`: further data of the browser is dropped."""
        try:
            asks = self._end_of(browser[0]) if answers_only else self._carry(browser[0], upstream[1], counts=False)
            answers = self._carry(upstream[0], browser[1], counts=True)
            directions = [asyncio.ensure_future(answers), asyncio.ensure_future(asks)]
            try:
                # When either end closes, both are closed: a half-open tunnel would occupy its place for as long as the
                # browser lives.
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for direction in directions:
                    direction.cancel()
                await asyncio.wait(directions)
            with suppress(OSError):  # the browser was faster
                browser[1].write_eof()
                await browser[1].drain()
        finally:
            upstream[1].transport.abort()

    async def _end_of(self, source: asyncio.StreamReader) -> None:
        """Wait until the browser closes: it does once it has its answer, also where the server does not."""
        with suppress(OSError):  # a reset is an end too
            while await source.read(_PIECE_BYTES):
                continue

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counts: bool) -> None:
        with suppress(OSError):  # either side's reset ends the relay, as its end does
            while piece := await source.read(_PIECE_BYTES):
                if counts:
                    # One budget for all connections: a page may split its downloads over many.
                    self._left_bytes -= len(piece)
                    if self._left_bytes < 0:
                        self.is_exhausted = True
                        return
                sink.write(piece)
                await sink.drain()


async def _answer_head(upstream: asyncio.StreamReader) -> bytes:
    """Return the head of the final answer, which declares that the connection ends with it: no other request is read
    from it, whatever the server declares. Raises ValueError for an invalid answer."""
    for _ in range(_INTERIM_MAX):
        head = await upstream.readuntil(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")[:-2]
        if not first.startswith(b"HTTP/1."):
            raise ValueError(first[:20])
        # Interim answers (100, 103) are dropped: the browser asked for none, and the final one follows.
        if first[9:10] != b"1":
            kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _OF_CONNECTION]
            return b"\r\n".join((first, *kept, b"Connection: close", b"", b""))
    raise ValueError("no final answer")


async def _respond(writer: asyncio.StreamWriter, status: int, more: str = "") -> None:
    writer.write(f"HTTP/1.1 {status} Refused\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()
    writer.write_eof()
