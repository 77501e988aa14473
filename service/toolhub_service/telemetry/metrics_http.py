"""`GET /metrics` and `GET /healthz` on a port of their own: enough HTTP/1.1 for a scraper and a probe, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

_TIMEOUT_S: Final = 5.0
_HEAD_BYTES: Final = 8_192
_CONNECTIONS: Final = 32
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricsEndpoint:
    """One request a connection; slow, long and superfluous clients are cut off.

    A page in a browser reaches loopback by a name of its own that it has pointed there (DNS rebinding), and then says
    that name as Host: only addresses and known names are answered.
    """

    def __init__(
        self, exposition: Callable[[], bytes], healthy: Callable[[], bool], hosts: Collection[str] = ("localhost",)
    ) -> None:
        """`hosts`: names by which it may be asked, in lower case; `*`: any."""
        self._exposition = exposition
        self._hosts = frozenset(hosts)
        self._healthy = healthy
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; 0 lets the system choose one. Raises OSError when the port is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS:
                async with asyncio.timeout(_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(head))
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
            pass  # The client went away or sent something else than a short GET.
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"")
        if not all(map(self._answers_to, _hosts_of(head))):
            told = b"metrics.hosts (TOOLHUB_METRICS_HOSTS) does not name this host\n"
            return _response(HTTPStatus.MISDIRECTED_REQUEST, told)
        if path == b"/metrics":
            body = await asyncio.to_thread(self._exposition)  # Thousands of series take milliseconds to write down.
            return _response(HTTPStatus.OK, b"" if method == b"HEAD" else body)
        if path == b"/healthz":
            well = self._healthy()
            return _response(
                HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, b"ok\n" if well else b"not ready\n"
            )
        return _response(HTTPStatus.NOT_FOUND, b"")

    def _answers_to(self, host: str) -> bool:
        try:
            ip_address(host)
        except ValueError:
            return host in self._hosts or "*" in self._hosts
        return True


def _hosts_of(head: bytes) -> Iterator[str]:
    """What the request says it is for, without the port; nothing, as HTTP/1.0 may, is no browser's."""
    target, *fields = head.decode("latin-1").split("\r\n")
    names = [value for name, _, value in (field.partition(":") for field in fields) if name.strip().lower() == "host"]
    asked = target.partition(" ")[2]
    if "://" in asked.partition(" ")[0]:
        names.append(asked.partition("://")[2].partition("/")[0])
    for name in names:
        bare = name.strip().lower()
        yield bare.partition("]")[0][1:] if bare.startswith("[") else bare.partition(":")[0].rstrip(".")


def _response(status: HTTPStatus, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {_TEXT}\r\nContent-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
